"""Activation checkpointing: how often its functions run, and what running them again costs."""

import time
from collections.abc import Callable
from typing import Any

import torch

from tdbg.core.observations.training_loop import Recomputation
from tdbg.probes import Probe
from tdbg.runtime.compiler import hide_from_compiler


class Recomputed:
    """The runs of checkpointed functions in one step. Time is host time; a function inside another counts once."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._depth = 0
        self.clear()

    def clear(self) -> None:
        """A step has ended."""
        self.runs = self.again = 0
        self.seconds = self.saved_mb = 0.0
        self._depth = 0

    def count_runs(self, function: Callable[..., object]) -> "Counted":
        """The function, with its runs counted: the first is the forward pass, each further one a recomputation."""
        return Counted(self, function)

    def run_timed(self, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run it again, timed."""
        self.again += 1
        on_device = torch.cuda.is_initialized() and self.probe.should_sample()
        before = torch.cuda.memory_allocated() if on_device else 0
        self._depth += 1
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:  # torch leaves a recomputation by an exception once it has what it needs
            self._depth = max(self._depth - 1, 0)
            if self._depth == 0:
                self.seconds += time.perf_counter() - begun
                self.saved_mb += (torch.cuda.memory_allocated() - before) / 1e6 if on_device else 0.0

    def report_recomputation(self, step: int) -> None:
        """A line of what this step recomputed, if it did."""
        if not self.runs:
            return
        recomputation = Recomputation(
            runs=self.runs,
            recomputed=self.again,
            recompute_ms=round(1e3 * self.seconds, 4),
            saved_mb=round(self.saved_mb, 1) if torch.cuda.is_initialized() else None,
        )
        self.probe.emit(recomputation, step=step)


class Counted:
    """Stands in for a checkpointed function."""

    __slots__ = ("function", "owner", "ran")

    def __init__(self, owner: Recomputed, function: Any) -> None:
        self.owner, self.function, self.ran = owner, function, False

    def __call__(self, *args: object, **kwargs: object) -> object:
        owner = self.owner
        if torch.compiler.is_compiling() or not owner.probe.on or owner.probe.monitor.rerunning:
            return self.function(*args, **kwargs)
        owner.runs += 1
        if not self.ran:
            self.ran = True
            return self.function(*args, **kwargs)
        return owner.run_timed(self.function, args, kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self.function, name)


hide_from_compiler(Counted.__call__)
hide_from_compiler(Recomputed.run_timed)
