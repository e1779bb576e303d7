"""One step's record: losses, times and memory gathered as the step runs, written when its values are known."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tdbg.core.events import Step, as_float, number
from tdbg.runtime.deferred_reads import LateReads, Then

MEMORY_EVERY = 10
MAX_LOSSES = 4096  # of one step; a program that never steps must not pile them up
PAGE_MB = (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096) / 1e6


class Recorder:
    """Gathers what belongs to the running step.

    Losses on the host are read at once; losses on an accelerator ride in the step's one copy and complete
    the record a step later.
    """

    def __init__(self, keep_steps: int) -> None:
        self.ring: deque[Step] = deque(maxlen=max(keep_steps, 1))
        self.late = LateReads()
        self.pending: Step | None = None
        self.began_at = 0.0
        self.forward_s = self.backward_s = self.optimizer_s = 0.0
        self.samples = 0
        self.micro = 0
        self._losses: deque[Tensor | float] = deque(maxlen=MAX_LOSSES)
        self._other_losses: list[float] = []
        self._memory_mb: float | None = None
        self._memory_step = 0

    def add_loss(self, loss: Tensor | float, *, counted: bool) -> None:
        """A loss was sent backward; a closure's further evaluations are not counted."""
        self.micro += 1
        if counted:
            self._losses.append(loss)

    @property
    def loss(self) -> float | None:
        """The running step's loss as far as it is on the host."""
        values = [loss for loss in self._losses if not isinstance(loss, Tensor)]
        return sum(values) if values and len(values) == len(self._losses) else None

    def belongs_to_another(self) -> None:
        """What was sent backward so far served another optimizer; device losses are not read (no sync)."""
        self._other_losses.extend(loss for loss in self._losses if not isinstance(loss, Tensor))
        self._losses.clear()
        self.micro = 0

    def reset_step(self, now: float) -> None:
        """A step has ended; the next one begins."""
        self._losses.clear()
        self._other_losses = []
        self.micro = self.samples = 0
        self.forward_s = self.backward_s = self.optimizer_s = 0.0
        self.began_at = now

    def build_record(self, step: int, optimizer: Optimizer, now: float, *, skipped: bool, late_loss: Then) -> Step:
        """The record of the step that ends now, but for what probes add."""
        record = Step(
            t=time.time(),
            step=step,
            micro=self.micro,
            other_losses=[number(value) or 0.0 for value in self._other_losses],
            lr=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            skipped=skipped,
            forward_ms=round(self.forward_s * 1e3, 4),
            backward_ms=round(self.backward_s * 1e3, 4),
            optimizer_ms=round(self.optimizer_s * 1e3, 4),
            step_ms=round((now - self.began_at) * 1e3, 4) if self.began_at else None,
            samples=self.samples or None,
            host_mb=self._host_mb(step),
        )
        self._fill_loss(record, late_loss)
        _fill_device_memory(record)
        return record

    def _fill_loss(self, record: Step, late_loss: Then) -> None:
        on_device = [loss for loss in self._losses if isinstance(loss, Tensor)]
        if on_device:
            self.late.request_read(torch.stack([loss.reshape(()).float() for loss in on_device]), late_loss, first=True)
            return
        values = [loss for loss in self._losses if not isinstance(loss, Tensor)]
        if values:
            record.loss = number(math.fsum(values) if all(map(math.isfinite, values)) else sum(values))

    def _host_mb(self, step: int) -> float | None:
        if step >= self._memory_step + MEMORY_EVERY or self._memory_mb is None:
            self._memory_mb, self._memory_step = host_memory_mb(), step
        return self._memory_mb

    def finish_or_wait(self, record: Step, write: Callable[[Step], None]) -> None:
        """Write the record, or keep it until its device values have arrived, a step later."""
        self.finish_pending(write)
        if self.late.waiting:
            self.pending = record
            self.late.start_copy()
        else:
            write(record)

    def finish_pending(self, write: Callable[[Step], None]) -> None:
        """Complete and write the record that waits, if there is one."""
        if self.pending is not None:
            record, self.pending = self.pending, None
            try:
                self.late.deliver_values(record)
            finally:
                write(record)  # what is known of the step, should the device have failed meanwhile

    def keep_record(self, record: Step) -> None:
        """Settle whether the step was finite, and keep the record in the ring."""
        loss = as_float(record.loss)
        if loss is not None and record.finite is not False:
            record.finite = math.isfinite(loss)
        self.ring.append(record)

    def last_good(self) -> dict[str, object]:
        """The last record that was finite, its learning rates too: step, loss, grad_norm, lr."""
        for record in reversed(self.ring):
            rates_fit = all(
                math.isfinite(float(rate)) for rate in record.lr
            )  # an update at such a rate ruined the weights
            if record.finite is not False and record.loss is not None and rates_fit:
                return {"step": record.step, "loss": record.loss, "grad_norm": record.grad_norm, "lr": record.lr}
        return {}

    def list_rows(self) -> list[dict[str, Any]]:
        """The kept records, without vectors, as plain data."""
        rows = [asdict(record) for record in self.ring]
        return [{k: v for k, v in row.items() if k != "grad_norms" and v not in (None, [])} for row in rows]


def host_memory_mb() -> float | None:
    """Resident memory of this process; on systems without /proc, its peak."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return round(int(file.read().split()[1]) * PAGE_MB, 1)
    except (OSError, IndexError, ValueError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def _fill_device_memory(record: Step) -> None:
    if torch.cuda.is_initialized():
        record.device_mb = round(torch.cuda.memory_allocated() / 1e6, 1)
        record.device_peak_mb = round(torch.cuda.max_memory_allocated() / 1e6, 1)
