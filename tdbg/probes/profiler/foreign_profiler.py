"""A profiler that the program runs itself: ours makes way for it, and takes over the trace it writes."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tdbg.core import run_files
from tdbg.core.events import Trace
from tdbg.core.observations import Observed
from tdbg.core.observations.profiler import WindowYielded
from tdbg.core.profiling import trace_name
from tdbg.probes.profiler.kineto import is_own

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

MAX_BYTES = 2_000_000_000  # of a trace that is copied


class ProfilerProbe(Protocol):
    """The probe whose windows make way."""

    monitor: "Monitor"
    press: Any

    @property
    def is_over(self) -> bool: ...
    def patch_at(self, place: str, *, before: Any = None, after: Any = None, raised: Any = None) -> None: ...
    def emit(self, seen: Observed) -> None: ...
    def make_way(self) -> None: ...
    def guest_left(self) -> None: ...
    def took_over(self, trace: Trace) -> None: ...


class ForeignProfiler:
    """Knows when a profiler of the program records.

    Torch holds one profiler at a time: of two the second wins, and the first is emptied without a word. So ours
    ends before the program's begins, and never begins while it is there.
    """

    def __init__(self, probe: ProfilerProbe) -> None:
        self.probe = probe
        self._active: set[int] = set()  # profilers of the program that are prepared or record
        self.was_at_work = False
        self._since = 0
        self._wrote = False
        self._is_reported = False

    def attach(self) -> None:
        """Stand in front of where any profiler of torch begins, ends and writes."""
        self.probe.patch_at("profile-prepared", before=self._handle_start)
        self.probe.patch_at("profile-begins", before=self._handle_recording)
        self.probe.patch_at("profile-ends", after=self._handle_stop, raised=self._handle_stop)
        self.probe.patch_at("profile-written", after=self._copy_exported_trace)

    def is_at_work(self) -> bool:
        """True from the moment the program's profiler is prepared until it has ended."""
        return bool(self._active)

    def yield_to(self) -> None:
        """A window of ours was due and cannot be: said once."""
        self.was_at_work = True
        if not self._is_reported:
            self._is_reported = True
            self.probe.emit(WindowYielded())

    def on_start(self, visitor: object) -> None:
        """Somebody else is about to record."""
        self.probe.make_way()
        self._active.add(id(visitor))
        self._since = self.probe.monitor.step
        self._wrote = False
        self.was_at_work = True

    def on_stop(self, visitor: object) -> None:
        """They have ended."""
        if id(visitor) in self._active:
            self._active.discard(id(visitor))
            self.probe.guest_left()

    def _handle_start(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not is_own():
            self.on_start(args[0])

    def _handle_recording(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if id(args[0]) in self._active:
            self._since = self.probe.monitor.step

    def _handle_stop(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        if not is_own():
            self.on_stop(args[0])

    def _copy_exported_trace(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
    ) -> None:
        """The program wrote its trace: keep a copy, since it may write the next one over it."""
        if is_own() or self._wrote or self.probe.is_over:
            return
        path = Path(args[1] if len(args) > 1 else kwargs["path"])
        folder = self._make_traces_folder()
        size = path.stat().st_size
        if folder is None or size > MAX_BYTES or folder in path.resolve().parents:
            return
        self._wrote = True
        begun = time.perf_counter()
        name = trace_name(f"rank{self.probe.monitor.rank:04d}", time.time_ns())
        copy = folder / (f"{name}.gz" if path.name.endswith(".gz") else name)
        part = copy.with_name(f".{copy.name}.part")
        shutil.copyfile(path, part)
        part.replace(copy)
        if not copy.name.endswith(".gz"):
            self.probe.press.compress_in_thread(copy)
        seconds = time.perf_counter() - begun
        self.probe.monitor.budget.exclude(seconds)
        self.probe.took_over(
            Trace(
                t=time.time(),
                file=f"traces/{name}",
                bytes=size,
                phase="train" if self.probe.monitor.step else "eval",
                first_step=self._since + 1,
                steps=max(self.probe.monitor.step - self._since, 0),
                why="program",
                pause_ms=round(seconds * 1e3, 3),
            )
        )

    def _make_traces_folder(self) -> Path | None:
        self.probe.monitor.become_rank_now()
        folder = self.probe.monitor.folder()
        if folder is None:
            return None
        run_files.make_folder(folder / "traces")
        return (folder / "traces").resolve()
