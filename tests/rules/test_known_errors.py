"""Common errors of torch, raised for real, and what the report says of each."""

import errno
import multiprocessing.process
import multiprocessing.spawn
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tdbg.rules.known_errors import KNOWN_ERRORS, explain_error


class Rows(Dataset[Tensor]):
    """Samples of different lengths."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(index + 1)


def weight() -> Tensor:
    return torch.ones(2, requires_grad=True)


def backward_twice() -> None:
    loss = weight().square().sum()
    loss.backward()
    loss.backward()


def change_in_place() -> None:
    grown = weight().exp()
    grown += 1
    grown.sum().backward()


def unscale_twice() -> None:
    scaler, held = torch.amp.GradScaler("cpu"), weight()
    optimizer = torch.optim.SGD([held], lr=0.1)
    scaler.scale(held.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def load_other_shapes() -> None:
    nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict())


def load_object(path: Path) -> None:
    torch.save(nn.Linear(2, 2), path)
    torch.load(path)


def start_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.process.current_process(), "_inheriting", True, raising=False)
    multiprocessing.spawn.get_preparation_data("child")


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def skip_parameters() -> None:
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    model.forward = lambda x_BC: model[0](x_BC)
    wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        wrapped(torch.ones(1, 2)).sum().backward()


WORKERS = """
import os, signal
from torch.utils.data import DataLoader

class Rows:
    def __init__(self, end): self.end = end
    def __len__(self): return 1
    def __getitem__(self, index): self.end()

for end in (lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)):
    try:
        next(iter(DataLoader(Rows(end), num_workers=1, multiprocessing_context="fork")))
    except RuntimeError as error:
        print(error, end="\\0")
"""

ERRORS: dict[str, Callable[[], object]] = {
    "the loss depends on no parameter": lambda: torch.ones(2).sum().backward(),
    "backward went a second time": backward_twice,
    "a value that backward needs": change_in_place,
    "a parameter is changed in place": lambda: weight().add_(1),
    "more than one element": lambda: (weight() * 2).backward(),
    "a label lies outside": lambda: functional.cross_entropy(torch.zeros(2, 3), torch.tensor([1, 5])),
    "a label lies outside of": lambda: functional.nll_loss(torch.zeros(2, 3), torch.tensor([-1, 0])),
    "an index is negative": lambda: nn.Embedding(3, 2)(torch.tensor([4])),
    "batch norm in train mode": lambda: nn.BatchNorm1d(3)(torch.ones(1, 3)),
    "has another dtype": lambda: nn.Linear(3, 2)(torch.ones(2, 3, dtype=torch.float64)),
    "another dtype": lambda: torch.ones(2, 3) @ torch.ones(3, 2, dtype=torch.float64),
    "than the weights": lambda: nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2, dtype=torch.float64)),
    "one tensor was not moved": lambda: nn.Linear(3, 2, device="meta")(torch.ones(1, 3)),
    "different shapes": lambda: next(iter(DataLoader(Rows(), batch_size=4))),
    "other names or shapes": load_other_shapes,
    "called twice": unscale_twice,
    "no probability": lambda: functional.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0])),
    "has no parameters": lambda: torch.optim.SGD([], lr=0.1),
}


def explain(action: Callable[[], object]) -> str:
    """The cause that is told of what this raises."""
    with pytest.raises(Exception) as raised:
        action()
    known = explain_error(str(raised.value)[:2000])
    assert known is not None, str(raised.value)
    return known.cause


@pytest.mark.parametrize("cause", ERRORS)
def test_an_error_is_told_with_its_cause(cause: str) -> None:
    assert cause in explain(ERRORS[cause])


def test_errors_of_files_and_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "holds more than tensors" in explain(lambda: load_object(tmp_path / "model.pt"))
    assert "when it is imported" in explain(lambda: start_at_import(monkeypatch))
    assert explain_error(str(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))) is not None
    assert explain_error("CUDA error: device-side assert triggered\nCUDA kernel errors might be") is not None


@pytest.mark.usefixtures("one_rank")
def test_parameters_without_a_gradient_of_a_wrapped_model() -> None:
    assert "had no gradient in the step before" in explain(skip_parameters)


def test_a_worker_that_ended() -> None:
    """In a process of its own: a worker is forked, and this one has threads of earlier tests."""
    done = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, timeout=120, check=True)
    messages = done.stdout.split("\0")[:-1]  # torch notices such an end in one of two ways
    assert len(messages) == 2
    for message in (*messages, "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that"):
        known = explain_error(message)
        assert known is not None and "a worker of the DataLoader" in known.cause, message


def test_an_error_that_is_raised_again_is_known_by_its_last_line() -> None:
    try:
        next(iter(DataLoader(Rows(), batch_size=4)))
    except RuntimeError:
        wrapped = torch._utils.ExceptionWrapper(where="in DataLoader worker process 0")
    assert "different shapes" in explain(wrapped.reraise)


@pytest.mark.parametrize(
    "message", ["", "bad label 17", "the trainer said: Target 5 is out of bounds", "Target practice"]
)
def test_other_errors_are_not_explained(message: str) -> None:
    assert explain_error(message) is None


@pytest.mark.parametrize("part", ["\n", " ", "Error: ", "DataLoader worker (pid 1", "Error: An attempt has"])
def test_a_long_text_that_somebody_made_takes_no_time(part: str) -> None:
    """Of 50 MB: what is looked at does not grow with it."""
    begun = time.process_time()
    assert explain_error(part * (50_000_000 // len(part))) is None
    assert time.process_time() - begun < 1.0


def test_causes_and_advice_read_on() -> None:
    for known in KNOWN_ERRORS:
        assert known.cause[0].islower() or known.cause[0] == "`", known.cause
        assert not known.cause.endswith(".") and not known.try_next.endswith("."), known.text
