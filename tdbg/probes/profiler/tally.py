"""What became of all windows of a profiler: how many, how large, and how long a step took inside and outside."""

from dataclasses import dataclass, field

from tdbg.core.events import Trace
from tdbg.core.observations.profiler import ProfilingDone
from tdbg.core.window import Window


@dataclass(slots=True)
class Tally:
    """The sums, and the words for them."""

    windows: int = 0
    steps: int = 0
    bytes: int = 0
    pause_ms: float = 0.0
    cut: str = ""  # why the last window that ended early did
    inside: Window = field(default_factory=Window)  # milliseconds of a step, without the pauses
    outside: Window = field(default_factory=Window)

    def add_trace(self, event: Trace) -> None:
        """A trace is there."""
        self.windows += 1
        self.steps += event.steps
        self.bytes += event.bytes
        for ms in event.steps_ms:
            self.inside.push(ms)

    def build_summary(self, *, missing: str, idle: str) -> ProfilingDone:
        """All of it as it is told at the end. idle: why nothing was profiled, where that is no fault."""
        return ProfilingDone(
            missing=missing,
            windows=self.windows,
            steps=self.steps,
            bytes=self.bytes,
            inside_ms=round_median(self.inside),
            outside_ms=round_median(self.outside),
            pause_ms=round(self.pause_ms, 3),
            idle=idle or None,
        )


def round_median(window: Window) -> float | None:
    """The median of a window that has one."""
    return round(window.median, 4) if len(window) else None
