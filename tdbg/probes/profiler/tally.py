"""What became of all windows of a profiler: how many, how large, and how long a step took inside and outside."""

from dataclasses import dataclass, field
from typing import Any

from tdbg.core.events import Trace
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

    def take(self, event: Trace) -> None:
        """A trace is there."""
        self.windows += 1
        self.steps += event.steps
        self.bytes += event.bytes
        for ms in event.steps_ms:
            self.inside.push(ms)

    def text(self, why: str) -> str:
        """All of it in a line. why: what is missing."""
        text = "profiled nothing"
        if self.windows:
            text = f"profiled {count(self.steps, 'step')} in {count(self.windows, 'trace')}, {self.bytes / 1e6:.1f} MB"
        if len(self.inside) and len(self.outside):
            text += f"; a step took {self.inside.median:.4g} ms in it and {self.outside.median:.4g} ms outside"
        return f"{text}; {why}" if why else text

    def values(self) -> dict[str, Any]:
        """The facts behind the line."""
        return {
            "windows": self.windows,
            "steps": self.steps,
            "bytes": self.bytes,
            "inside_ms": rounded(self.inside),
            "outside_ms": rounded(self.outside),
            "pause_ms": round(self.pause_ms, 3),
        }


def rounded(window: Window) -> float | None:
    """The median of a window that has one."""
    return round(window.median, 4) if len(window) else None


def count(number: int, what: str) -> str:
    """``1 step``, ``1,000 steps``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
