"""Runs `layers` while the disk takes no more, cannot be written, or whoever writes fails; or layers put out odd things.

``limit BYTES``: no file may grow beyond; ``file``: a file lies where pages should; ``worker N``: the Nth datapoint
raises in the thread that writes; ``slow``: it takes long, and little memory is there to wait in; ``odd``: an output that cannot be kept, while a thread runs the same layers.
"""

import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import layers
import torch
from common import print_fact
from torch import Tensor, nn


def limit_file_size(size: str) -> None:
    """The disk takes files of that size; what would be the signal is an error in Python."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))


def block_with_file() -> None:
    """In the way of the folder of pages, since before anything is captured."""
    folder = Path("run/rank0000")
    folder.mkdir()
    (folder / "pages").write_text("in the way")


def fail_writer(number: str) -> None:
    """A fault of the writer that is none of the disk."""
    from tdbg.pages.format.page_writer import PageWriter

    before, seen = PageWriter.add_flat, []

    def add_flat(self: PageWriter, *args: Any, **fields: Any) -> int:
        seen.append(1)
        if len(seen) == int(number):
            raise ZeroDivisionError("planted")
        return before(self, *args, **fields)

    PageWriter.add_flat = add_flat


def slow_writer() -> None:
    """Half a second a datapoint, and room for one of them."""
    from tdbg.debuggers.pool import Pool
    from tdbg.pages.format.page_writer import PageWriter

    before, enter = PageWriter._write_datapoint, Pool._acquire_room

    def _enter(self: Pool, *sizes: int) -> None:
        self.limit_bytes = 10_000  # it was made when torch was imported
        enter(self, *sizes)

    def _write_slowly(self: PageWriter, *args: Any) -> int:
        time.sleep(0.5)
        return before(self, *args)

    PageWriter._write_datapoint, Pool._acquire_room = _write_slowly, _enter


class Odd(nn.Module):
    """Gives a tensor, and beside it one that has no values."""

    def forward(self, x_BF: Tensor) -> dict[str, Tensor]:
        return {"good": x_BF + 1, "none": x_BF.to("meta")}


class Net(nn.Module):
    """Its head runs twice in the first pass, once in the second, and not at all in the third."""

    def __init__(self) -> None:
        super().__init__()
        self.odd, self.head, self.times = Odd(), nn.Linear(4, 2), 2

    def forward(self, x_BF: Tensor) -> Tensor:
        x_BF = self.odd(x_BF)["good"]
        found = [self.head(x_BF) for _ in range(self.times)]
        self.times -= 1
        return torch.stack([*found, x_BF[:, :2]]).sum(0)


def run_beside_thread() -> None:
    """Three passes, while a thread runs the same layers on numbers of its own."""
    torch.manual_seed(0)
    net = Net()
    beside = threading.Event()

    def infer_beside() -> None:
        while not beside.is_set():
            net.head(torch.full((3, 4), 1e6))

    thread = threading.Thread(target=infer_beside)
    thread.start()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x_BF = torch.full((5, 4), float(step), requires_grad=True)
        net(x_BF).sum().backward()
        optimizer.step()
    beside.set()
    thread.join()
    print_fact("done")


FAULTS = {
    "limit": limit_file_size,
    "file": block_with_file,
    "worker": fail_writer,
    "slow": slow_writer,
    "odd": run_beside_thread,
}


def main() -> None:
    fault, *words = sys.argv[1:]
    sys.argv[1:] = []
    FAULTS[fault](*words)
    if fault != "odd":
        layers.main()


if __name__ == "__main__":
    main()
