"""One small training for each documented check of torchtest2 0.1.0, torch-audit 0.3.0 and guardtower 0.1.0.

usage: programs.py KIND [healthy]; nothing of these tools is imported here. `build_setup` hands model, batch, loss and optimizer
to whoever wants them, and this file, run as a program, trains with them for 60 steps.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS, BATCH, FEATURES, CLASSES = 60, 32, 16, 4
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Setup:
    """What a training is made of."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor
    loss: Loss = functional.cross_entropy
    optimizer: torch.optim.Optimizer | None = None
    rate: float = 1e-2
    prepare: Callable[[], None] = field(default=lambda: None)

    def __post_init__(self) -> None:
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=self.rate)


class Net(nn.Module):
    """A classifier in which a part can be replaced or bypassed."""

    def __init__(self, between: Callable[[Tensor], Tensor] | None = None, spare: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU())
        self.head = nn.Linear(32, CLASSES)
        self.between = between or (lambda hidden: hidden)
        self.spare = spare

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.body(x)))


class Two(nn.Module):
    """Two inputs, of which the second may be left aside."""

    def __init__(self, *, uses_both: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 32), nn.Linear(FEATURES, 32)
        self.head = nn.Linear(32, CLASSES)
        self.uses_both = uses_both

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(functional.relu(self.first(x) + self.second(y if self.uses_both else x)))


class Sequences(nn.Module):
    """An LSTM over (batch, time, features), which takes the batch for time unless told otherwise."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, 32, batch_first=batch_first)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Square(torch.autograd.Function):
    """x squared; the fault forgets the two."""

    factor = 2.0

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x * x

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return Square.factor * x * grads[0]


class Lora(nn.Module):
    """A linear layer with an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, 32)
        self.lora_A = nn.Linear(FEATURES, 2, bias=False)
        self.lora_B = nn.Linear(2, 32, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.base(x) + self.lora_B(self.lora_A(x))))


class Tokens(nn.Module):
    """A bag of embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(FEATURES, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


class Normed(nn.Module):
    """Two layers with a batch norm each, or one for both."""

    def __init__(self, *, shares_norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 32), nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)
        self.other = self.norm if shares_norm else nn.BatchNorm1d(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.other(self.second(functional.relu(self.norm(self.first(x)))))))


class Images(nn.Module):
    """A small convolutional net."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 8, 3, padding=1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(self.conv(x)).mean((2, 3)))


def build_gated_net(gate: float) -> Net:
    """A net in which a further layer adds nothing where the gate is 0."""
    side = nn.Linear(32, 32)
    return Net(lambda hidden: hidden + gate * side(hidden), spare=side)


def make_batch(*shape: int) -> tuple[Tensor, Tensor]:
    """Inputs and the classes that a linear map gives them."""
    x = torch.randn(BATCH, *(shape or (FEATURES,)))
    flat = x.flatten(1)
    return x, (flat @ torch.randn(flat.shape[1], CLASSES)).argmax(1)


def make_adamw(parameters: object, rate: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate)  # type: ignore[arg-type]


def build_setup(kind: str, *, faulty: bool = True) -> Setup:
    """What is trained: with the mistake of this kind or without it."""
    torch.manual_seed(0)
    x, y = make_batch()
    model = Net()
    match kind:
        case "wrong-shape":
            return Setup(nn.Sequential(nn.Linear(FEATURES + faulty, 32), nn.ReLU(), nn.Linear(32, CLASSES)), (x,), y)
        case "nan-output":
            return Setup(Net(lambda h: torch.log(h * 0.0) * 0.0 if faulty else h), (x,), y)
        case "constant-output":
            return Setup(Net(lambda h: h * 0.0 if faulty else h), (x,), y)
        case "dropout-in-evaluation":
            net = Net()
            net.between = lambda h: functional.dropout(h, 0.3, training=True if faulty else net.training)
            return Setup(net, (x,), y)
        case "detached-loss":
            return Setup(model, (x,), y, lambda out, t: functional.cross_entropy(out.detach() if faulty else out, t))
        case "loss-per-sample":
            reduction = "none" if faulty else "mean"
            return Setup(model, (x,), y, lambda out, t: functional.cross_entropy(out, t, reduction=reduction))
        case "confident-start":
            if faulty:
                nn.init.normal_(model.head.weight, std=20.0)
            return Setup(model, (x,), y)
        case "swapped-head":
            optimizer = make_adamw(model.parameters())
            if faulty:
                model.head = nn.Linear(32, CLASSES)
            return Setup(model, (x,), y, optimizer=optimizer)
        case "cut-graph":
            return Setup(Net(lambda h: h.data if faulty else h), (x,), y)
        case "unused-layer":
            return Setup(Net(spare=nn.LayerNorm(32) if faulty else None), (x,), y)
        case "nan-gradient":
            return Setup(Net(lambda h: h + torch.sqrt(h * 0.0 + (0.0 if faulty else 1.0)) * 0.0), (x,), y)
        case "zero-gradient":
            return Setup(build_gated_net(0.0 if faulty else 1.0), (x,), y)
        case "loss-of-another-parameter":
            bias = nn.Parameter(torch.zeros(CLASSES))
            loss = lambda out, t: functional.cross_entropy((out.detach() if faulty else out) + bias, t)  # noqa: E731
            return Setup(model, (x,), y, loss, make_adamw([*model.parameters(), bias]))
        case "negative-tokens":
            tokens = torch.randint(FEATURES, (BATCH, 8))
            y = tokens[:, 0] % CLASSES
            tokens[3, 3] = -1 if faulty else 1
            return Setup(Tokens(), (tokens,), y)
        case "tiny-batch-norm":
            few = 4 if faulty else BATCH
            return Setup(Normed(), (x[:few],), y[:few])
        case "norm-called-twice":
            return Setup(Normed(shares_norm=faulty), (x,), y)
        case "large-gradient":
            return Setup(model, (x,), y, lambda out, t: functional.cross_entropy(out, t) * (1e8 if faulty else 1.0))
        case "tiny-gradient":
            return Setup(model, (x,), y, lambda out, t: functional.cross_entropy(out, t) * (1e-12 if faulty else 1.0))
        case "rate-of-zero":
            return Setup(model, (x,), y, optimizer=make_adamw(model.parameters(), 0.0 if faulty else 1e-2))
        case "ignored-input":
            return Setup(Two(uses_both=not faulty), (x, torch.randn_like(x)), y)
        case "batch-as-time":
            x, y = make_batch(8, FEATURES)
            return Setup(Sequences(batch_first=not faulty), (x,), y)
        case "softmax-over-batch":
            return Setup(Net(lambda h: h.softmax(0 if faulty else 1)), (x,), y)
        case "cannot-overfit":
            return Setup(model, (x,), torch.randint(CLASSES, (BATCH,)), rate=1e-7 if faulty else 1e-2)
        case "wrong-derivative":
            Square.factor = 1.0 if faulty else 2.0
            return Setup(Net(Square.apply), (x,), y)
        case "bytes-as-floats":
            x = torch.rand(BATCH, FEATURES) * 255 if faulty else torch.rand(BATCH, FEATURES)
            return Setup(model, (x,), y, rate=1e-3)
        case "constant-input":
            return Setup(model, (torch.full_like(x, 0.5) if faulty else x,), y)
        case "channels-last":
            x, y = make_batch(3, 8, 8)
            return Setup(Images(8 if faulty else 3), (x.permute(0, 2, 3, 1) if faulty else x,), y)
        case "dead-units":
            if faulty:
                nn.init.constant_(model.body[0].bias, -50.0)
            return Setup(model, (x,), y)
        case "dead-filters":
            x, y = make_batch(3, 8, 8)
            images = Images()
            if faulty:
                nn.init.zeros_(images.conv.weight[:4])
            return Setup(images, (x,), y)
        case "frozen-in-optimizer":
            optimizer = make_adamw(model.parameters())
            if faulty:
                model.body.requires_grad_(False)
            return Setup(model, (x,), y, optimizer=optimizer)
        case "adapter-left-out":
            lora = Lora()
            lora.base.requires_grad_(False)
            chosen = [p for name, p in lora.named_parameters() if p.requires_grad and not (faulty and "lora" in name)]
            return Setup(lora, (x,), y, optimizer=make_adamw(chosen))
        case "adapter-frozen":
            lora = Lora()
            lora.base.requires_grad_(False)
            if faulty:
                lora.lora_A.requires_grad_(False)
                lora.lora_B.requires_grad_(False)
            return Setup(lora, (x,), y)
        case "base-not-frozen":
            lora = Lora()
            lora.base.requires_grad_(faulty)
            return Setup(lora, (x,), y)
    raise SystemExit(f"no kind {kind!r}")


def draw_like(x: Tensor) -> Tensor:
    """Other inputs of the same kind."""
    return torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, FEATURES)


def train_setup(setup: Setup) -> None:
    """Batches of the same distribution, in the order in which a loader gives them."""
    optimizer = setup.optimizer
    assert optimizer is not None
    for step in range(STEPS):
        order = torch.randperm(len(setup.targets))
        optimizer.zero_grad()
        loss = setup.loss(setup.model(*(x[order] for x in setup.inputs)), setup.targets[order])
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            setup.model.eval()
            with torch.no_grad():
                for _ in range(4):
                    setup.model(*(draw_like(x) for x in setup.inputs))
            setup.model.train()
        time.sleep(0.005)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_setup(build_setup(sys.argv[1], faulty=sys.argv[2:] != ["healthy"]))
