"""Two small trained models of which is known where they must look: GradCAM and Attention find it.

The bounds leave room for arithmetic of other machines: over 35 seeds, the least were 0.79 of the map on the square, 0.64
of the weight on the word, and 0.93 of the sentences with most of it there.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tdbg.debuggers import Attention, GradCAM
from tests.debuggers import png

SIDE, SQUARE = 16, 5
TOKENS, WORDS, CLASSES = 10, 12, 4


class Net(nn.Module):
    """Strided convolutions, pooled over all places: it knows the pattern, not the place."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, padding=1, stride=2),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(16, 2)

    def forward(self, x_BCHW):
        return self.head(self.body(x_BCHW).mean((2, 3)))


def draw_pictures(count):
    """Noise, with a square of stripes somewhere: lying ones are class 0, standing ones class 1.

    Returns the pictures, the classes, and masks of where the squares are (BHW).
    """
    x_BCHW, y_B = 0.3 * torch.randn(count, 1, SIDE, SIDE), torch.randint(0, 2, (count,))
    place_BHW = torch.zeros(count, SIDE, SIDE, dtype=torch.bool)
    stripes = (torch.arange(SQUARE) % 2 * 4.0 - 2.0)[:, None].expand(SQUARE, SQUARE)
    for row in range(count):
        top, left = torch.randint(0, SIDE - SQUARE, (2,)).tolist()
        square = stripes if y_B[row] == 0 else stripes.t()
        x_BCHW[row, 0, top : top + SQUARE, left : left + SQUARE] += square
        place_BHW[row, top : top + SQUARE, left : left + SQUARE] = True
    return x_BCHW, y_B, place_BHW


class Reader(nn.Module):
    """One attention layer; the first token asks, and answers."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS + CLASSES, 32), nn.Parameter(0.02 * torch.randn(TOKENS, 32))
        self.attn, self.head = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, CLASSES)

    def forward(self, ids_BT):
        x_BTC = self.words(ids_BT) + self.places
        out_BTC, _ = self.attn(x_BTC, x_BTC, x_BTC, need_weights=False)
        return self.head(out_BTC[:, 0])


def draw_sentences(count):
    """Words, and at one place, not the first, a word that says the class. Returns ids, classes, and the place."""
    ids_BT = torch.randint(0, WORDS, (count, TOKENS))
    place_B, y_B = torch.randint(1, TOKENS, (count,)), torch.randint(0, CLASSES, (count,))
    ids_BT[torch.arange(count), place_B] = WORDS + y_B
    return ids_BT, y_B, place_B


def train_model(model, data, steps, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x, y_B, _ = data(64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y_B).backward()
        optimizer.step()
    model.eval()
    x, y_B, place = data(256)
    with torch.no_grad():
        assert (model(x).argmax(1) == y_B).float().mean() > 0.97
    return model, x, y_B, place


@pytest.fixture
def single_thread():
    """One thread: nothing here is large."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_gradcam_finds_the_square(single_thread, tmp_path):
    model, x_BCHW, y_B, place_BHW = train_model(Net(), draw_pictures, 120, 0.01)
    with torch.inference_mode():
        found = GradCAM("body")({"inputs": x_BCHW, "labels": y_B}, model)
    assert (found["target_class"] == y_B).float().mean() > 0.97
    map_BHW = F.interpolate(found["gradcam"][:, None], size=(SIDE, SIDE), mode="bilinear")[:, 0]
    # the receptive field reaches over the square's edge
    near_BHW = F.max_pool2d(place_BHW.float()[:, None], 5, 1, 2)[:, 0].bool()
    share_B = (map_BHW * near_BHW).sum((1, 2)) / map_BHW.sum((1, 2))
    area = near_BHW.float().mean().item()
    png.write_png(tmp_path / "picture.png", x_BCHW[0, 0])
    png.write_png(tmp_path / "gradcam.png", map_BHW[0])
    assert share_B.mean() > 0.7 > 2 * area, (share_B.mean(), area)
    hits = place_BHW.flatten(1).gather(1, map_BHW.flatten(1).argmax(1, keepdim=True)).float().mean()
    assert hits > 0.9, "the brightest place lies on the square"


def test_gradcam_of_another_class_is_another_map(single_thread):
    model, x_BCHW, y_B, place_BHW = train_model(Net(), draw_pictures, 120, 0.01)
    right = GradCAM("body", y_B)({"inputs": x_BCHW}, model)["gradcam"]
    wrong = GradCAM("body", 1 - y_B)({"inputs": x_BCHW}, model)["gradcam"]
    here = F.max_pool2d(place_BHW.float()[:, None], 2)[:, 0]
    assert (right * here).sum() > 4 * (wrong * here).sum(), "the square speaks against it"


def test_attention_looks_at_the_word_that_decides(single_thread, tmp_path):
    model, ids_BT, _, place_B = train_model(Reader(), draw_sentences, 150, 0.01)
    debugger = Attention("attn")
    with debugger.attach(model), torch.no_grad():
        model(ids_BT)
        weights_BLS = debugger({}, model)["attention_map"]
    asked_BS = weights_BLS[:, 0]
    png.write_png(tmp_path / "attention.png", weights_BLS[0])
    assert asked_BS.gather(1, place_B[:, None]).mean() > 0.5, "both heads together; without looking it would be 0.1"
    assert (asked_BS.argmax(1) == place_B).float().mean() > 0.85
