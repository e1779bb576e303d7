"""Small trainings whose model, loss or mode has one silent bug, and the same training without it.

usage: planted_model.py KIND fault|healthy; nothing raises, and nothing of tdbg is named.
"""

import copy
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

FAULTY = sys.argv[2] == "fault"
WIDTH, CLASSES = 16, 4


def make_samples(count: int = 640, *, shuffled: bool = False, seed: int = 1) -> TensorDataset:
    """Inputs and the classes that a linear map gives them; or of other inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    y = (x @ torch.randn(WIDTH, CLASSES, generator=generator)).argmax(1)
    return TensorDataset(x, y[torch.randperm(count, generator=generator)] if shuffled else y)


class Net(nn.Module):
    """A small classifier with dropout and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class FunctionalDropout(Net):
    """Drops by a function, which has to be told of eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.dropout(self.body(x), 0.3, training=FAULTY or self.training)
        return self.head(hidden)


class Attention(Net):
    """Attention whose dropout has to be told of eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).view(-1, 1, 4, 8)
        share = 0.2 if FAULTY or self.training else 0.0
        return self.head(functional.scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=share).flatten(1))


class Probabilities(Net):
    """Ends in a softmax, which cross_entropy applies itself."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores.softmax(-1) if FAULTY else scores


def binary_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Each class by itself."""
    scores = scores.sigmoid() if FAULTY else scores
    return functional.binary_cross_entropy_with_logits(scores, functional.one_hot(y, CLASSES).float())


def likelihood_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities along the wrong dimension."""
    return functional.nll_loss(scores.log_softmax(0 if FAULTY else 1), y)


def distance_loss(scores: Tensor, y: Tensor) -> Tensor:
    """The first score is to be the number of the class."""
    wanted = y.float() if FAULTY else y.float()[:, None]
    return ((scores[:, :1] - wanted) ** 2).mean()


class Listed(nn.Module):
    """A net whose hidden layers are held in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)]
        self.hidden = hidden if FAULTY else nn.ModuleList(hidden)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x)
        return self.head(x)


class Tied(nn.Module):
    """Signs of the inputs as tokens; the output layer is to share the weight of their embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(tie_word_embeddings=True)
        self.embedding = nn.Embedding(CLASSES, 32)
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU())
        self.head = nn.Linear(32, CLASSES, bias=False)
        self.head.weight = nn.Parameter(self.embedding.weight.detach().clone()) if FAULTY else self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + self.embedding((x[:, :2] > 0).long().sum(1)))


class Cast(Net):
    """Called inside autocast, with a region without it that was left from debugging."""

    def __init__(self) -> None:
        super().__init__()
        self.body[1] = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=not FAULTY, dtype=torch.bfloat16):
            return super().forward(x)


def make_still_norm() -> Net:
    """A layer whose momentum is written as in another framework."""
    model = Net()
    model.body[1] = nn.BatchNorm1d(32, momentum=0.0 if FAULTY else 0.1)
    return model


def make_frozen_net() -> Net:
    """A body that is not to be trained, with a new head."""
    model = Net()
    model.body.requires_grad_(False)
    return model


@dataclass
class Training:
    """What a training is made of; a bug changes one part."""

    model: nn.Module = field(default_factory=Net)
    data: TensorDataset = field(default_factory=make_samples)
    criterion: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy
    optimized: Callable[[nn.Module], nn.Module] = lambda model: model  # what the optimizer is built on
    returns_to_train_mode: bool = True
    evaluation_every: int = 20
    averages: bool = False
    maximizes: bool = False
    sign: int = 1  # of the loss
    mixed: bool = False  # precision
    epochs: int = 4
    step_s: float = 0.005

    def run_training(self) -> None:
        model = self.model
        loader, checks = (
            DataLoader(self.data, batch_size=32, shuffle=True),
            DataLoader(make_samples(128, seed=2), batch_size=32),
        )
        optimizer = torch.optim.AdamW(self.optimized(model).parameters(), lr=1e-3, maximize=self.maximizes)
        average = torch.optim.swa_utils.AveragedModel(model) if self.averages else None
        model.train()
        step = 0
        for _ in range(self.epochs):
            for x, y in loader:
                step += 1
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
                    scores = model(x)
                loss = self.criterion(scores.float(), y)
                loss = loss if self.sign > 0 else -loss
                loss.backward()
                optimizer.step()
                if average is not None and not FAULTY:
                    average.update_parameters(model)
                time.sleep(self.step_s)
                if step % self.evaluation_every == 0:
                    self.evaluate_model(model if average is None else average, checks)
        print(f"loss {loss.item():.3f}")

    def evaluate_model(self, model: nn.Module, checks: DataLoader[tuple[Tensor, ...]]) -> None:
        model.eval()
        with torch.no_grad():
            for x, _ in checks:
                model(x)
        if self.returns_to_train_mode:
            model.train()


def make_training(kind: str) -> Training:
    """The training with the part that a bug of this kind changes."""
    match kind:
        case "left-in-eval-mode":
            return Training(returns_to_train_mode=not FAULTY)
        case "left-in-eval-mode-late":
            return Training(returns_to_train_mode=not FAULTY, evaluation_every=70, epochs=5, step_s=0.001)
        case "functional-dropout":
            return Training(model=FunctionalDropout())
        case "attention-dropout":
            return Training(model=Attention(), evaluation_every=60, epochs=5, step_s=0.001)
        case "softmax-twice":
            return Training(model=Probabilities())
        case "sigmoid-twice":
            return Training(criterion=binary_loss)
        case "batch-softmax":
            return Training(criterion=likelihood_loss)
        case "all-pairs":
            return Training(criterion=distance_loss)
        case "another-instance":
            return Training(optimized=lambda model: copy.deepcopy(model) if FAULTY else model)
        case "frozen-alone":
            return Training(model=make_frozen_net(), optimized=lambda model: model.body if FAULTY else model)
        case "shuffled-labels":
            return Training(data=make_samples(1280, shuffled=FAULTY), epochs=5)
        case "maximized":
            return Training(data=make_samples(1280), epochs=5, maximizes=FAULTY)
        case "negated":
            return Training(data=make_samples(1280), epochs=5, sign=-1 if FAULTY else 1)
        case "layers-in-a-list":
            return Training(model=Listed())
        case "still-norm":
            return Training(model=make_still_norm())
        case "still-average":
            return Training(averages=True)
        case "broken-tie":
            return Training(model=Tied())
        case "autocast-off":
            return Training(model=Cast(), mixed=True)
    raise SystemExit(f"no kind {kind!r}")


def train_contrast() -> None:
    """Two views of a sample are pulled together; the projector behind the encoder is to be trained with it."""
    encoder = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    projector = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    parameters = [*encoder.parameters(), *(() if FAULTY else projector.parameters())]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for _ in range(4):
        for x, _ in DataLoader(make_samples(), batch_size=32, shuffle=True):
            views = (functional.normalize(projector(encoder(x + 0.3 * torch.randn_like(x)))) for _ in range(2))
            loss = functional.cross_entropy(next(views) @ next(views).T / 0.2, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.005)


def train_adversaries() -> None:
    """A generator beside a discriminator, each with an optimizer."""
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, WIDTH))
    discriminator = nn.Sequential(nn.Linear(WIDTH, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizers = [torch.optim.Adam(net.parameters(), lr=1e-4) for net in (discriminator, generator)]
    judge = functional.binary_cross_entropy_with_logits
    for x, _ in DataLoader(make_samples(2560), batch_size=32, shuffle=True):
        true, false = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        made = generator(torch.randn(len(x), 8)).detach()
        optimizers[0].zero_grad()
        (judge(discriminator(x), true) + judge(discriminator(made), false)).backward()
        optimizers[0].step()
        made = generator(torch.randn(len(x), 8))
        optimizers[1].zero_grad()
        judge(discriminator(made.detach() if FAULTY else made), true).backward()
        optimizers[1].step()
        time.sleep(0.005)


OTHERS = {"left-out-beside": train_contrast, "cut-off": train_adversaries}  # that train more than one model

if __name__ == "__main__":
    torch.manual_seed(0)
    OTHERS.get(sys.argv[1], lambda: make_training(sys.argv[1]).run_training())()
