"""What `--on-finding` and `--notify` do: each finding leaves the machine, or starts a command, once.

The supervisor alone sends: its follower hands over what it finds, one thread for each option sends, and neither the
program nor the verdict waits for them. At the end the supervisor waits as long as one message may take, and no longer.
Of the agents of a job on several nodes each sends the findings of its own ranks, and the leader all others.
"""

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tdbg.core import run_files
from tdbg.core.config import Settings
from tdbg.core.errors import CommandNotFoundError, NotExecutableError, TdbgError
from tdbg.core.events import Finding
from tdbg.core.files import read_json
from tdbg.core.guard import guarded
from tdbg.core.host import host_name
from tdbg.core.output import print_messages
from tdbg.core.redaction import redact_argv, remember_secret
from tdbg.core.rundir import ALERTS, RunDir, rank_folder, read_alert_reports, write_json
from tdbg.launch import join
from tdbg.launch.alert_command import CommandChannel
from tdbg.launch.command import check_command
from tdbg.rules._live_findings import get_place
from tdbg.rules.finding_lines import format_finding
from tdbg.rules.verdict import Verdict

LOOK_S = 0.05  # between two looks whether the threads have ended, so that Ctrl-C is heard
SPARE_S = 0.5  # of the limit at the end: what ending a command may take
LEAST_S = 2.0  # with less time left at the end, no message is begun
SAID_AFTER_S = 2.0  # of waiting at the end
MAX_REPORTED = 5  # different errors that are said; the report counts all
CANCEL_S = 2.0  # to end what runs after Ctrl-C


def check_on_finding(settings: Settings, origin: Mapping[str, str]) -> None:
    """TdbgError for a command that is typed and is not there; one of a file, which serves many machines, fails later."""
    argv = settings.on_finding_argv
    if argv and origin.get("on_finding") == "option":
        try:
            check_command(argv, os.environ)
        except NotExecutableError as error:
            raise TdbgError(f"--on-finding: {error}", "name a program, or put its interpreter before it") from None
        except CommandNotFoundError as error:
            raise TdbgError(f"--on-finding: {error}", "check its spelling and PATH") from None


class Channel(Protocol):
    """One way to send: see `CommandChannel` and `WebhookChannel`."""

    option: str
    takes_verdict: bool
    limit_s: float
    cancelled: threading.Event

    def send_message(self, document: Mapping[str, Any], lines: Sequence[str], until: float) -> str:
        """Send one message; returns why it failed, or nothing. It has ended by ``until`` (monotonic time)."""


@dataclass(slots=True)
class Tally:
    """What became of the messages of one option."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0  # never tried: there was no time left at the end
    error: str = ""  # the last one

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"sent": self.sent, "failed": self.failed, "dropped": self.dropped, "error": self.error}


class Sender:
    """Sends through one channel, message after message, in a thread."""

    def __init__(self, channel: Channel, report: "Report") -> None:
        self.channel = channel
        self.tally = Tally()
        self._report = report
        self._waiting: queue.SimpleQueue[tuple[Mapping[str, Any], Sequence[str]] | None] = queue.SimpleQueue()
        self._until = float("inf")  # the end of the run is set here
        self._thread = threading.Thread(target=self._send_messages, name=f"tdbg{channel.option}", daemon=True)

    def start_thread(self) -> None:
        """Begin; from here on this process has threads."""
        self._thread.start()

    def queue_message(self, document: Mapping[str, Any], lines: Sequence[str]) -> None:
        """Have a message sent when its turn comes."""
        self._waiting.put((document, lines))

    def close_queue(self) -> float:
        """No more will come; returns until when the rest may take (monotonic time)."""
        end = time.monotonic() + self.channel.limit_s
        self._until = end - SPARE_S
        self._waiting.put(None)
        return end

    def is_working(self) -> bool:
        """True while there is something to send."""
        return self._thread.is_alive()

    def cancel(self) -> None:
        """End what is running, and send nothing more."""
        self.channel.cancelled.set()
        self._thread.join(CANCEL_S)

    def _send_messages(self) -> None:
        while (message := self._waiting.get()) is not None:
            if self.channel.cancelled.is_set() or time.monotonic() > self._until - LEAST_S:
                self.tally.dropped += 1
                continue
            with guarded("the run must not end by it", lambda error: self._count_result(type(error).__name__)):
                self._count_result(self.channel.send_message(*message, self._until))
        if self.tally.dropped:
            self._report(self, "")

    def _count_result(self, error: str) -> None:
        if error:
            self.tally.failed += 1
            self.tally.error = error
        else:
            self.tally.sent += 1
        self._report(self, error)


class Report(Protocol):
    """Called from the thread of a sender, after each message."""

    def __call__(self, sender: Sender, error: str) -> None: ...


class Alerts:
    """All that is sent about one run by this agent; does nothing where neither option is given."""

    def __init__(self, run: RunDir, settings: Settings, command: Sequence[str], *, leads: bool) -> None:
        self._run, self._leads, self._talks = run, leads, leads and not settings.quiet
        if settings.notify:
            remember_secret(settings.notify)
        self._about = {"run": str(run.path), "host": host_name(), "command": redact_argv(command)}
        self._senders = [
            Sender(channel, self._report_result) for channel in _make_channels(settings, shows=self._talks)
        ]
        self._keys: dict[tuple[object, ...], None] = {}  # of findings that were sent, or are about to be; in order
        self._known: set[tuple[object, ...]] = set()  # the same, with those of earlier attempts
        self._reported: set[str] = set()
        self._owners = RankOwners(run)
        self._lock = threading.Lock()

    def start_senders(self) -> None:
        """Begin; from here on this process has threads."""
        if self._senders:
            self._known.update(_sent_before(self._run))
        for sender in self._senders:
            sender.start_thread()

    def add_finding(self, finding: Finding) -> None:
        """A finding, seen while the run goes on."""
        if self._senders and self._is_own(finding):
            self._send_finding(finding)

    def finish_sending(self, verdict: Verdict, exit_code: int) -> None:
        """Send what only the verdict knows and the headline, and wait, within the limits, until all is sent."""
        if not self._senders:
            return
        for finding in self._select_unsent(verdict.findings):
            if self._is_own(finding):
                self._send_finding(finding)
        if self._leads and (verdict.findings or exit_code):
            self._send_verdict(verdict)
        self._wait_for_senders()
        for sender in self._senders:
            if sender.tally.dropped and not sender.channel.cancelled.is_set():
                print_messages(f"{sender.channel.option}: messages not sent: {sender.tally.dropped} (out of time)")

    def _send_finding(self, finding: Finding) -> None:
        key = _identify_finding(finding)
        if key in self._known:
            return
        self._known.add(key)
        self._keys[key] = None
        document = {
            **finding.as_dict(),
            "evidence": list(finding.evidence),
            **self._about,
        }  # its rule may yet add to it
        lines = [*format_finding(finding), f"run: {self._about['run']} on {self._about['host']}"]
        for sender in self._senders:
            kind = {"kind": "finding"} if sender.channel.takes_verdict else {}
            sender.queue_message({**kind, **document}, lines)

    def _send_verdict(self, verdict: Verdict) -> None:
        shown = {"headline": verdict.format_headline(), "worst_severity": verdict.worst_severity, "exit": verdict.exit}
        lines = [verdict.format_headline(), f"run: {self._about['run']} on {self._about['host']}"]
        for sender in self._senders:
            if sender.channel.takes_verdict:
                sender.queue_message({"kind": "verdict", **shown, **self._about}, lines)

    def _select_unsent(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that are news. One that was sent in other words is none: as many at a place as were sent are left out."""
        sent = Counter(key[:-1] for key in self._keys)
        sent.subtract(get_place(finding) for finding in findings if _identify_finding(finding) in self._known)
        left = []
        for finding in findings:
            place = get_place(finding)
            if _identify_finding(finding) in self._known:
                continue
            if sent[place] > 0:
                sent[place] -= 1
            else:
                left.append(finding)
        return left

    def _is_own(self, finding: Finding) -> bool:
        """True if this agent is to send it."""
        if finding.rank is None or (self._leads and not self._owners.has_several()):
            return self._leads
        owner = self._owners.find_owner(finding.rank)
        return self._leads if owner is None else owner == (os.getpid(), host_name())

    def _wait_for_senders(self) -> None:
        said_t = time.monotonic() + SAID_AFTER_S if self._talks else float("inf")
        ends = {sender: sender.close_queue() for sender in self._senders}
        try:
            while working := [one for one, end in ends.items() if one.is_working() and time.monotonic() < end]:
                if time.monotonic() > said_t:
                    said_t = float("inf")
                    waiting = " and ".join(f"{one.channel.option} (up to {one.channel.limit_s:g} s)" for one in working)
                    print_messages(f"waiting for {waiting}; press Ctrl-C to stop waiting")
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            for sender in self._senders:
                sender.cancel()
            print_messages("interrupted: messages not yet sent by --on-finding or --notify are dropped")

    def _report_result(self, sender: Sender, error: str) -> None:
        """Say an error once, and leave word in the run directory."""
        option = sender.channel.option
        with self._lock:
            if error:
                self._say_once(f"{option}: {error}")
            options = {one.channel.option: one.tally.as_dict() for one in self._senders}
            keys = list(map(list, list(self._keys)))
            about = {"host": host_name(), "pid": os.getpid(), "options": options, "findings": keys}
            try:
                run_files.make_folder(self._run.path / ALERTS)
                write_json(self._run.path / ALERTS / f"{join.agent_name()}.json", about)
            except OSError as failure:
                self._say_once(f"cannot write {self._run.path / ALERTS}: {failure.strerror or failure}")

    def _say_once(self, text: str) -> None:
        if text not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(text)
            print_messages(text)


def _make_channels(settings: Settings, *, shows: bool) -> Iterator[Channel]:
    if settings.on_finding:
        environ = {name: value for name, value in os.environ.items() if name != "TDBG_NOTIFY"}
        yield CommandChannel(settings.on_finding_argv, environ, shows)
    if settings.notify:
        from tdbg.launch.webhook import WebhookChannel

        yield WebhookChannel(settings.notify)


def _identify_finding(finding: Finding) -> tuple[object, ...]:
    return (*get_place(finding), finding.title)


def _sent_before(run: RunDir) -> Iterator[tuple[object, ...]]:
    """What agents of earlier attempts of this run have sent."""
    for agent in read_alert_reports(run):
        for key in agent.get("findings") or []:
            if isinstance(key, list):
                yield tuple(key)


@dataclass(slots=True)
class RankOwners:
    """Which agent started each rank of a job on several nodes: all agents come to the same answer, from files alone."""

    run: RunDir
    _agents: list[tuple[int, str]] = field(default_factory=list)

    def has_several(self) -> bool:
        """True if there is more than one agent."""
        return len(self._agents) > 1 or len(self._read_agents()) > 1

    def find_owner(self, rank: int) -> tuple[int, str] | None:
        """(pid, host) of the agent; None where the files do not say."""
        folder = rank_folder(self.run.path, rank)
        attempts = sorted(folder.glob("attempt*"), key=_attempt_number)
        process = _read_table((attempts[-1] if attempts else folder) / "owner.json")
        host = str(process.get("host", ""))
        hello = _read_table(self.run.path / "hello" / f"{host}-{process.get('pid')}.json")
        launched_by = (hello.get("env") or {}).get("TDBG_LAUNCHED_BY", "")
        same = [agent for agent in self._agents if str(agent[0]) == launched_by]
        same = same or [agent for agent in self._read_agents() if str(agent[0]) == launched_by]
        here = [agent for agent in same if agent[1] == host]  # pids are not unique over hosts
        return next(iter([*here, *same]), None)

    def _read_agents(self) -> list[tuple[int, str]]:
        try:
            leader = self.run.read_info().get("supervisor")
        except TdbgError:
            leader = None
        found = [*([leader] if isinstance(leader, dict) else []), *join.read_nodes(self.run)]
        self._agents = list(dict.fromkeys((int(agent.get("pid", 0)), str(agent.get("host", ""))) for agent in found))
        return self._agents


def _attempt_number(folder: Path) -> int:
    number = folder.name.removeprefix("attempt")
    return int(number) if number.isdigit() else 0


def _read_table(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
