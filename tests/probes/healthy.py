"""Healthy programs of many kinds, their sizes drawn from a seed: nothing is to be found in any of them.

As a script: ``healthy.py KIND SEED``.
"""

import copy
import random
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 50
KINDS: dict[str, Callable[[random.Random], None]] = {}


def register_kind(program: Callable[[random.Random], None]) -> Callable[[random.Random], None]:
    KINDS[program.__name__] = program
    return program


def iter_batches(*tensors: Tensor, size: int, steps: int = STEPS) -> Iterator[list[Tensor]]:
    """So many shuffled batches, pass after pass."""
    done = 0
    while done < steps:
        for batch in DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True, drop_last=True):
            yield batch
            done += 1
            if done == steps:
                return


def make_digits(count: int, side: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Images whose class is where their bright row stands."""
    labels = torch.arange(count) % classes
    images = torch.randn(count, 1, side, side) * 0.5
    images[torch.arange(count), 0, labels * side // classes] += 2.0
    return images, labels


def choose_optimizer(draw: random.Random, model: nn.Module, **more: float) -> torch.optim.Optimizer:
    made: list[Callable[..., torch.optim.Optimizer]] = [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop]
    chosen = draw.choice(made)
    rate = more.pop("lr", 0.05 if chosen is torch.optim.SGD else 2e-3)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return chosen(parameters, lr=rate, **more)


def fit_model(model: nn.Module, optimizer: torch.optim.Optimizer, feed: Iterator[list[Tensor]]) -> None:
    for images, labels in feed:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()


def make_conv_net(draw: random.Random, norm: Callable[[int], nn.Module], depth: int | None = None) -> nn.Sequential:
    width, layers, channels = draw.choice([4, 8, 12]), [], 1
    for _ in range(depth or draw.randint(1, 3)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 4))


@register_kind
def convolutions_and_batch_norm(draw: random.Random) -> None:
    model = make_conv_net(draw, nn.BatchNorm2d)
    feed = iter_batches(*make_digits(draw.choice([48, 96]), draw.choice([8, 12])), size=draw.choice([8, 16]))
    fit_model(model, torch.optim.SGD(model.parameters(), lr=draw.choice([0.003, 0.01, 0.05]), momentum=0.9), feed)


@register_kind
def group_and_instance_norms(draw: random.Random) -> None:
    model = make_conv_net(draw, draw.choice([lambda width: nn.GroupNorm(2, width), nn.InstanceNorm2d]))
    fit_model(model, torch.optim.SGD(model.parameters(), lr=0.01), iter_batches(*make_digits(48, 8), size=8))


@register_kind
def half_precision(draw: random.Random) -> None:
    """Computed in bfloat16, with weights in float32."""
    model = make_conv_net(draw, nn.BatchNorm2d)
    optimizer = choose_optimizer(draw, model)
    for images, labels in iter_batches(*make_digits(48, 8), size=16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Words(nn.Module):
    """A classifier of words with a mask, with or without tied weights, under a head of its own."""

    def __init__(self, vocabulary: int, width: int, *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        found = self.layer(self.table(words), src_key_padding_mask=mask < 0.5)
        return self.head(found)


def make_sentences(draw: random.Random, count: int) -> tuple[Tensor, int]:
    vocabulary = draw.choice([16, 31])
    starts = torch.randint(vocabulary, (count, 1))
    return (starts + torch.arange(draw.choice([6, 9]))) % vocabulary, vocabulary


@register_kind
def an_all_ones_mask_in_a_tuple(draw: random.Random) -> None:
    words, vocabulary = make_sentences(draw, 64)
    order = draw.choice([(0, 1), (1, 0)])
    both = words, torch.ones(words.shape)
    model = Words(vocabulary, 16, tied=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in iter_batches(both[order[0]], both[order[1]], size=8):
        found, mask = batch[order[0]], batch[order[1]]
        optimizer.zero_grad()
        F.cross_entropy(model(found[:, :-1], mask[:, :-1]).flatten(0, 1), found[:, 1:].flatten()).backward()
        optimizer.step()


@register_kind
def a_mask_of_another_name_in_a_mapping(draw: random.Random) -> None:
    words, vocabulary = make_sentences(draw, 64)
    name = draw.choice(["keep", "is_there", "non_pad"])
    items = [{"words": row, name: torch.ones(len(row)), "where": torch.arange(len(row))} for row in words]
    model = Words(vocabulary, 16, tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(8):
        for batch in DataLoader(items, batch_size=8, shuffle=True):  # type: ignore[arg-type]
            found, mask = batch["words"], batch[name]
            optimizer.zero_grad()
            F.cross_entropy(model(found[:, :-1], mask[:, :-1]).flatten(0, 1), found[:, 1:].flatten()).backward()
            optimizer.step()


@register_kind
def tied_weights(draw: random.Random) -> None:
    words, vocabulary = make_sentences(draw, 64)
    model = Words(vocabulary, 16, tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for (found,) in iter_batches(words, size=8):
        optimizer.zero_grad()
        mask = torch.ones(len(found), found.shape[1] - 1)
        F.cross_entropy(model(found[:, :-1], mask).flatten(0, 1), found[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@register_kind
def values_on_a_grid(draw: random.Random) -> None:
    """Coordinates that are the same in each sample, beside the values there: neural operators."""
    points = draw.choice([12, 20])
    grid = torch.linspace(0, 1, points)[None, :, None].expand(48, points, 1).clone()
    phase = torch.rand(48, 1, 1) * 6.28
    before, after = torch.sin(6.28 * grid + phase), torch.cos(6.28 * grid + phase)
    model = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for where, values, wanted in iter_batches(grid, before, after, size=8):
        optimizer.zero_grad()
        F.mse_loss(model(torch.cat([where, values], -1)), wanted).backward()
        optimizer.step()


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take a while to make."""

    def __init__(self, images: Tensor, labels: Tensor, pause_s: float) -> None:
        self.images, self.labels, self.pause_s = images, labels, pause_s

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.pause_s)
        return self.images[index], self.labels[index]


@register_kind
def a_short_validation_loader(draw: random.Random) -> None:
    """Each of its batches is waited for, and all of it is a small part of the run; it is tried out before training."""
    images, labels = make_digits(64, 8)
    model = make_conv_net(draw, nn.BatchNorm2d, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held_out = DataLoader(Slow(images[:25], labels[:25], 0.006), batch_size=1)
    for epoch in range(4):
        if epoch:
            for batch in DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True):
                for _ in range(2):
                    optimizer.zero_grad()
                    F.cross_entropy(model(batch[0]), batch[1]).backward()
                    optimizer.step()
                time.sleep(0.12)  # the device is at work
        if epoch in (1, 2):
            continue
        model.eval()
        with torch.no_grad():
            for batch in held_out:
                model(batch[0])
        model.train()


@register_kind
def a_frozen_backbone(draw: random.Random) -> None:
    model = make_conv_net(draw, nn.BatchNorm2d, depth=2)
    model[:-1].requires_grad_(False)
    model[:-1].eval()
    feed = iter_batches(*make_digits(48, 8), size=16)
    fit_model(model, torch.optim.Adam(model[-1].parameters(), lr=1e-2), feed)


@register_kind
def adversaries(draw: random.Random) -> None:
    width = draw.choice([8, 16])
    maker = nn.Sequential(nn.Linear(4, width), nn.LeakyReLU(0.2), nn.Linear(width, 6))
    judge = nn.Sequential(nn.Linear(6, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))
    ours, theirs = (torch.optim.Adam(part.parameters(), lr=2e-3, betas=(0.5, 0.9)) for part in (maker, judge))
    for (real,) in iter_batches(torch.randn(128, 6) + 2.0, size=16):
        fake = maker(torch.randn(16, 4))
        theirs.zero_grad()
        (F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()).backward()
        theirs.step()
        ours.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        ours.step()


@register_kind
def accumulation(draw: random.Random) -> None:
    micro = draw.choice([2, 4])
    model = make_conv_net(draw, nn.BatchNorm2d, depth=1)
    optimizer = choose_optimizer(draw, model)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=STEPS // micro + 1)
    for number, (images, labels) in enumerate(iter_batches(*make_digits(96, 8), size=8)):
        (F.cross_entropy(model(images), labels) / micro).backward()
        if number % micro == micro - 1:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


@register_kind
def a_moving_average(draw: random.Random) -> None:
    model = make_conv_net(draw, nn.BatchNorm2d, depth=1)
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = choose_optimizer(draw, model)
    feed = iter_batches(*make_digits(48, 8), size=16)
    for number, (images, labels) in enumerate(feed):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        average.update_parameters(model)
        if number % 20 == 19:
            average.eval()
            with torch.no_grad():
                average(images)


@register_kind
def a_teacher_copied_by_hand(draw: random.Random) -> None:
    """Self-distillation: a deep copy without gradients follows the student."""
    student = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = choose_optimizer(draw, student)
    for (found,) in iter_batches(torch.randn(128, 8), size=16):
        with torch.no_grad():
            wanted = teacher(found)
        optimizer.zero_grad()
        F.mse_loss(student(found + 0.1 * torch.randn_like(found)), wanted).backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(student.parameters(), teacher.parameters(), strict=True):
                theirs.lerp_(ours, 0.01)


class Tagger(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body = cell(5, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, found: Tensor) -> Tensor:
        return self.head(self.body(found)[0][:, -1])


@register_kind
def recurrence(draw: random.Random) -> None:
    model = Tagger(draw.choice([nn.LSTM, nn.GRU]))
    series = torch.randn(96, draw.choice([7, 11]), 5)
    labels = (series.sum((1, 2)) > 0).long() + (series[:, 0, 0] > 1).long()
    fit_model(model, torch.optim.Adam(model.parameters(), lr=5e-3), iter_batches(series, labels, size=16))


class Bags(nn.Module):
    def __init__(self, vocabulary: int, *, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, 12, sparse=sparse)
        self.head = nn.Linear(12, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.bag(words))


@register_kind
def embedding_bags(draw: random.Random) -> None:
    sparse = draw.random() < 0.7
    vocabulary = draw.choice([40, 300])
    model = Bags(vocabulary, sparse=sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=draw.choice([0.1, 0.5]))
    words = torch.randint(vocabulary, (128, 9))
    fit_model(model, optimizer, iter_batches(words, words[:, 0] % 4, size=16))


@register_kind
def an_autoencoder(draw: random.Random) -> None:
    width = draw.choice([3, 5])
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 16))
    optimizer = choose_optimizer(draw, model)
    for (found,) in iter_batches(torch.randn(128, 4) @ torch.randn(4, 16), size=16):
        optimizer.zero_grad()
        F.mse_loss(model(found), found).backward()
        optimizer.step()


class Heads(nn.Module):
    """Two tasks that take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU())
        self.heads = nn.ModuleList([nn.Linear(16, 3), nn.Linear(16, 2)])

    def forward(self, found: Tensor, task: int) -> Tensor:
        return self.heads[task](self.body(found))


@register_kind
def tasks_that_take_turns(draw: random.Random) -> None:
    model = Heads()
    optimizer = choose_optimizer(draw, model)
    for number, (found,) in enumerate(iter_batches(torch.randn(128, 8), size=16)):
        task = number % 2
        labels = (found[:, task] > 0).long()
        optimizer.zero_grad(set_to_none=draw.random() < 0.5)
        F.cross_entropy(model(found, task), labels).backward()
        optimizer.step()


@register_kind
def contrast(draw: random.Random) -> None:
    """Two views of each sample, a temperature that is learned, a projection before a normalisation."""
    model = nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8), nn.BatchNorm1d(8))
    heat = nn.Parameter(torch.tensor(1.5))
    optimizer = torch.optim.AdamW([*model.parameters(), heat], lr=2e-3)
    for (found,) in iter_batches(torch.randn(128, 10), size=16):
        one, other = (F.normalize(model(found + 0.2 * torch.randn_like(found)), dim=1) for _ in range(2))
        optimizer.zero_grad()
        F.cross_entropy(one @ other.T * heat.exp(), torch.arange(len(found))).backward()
        optimizer.step()


@register_kind
def noise_prediction(draw: random.Random) -> None:
    model = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for (found,) in iter_batches(torch.randn(128, 8), size=16):
        t, noise = torch.rand(16, 1), torch.randn(16, 8)
        optimizer.zero_grad()
        F.mse_loss(model(torch.cat([(1 - t) * found + t * noise, t], 1)), noise - found).backward()
        optimizer.step()


@register_kind
def regression_with_ones(draw: random.Random) -> None:
    """A column of ones stands in the data on purpose."""
    found = torch.cat([torch.randn(128, 5), torch.ones(128, 1)], 1)
    model = nn.Linear(6, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, wanted in iter_batches(found, found[:, :1] * 2 + 1, size=16):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), wanted).backward()
        optimizer.step()


def run_kind(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    KINDS[name](random.Random(f"{name}-{seed}"))


if __name__ == "__main__":
    run_kind(sys.argv[1], int(sys.argv[2]))
