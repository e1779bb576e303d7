"""What a profiler records, and in which steps: `tdbg profile` and the options around it, as data."""

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern
from tdbg.core.ranges import parse_ranges

# Each kind, and what of torch.profiler it switches on.
KINDS: Mapping[str, tuple[str, ...]] = {
    "light": (),
    "memory": ("profile_memory",),
    "shapes": ("record_shapes",),
    "stacks": ("with_stack",),
    "flops": ("record_shapes", "with_flops"),
    "full": ("record_shapes", "profile_memory", "with_stack", "with_flops"),
}
MAX_STEPS = 100  # of one window: 80 steps of a small model with everything on make 200 MB and hold up the run for 9 s


REST_S = 60.0
_nobody_records = threading.Event()
_nobody_records.set()


def pause_own_threads(recording: bool) -> None:
    """Have tdbg's own threads rest from now on, or go on: with stacks a trace holds every call of every thread."""
    if recording:
        _nobody_records.clear()
    else:
        _nobody_records.set()


def wait_while_recording() -> None:
    """Called by such a thread now and then: waits while a window is open, a minute at most. Cost: 0.2 us."""
    if not _nobody_records.is_set():
        _nobody_records.wait(REST_S)


class Span(NamedTuple):
    """A window: its first and its last recorded step, both from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"

    @property
    def step_count(self) -> int:
        """How many steps it has."""
        return self.last - self.first + 1


class Windows(NamedTuple):
    """Which windows there are: by cycles of wait, warm-up and active steps, or named one by one.

    repeat: so many cycles; 0 for as many as there are. ranges: named windows, before each of which there is a warm-up
    too; then the cycles do not count.
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1
    skip_first: int = 0
    ranges: tuple[Span, ...] = ()

    @classmethod
    def from_settings(cls, settings: Any) -> "Windows":
        """The windows that the settings ask for; those of ``--flag PROFILER=100:102`` are named as well."""
        flag = settings.flags.get("PROFILER")
        named = settings.profile_window or (flag if isinstance(flag, str) else "")
        return cls(
            settings.profile_wait,
            settings.profile_warmup,
            settings.profile_active,
            settings.profile_repeat,
            settings.profile_skip_first,
            parse_windows(named),
        )

    def find_window(self, step: int) -> Span | None:
        """The window that ``step`` (from 1) belongs to, or is a warm-up for; None between windows."""
        if self.ranges:
            return next((span for span in self.ranges if span.first - self.warmup <= step <= span.last), None)
        place = step - 1 - self.skip_first
        number, rest = divmod(place, self.wait + self.warmup + self.active)
        if place < 0 or (self.repeat and number >= self.repeat) or rest < self.wait:
            return None
        first = step - rest + self.wait + self.warmup
        return Span(first, first + self.active - 1)

    def find_next_window(self, step: int) -> Span | None:
        """The first window that ends at ``step`` or later; None if there is none."""
        if self.ranges:
            return next((span for span in self.ranges if span.last >= step), None)
        cycle = self.wait + self.warmup + self.active
        number = max(step - 1 - self.skip_first, 0) // cycle
        if self.repeat and number >= self.repeat:
            return None
        first = self.skip_first + number * cycle + self.wait + self.warmup + 1
        return Span(first, first + self.active - 1)


def parse_windows(text: str, name: str = "profile_window") -> tuple[Span, ...]:
    """``100:102,500:502`` as windows in order; TdbgError for one that has no end, is too long, or meets another.

    name: of the option, for the message.
    """
    found = sorted(parse_ranges(name, text, ":"))
    spans: list[Span] = []
    for low, high in found:
        if high == float("inf"):
            raise TdbgError(f"{name}: a window from step {low:g} on has no end", f"write {low:g}:{low + 2:g}")
        if low < 1:
            raise TdbgError(f"{name}: steps are counted from 1", f"write 1:{max(high, 1):g}")
        if high - low >= MAX_STEPS:
            raise TdbgError(
                f"{name}: {low:g}:{high:g} is more than {MAX_STEPS} steps: the trace would be too large to open",
                f"choose a few: {low:g}:{low + 2:g}",
            )
        if spans and low <= spans[-1].last:
            raise TdbgError(f"{name}: {low:g}:{high:g} overlaps the window before it", "use disjoint windows")
        spans.append(Span(int(low), int(high)))
    return tuple(spans)


_NAME = lazy_pattern(r"(.+?)\.(\d+)\.pt\.trace\.json(\.gz)?")


def trace_name(worker: str, t_ns: int) -> str:
    """``rank0000.1700000000000000000.pt.trace.json``: the name under which TensorBoard's plugin knows a trace."""
    return f"{worker}.{t_ns}.pt.trace.json"


def is_trace_name(name: str) -> bool:
    """True for a name that `trace_name` makes, compressed or not."""
    return _NAME.fullmatch(name) is not None
