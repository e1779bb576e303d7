"""The verdict and the overview of runs, made once for a state of their files; of a large run beside the server.

A run of a million records takes a minute to judge. Until that is done, in a process of its own, the answer holds what is
known at once: how far the ranks came, the findings told while the run went on, and curves of a sample of the records.

``python -m tdbg.viewer.drawings RUN`` is that process: it prints a JSON object of both.
"""

import json
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tdbg.core.rundir import EVENTS, FINDINGS, RunDir
from tdbg.core.tables import to_json_value
from tdbg.launch.live import has_ended
from tdbg.launch.metrics_findings import read_verdict
from tdbg.rules.kept_verdict import load_verdict
from tdbg.rules.report_page.document import describe_run
from tdbg.rules.rule_engine import outline_run
from tdbg.rules.view import read_info
from tdbg.viewer.sampled_events import SampledReader

LARGE_BYTES = 1 << 20  # of events: more take a second and longer, and are not read while somebody waits
MAX_KEPT = 16
REST = 5.0  # a run that goes on is drawn again after so many times what it took
FRESH_S = 2.0  # so long a quick drawing serves, though the files have grown
UNFINISHED = "the full verdict is being computed; shown so far: findings reported during the run, and sampled curves"
FAILED = "the full verdict could not be computed; shown are findings reported during the run, and sampled curves"
RETRY_S = 60.0  # after a failure
Stamp = tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class Drawing:
    """What was drawn of a run. stamp: of its files then. is_whole: from all events. took_s: to draw it."""

    report: dict[str, Any]
    overview: dict[str, Any]
    stamp: Stamp
    is_whole: bool
    is_current: bool = True  # the files are still as they were
    drawn_at: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    @property
    def is_final(self) -> bool:
        """True if nothing is to be added unless the run goes on."""
        return self.is_whole and self.is_current


@dataclass(slots=True, frozen=True)
class _Failure:
    """A process that was to draw a run and failed."""

    stamp: Stamp
    failed_at: float
    reason: str


class Drawings:
    """The latest drawing of each run. One run does not wait for another; one large run is drawn at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below; never held while a run is drawn
        self._turns: dict[Path, threading.Lock] = {}  # one lock per run, held while it is drawn
        self._final: OrderedDict[Path, Drawing] = OrderedDict()
        self._quick: OrderedDict[Path, Drawing] = OrderedDict()
        self._failures: dict[Path, _Failure] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def get_drawing(self, run: RunDir) -> Drawing:
        """The newest whole drawing, if the files are as they were or it is not old; else one that is quick to make."""
        stamp, size = stamp_run(run)
        with self._lock:
            turn = self._turns.setdefault(run.path, threading.Lock())
        with turn:
            with self._lock:
                final, quick = self._final.get(run.path), self._quick.get(run.path)
                failure = self._failures.get(run.path)
            if final is not None and (final.stamp == stamp or self._is_resting(final)):
                return replace(final, is_current=final.stamp == stamp)
            if size < LARGE_BYTES:
                return self._cache_drawing(self._final, run.path, draw_whole(run, stamp))
            found = final or quick
            is_old = found is None or (found.stamp != stamp and time.monotonic() - found.drawn_at >= FRESH_S)
            if found is None or (is_old and not found.is_whole):
                found = self._cache_drawing(
                    self._quick, run.path, draw_quickly(run, stamp, failure.reason if failure else "")
                )
            if not self._is_hopeless(failure, stamp):
                self._start_drawing(run, stamp)  # last: on few cores it takes time from what is waited for
            return replace(found, is_current=found.stamp == stamp)

    @staticmethod
    def _is_hopeless(failure: _Failure | None, stamp: Stamp) -> bool:
        """True if another try would end as the last one did, or comes too soon after it."""
        return failure is not None and (failure.stamp == stamp or time.monotonic() - failure.failed_at < RETRY_S)

    @staticmethod
    def _is_resting(final: Drawing) -> bool:
        return time.monotonic() - final.drawn_at < REST * final.took_s

    def _cache_drawing(self, kept: OrderedDict[Path, Drawing], path: Path, drawing: Drawing) -> Drawing:
        with self._lock:
            kept[path] = drawing
            kept.move_to_end(path)
            while len(kept) > MAX_KEPT:
                kept.popitem(last=False)
        return drawing

    def _start_drawing(self, run: RunDir, stamp: Stamp) -> None:
        """Draw a large run in a process of its own, unless there is one."""
        command = [sys.executable, "-P", "-m", "tdbg.viewer.drawings", str(run.path.resolve())]
        with self._lock:
            if self._process is not None:
                return
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        threading.Thread(target=self._finish_drawing, args=(process, run, stamp), daemon=True).start()

    def _finish_drawing(self, process: "subprocess.Popen[bytes]", run: RunDir, stamp: Stamp) -> None:
        begun = time.monotonic()
        text, said = process.communicate()
        took_s = time.monotonic() - begun
        drawing = None
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2] or f"exit {process.returncode}"
        if process.returncode == 0:
            try:
                found = json.loads(text)
                drawing = Drawing(found["report"], found["overview"], stamp, True, took_s=took_s)
            except (ValueError, KeyError, TypeError):
                last = "it printed something else than a drawing"
        if drawing is not None:
            self._cache_drawing(self._final, run.path, drawing)
        with self._lock:
            self._process = None
            if drawing is not None:
                self._failures.pop(run.path, None)
            else:
                self._failures[run.path] = _Failure(stamp, time.monotonic(), last[:300])
                self._quick.pop(run.path, None)  # the next one says so

    def close(self) -> None:
        """End the process that draws, if there is one."""
        process = self._process
        if process is not None:
            process.kill()


def stamp_run(run: RunDir) -> tuple[Stamp, int]:
    """Sizes and times of what the verdict depends on, and the bytes of its events."""
    found, total = [], 0
    processes = [process.path for process in run.list_processes()]
    events = [path / EVENTS for path in processes]
    others = [run.path / "run.json", run.path / FINDINGS, *(path / "metrics.jsonl" for path in processes)]
    for path in (*others, *events):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns))
        total += status.st_size if path.name == EVENTS else 0
    found.append(("over", int(has_ended(read_info(run))), 0))  # a run that is killed changes no file
    return tuple(found), total


def draw_whole(run: RunDir, stamp: Stamp) -> Drawing:
    """Verdict and overview from all events."""
    begun = time.monotonic()
    verdict = read_verdict(run)
    report, overview = to_json_value(verdict.as_dict()), to_json_value(describe_run(run, verdict))
    return Drawing(report, overview, stamp, True, took_s=time.monotonic() - begun)


def draw_quickly(run: RunDir, stamp: Stamp, failed: str = "") -> Drawing:
    """The kept verdict, or what is known without judging; curves from a sample of the records.

    failed: why the whole could not be drawn.
    """
    kept, read = load_verdict(run), SampledReader(len(stamp)).read_events
    verdict = kept or outline_run(run, read)
    if kept is None:
        verdict.trouble.append(f"{FAILED}: {failed}" if failed else UNFINISHED)
    overview: dict[str, Any] = to_json_value(describe_run(run, verdict, read=read))
    if kept is None:
        overview["lines"] = [*overview["lines"], verdict.trouble[-1]]
    return Drawing(to_json_value(verdict.as_dict()), overview, stamp, False)


def main() -> None:
    """Print both of the run that is named."""
    run = RunDir.open(sys.argv[1])
    drawing = draw_whole(run, ())
    json.dump({"report": drawing.report, "overview": drawing.overview}, sys.stdout)


if __name__ == "__main__":
    main()
