"""The loss of the last step done, recorded or not: what a run ended with."""

import math
import time
from collections import deque

import torch
from torch import Tensor

from tdbg.core.guard import guarded
from tdbg.runtime import tensors
from tdbg.runtime.deferred_reads import device_idle

MAX_PARTS = 1024  # of one step
HELD_BYTES = 1 << 16  # a larger storage behind one number is not kept alive for it
MAX_RECENT = 100  # steps
PATIENCE_S = 0.5  # with a device that still works as the process ends


class LastLoss:
    """Holds the losses of the running step and of the last one done: numbers, or tensors on a device, nothing else.

    A device is read at the end of the process alone, and only where that waits for nothing. Cost: 1 us a backward.
    """

    def __init__(self) -> None:
        self.step = 0
        self.running: list[Tensor | float] = []
        self.done: list[Tensor | float] = []
        # (step, losses) of the last steps whose losses are numbers and were checked
        self.recent: deque[tuple[int, list[Tensor | float]]] = deque(maxlen=MAX_RECENT)

    def add_loss(self, loss: object) -> None:
        """A loss is sent backward."""
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex() or tensors.has_no_data(loss):
            return
        if len(self.running) >= MAX_PARTS:
            return
        if tensors.on_host(loss):
            self.running.append(loss.item())
            return
        held = loss.detach()
        self.running.append(held if is_small_loss(held) else held.clone())

    def add_value(self, loss: float) -> None:
        """A loss is sent backward, whose value was read for another reason."""
        if len(self.running) < MAX_PARTS:
            self.running.append(loss)

    def end_step(self, step: int) -> None:
        """The main optimizer has stepped."""
        if self.running:
            self.step, self.done, self.running = step, self.running, []
            if type(self.done[0]) is float:
                self.recent.append((step, self.done))

    def discard_running(self) -> None:
        """What was sent backward served another optimizer."""
        self.running = []

    def read_recent(self) -> list[tuple[int, float]]:
        """The last losses that were checked and on the host, each with its step."""
        rows = [(step, [part for part in parts if isinstance(part, float)]) for step, parts in self.recent]
        return [(step, math.fsum(row)) for step, row in rows if all(map(math.isfinite, row))]

    def read_loss(self) -> float | None:
        """The loss of the last step done, as its record would have it; None where it is not known, or not to be had."""
        if not self.done or not _may_read(self.done):
            return None
        values: list[float] | None = None
        with guarded("a device that failed: what is known of the run is reported without it"):
            values = [float(loss) for loss in self.done]
        if values is None:
            return None
        return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def is_small_loss(loss: Tensor) -> bool:
    """True if one number may be held without keeping a large storage behind it."""
    return loss.numel() == 1 and loss.layout == torch.strided and loss.untyped_storage().nbytes() <= HELD_BYTES


def _may_read(losses: list[Tensor | float]) -> bool:
    kinds = {loss.device.type for loss in losses if isinstance(loss, Tensor)}
    if not kinds <= {"cuda"}:
        return False
    until = time.monotonic() + PATIENCE_S
    while kinds and not device_idle():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
