"""Reading along while a run goes on: new events go to the rules, findings and progress to stderr."""

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

from tdbg.core import events, run_files
from tdbg.core.config import Settings
from tdbg.core.events import Event, Finding, Trigger
from tdbg.core.files import open_regular
from tdbg.core.guard import guarded
from tdbg.core.host import host_name
from tdbg.core.output import print_messages
from tdbg.core.rundir import EVENTS, FINDINGS, ProcessDir, RunDir, find_live_owner
from tdbg.launch import metrics_findings
from tdbg.launch.progress import Progress
from tdbg.launch.supervise import HUNG_END_S
from tdbg.rules import matches_words
from tdbg.rules.finding_lines import BLOCK_LINES, format_finding, format_title
from tdbg.rules.kept_verdict import save_verdict
from tdbg.rules.rule_engine import RuleEngine, judge_run
from tdbg.rules.text import format_ranks
from tdbg.rules.verdict import Verdict

PART_OFF, HANG = "TD-C005", "TD-R006"
POLL_S = 0.25
LEFT_RANKS_S = 15.0  # so long after Ctrl-C the verdict waits for ranks that the command has left behind
CRITICAL_LINES = 5  # for the first that is critical, whatever lesser ones have taken
LIVE_LINES = 8  # with the verdict's ten, a run with a NaN says less than twenty lines
CHUNK_BYTES = 1 << 20
MAX_CHUNKS = 4  # of one file in one poll, so that a flood does not hold up the others
MAX_LINE_BYTES = 16 << 20
# The follower sleeps this many times as long as it worked, so that it costs little; but no longer than it may come late
# with a finding. What is read late costs the same: on a job that writes more, it works as long as that takes.
REST = 100
SHORT_REST_S = 2.0
LEAST_REST, LONGEST_REST_S = 4, 10.0  # times as long as it worked, where that is more: a fifth of a core


def compute_rest_s(work_s: float) -> float:
    """How long the follower sleeps after a look that took so much CPU time."""
    return min(REST * work_s, max(SHORT_REST_S, LEAST_REST * work_s), LONGEST_REST_S)


class Tail:
    """One growing events file, read complete line by complete line, from its beginning or a later place."""

    def __init__(self, process: ProcessDir, offset: int = 0) -> None:
        self.process = process
        self.path = process.path / EVENTS
        self._offset = offset
        self._rest = b""

    def read_events(self, chunks: int = MAX_CHUNKS) -> list[Event]:
        """The events that are new; none where the file cannot be read now."""
        try:
            if os.stat(self.path).st_size <= self._offset:
                return []
            with open_regular(self.path) as file:
                file.seek(self._offset)
                found: list[Event] = []
                for _ in range(chunks):
                    data = file.read(CHUNK_BYTES)
                    if not data:
                        break
                    found += self._decode_chunk(data)
                return found
        except OSError:
            return []

    def _decode_chunk(self, data: bytes) -> list[Event]:
        self._offset += len(data)
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._rest = (self._rest + data)[-MAX_LINE_BYTES:]
            return []
        lines = (self._rest + whole).split(b"\n")
        self._rest = rest
        decoded = map(events.decode, lines)
        return [event for event in decoded if event is not None]

    def has_more(self) -> bool:
        """True if there is more to read."""
        try:
            return os.stat(self.path).st_size > self._offset
        except OSError:
            return False


class Follower:
    """Follows one run in a thread of the supervisor, and judges it at the end.

    stop: called, from the thread, at the first finding that `--stop-on` asks for, or trigger whose `--then` does;
        with the reason, for people.
    alert: called, from the thread, with each finding.
    reply: called, from the thread, four times a second, to answer what ranks ask.
    sample: called, from the thread, after each look, with the process of each rank of this host.
    speaks: False for an agent that joined another's run directory: it judges and may stop, but prints nothing
        and leaves report.json to the agent that made the directory.
    """

    def __init__(
        self,
        run: RunDir,
        settings: Settings,
        stop: Callable[[str], None],
        *,
        capture: Callable[[], None] = lambda: None,
        profile: Callable[[], None] = lambda: None,
        alert: Callable[[Finding], None] = lambda finding: None,
        reply: Callable[[], None] = lambda: None,
        sample: Callable[[Mapping[int, int]], None] = lambda ranks: None,
        speaks: bool = True,
    ) -> None:
        self.run = run
        self.settings = settings
        self.judge = RuleEngine(run)
        self.speaks = speaks
        self._stop, self._capture, self._profile, self._alert = stop, capture, profile, alert
        self._reply, self._sample = reply, sample
        self._stopped = False
        self._tails: dict[str, Tail] = {}
        self._lines_left = LIVE_LINES
        self._shown: set[str] = set()  # severities of which a finding was shown whole
        self._progress = Progress(settings, self.judge.view)
        self._ending = threading.Event()
        self._failed = ""
        self._thread = threading.Thread(target=self._follow_events, name="tdbg-follow", daemon=True)

    def start_thread(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def clear_progress(self) -> None:
        """Take the live line off the terminal, for others who want to print."""
        self._progress.clear_line()

    def end_hung_ranks(self) -> None:
        """End the ranks of this host that wait in a collective of a job that hangs (TD-R006); from the main thread.

        A rank that is elsewhere hears the signal, and may be saving something.
        """
        if not any(finding.code == HANG and finding.severity != "info" for finding in self.judge.list_confirmed()):
            return
        hung = []
        for found in self.judge.view.list_rank_processes():
            pid = find_live_owner(found.process.path) if found.is_stuck else None
            if pid is not None:
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
                    hung.append(found.rank or 0)
        if hung:
            verb = "hangs" if len(hung) == 1 else "hang"
            print_messages(f"{format_ranks(hung)} {verb} and did not respond to Ctrl-C: killed (SIGKILL)")

    def await_ranks(self, since: float) -> None:
        """Wait for ranks that go on although the command has ended by Ctrl-C, and end those that hang.

        The parent of spawned ranks may hear the signal before they do, or end at a second one. since: when it came.
        """
        with contextlib.suppress(KeyboardInterrupt):  # another Ctrl-C ends the waiting alone: the verdict follows
            hung_at: float = since + HUNG_END_S
            while any(find_live_owner(process.path) for process in self.run.list_processes()):
                now = time.monotonic()
                if now >= since + LEFT_RANKS_S:
                    return
                if now >= hung_at:
                    hung_at = math.inf
                    self.end_hung_ranks()
                time.sleep(POLL_S)

    def finish_run(self, exit_code: int | None) -> Verdict:
        """Read what is left, judge, print the verdict and write report.json.

        exit_code: the command's own, minus the signal's number if one killed it.
        """
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)
        verdict = metrics_findings.add_metrics_findings(self._build_verdict(exit_code), self.run)
        self._progress.clear_line()
        if self.speaks:
            self._publish_verdict(verdict)
        return verdict

    def _build_verdict(self, exit_code: int | None) -> Verdict:
        if not self._failed and not self._thread.is_alive():
            with guarded("the run's exit must not hang on tdbg", self._note_failure):
                self._drain_tails()
                return self.judge.finish(exit_code)
        verdict = judge_run(self.run, exit_code)
        verdict.trouble.append(f"live analysis failed; the run was analysed at its end: {self._failed or 'too slow'}")
        return verdict

    def _publish_verdict(self, verdict: Verdict) -> None:
        lines = [verdict.format_headline()] if self.settings.quiet else verdict.format_summary()
        print_messages(*lines, *(f"trouble: {text}" for text in verdict.trouble[:1]))
        try:
            verdict.write_report(self.run)
            save_verdict(self.run, verdict)
        except OSError as error:
            print_messages(
                f"cannot write the report: {error.strerror or error}; `tdbg report` derives it from the events"
            )

    def _follow_events(self) -> None:
        with guarded("the supervisor must outlive its follower", self._note_failure):
            while not self._ending.is_set():
                begun = time.thread_time()
                self.poll_events()
                with guarded("what other systems have in /proc", self._stop_sampling):
                    self._sample(self._find_rank_pids())
                rested_at = time.monotonic() + compute_rest_s(time.thread_time() - begun)
                self._reply()
                while not self._ending.wait(POLL_S) and time.monotonic() < rested_at:
                    self._reply()

    def _stop_sampling(self, error: BaseException) -> None:
        self._sample = lambda ranks: None

    def _find_rank_pids(self) -> dict[int, int]:
        """The process of each rank of this host; none where there is one rank alone."""
        host, starts = host_name(), [one.start for one in self.judge.view.list_rank_processes()]
        return {one.rank: one.pid for one in starts if one is not None and one.host == host and one.world_size > 1}

    def _note_failure(self, error: BaseException) -> None:
        self._failed = f"{type(error).__name__}: {error}"

    def poll_events(self) -> bool:
        """Read and judge what is new; True if there was anything."""
        known = list(self._tails.values())
        fresh = [(event.t, tail.process, event) for tail in known for event in tail.read_events()]
        # New files are looked for after the known ones are read: what one rank did in answer to another is
        # never seen without its cause.
        fresh += [(event.t, tail.process, event) for tail in self._discover_tails() for event in tail.read_events()]
        if len(self._tails) > 1:
            fresh.sort(key=lambda item: item[0])
        for _, process, event in fresh:
            for finding in self.judge.feed(process, event):
                self._handle_finding(finding)
            if isinstance(event, Trigger) and event.stop:
                self._stop_once(f"{event.condition!r} in step {event.step}, {process.display_name} (--then)")
        if self.speaks and not self._ending.is_set():
            self._progress.print_if_due(time.monotonic())
        return bool(fresh)

    def _discover_tails(self) -> list[Tail]:
        new = [Tail(process) for process in self.run.list_processes() if process.label not in self._tails]
        self._tails.update((tail.process.label, tail) for tail in new)
        return new

    def _drain_tails(self) -> None:
        while self.poll_events() and any(tail.has_more() for tail in self._tails.values()):
            pass

    def _handle_finding(self, finding: Finding) -> None:
        self._alert(finding)
        if self.speaks:
            self._save_finding(finding)
        if self.speaks and not self.settings.quiet:
            self._print_finding(finding)
        if self.speaks and matches_words(finding, self.settings.capture_on):
            self._capture()
        if self.speaks and matches_words(finding, self.settings.profile_on):
            self._profile()
        if matches_words(finding, self.settings.stop_on):
            self._stop_once(f"{finding.code} (--stop-on)")

    def _stop_once(self, why: str) -> None:
        if not self._stopped and not self._ending.is_set():
            self._stopped = True
            self._stop(why)

    def _save_finding(self, finding: Finding) -> None:
        """Leave it for those who look at the run while it goes on; the report derives its own."""
        line = json.dumps({"t": round(time.time(), 3), **finding.as_dict()}, default=str) + "\n"
        try:
            with os.fdopen(run_files.open_append(self.run.path / FINDINGS), "a", encoding="utf-8") as file:
                file.write(line)
        except OSError:  # a full disk is told by others
            pass

    def _print_finding(self, finding: Finding) -> None:
        """The first finding of its severity with its evidence, others in a line, as far as the lines last.

        The verdict has them all. What failed in tdbg itself is a line: its evidence is not about the program.
        """
        if finding.code == PART_OFF:
            self._progress.clear_line()
            print_messages(format_title(finding))
            return
        is_first = finding.severity not in self._shown
        left = max(self._lines_left, CRITICAL_LINES if is_first and finding.severity == "critical" else 0)
        limit = min(left, BLOCK_LINES if is_first else 1)
        lines = format_finding(finding, limit) if limit else []
        self._lines_left = max(self._lines_left - len(lines), 0)
        self._shown.add(finding.severity)
        if lines:
            self._progress.clear_line()
            print_messages(*lines)
