"""What the probe `profiler` tells of its windows."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.profiling import Span
from tdbg.core.tables import format_count

BUDGET_USED = "the bytes that --disk-budget allows are used up"


class _Profiling(Observed):
    PROBE = "profiler"
    EVIDENCE = Evidence.LOCATED


class WindowOpened(_Profiling):
    """A window begins to warm up."""

    PART = "WINDOW"
    LEVEL = "I"

    first_step: int | None = doc("first step of the window")
    last_step: int | None = doc("last step of the window")

    def text(self) -> str:
        """The steps that are to be recorded."""
        return f"profiling{_format_steps(self.first_step, self.last_step)}"


class TraceWritten(_Profiling):
    """A window is over, and its trace is there."""

    PART = "TRACE"

    file: str = doc("path of the trace in the rank's folder", "")
    steps: int = doc("number of steps recorded in this window", 0)
    bytes: int = doc("size of the trace in bytes before compression", 0)
    first_step: int | None = doc("first step of the window")
    last_step: int | None = doc("last step of the window")
    phase: str = doc("what a step is: train (optimizer step), eval (root call) or batches (API batch)", "")
    wanted: int = doc("number of steps requested", 0)
    ended: str = doc("why the window ended before its last step", "")

    @property
    def level(self) -> str:
        """W for a window that was cut short."""
        return "W" if self.ended else "I"

    def text(self) -> str:
        """Steps and bytes, and why there are fewer than were asked for."""
        span = _format_steps(self.first_step, self.last_step) if self.steps else " no whole step"
        text = f"profiled{span} ({self.phase}), {self.bytes / 1e6:.1f} MB"
        return f"{text}; only {self.steps} of {format_count(self.wanted, 'step')}: {self.ended}" if self.ended else text


class TraceLost(_Profiling):
    """A window is over, and has no trace."""

    PART = "LOST"
    LEVEL = "E"

    missing: str = doc("what was requested but not recorded, and why", "")

    def text(self) -> str:
        """Which, and why."""
        return self.missing


class WindowYielded(_Profiling):
    """A window was due while the program ran a profiler of its own."""

    PART = "ASIDE"
    LEVEL = "I"

    profiler: str | None = doc("class of the program's own profiler")

    def text(self) -> str:
        """Who records, and what becomes of the trace."""
        return "paused: the program's own profiler is recording; tdbg uses the trace it writes"


class ProfilingDone(_Profiling):
    """At the end: all windows together, and what is missing."""

    PART = "DONE"

    missing: str = doc("what was requested but not recorded, and why", "")
    windows: int = doc("traces written", 0)
    steps: int = doc("number of steps recorded in all windows", 0)
    bytes: int = doc("size of all traces in bytes before compression", 0)
    inside_ms: float | None = doc("median time of a recorded step")
    outside_ms: float | None = doc("median time of the last steps outside of windows")
    pause_ms: float = doc("total time the program was paused while windows were closed and written", 0.0)
    idle: str | None = doc("why nothing was profiled, if the options asked for that")

    @property
    def level(self) -> str:
        """W where something is missing."""
        return "W" if self.missing else "I"

    def text(self) -> str:
        """All of it in a line."""
        text = "profiled nothing"
        if self.windows:
            traces = format_count(self.windows, "trace")
            text = f"profiled {format_count(self.steps, 'step')} in {traces}, {self.bytes / 1e6:.1f} MB"
        if self.inside_ms is not None and self.outside_ms is not None:
            text += f"; median step {self.inside_ms:.4g} ms while profiled, {self.outside_ms:.4g} ms otherwise"
        why = self.missing or self.idle
        return f"{text}; {why}" if why else text


def _format_steps(first: int | None, last: int | None) -> str:
    """`` steps 3 to 5``; nothing in runs recorded before windows told their steps."""
    return f" {Span(first, last)}" if first is not None and last is not None else ""
