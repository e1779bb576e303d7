"""`--to SINK`: the supervisor's part.

While the program goes on its own run of W&B is written to in rank 0 (`tdbg.inject.metrics.own_wandb_run`); the supervisor
makes the report for it. After the end a child process for each sink writes all the rest: whatever breaks or hangs there is
ended with it, in time.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, Any

from tdbg.core import sink_files
from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.guard import guarded
from tdbg.core.output import print_messages
from tdbg.core.rundir import RunDir
from tdbg.rules.verdict import Verdict

LIMIT_S = 60.0  # for all sinks together, after the end of the program
LOOK_S = 0.05  # between two looks whether they have ended, so that Ctrl-C is heard
SAID_AFTER_S = 3.0
GRACE_S = 2.0  # after a signal to end
PREFIX = "tdbg: "
# The process ends itself if nobody is left to end it; `-P`: what lies in the working folder is no part of tdbg.
_ENDS_ITSELF = "import signal, sys; signal.alarm(int(sys.argv.pop(1))); "
STARTER = f"{_ENDS_ITSELF}from tdbg.__main__ import main; sys.exit(main())"
CHECKER = f"{_ENDS_ITSELF}from tdbg.launch.sending import reply_to_check; reply_to_check(sys.argv[1])"


def check_packages(names: Sequence[str]) -> None:
    """TdbgError if a sink, which a process of this environment writes at the end, cannot be opened for a run."""
    if not names:
        return
    from tdbg.launch.run_sinks import find_sink, is_sink_name
    from tdbg.metrics.sinks import SINKS

    for name in names:
        if name in SINKS or not is_sink_name(name):
            find_sink(name)
        else:
            _check_apart(name)


def _check_apart(name: str) -> None:
    """Look up a sink of another package in a process of its own: to import it may do anything, and take any time."""
    import tempfile

    hint = f"repair its package, or leave out --to {name}"
    with tempfile.TemporaryFile() as replied:
        words = [sys.executable, "-P", "-c", CHECKER, str(int(LIMIT_S)), name]
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=replied,
            stderr=subprocess.DEVNULL,
            env=_make_environment(),
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S + GRACE_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        finally:
            _kill(process)
        replied.seek(0)
        reply = replied.read().decode(errors="replace")
    if code == -signal.SIGALRM:
        raise TdbgError(f"--to {name}: importing the sink took more than {LIMIT_S:g} s", hint)
    if code or not reply:
        raise TdbgError(f"--to {name}: importing the sink ended the process with code {code}", hint)
    if trouble := json.loads(reply):
        raise TdbgError(trouble["what"], trouble["hint"])


def reply_to_check(name: str) -> None:
    """The process of `_check_apart`: write what is wrong with the sink as JSON, and end whatever the sink has begun."""
    from tdbg.launch.run_sinks import find_sink

    out = os.dup(1)
    os.dup2(2, 1)  # what the sink prints is not the reply
    trouble = None
    try:
        find_sink(name)
    except TdbgError as error:
        trouble = {"what": str(error), "hint": error.hint}
    os.write(out, json.dumps(trouble).encode())
    os._exit(0)


def _make_environment() -> dict[str, str]:
    """The environment of a process that sends: no part of the run."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TDBG_")}


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process with all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reply_to_ranks(run: RunDir) -> None:
    """Make the report for each rank that waits for it; nothing is raised."""
    for request in sink_files.list_requests(run.path):
        with guarded("a rank that gets no reply goes on without it"):
            sink_files.write_reply(request, _make_report(run))


def _make_report(run: RunDir) -> dict[str, object]:
    from tdbg.launch import metrics_findings
    from tdbg.launch.run_sinks import make_report
    from tdbg.rules.rule_engine import judge_run

    return make_report(run, metrics_findings.add_metrics_findings(judge_run(run), run))


def send_all(run: RunDir, settings: Settings, verdict: Verdict) -> None:
    """Write to each sink that does not have all already, within the limit; nothing is raised."""
    steps = max((row["steps"] for row in verdict.ranks if row["rank"] == 0), default=0)

    def report_stop(error: BaseException) -> None:
        print_messages(f"--to: sending stopped: {type(error).__name__}: {error}")

    with guarded("a sink must not change how the run ends", report_stop):
        senders = []
        for name in settings.to:
            done, lacking = find_own(run, name, steps)
            if done and not lacking:
                _say_own(name, done, settings)
                continue
            if lacking and not settings.quiet:
                print_messages(f"--to {name}: {lacking}; writing everything to a new run")
            senders.append(Sender(run, name, settings.quiet))
        _wait_for_senders(senders, talks=not settings.quiet)


def find_own(run: RunDir, name: str, steps: int) -> tuple[dict[str, Any], str]:
    """What became of the program's own run, the last that it began, and why that has not all of so many steps."""
    announced = sink_files.list_announced(run.path, name)
    if not announced or name != sink_files.WANDB:
        return {}, ""
    latest = announced[-1].get("id")
    done = next((one for one in sink_files.list_outcomes(run.path, name) if one.get("own") == latest), {})
    if not done:
        return {}, f"run {latest} of the program ended before tdbg added the report"
    ended_at = done.get("ended_at")
    if isinstance(ended_at, int) and ended_at < steps:
        return done, f"run {latest} of the program ended at step {ended_at} of {steps}"
    return done, ""


def _say_own(name: str, done: dict[str, Any], settings: Settings) -> None:
    if done.get("error"):
        print_messages(f"--to {name}: {done['where']}; {done['error']}")
    elif not settings.quiet:
        waited_s = done.get("waited_s", 0.0)
        print_messages(f"--to {name}: {done['where']}, and the report (the program waited {waited_s:.1f} s for it)")


class Sender:
    """A process that writes one sink: ``tdbg report RUN --to NAME``, in a session of its own."""

    def __init__(self, run: RunDir, name: str, quiet: bool) -> None:
        import tempfile

        self.run, self.name, self._quiet = run, name, quiet
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                STARTER,
                str(int(LIMIT_S + 2 * GRACE_S)),
                "report",
                str(run.path),
                "--to",
                name,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=_make_environment(),
            start_new_session=True,
        )

    def is_working(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def report_outcome(self, why: str) -> None:
        """Say what became of it. why: it is ended for that, if it still works."""
        is_late = self.is_working()
        if is_late:
            self._signal_and_wait(signal.SIGTERM)
        self._signal_and_wait(signal.SIGKILL)  # what it has left behind
        code = self._process.wait(GRACE_S)
        lines = self._read_lines()
        if is_late or code or not lines:
            prefix = f"--to {self.name}: "
            said = lines[0].removeprefix(prefix) if lines else f"the sending process exited with code {code}"
            error = why if is_late else said
            print_messages(f"{prefix}{error}; try again: `tdbg report {self.run.path} --to {self.name}`")
            sink_files.record_outcome(self.run.path, self.name, "", error=error)
        elif not self._quiet:
            print_messages(*lines)

    def _signal_and_wait(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        until = time.monotonic() + GRACE_S
        while self.is_working() and time.monotonic() < until:
            time.sleep(LOOK_S)

    def _read_lines(self) -> list[str]:
        self._stderr.seek(0)
        lines = self._stderr.read(100_000).decode(errors="replace").splitlines()
        return [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)][:5]


def _wait_for_senders(senders: Sequence[Sender], *, talks: bool) -> None:
    begun = time.monotonic()
    said = not talks
    why = f"timed out after {LIMIT_S:g} s"
    try:
        while working := [one.name for one in senders if one.is_working()]:
            waited = time.monotonic() - begun
            if waited > LIMIT_S:
                break
            if waited > SAID_AFTER_S and not said:
                said = True
                print_messages(
                    f"waiting for --to {' and '.join(working)} (up to {LIMIT_S:g} s); press Ctrl-C to stop waiting"
                )
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        why = "interrupted"
    for sender in senders:
        sender.report_outcome(why)
