"""One window of torch.profiler: prepared, started, marked step by step, stopped, and its trace written."""

import contextlib
import gzip
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, supported_activities

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.guard import Guard
from tdbg.core.profiling import KINDS, Span, pause_own_threads, trace_name
from tdbg.probes.profiler.memory_history import MemoryHistory, name_beside, write_memory_history
from tdbg.runtime.torch_compat import is_profiled, kineto_profile, record_functions

COMPRESSION = 6  # a seventh larger than 9, in a fifth of the time: 25 ms for the 4 MB that a step with everything makes
BLOCK_BYTES = 1 << 20
PATIENCE_S = 60.0
own_calls = threading.local()  # .depth: how deep this thread is inside calls of ours to torch's profiler


class Session:
    """A window of torch.profiler in the thread that makes it; torch knows one at a time.

    Its tables (``key_averages``, ``events``) cost 20 to 50 times the export, and are never made here.
    """

    def __init__(self, span: Span, kind: str) -> None:
        self.span = span
        self.kind = kind
        self.thread = threading.get_ident()
        if kineto_profile is None:
            raise TdbgError("this torch has no profiler that tdbg can drive", "try it with another version of torch")
        options: dict[str, Any] = dict.fromkeys(KINDS[kind], True)
        self.profiler = kineto_profile(activities=_list_activities(), **options)
        self.recording = False
        self.steps_ms: list[float] = []
        self.running_step = 0
        self._mark: Any = None
        self._began_at = 0.0
        self._history: MemoryHistory | None = None
        _restore_record_functions()
        with mark_own_calls():
            self.profiler.prepare_trace()
        pause_own_threads(True)

    def begin_step(self, number: int) -> None:
        """Step ``number`` begins; the one before it has ended."""
        self.end_step(whole=True)
        if number < self.span.first:
            return
        if not self.recording:
            if "profile_memory" in KINDS[self.kind]:
                self._history = MemoryHistory()
            with mark_own_calls():
                self.profiler.start_trace()
            self.recording = True
        self.running_step = number
        self._mark = record_function(f"ProfilerStep#{number}")
        self._mark.__enter__()
        self._began_at = time.perf_counter()

    def running_ms(self) -> float:
        """How long the running step has taken so far."""
        return (time.perf_counter() - self._began_at) * 1e3

    def end_step(self, *, whole: bool) -> None:
        """The running step ends, if there is one; unless ``whole``, before its time."""
        mark, self._mark = self._mark, None
        if mark is not None:
            if whole:
                self.steps_ms.append(round((time.perf_counter() - self._began_at) * 1e3, 4))
                self.running_step = 0
            mark.__exit__(None, None, None)

    def is_elsewhere(self) -> bool:
        """True in a thread that is not the one that began."""
        return self.thread != threading.get_ident()

    def is_here(self) -> bool:
        """True in the thread that began, and while torch records there: else it must be left alone.

        torch keeps what it records by thread; in another it stops nothing, and crashes on writing the nothing.
        """
        return not self.is_elsewhere() and (somebody_records() or not self.recording)

    def stop_session(self, about: dict[str, object], *, whole: bool) -> None:
        """End it. whole: the running step ends here too; else its span in the trace is a part of a step.

        about: kept in the trace, under ``tdbg``, with the number of such a part.
        """
        try:
            self.end_step(whole=whole)
            with mark_own_calls():
                if not self.recording:  # the warm-up alone: torch wants it started and stopped to forget it
                    self.profiler.start_trace()
                partial = {"partial_step": self.running_step} if self.running_step else {}
                self.profiler.add_metadata_json("tdbg", json.dumps({**about, **partial}))
                self.profiler.stop_trace()
        finally:  # tdbg's own threads wait while it is there
            self.release_resources()

    def release_resources(self) -> None:
        """Nothing of it but torch's own profiler is left."""
        pause_own_threads(False)
        if self._history is not None:
            self._history.stop_recording()

    def export_trace(self, folder: Path, worker: str, press: "Press") -> tuple[Path, int]:
        """Write the trace; ``press`` compresses it, and writes what is beside it.

        Returns its path and its bytes before that; raises OSError if it cannot be written.
        """
        run_files.make_folder(folder)
        path = folder / trace_name(worker, time.time_ns())
        part = path.with_name(f".{path.name}.part")
        run_files.open_new(part).close()  # torch writes into the file that is there
        with mark_own_calls():
            self.profiler.export_chrome_trace(str(part))
        self.profiler.profiler = None  # freeing what was recorded takes a third of the pause: it belongs to it
        if not part.stat().st_size:
            raise OSError(f"torch wrote nothing to {path.name}")
        size = part.stat().st_size
        run_files.rename_file(part, path)
        press.compress_in_thread(path)
        if self._history is not None and self._history.snapshot:
            press.start_thread(write_memory_history, self._history.snapshot, name_beside(path))
        return path, size


@contextlib.contextmanager
def mark_own_calls() -> Iterator[None]:
    """Around calls to torch's profiler that are ours, so that they are not taken for the program's."""
    own_calls.depth = getattr(own_calls, "depth", 0) + 1
    try:
        yield
    finally:
        own_calls.depth -= 1


def is_own() -> bool:
    """True inside such a call of this thread."""
    return bool(getattr(own_calls, "depth", 0))


def somebody_records() -> bool:
    """True while any profiler of torch records in this thread."""
    return is_profiled()


class Press:
    """Compresses written traces in a thread of its own; at every moment one whole file of each is there."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._guard = Guard("trace files")

    def compress_in_thread(self, path: Path) -> None:
        """Begin to make ``path`` a .gz."""
        self.start_thread(_compress_file, path)

    def start_thread(self, work: Callable[..., None], *what: Any) -> None:
        """Begin some other work in such a thread."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._run_guarded, args=(work, *what), name="tdbg-traces", daemon=True)
        thread.start()
        self._threads.append(thread)  # after start(): only a started thread can be joined

    def _run_guarded(self, work: Callable[..., None], *what: Any) -> None:
        self._guard.call_guarded(work, *what)

    def wait_for_threads(self) -> None:
        """Until all of it is done, or has taken a minute."""
        until = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        self._threads = []


def _compress_file(path: Path) -> None:
    part = path.with_name(f".{path.name}.gz.part")
    try:
        with (
            run_files.open_read(path) as plain,
            run_files.open_new(part) as file,
            gzip.GzipFile(path.name, "wb", COMPRESSION, file) as packed,
        ):
            shutil.copyfileobj(plain, packed, BLOCK_BYTES)
        run_files.rename_file(part, path.with_name(f"{path.name}.gz"))
        run_files.remove_file(path)
    except OSError:  # no room: what is there, uncompressed, can be read as well
        with contextlib.suppress(OSError):
            os.unlink(part)


def _list_activities() -> set[ProfilerActivity]:
    """All that torch can record here; of an accelerator that nobody uses nothing, as looking would wake it up."""
    found = set(supported_activities())
    if not torch.cuda.is_initialized():
        found.discard(ProfilerActivity.CUDA)
    return found


_forgotten = False


def forget_in_child(*, stacks: bool) -> None:
    """In a process forked while a window was open: nobody will ever take what torch goes on recording there."""
    global _forgotten
    _forgotten = True
    pause_own_threads(False)
    record_functions(False)
    if stacks:
        sys.setprofile(None)


def _restore_record_functions() -> None:
    """Should such a process have a window of its own after all."""
    global _forgotten
    if _forgotten:
        _forgotten = False
        record_functions(True)
