"""Fails in one place for good, or in all of them, caught and told in every usual way.

usage: raises.py all|forward|inner|backward|...
"""

import io
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("raises")


class Failing(nn.Module):
    """Raises in its forward from the fourth call on."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 3:
            raise ValueError("planted")
        return x


class Undone(torch.autograd.Function):
    """Has a backward that raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ValueError("planted")


class Items(Dataset[Tensor]):
    """The fourth item is broken."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index > 3:
            raise ValueError("planted")
        return torch.ones(4)


class Unsaved:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise ValueError("planted")


class Picky(logging.Handler):
    """Raises instead of writing."""

    def emit(self, record: logging.LogRecord) -> None:
        if "refuse" in record.getMessage():
            raise ValueError("planted")


def train_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model


def iter_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    model = train_model()
    outer = nn.Sequential(model, Failing())
    for _ in range(3):
        outer(torch.ones(2, 4))
    fails = Undone.apply(model(torch.ones(2, 4))).sum()
    broken = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    broken.param_groups[0]["lr"] = "fast"
    broken.param_groups[0]["params"][0].grad = torch.ones(2)
    scaler = torch.amp.GradScaler("cpu")
    yield "forward", lambda: model(torch.ones(2, 5))
    yield "inner", lambda: outer(torch.ones(2, 4))
    yield "backward", fails.backward
    yield "optimizer", broken.step
    yield "built", lambda: torch.optim.SGD([], lr=0.1)
    yield "loader", lambda: list(DataLoader(Items(), batch_size=2))
    yield "worker", lambda: list(DataLoader(Items(), batch_size=2, num_workers=1))
    yield "clip", lambda: nn.utils.clip_grad_norm_(model.parameters(), "much")
    yield "scaler", lambda: scaler.step(broken)
    yield "save", lambda: torch.save(Unsaved(), io.BytesIO())
    yield "load", lambda: torch.load("there-is-none.pt")
    yield "state", lambda: model.load_state_dict({})
    yield "jit", lambda: torch.jit.script(Failing())
    yield "print", lambda: print("x", file=None, end=3)
    log.addHandler(Picky())
    yield "handler", lambda: log.info("refuse")
    yield "compile", lambda: model.compile(backend="there-is-none")


def catch_error(name: str, call: Callable[[], Any]) -> None:
    try:
        try:
            call()
        except Exception as error:
            log.exception(f"logged {name}")
            traceback.print_exc()
            sys.stderr.write(traceback.format_exc())
            sys.stderr.write(f"{len(list(traceback.walk_tb(error.__traceback__)))} frames\n")
            raise RuntimeError(f"from {name}") from error
    except RuntimeError:
        traceback.print_exc()


def main() -> None:
    for name, call in iter_cases():
        if sys.argv[1] == "all":
            catch_error(name, call)
        elif name == sys.argv[1]:
            call()


if __name__ == "__main__":
    main()
