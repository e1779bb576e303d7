"""`tdbg report`: the verdict of a run, derived from its files alone."""

import contextlib
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import JSON, RUN_ANYWHERE, Args, Command, Option, Options
from tdbg.core.errors import TdbgError
from tdbg.core.files import iter_json_lines
from tdbg.core.output import print_json, print_lines, print_messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tdbg.core.rundir import RunDir
    from tdbg.rules.verdict import Verdict

NOTES_FILE = "notes.jsonl"
PAGES = (".html", ".htm")  # what --html may write in a run directory


HELP = """Show the verdict of a run: findings, evidence, cost.

    It is derived from the events alone, so a run that was killed, or is still going, has one too. Only
    --note and --to write to the run directory.

    Examples:
        tdbg report
        tdbg report tdbg_runs/20261121-031500-train --json
        tdbg report train --all
        tdbg report train --note "batch 12 holds an empty image"
        tdbg report --html report.html
        tdbg report s3://bucket/runs/train
    """
OPTIONS: Options = {
    "all": Option(("--all",), "", "Print everything, not just one screen."),
    "markdown": Option(("--markdown",), "", "Print it as Markdown, for an issue tracker."),
    "note": Option(("--note",), "TEXT", "Keep your own finding with the run."),
    "fail_on": Option(("--fail-on",), "SEVERITY", "Exit with 1 if there is a finding of this severity or worse."),
    "html": Option(("--html",), "FILE", "Write it as one HTML file, with charts, that opens without a network."),
    "force": Option(("--force",), "", "With --html: overwrite a file that is there."),
    "to": Option(
        ("--to",),
        "SINK",
        "Send step records, findings and the report to wandb, tensorboard or a sink of another package; repeatable.",
    ),
    "json": JSON,
}


class ReportArgs(Args):
    """What `report` can be given."""

    run: str | None = None
    all: bool = False
    markdown: bool = False
    note: str | None = None
    fail_on: str = "never"
    html: str = ""
    force: bool = False
    to: "Sequence[str]" = ()
    json: bool = False


def report_run(args: ReportArgs) -> int:
    """Print the verdict; 1 if --fail-on is reached."""
    from tdbg.core.rundir import RunDir
    from tdbg.launch.metrics_findings import read_verdict
    from tdbg.rules import view

    floor = parse_severity(args.fail_on)
    sinks = check_sinks(args.to)
    check_forms(args)
    found = RunDir.open(args.run, writes=args.note is not None)
    if not found.list_processes():
        for why in found.list_unreadable():
            raise TdbgError(why, "`tdbg run` writes regular files: find out who created it, then remove it")
        found.read_info()  # with no events and an unreadable run.json there is nothing to judge: say so
    else:
        report_damage(found)
    page = check_page(args, found) if args.html else None
    if args.note is not None:
        append_note(found, args.note)
    print_messages(*found.list_unreadable())
    verdict = read_verdict(found)
    notes = read_notes(found)
    if page is not None:
        write_page(page, found, verdict, notes)
    for name in sinks:
        send_to_sink(name, found, verdict, note_lines(notes))
    if args.json:
        print_json("report", {**verdict.as_dict(), "people": notes})
    elif args.markdown:
        from tdbg.rules.markdown_report import write_markdown

        print("\n".join(write_markdown(verdict, view.read_info(found), note_lines(notes))))
    elif args.all:
        blotted = view.read_info(found).get("blotted_out")
        print_lines([f"run: {verdict.run}", *verdict.format_page()])
        if isinstance(blotted, int) and blotted:
            print_lines([f"secrets: {blotted} masked in command, settings and environment in run.json"])
        if notes:
            print_lines(["", "notes by people:", *note_lines(notes)])
    elif page is None:
        print_lines(verdict.format_screen(note_lines(notes)))
    return 1 if verdict.should_fail(floor) else 0


def check_sinks(names: "Sequence[str]") -> list[str]:
    """The sinks that --to names; TdbgError for one that there is not, or whose package is missing."""
    if not names:
        return []
    from tdbg.core.config import check_setting
    from tdbg.launch.run_sinks import find_sink

    sinks: list[str] = check_setting("to", list(names), "--to")
    with contextlib.redirect_stdout(sys.stderr):  # what another package prints is no part of the report
        for name in sinks:
            find_sink(name)
    return sinks


def send_to_sink(name: str, run: "RunDir", verdict: "Verdict", notes: list[str]) -> None:
    """Write the run to a sink. Raises TdbgError if that fails."""
    from tdbg.core.guard import describe_error, guarded
    from tdbg.core.redaction import redact_text
    from tdbg.core.sink_files import record_outcome
    from tdbg.launch.run_sinks import make_report, write_to_sink

    def raise_failure(error: BaseException) -> None:
        why = describe_error(error)
        if isinstance(error, TdbgError):
            why = str(error)
        elif isinstance(error, OSError) and error.strerror:
            why = f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
        hint = f"nothing else is changed; try again: `tdbg report {run.place} --to {name}`"
        raise TdbgError(f"--to {name}: {' '.join(redact_text(why).split())[:300]}", hint) from None

    where = ""
    with (
        guarded("a package that sends may raise anything", raise_failure, program_code=True),
        no_tracebacks_of_threads(),
        contextlib.redirect_stdout(sys.stderr),
    ):
        where = write_to_sink(run, name, make_report(run, verdict, notes))
    print_messages(f"--to {name}: {where}")
    with contextlib.suppress(OSError):  # another user's run
        record_outcome(run.path, name, where)


@contextlib.contextmanager
def no_tracebacks_of_threads() -> "Iterator[None]":
    """What a thread of a package fails with is raised where it is waited for, and is one line there."""
    before, threading.excepthook = threading.excepthook, lambda args: None
    try:
        yield
    finally:
        threading.excepthook = before


def check_forms(args: ReportArgs) -> None:
    """TdbgError for two forms at once."""
    asked = [option for option, is_asked in (("--json", args.json), ("--markdown", args.markdown)) if is_asked]
    if len(asked) > 1:
        raise TdbgError(f"{' and '.join(asked)} exclude each other", "choose one")


def report_damage(run: "RunDir") -> None:
    """Say on stderr if run.json cannot be read: the verdict then goes by the events alone."""
    try:
        run.read_info()
    except TdbgError as error:
        print_messages(
            str(error), "command, settings and exit code are unknown; the verdict uses the ranks' events only"
        )


def check_page(args: ReportArgs, run: "RunDir") -> "Path":
    """The file that --html names; TdbgError for one that is there, without --force, and for a file of the run."""
    from tdbg.core.output_file import check_output_file
    from tdbg.core.run_files import STATE_FILE
    from tdbg.core.tables import safe

    path = check_output_file("--html", args.html, [(run.path / STATE_FILE, "the run's own")], force=args.force)
    if path.suffix.lower() not in PAGES and path.resolve().is_relative_to(run.path.resolve()):
        raise TdbgError(f"{safe(args.html)} may be a file of the run", "a file in a run must end in .html")
    return path


def write_page(path: "Path", run: "RunDir", verdict: "Verdict", notes: list[dict[str, Any]]) -> None:
    """Write the report as one HTML file."""
    from tdbg.core.output_file import replace_file
    from tdbg.core.tables import format_size, safe
    from tdbg.rules.report_page import document

    with replace_file(path) as file:
        document.write_page(file, run, verdict, notes)
    print_messages(safe(f"wrote {format_size(path.stat().st_size)} to {path}: open it in a browser"))


def parse_severity(word: str) -> str:
    """A severity as the rules spell it; TdbgError with the nearest one."""
    from tdbg.core.config import check_setting

    return str(check_setting("fail_on", word))


def append_note(run: "RunDir", text: str) -> None:
    """Append a person's note, as one whole line."""
    if not text.strip():
        raise TdbgError("the note is empty", 'write --note "what you found"')
    line = json.dumps({"t": time.time(), "text": text}) + "\n"
    from tdbg.core import run_files

    path = run.path / NOTES_FILE
    try:
        handle = run_files.open_append(path)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise TdbgError(
            f"cannot write {path}: {error.strerror}",
            "write it as the owner of the run directory, or copy the run first",
        ) from None
    print_messages(f"note kept in {path}")


def read_notes(run: "RunDir") -> list[dict[str, Any]]:
    """The notes of people; torn lines are passed over."""
    with contextlib.suppress(OSError):
        return list(iter_json_lines(run.path / NOTES_FILE))
    return []


def note_lines(notes: list[dict[str, Any]]) -> list[str]:
    """Each note with its time."""
    return [f"  {format_note_time(item)} {item.get('text', '')}" for item in notes]


def format_note_time(item: dict[str, Any]) -> str:
    """The local time of a note."""
    moment = item.get("t")
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment)) if isinstance(moment, int | float) else "-"
    except (OverflowError, ValueError, OSError):  # no time that a clock shows
        return "-"


COMMAND = Command(read_from_stores(report_run, "report", local="note to"), ReportArgs, HELP, OPTIONS, RUN_ANYWHERE)
