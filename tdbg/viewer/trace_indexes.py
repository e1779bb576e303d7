"""Large traces, read once: in a process of its own and of low priority, into a file below the user's cache folder.

Until that is there an answer says how far it is. Small traces are read at once.

``python -m tdbg.viewer.trace_indexes TRACE PART TARGET KEY`` is that process: it prints how many bytes it has read, a line
each, and writes TARGET.
"""

import contextlib
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

import msgspec

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.files import describe_failure, open_regular
from tdbg.core.guard import describe_error, undo_on_error
from tdbg.core.tables import format_count, format_size
from tdbg.core.user_cache import find_cache_home, make_own_folder, remove_old_files
from tdbg.traces import summary as summaries
from tdbg.traces.analyze.summary_cache import find_cached
from tdbg.traces.parse.chunks import GZIP, Blocks
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.summary import Summary
from tdbg.viewer.encoding import encode_json

if TYPE_CHECKING:
    from tdbg.traces.analyze.span_columns import SpanFile
    from tdbg.traces.parse.event_stream import Event

LARGE_BYTES, LARGE_PACKED_BYTES = 8 << 20, 1 << 20  # what is larger takes longer than somebody waits
UNPACKED_BYTES = 32 << 20  # so does a packed one, however small, out of which more comes
KEPT_S = 30 * 86_400.0
MOST_KEPT_BYTES = 4 << 30  # of all files
MAX_SUMMARIES = 8  # in memory: one takes some MB
REPORT_BYTES = 4 << 20  # of a trace from one line of the process to the next
RETRY_S = 60.0  # after a failure
NICENESS = 10
REFUSED = 3  # exit code: the last line says what is wrong with the trace
ENDING = ".spans"
IN_TERMINAL = "`tdbg trace show` reads it in the terminal"
Key = tuple[int | str, ...]


class Reading(TypedDict):
    """How far the reading of traces is. traces: that are not read yet. text: the same in words."""

    traces: int
    read_bytes: int
    total_bytes: int
    text: str


class _Report(msgspec.Struct):
    """A line of the process. again: the file is read once more, to sort its events."""

    read: int
    again: int = 0


class _Refusal(msgspec.Struct):
    what: str
    hint: str


@dataclass(slots=True)
class _Job:
    """A trace that is being read, or waits for it."""

    one: TraceFile
    key: Key
    target: Path
    report: _Report


class TraceIndexes:
    """The files of spans of the traces that were asked for. One trace is read at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._turn = threading.Lock()  # held while a small trace is read
        self._choosing = threading.Lock()  # guards the folder
        self._jobs: OrderedDict[Path, _Job] = OrderedDict()  # by target; the first one is being read
        self._failures: dict[Key, tuple[float, TdbgError]] = {}
        self._summaries: OrderedDict[Key, Summary] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._own: tempfile.TemporaryDirectory[str] | None = None  # where the cache cannot be used
        self._is_closed = False

    def follow_reading(self, found: Sequence[TraceFile], *, spans: bool = False) -> Reading | None:
        """How far the reading of these traces is, which begins if need be; None once all can be asked for.

        spans: not their summaries alone, which may also lie beside them.
        """
        waited = [target for one in found if (target := self._start_reading(one, spans)) is not None]
        with self._lock:
            jobs = [self._jobs[target] for target in waited if target in self._jobs]
        return _describe_reading(jobs) if jobs else None

    def _start_reading(self, one: TraceFile, spans: bool) -> Path | None:
        key = _read_key(one)
        if key is None or not _is_large(one, key) or self._open(one, key) is not None:
            return None
        if not spans and self._find_summary(one, key) is not None:
            return None
        target = self._locate(one)
        with self._lock:
            failed_at, _ = self._failures.get(key, (0.0, None))
            if failed_at and time.monotonic() - failed_at < RETRY_S:
                return None  # what is asked for next says why
            self._jobs.setdefault(target, _Job(one, key, target, _Report(0)))  # one, however often the trace changes
            self._start_process()
        return target

    def _find_summary(self, one: TraceFile, key: Key) -> Summary | None:
        """The summary in memory, or beside the trace."""
        with self._lock:
            found = self._summaries.get(key)
            if found is not None:
                self._summaries.move_to_end(key)
        if found is None and one.part is None and (beside := find_cached(one.path)) is not None:
            return self._keep_summary(one, key, beside)
        return found

    def _keep_summary(self, one: TraceFile, key: Key, found: Summary) -> Summary:
        found.path = os.fspath(one.path)
        with self._lock:
            self._summaries[key] = found
            while len(self._summaries) > MAX_SUMMARIES:
                self._summaries.popitem(last=False)
        return found

    def load_summary(self, one: TraceFile) -> Summary:
        """The summary of a trace. Raises TdbgError for one that cannot be read, or is not read yet."""
        key = _read_key(one)
        if key is None:
            return _summarize(one)  # which says what is wrong
        known = self._find_summary(one, key)
        if known is not None:
            return known
        if not _is_large(one, key):
            return self._keep_summary(one, key, _summarize(one))
        found = self._open(one, key)
        if found is None:
            raise self._get_failure(key)
        return self._keep_summary(one, key, found.read_summary())

    def open_spans(self, one: TraceFile) -> "SpanFile":
        """The spans of a trace. Raises TdbgError as `load_summary` does."""
        key = _read_key(one)
        if key is None:
            raise TdbgError(f"{one.path.name} cannot be read", "look at its permissions")
        with self._turn:
            found = self._open(one, key)
            if found is None and not _is_large(one, key):
                index_trace(one.path, one.part, self._locate(one), key)
                found = self._open(one, key)
        if found is None:
            raise self._get_failure(key)
        return found

    def _get_failure(self, key: Key) -> TdbgError:
        with self._lock:
            _, error = self._failures.get(key, (0.0, TdbgError("the trace is not read yet", "ask again in a moment")))
        return error

    def _locate(self, one: TraceFile) -> Path:
        text = f"{os.path.realpath(one.path)}\0{one.part}".encode("utf-8", "surrogateescape")
        return self._get_folder() / f"{hashlib.blake2b(text, digest_size=16).hexdigest()}{ENDING}"

    def _get_folder(self) -> Path:
        with self._choosing:
            if self._folder is None:
                self._folder = find_folder()
                if not make_own_folder(self._folder):
                    self._own = tempfile.TemporaryDirectory(prefix="tdbg-view-", ignore_cleanup_errors=True)
                    self._folder = Path(self._own.name)
            return self._folder

    def _open(self, one: TraceFile, key: Key) -> "SpanFile | None":
        """What is kept of this state of a trace."""
        from tdbg.traces.analyze.span_columns import SpanFile

        path = self._locate(one)
        try:
            found = SpanFile(path)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        if tuple(found.index.key) != key:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # still wanted
        return found

    def _start_process(self) -> None:
        """Read the first trace that waits, unless one is being read. The caller holds the lock."""
        if self._process is not None or not self._jobs or self._is_closed:
            return
        job = next(iter(self._jobs.values()))
        job.key = _read_key(job.one) or job.key  # it may have changed while it waited
        try:
            self._process = _run_process(job)
        except OSError as error:
            del self._jobs[job.target]
            self._note_failure(job, f"reading it cannot begin: {describe_failure(error)}")
        else:
            threading.Thread(target=self._follow_process, args=(self._process, job), daemon=True).start()

    def _follow_process(self, process: "subprocess.Popen[bytes]", job: _Job) -> None:
        why: str | TdbgError = "reading it failed"
        is_kept = False
        try:
            last = _follow_reports(process, job)
            code = process.wait()
            if code:
                _remove_draft(job, process.pid)
            is_kept = not code and self._open(job.one, job.key) is not None
            why = _describe_end(job, code, last)
        finally:  # else no other trace would be read any more
            with self._lock:
                self._process = None
                self._jobs.pop(job.target, None)
                if not is_kept:
                    self._note_failure(job, why)
                self._start_process()

    def _note_failure(self, job: _Job, why: "str | TdbgError") -> None:
        """Keep why a trace cannot be shown, for some time. The caller holds the lock."""
        now = time.monotonic()
        self._failures = {key: one for key, one in self._failures.items() if now - one[0] < RETRY_S}
        if isinstance(why, str):
            why = TdbgError(f"{job.one.path.name}: {why}", IN_TERMINAL)
        self._failures[job.key] = now, why

    def close(self) -> None:
        """End the process that reads, and remove what could not be kept."""
        with self._lock:
            self._is_closed = True
            process, job = self._process, next(iter(self._jobs.values()), None)
        if process is not None and job is not None:
            process.kill()
            process.wait()
            _remove_draft(job, process.pid)
        if self._own is not None:
            self._own.cleanup()


def _summarize(one: TraceFile) -> Summary:
    from tdbg.traces.analyze.summary_builder import summarize_trace

    return summarize_trace(one.path, part=one.part)


def _read_key(one: TraceFile) -> Key | None:
    """What changes whenever a trace does; None where it cannot be asked."""
    try:
        state = one.path.stat()
    except OSError:
        return None
    part = -1 if one.part is None else one.part
    path = os.path.realpath(one.path).encode("utf-8", "surrogateescape").hex()
    return summaries.VERSION, path, part, state.st_size, state.st_mtime_ns, state.st_ino


def _is_large(one: TraceFile, key: Key) -> bool:
    if not _is_packed(one.path):
        return int(key[3]) >= LARGE_BYTES
    return int(key[3]) >= LARGE_PACKED_BYTES or _unpacks_to_much(one.path, key)


@functools.lru_cache(maxsize=1024)
def _unpacks_to_much(path: Path, key: Key) -> bool:
    """True if more than `UNPACKED_BYTES` come out of a packed trace. Cost: at most 0.1 s, once for each state of it."""
    size = 0
    with contextlib.suppress(TdbgError):
        for block in Blocks(path):
            size += len(block)
            if size > UNPACKED_BYTES:
                return True
    return False


def _is_packed(trace: Path) -> bool:
    """True for a file that is gzip, whatever its name says: a thousand times as much may come out of it."""
    try:
        with open_regular(trace) as file:
            return file.read(len(GZIP)) == GZIP
    except OSError:
        return True


def _describe_reading(jobs: Sequence[_Job]) -> Reading:
    total, read = sum(int(job.key[3]) for job in jobs), sum(job.report.read for job in jobs)
    which = jobs[0].one.path.name if len(jobs) == 1 else format_count(len(jobs), "trace")
    again = " once more, to sort its events" if any(job.report.again for job in jobs) else ""
    text = f"reading {which} ({format_size(total)}){again}: {100 * read // max(total, 1)} %"
    return Reading(traces=len(jobs), read_bytes=read, total_bytes=total, text=text)


def _run_process(job: _Job) -> "subprocess.Popen[bytes]":
    """Start to read a trace. Its path is that which was found: the process refuses a link that took its place."""
    part = "" if job.one.part is None else str(job.one.part)
    words = [os.path.abspath(job.one.path), part, str(job.target), json.dumps(job.key)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # no thread of numpy's has work
    )


def _follow_reports(process: "subprocess.Popen[bytes]", job: _Job) -> bytes:
    """Keep how far a process says it is, until it ends; the last line that says something else."""
    assert process.stdout is not None
    last = b""
    with process.stdout as lines:
        for line in lines:
            try:
                job.report = msgspec.json.decode(line, type=_Report)
            except msgspec.MsgspecError:
                last = line.strip() or last
    return last


def _remove_draft(job: _Job, pid: int) -> None:
    with contextlib.suppress(OSError):
        _name_draft(job.target, pid).unlink(missing_ok=True)


def _describe_end(job: _Job, code: int, last: bytes) -> "str | TdbgError":
    """What is said of a trace whose process failed, or wrote what cannot be used."""
    if not code:
        return f"what was read could not be kept in {job.target.parent}"
    try:
        refusal = msgspec.json.decode(last, type=_Refusal)
    except msgspec.MsgspecError:
        return f"reading it failed: {last.decode('utf-8', 'replace')[:300] or f'exit {code}'}"
    return TdbgError(refusal.what, refusal.hint)


def find_folder() -> Path:
    """Where files of spans are kept, by version."""
    from tdbg.traces.analyze import span_columns

    return find_cache_home() / f"traces-v{summaries.VERSION}.{span_columns.VERSION}"


def _name_draft(target: Path, pid: int) -> Path:
    return target.with_name(f".{target.name}.{pid}")


def index_trace(trace: Path, part: int | None, target: Path, key: Key, file: "IO[str] | None" = None) -> None:
    """Read a trace, and write its spans and its summary. file: for lines that say how far it is.

    Raises TdbgError for what is no trace, or where the file cannot be written.
    """
    from tdbg.traces.analyze.span_columns import SpanWriter
    from tdbg.traces.analyze.summary_builder import summarize_trace

    draft = _name_draft(target, os.getpid())
    reporter = _Reporter(file)
    try:
        with undo_on_error(lambda: draft.unlink(missing_ok=True)), contextlib.closing(SpanWriter(draft)) as writer:

            def follow(events: "Sequence[Event]", base_us: int, read_bytes: int) -> None:
                writer.add_events(events, base_us)
                reporter.report_progress(read_bytes)

            writer.finish(summarize_trace(trace, part=part, follow=follow), key)
            run_files.rename_file(draft, target)
    except BrokenPipeError:  # nobody follows any more
        raise
    except OSError as error:
        what = f"the index of {trace.name} cannot be written: {describe_failure(error)}"
        raise TdbgError(what, "make room in your cache folder, or name another one in XDG_CACHE_HOME") from None
    remove_old_files(_list_kept(target.parent), KEPT_S, MOST_KEPT_BYTES)


def _list_kept(folder: Path) -> set[Path]:
    """Files of spans in a folder and in the cache, also of other versions, and drafts of processes that died."""
    home = find_cache_home()
    kept = home.glob("traces-v*/*") if home == folder.parent else ()  # else it was refused: another user may own it
    found = [*folder.glob("*"), *kept]
    return {path for path in found if ENDING in path.name}


class _Reporter:
    """Prints how many bytes were read, now and then."""

    def __init__(self, file: "IO[str] | None") -> None:
        self._file = file
        self._reported_bytes = self._last_bytes = self._restarts = 0

    def report_progress(self, read_bytes: int) -> None:
        """So many of the file were read."""
        if read_bytes < self._last_bytes:
            self._restarts, self._reported_bytes = self._restarts + 1, 0
        self._last_bytes = read_bytes
        if self._file is not None and read_bytes - self._reported_bytes >= REPORT_BYTES:
            self._reported_bytes = read_bytes
            print(msgspec.json.encode(_Report(read_bytes, self._restarts)).decode(), file=self._file, flush=True)


def limit_memory(most_bytes: int) -> None:
    """Let this process have so much memory of its own and no more: another program may be training on this machine."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most_bytes if hard == resource.RLIM_INFINITY else min(most_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def main() -> int:
    """Read the trace that is named."""
    os.nice(NICENESS)
    limit_memory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    trace, part, target, key = sys.argv[1:]
    run_files.protect_run_of(trace)
    try:
        index_trace(Path(trace), int(part) if part else None, Path(target), tuple(json.loads(key)), sys.stdout)
    except BrokenPipeError:  # the viewer has ended
        return 1
    except TdbgError as error:
        refusal = _Refusal(str(error), error.hint)
    except MemoryError:
        refusal = _Refusal(f"{Path(trace).name}: reading it takes more than half of this machine's memory", IN_TERMINAL)
    except OverflowError as error:
        refusal = _Refusal(f"{Path(trace).name}: {describe_error(error)}", IN_TERMINAL)
    else:
        return 0
    print(encode_json(refusal).decode(), flush=True)
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
