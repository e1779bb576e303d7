"""`tdbg run` from end to end: check, make or join the run directory, start, watch, judge, return the status."""

import contextlib
import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tdbg.core import run_files
from tdbg.core.capture import check_debugger_names
from tdbg.core.conditions import parse_action
from tdbg.core.config import Settings
from tdbg.core.control import Request
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.guard import guarded
from tdbg.core.host import host_name
from tdbg.core.output import print_lines, print_messages, shared_terminal
from tdbg.core.registry import points_of
from tdbg.core.rundir import DELETED_SUFFIX, PREFLIGHT_FOLDER, STARTED_SUFFIX, RunDir
from tdbg.launch import (
    alerts,
    boot,
    command,
    join,
    orphans,
    presence,
    provenance,
    run_uploading,
    sending,
    serving,
    source_reading,
    uploading,
)
from tdbg.launch.host_pressure import HostSampler
from tdbg.launch.orphans import Guard
from tdbg.launch.program_rows import ProgramRows
from tdbg.launch.run_follower import Follower
from tdbg.launch.supervise import Child, start_error
from tdbg.launch.tee import Tee
from tdbg.rules import check_words, matches_words
from tdbg.rules.silence import explain_silence
from tdbg.rules.verdict import Verdict

GIT_PATIENCE_S = 10.0
MIN_STOP_INTERVAL_S = 5.0  # a request to stop that comes sooner after the last recorded one is not recorded
CAPTURED_STEPS = 20  # after a finding that --capture-on waits for
GIT_PATIENCE_BEFORE_EXEC_S = 1.0


def launch_command(
    settings: Settings,
    origin: Mapping[str, str],
    words: Sequence[str],
    *,
    replace: bool = False,
    dry_run: bool = False,
    serve: int | None = None,
) -> int:
    """Run the command ``words`` under tdbg; returns what `tdbg run` exits with.

    replace: `--exec`: become the command (then this returns only by an exception).
    serve: the port of the viewer while the run goes on; 0: any free one.
    dry_run: say what would be done, and do nothing.
    Raises TdbgError, with its exit code, for what keeps the command from starting.
    """
    environ = os.environ
    check_launch(settings, words, environ, replace=replace)
    alerts.check_on_finding(settings, origin)
    if serve is not None:
        serving.check_serving(serve, replace=replace)
    if dry_run:
        print_lines(format_plan(settings, origin, words, environ, replace=replace))
        return 0
    speaks = "rank" if replace else "supervisor"
    record = provenance.collect_provenance(settings, origin, words, environ, speaks=speaks)
    run, leads = join.open_run(settings, words, environ, record)
    place = run_uploading.StorePlace.claim(run, settings) if leads and run_uploading.is_wanted(settings) else None
    boot.write_boot_file(run, settings)
    env = boot.child_env(run, settings, environ)
    if replace:
        replace_process(run, words, env)
    return Supervision(run, settings, leads, serve=serve if leads else None, place=place).carry_out(words, env)


def check_launch(settings: Settings, words: Sequence[str], environ: Mapping[str, str], *, replace: bool) -> None:
    """Everything that can be refused before anything is written."""
    on = [name for name, value in settings.flags.items() if value is not False]
    if settings.forbid_flags and on:
        raise TdbgError(
            f"--forbid-flags: {', '.join(on)} {'is' if len(on) == 1 else 'are'} on",
            "switch it off with --no-flag, or in the source that `tdbg doctor` shows",
        )
    if replace:
        _check_replace(settings)
    check_words(settings.stop_on)
    check_words(settings.capture_on)
    check_words(settings.profile_on)
    if settings.debugger:
        check_debugger_names(settings.debugger, points_of("tdbg.debuggers"))
    uploading.check_store(settings)
    run_uploading.check_store(settings)
    sending.check_packages(settings.to)
    command.check_command(words, environ)
    where = join.intended_path(settings, words, environ)
    for place in (where, *where.parents):
        if place.exists() and not place.is_dir():
            raise TdbgError(f"cannot create {where}: {place} is not a folder", "choose another --run-dir")
    boot.check_path(where)


def _check_replace(settings: Settings) -> None:
    """With --exec no process of tdbg is left to copy output, to stop the run or to change its exit code."""
    asked = {
        "--tee": settings.tee,
        "--stop-on": settings.stop_on,
        "--capture-on": settings.capture_on,
        "--window-on": settings.profile_on,
        "--capture-upload": uploading.is_wanted(settings),
        "--run-dir URL": run_uploading.is_wanted(settings),
        "--fail-on": settings.fail_on != "never",
        "--on-finding": settings.on_finding,
        "--notify": settings.notify,
        "--to": settings.to,
        "--preflight": settings.preflight,
        "--then stop": any(parse_action(text).stop for text in settings.then),
    }
    for option, given in asked.items():
        if given:
            raise TdbgError(
                f"{option} needs tdbg to stay running, and --exec replaces it", f"leave out --exec or {option}"
            )


def format_plan(
    settings: Settings, origin: Mapping[str, str], words: Sequence[str], environ: Mapping[str, str], *, replace: bool
) -> list[str]:
    """What `--dry-run` prints: the command, where its run would be kept, and each setting that is no default."""
    run = RunDir(join.intended_path(settings, words, environ))
    env = boot.child_env(run, settings, environ)
    changed = {name for name, value in env.items() if environ.get(name) != value} - {"TDBG_LAUNCHED_BY"}
    values = settings.as_dict()
    lines = [
        f"command: {shlex.join(words)}",
        f"started: {'in place of tdbg' if replace else 'as a child of tdbg'}",
        f"run directory: {run.path}",
        *([f"copied to: {settings.run_dir}"] if run_uploading.is_wanted(settings) else []),
        *(f"environment: {name}={env[name]}" for name in sorted(changed)),
        f"level: {settings.level}, overhead budget: {settings.budget_pct:g} % of wall time",
        *(f"flag: {name} = {value}" for name, value in settings.flags.items()),
    ]
    chosen = [name for name, source in origin.items() if source != "default" and name != "flags"]
    return lines + [f"setting: {name} = {values[name]} ({origin[name]})" for name in chosen]


def replace_process(run: RunDir, words: Sequence[str], env: Mapping[str, str]) -> None:
    """`--exec`: replace this process by the command; its pid, terminal and signals are tdbg's own."""
    import signal

    _update_run_info(run, git=provenance.git_state(GIT_PATIENCE_BEFORE_EXEC_S))
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them; a command expects them as a shell leaves them
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(words[0], list(words), dict(env))
    except OSError as error:
        raise start_error(words[0], error) from None


_INFO_LOCK = threading.Lock()  # run.json is read, changed and replaced


def _update_run_info(run: RunDir, **values: object) -> None:
    """Note something in run.json, from any thread; a full disk must not cost the user the run."""
    try:
        with _INFO_LOCK:
            run.update_info(**values)
    except (OSError, TdbgError) as error:
        why = getattr(error, "strerror", None) or str(error)
        print_messages(
            f"cannot write {run.path / 'run.json'}: {why}", "the run goes on, but `tdbg report` will show less about it"
        )


@dataclass(slots=True)
class RunningCommand:
    """The command, and what of tdbg runs beside it until it ends."""

    child: Child
    mark: Mapping[str, str]  # variables by which its processes are known
    guard: Guard
    reader: source_reading.SourceReader
    tee: Tee | None
    messages: alerts.Alerts
    follower: Follower
    git: threading.Thread | None  # None: this agent joined the run
    copies: uploading.Uploading | None  # of captured tensors
    patience: presence.Patience | None

    def start_threads(self, run_copies: run_uploading.RunUploading | None, viewer: serving.RunViewer | None) -> None:
        """Start whoever runs in a thread of its own."""
        if self.git:
            self.git.start()
        self.messages.start_senders()
        for one in (self.follower, self.copies, run_copies, self.tee, viewer):
            if one:
                one.start_thread()


@dataclass(slots=True)
class Supervision:
    """One command and everyone around it: its guard, its output, its follower."""

    run: RunDir
    settings: Settings
    leads: bool  # this agent made the run directory; those that joined it say nothing but errors
    stopped: bool = False
    _stop_note: threading.Thread | None = None
    _stop_times: list[float] = field(default_factory=list)  # when the command was told to stop
    serve: int | None = None  # the port of the viewer
    place: run_uploading.StorePlace | None = None  # the URL that the run directory is copied to
    _run_copies: run_uploading.RunUploading | None = None

    def carry_out(self, words: Sequence[str], env: Mapping[str, str]) -> int:
        """Start the command, wait, judge; returns tdbg's exit code."""
        orphans.occupy_standard_streams()
        rows = ProgramRows(passes_all=self.settings.tee)
        with shared_terminal(rows), serving.serve_run(self.run, self.serve) as viewer:
            return self._supervise_command(words, env, rows, viewer)

    def _supervise_command(
        self, words: Sequence[str], env: Mapping[str, str], rows: ProgramRows, viewer: serving.RunViewer | None
    ) -> int:
        around = self._start_command(words, env, rows)
        if self.leads:
            self._note_child(around.child.pid)
        around.start_threads(self._run_copies, viewer)
        code = around.child.wait_for_exit()
        if since := around.child.interrupted_at:
            with guarded("a command that has ended must not hang on tdbg", lambda error: None):
                around.follower.await_ranks(since)
        self._finish_output(around, rows)
        if around.git:
            around.git.join(GIT_PATIENCE_S)
        if self.leads:
            if self._stop_note is not None:
                self._stop_note.join(GIT_PATIENCE_S)
            self._note_end(code)
        if self.settings.preflight:
            self._discard_files()
        return self._judge_run(around, code)

    def _start_command(self, words: Sequence[str], env: Mapping[str, str], rows: ProgramRows) -> RunningCommand:
        """Start the command and its guard, and make ready what runs beside them."""
        read_words = words if self.settings.level != "off" else ()
        reader = source_reading.SourceReader(read_words, self.settings.flag_functions)
        tee = self._open_tee(rows)
        child = Child(words, env, tee)
        mark = {name: env[name] for name in boot.MARK}
        guard = Guard(child.pid, mark)
        # No thread is started before here: the command and its guard are forks.
        messages = alerts.Alerts(self.run, self.settings, words, leads=self.leads)
        follower = self._make_follower(child, messages)
        child.end_hung_ranks = follower.end_hung_ranks
        if self.leads:
            child.note_stop = self._note_stop
        if self.place is not None:
            self._run_copies = run_uploading.RunUploading(self.run, self.settings, self.place)
        return RunningCommand(
            child=child,
            mark=mark,
            guard=guard,
            reader=reader,
            tee=tee,
            messages=messages,
            follower=follower,
            git=threading.Thread(target=self._note_git, name="tdbg-git", daemon=True) if self.leads else None,
            copies=uploading.Uploading(self.run, self.settings) if uploading.is_wanted(self.settings) else None,
            patience=presence.Patience(self.run) if self._minds_silence() else None,
        )

    def _make_follower(self, child: Child, messages: alerts.Alerts) -> Follower:
        return Follower(
            self.run,
            self.settings,
            lambda why: self._stop_command(child, why),
            capture=self._request_capture,
            profile=self._request_profile,
            alert=messages.add_finding,
            sample=HostSampler(self.run).sample_if_due,
            reply=lambda: sending.reply_to_ranks(self.run) if self.leads and self.settings.to else None,
            speaks=self.leads,
        )

    def _finish_output(self, around: RunningCommand, rows: ProgramRows) -> None:
        """The command has ended: so do its rest, its guard and its output."""
        if self._run_copies:
            self._run_copies.hasten_round()
        around.reader.end_reading()
        if self.stopped:  # the command alone was told to end; the guard is there until the rest has ended too
            orphans.end_processes(around.child.pid, around.mark)
        around.guard.dismiss()
        if around.tee:
            around.tee.finish_copying()
        rows.finish_output()
        if around.patience:
            around.patience.cancel_timer()

    def _judge_run(self, around: RunningCommand, code: int) -> int:
        """Judge, send and copy what is there; returns tdbg's exit code."""
        if around.copies:
            around.copies.finish_upload()
        verdict = around.follower.finish_run(code)
        if self.leads:
            self._write_board()
        self._break_silence(verdict)
        if self.leads:
            sending.send_all(self.run, self.settings, verdict)
        around.messages.finish_sending(verdict, code)
        if self._run_copies:
            self._run_copies.finish_upload()
        return self.exit_code(code, verdict)

    def _open_tee(self, rows: ProgramRows) -> Tee | None:
        if not self.settings.tee:
            return None
        suffix = "" if self.leads else f".{join.agent_name()}"
        try:
            return Tee(self.run.path, self.settings.disk_budget_bytes, rows, suffix)
        except OSError as error:
            raise LaunchError(
                f"cannot write a copy of the output to {self.run.path}: {error.strerror or error}",
                "free disk space there, or leave out --tee",
            ) from None

    def _request_capture(self) -> None:
        """A finding that `--capture-on` waits for: all ranks capture from a common step on."""
        self._send_request("--capture-on", Request(number=0, capture_for=CAPTURED_STEPS))

    def _request_profile(self) -> None:
        """A finding that `--window-on` waits for: all ranks record the same steps."""
        self._send_request("--window-on", Request(number=0, profile_for=self.settings.profile_active, why="finding"))

    def _send_request(self, option: str, wish: Request) -> None:
        from tdbg.launch.ask import send_request

        try:
            send_request(self.run, wish, wait_s=0.0)
        except TdbgError as error:  # it has ended, or nothing can be written
            print_messages(f"{option}: {error}")

    def _write_board(self) -> None:
        """What TensorBoard shows beside the traces."""

        def report_error(error: BaseException) -> None:
            said = error.strerror or error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            print_messages(f"nothing was written for TensorBoard: {said}")

        with guarded("a package that does not fit here must not change how the run ends", report_error):
            if any(self.run.path.glob("rank*/**/traces")):
                from tdbg.traces.render import tensorboard_export

                tensorboard_export.export_scalars(self.run)

    def _stop_command(self, child: Child, why: str) -> None:
        """The follower has seen what the run is to end at."""
        self.stopped = True
        print_messages(f"stopping the command: {why}")
        if self.leads:
            _update_run_info(self.run, stopped=why)
        child.stop_gracefully()

    def _note_stop(self, stop_t: float) -> None:
        """Record when the command was told to stop, at most one request in `MIN_STOP_INTERVAL_S`, and 32 in all.

        A thread writes it, so that a slow disk does not delay the forwarding of signals.
        """
        if self._run_copies:
            self._run_copies.hasten_round(is_stopped=True)
        if len(self._stop_times) >= 32 or (self._stop_times and stop_t < self._stop_times[-1] + MIN_STOP_INTERVAL_S):
            return

        def write_time() -> None:
            with guarded("the run ends without it", lambda error: None):
                _update_run_info(self.run, stop_times=list(self._stop_times))

        self._stop_times.append(stop_t)
        note = threading.Thread(target=write_time, name="tdbg-stop-note", daemon=True)
        note.start()
        self._stop_note = note  # after start(): only a started thread can be joined

    def _note_git(self) -> None:
        state = provenance.git_state(GIT_PATIENCE_S)
        if state:
            _update_run_info(self.run, git=state)

    def _note_child(self, pid: int) -> None:
        """The command's own process: its exit code is that of no other."""
        _update_run_info(self.run, child={"pid": pid, "host": host_name()})

    def _discard_files(self) -> None:
        """What the program of this host has written."""
        folder = self.run.path / PREFLIGHT_FOLDER
        if self.leads and not self.settings.quiet:
            print_messages(
                f"preflight: the program and its Python processes wrote to {folder}, now removed; other commands, and"
                " Python that ignores PYTHONPATH, wrote to the real files; W&B was disabled"
            )
        started = folder / f"{host_name()}{STARTED_SUFFIX}"
        if started.exists():
            run_files.remove_file(started)
            if not self.settings.quiet:
                print_messages(
                    "preflight: commands started by the program may have seen its files as they were before it changed them",
                    "if one of them fails for that reason, run the program without --preflight",
                )
        deleted = folder / f"{host_name()}{DELETED_SUFFIX}"
        if deleted.exists():
            run_files.remove_file(deleted)
        shutil.rmtree(folder / host_name(), ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # of no other host

    def _note_end(self, code: int) -> None:
        _update_run_info(
            self.run,
            end=time.time(),
            exit={"code": code if code >= 0 else None, "signal": -code if code < 0 else None},
            nodes=join.read_nodes(self.run),
            ranks=provenance.collect_rank_info(self.run),
        )

    def _minds_silence(self) -> bool:
        """True if nothing reported is worth a word of this agent's."""
        return self.leads and not self.settings.quiet and self.settings.level != "off"

    def _break_silence(self, verdict: Verdict) -> None:
        is_explained = any(finding.code == presence.CODE for finding in verdict.findings)
        found = explain_silence(self.run) if self._minds_silence() and not is_explained else None
        if found:
            print_messages(*found)

    def exit_code(self, code: int, verdict: Verdict) -> int:
        """The command's own, 128+N after signal N; findings that were asked for turn 0, and nothing else, into 1."""
        if code:
            return code if code > 0 else 128 - code
        if verdict.is_preflight_refused:
            return TdbgError.exit_code
        found = any(matches_words(finding, self.settings.stop_on) for finding in verdict.findings)
        asked = self.stopped or found or any(trigger["stop"] for trigger in verdict.triggers)
        return 1 if asked or verdict.should_fail(self.settings.fail_on) else 0
