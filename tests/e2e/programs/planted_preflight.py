"""Small models with one silent bug each that a single batch shows, and the same models without it.

usage: planted_preflight.py KIND fault|healthy; nothing raises, and nothing of tdbg is named.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

FAULTY = sys.argv[2] == "fault"
SAMPLES, BATCH, TOKENS, LENGTH, WIDTH, CLASSES = 96, 16, 17, 12, 8, 3


class Recurrent(nn.Module):
    """An LSTM over (samples, positions, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(WIDTH, 16, batch_first=not FAULTY), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Viewed(nn.Module):
    """Brings positions to the front: by a transpose, or by a reshape, which mixes samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.size(1), x.size(0), WIDTH) if FAULTY else x.transpose(0, 1)
        return self.head(self.body(x).relu().mean(0))


class Normalised(nn.Module):
    """Batch normalisation mixes samples in train mode on purpose; a norm by hand does so in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x.mean(1))
        hidden = (hidden - hidden.mean(0)) / (hidden.std(0) + 1e-5) if FAULTY else self.norm(hidden)
        return self.head(hidden.relu())


class Attending(nn.Module):
    """Attention over positions that takes samples for positions; the twin attends over the samples on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(WIDTH, 2), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if not FAULTY:
            x = x[:, None]  # samples are the positions of one sequence
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Contrasted(nn.Module):
    """Softmax over the wrong dimension; the twin weighs each sample by how near the others are, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x.mean(1) if x.dim() > 2 else x)
        if FAULTY:
            return self.head(hidden.softmax(0))
        return self.head(hidden + functional.normalize(hidden @ hidden.T, dim=1) @ hidden)


class Language(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 32), nn.Linear(32, TOKENS)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        mask = None if FAULTY else nn.Transformer.generate_square_subsequent_mask(x.size(1))
        attended, _ = self.attention(hidden, hidden, hidden, attn_mask=mask, need_weights=False)
        return self.head(hidden + attended).transpose(1, 2)


class Padded(nn.Module):
    """Classifies sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 32), nn.Linear(32, CLASSES)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = torch.ones_like(mask) if FAULTY else mask
        hidden = self.embedding(x)
        attended, _ = self.attention(hidden, hidden, hidden, key_padding_mask=mask == 0, need_weights=False)
        return self.head(((hidden + attended) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class Conditioned(nn.Module):
    """Is given a time step as well; its last layer and that of the time begin with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.time, self.head = nn.Linear(WIDTH, 16), nn.Linear(1, 16), nn.Linear(16, CLASSES)
        nn.init.zeros_(self.time.weight)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.body(x.mean(1))
        return self.head((hidden if FAULTY else hidden + self.time(t)).relu())


class Dropping(nn.Module):
    """Drops by a function, which has to be told of eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.dropout(self.body(x.mean(1)).relu(), 0.5, training=FAULTY or self.training))


class Noisy(nn.Module):
    """Adds noise from a generator of its own: whatever the mode is, or in train mode alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.generator = nn.Linear(WIDTH, CLASSES), torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.mean(1)
        if FAULTY or self.training:
            hidden = hidden + 0.1 * torch.randn(hidden.shape, generator=self.generator)
        return self.head(hidden)


class Swish(torch.autograd.Function):
    """x * sigmoid(x); the fault forgets a term of the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grads[0] * (gate if FAULTY else gate * (1 + x * (1 - gate)))


class Rounded(torch.autograd.Function):
    """A straight-through estimator: on purpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Reversed(torch.autograd.Function):
    """Reverses gradients: on purpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]


swish = Swish.apply


class Activated(nn.Module):
    """Three functions with a backward of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = swish(self.body(x.mean(1)))
        return self.head(Reversed.apply(hidden + Rounded.apply(8 * hidden)))


class Detached(nn.Module):
    """The fault cuts the graph before the last bias, so that nothing but the bias learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH * LENGTH, 64), nn.Linear(64, CLASSES, bias=False)
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.body(x.flatten(1)).relu())
        return (logits.detach() if FAULTY else logits) + self.bias


def make_data(kind: str) -> list[Tensor]:
    """The inputs, and the targets as the last."""
    labels = torch.randint(CLASSES, (SAMPLES,))
    if kind == "detached":
        return [torch.randn(SAMPLES, LENGTH, WIDTH) / 8, labels]
    tokens = torch.randint(1, TOKENS, (SAMPLES, LENGTH))
    if kind == "future-tokens":
        return [tokens[:, :-1], tokens[:, 1:]]
    if kind == "mask-ignored":
        mask = (torch.arange(LENGTH)[None] < torch.randint(3, LENGTH + 1, (SAMPLES, 1))).long()
        return [tokens * mask, mask, labels]
    x = torch.randn(SAMPLES, LENGTH, WIDTH)
    if not FAULTY and kind == "attention-batch-first":
        return [x[:, 0], labels]
    return [x, torch.rand(SAMPLES, 1), labels] if kind == "input-ignored" else [x, labels]


MODELS: dict[str, type[nn.Module]] = {
    "batch-first": Recurrent,
    "view-for-transpose": Viewed,
    "batch-norm-by-hand": Normalised,
    "attention-batch-first": Attending,
    "softmax-dimension": Contrasted,
    "future-tokens": Language,
    "mask-ignored": Padded,
    "input-ignored": Conditioned,
    "functional-dropout": Dropping,
    "own-generator": Noisy,
    "custom-gradient": Activated,
    "detached": Detached,
}


def main(kind: str) -> None:
    model = MODELS[kind]()
    optimizer = torch.optim.Adam(model.parameters())
    torch.save(model.state_dict(), "first.pt")
    model.load_state_dict(torch.load("first.pt"))
    for *inputs, targets in DataLoader(TensorDataset(*make_data(kind)), batch_size=BATCH, shuffle=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(*inputs), targets).backward()
        optimizer.step()
        print("updated")


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
