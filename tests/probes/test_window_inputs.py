"""Gradients that are thrown away in loops without a DataLoader: batches are told apart by what models are called with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch
from torch import Tensor, nn

FLAG = {"flags": {"TRAINING_LOOP": True}, "max_overhead": 1e6}
WINDOWS = 8


class Words(nn.Module):
    """Takes integers by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, *, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.table(ids).mean(1))


class Packed(nn.Module):
    """Takes a dict of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.body(batch["x"]) * batch["scale"]


Draw = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
MODELS: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "floats": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), lambda: ((torch.randn(2, 4),), {})),
    "a slice": (lambda: nn.Linear(4, 2), lambda: ((torch.randn(9, 8)[1:5, ::2],), {})),
    "other sizes": (lambda: nn.Linear(4, 2), lambda: ((torch.ones(int(torch.randint(2, 2000, ())), 4),), {})),
    "integers": (Words, lambda: ((), {"ids": torch.randint(50, (3, 7))})),
    "a dict": (Packed, lambda: (({"x": torch.randn(2, 4), "scale": torch.ones(1)},), {})),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1)),
        lambda: ((nn.functional.pad(torch.rand(2, 3, 12, 12), (4, 4, 4, 4)),), {}),
    ),
}


def make_model(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]:
    """A model, its optimizer, and what gives the loss of a new batch."""
    torch.manual_seed(0)
    build, draw = MODELS[name]
    model = build()

    def compute_loss() -> Tensor:
        args, kwargs = draw()
        return model(*args, **kwargs).square().mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.01), compute_loss


@pytest.mark.parametrize("micro_batches", [2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_a_reset_for_every_micro_batch_is_named(
    start_watch: Any, tmp_path: Path, name: str, micro_batches: int
) -> None:
    watched = start_watch(**FLAG)
    _, optimizer, compute_loss = make_model(name)
    for _ in range(WINDOWS):
        for _ in range(micro_batches):
            optimizer.zero_grad()
            compute_loss().backward()
        optimizer.step()
    (finding,) = judge_watch(watched, tmp_path)
    lost = f"{micro_batches - 1} of {micro_batches} backward calls of each update are thrown away"
    assert (finding.code, finding.title) == ("TD-C014", f"{lost}, from step 2, rank 0")


def test_inputs_on_an_accelerator_are_read_late(start_watch: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from tdbg.runtime import tensors

    watched = start_watch(**FLAG)
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    _, optimizer, compute_loss = make_model("floats")
    for number in range(3 * WINDOWS):
        optimizer.zero_grad()
        compute_loss().backward()
        if number % 3 == 2:
            optimizer.step()
    assert judge_codes(watched, tmp_path) == ["TD-C014"]


def accumulate(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    optimizer.zero_grad()
    for _ in range(4):
        (compute_loss() / 4).backward()


def attack_input(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    """The first backward is for the input alone; the second has an input that nothing was taken from."""
    x = torch.randn(2, 4, requires_grad=True)
    model(x).square().mean().backward()
    worse = (x + 0.1 * x.grad.sign()).detach()
    optimizer.zero_grad()
    model(worse).square().mean().backward()


def attack_in_steps(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    """Projected gradient descent: the input moves, and each pass has another one."""
    x, delta = torch.randn(2, 4), torch.zeros(2, 4, requires_grad=True)
    for _ in range(3):
        loss = model(x + delta).square().mean()
        loss.backward()
        delta = (delta + 0.01 * delta.grad.sign()).detach().requires_grad_()
    optimizer.zero_grad()
    model(x + delta.detach()).square().mean().backward()


def perturb_weights(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    """Sharpness-aware: the same batch twice, made anew from its source for each pass as a copy to a device is."""
    x = torch.randn(2, 4)
    optimizer.zero_grad()
    model(x.clone()).square().mean().backward()
    moves = [0.05 * parameter.grad for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter += move
    optimizer.zero_grad()
    model(x.clone()).square().mean().backward()
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter -= move


def clip_each_sample(replace: bool) -> Callable[..., None]:
    """Private training: the gradient of each micro-batch is taken away, clipped and added up by hand."""

    def train(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
        parameters = list(model.parameters())
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(3):
            optimizer.zero_grad()
            compute_loss().backward()
            for total, parameter in zip(sums, parameters, strict=True):
                total += parameter.grad.clamp(-0.1, 0.1)
        for total, parameter in zip(sums, parameters, strict=True):
            if replace:
                parameter.grad = total
            else:
                parameter.grad.copy_(total)

    return train


def surgery(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    """One gradient a task, over one batch."""
    x, taken = torch.randn(2, 4), []
    for task in range(2):
        optimizer.zero_grad()
        model(x)[:, task].square().mean().backward()
        taken.append([parameter.grad.clone() for parameter in model.parameters()])
    for parameter, one, two in zip(model.parameters(), *taken, strict=True):
        parameter.grad = one + two


def skip_bad_batch(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    """Now and then a batch is left out on purpose."""
    optimizer.zero_grad()
    loss = compute_loss()
    loss.backward()
    if torch.rand(()) < 0.2:
        optimizer.zero_grad()
        compute_loss().backward()


def no_tensor(model: nn.Module, optimizer: Any, compute_loss: Callable[[], Tensor]) -> None:
    """The weights alone are asked for: there is nothing to tell batches by."""
    for _ in range(2):
        optimizer.zero_grad()
        sum(parameter.square().sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]


RIGHT = {
    "accumulation": accumulate,
    "attack": attack_input,
    "attack in steps": attack_in_steps,
    "sharpness": perturb_weights,
    "private": clip_each_sample(replace=True),
    "private, in place": clip_each_sample(replace=False),
    "surgery": surgery,
    "bad batches": skip_bad_batch,
    "no tensor": no_tensor,
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_cleared_for_a_reason_is_left_alone(
    start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, late: bool
) -> None:
    from tdbg.runtime import tensors

    watched = start_watch(**FLAG)
    if late:
        monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    model, optimizer, compute_loss = make_model("floats")
    for _ in range(2 * WINDOWS):
        RIGHT[name](model, optimizer, compute_loss)
        optimizer.step()
        optimizer.zero_grad()
    assert judge_codes(watched, tmp_path) == [] and not watched.failures
