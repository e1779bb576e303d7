"""The command line: an ordered table of commands, each in a file of its own that loads when it is called.

A command is a file ``tdbg/cli/<name>.py`` (a hyphen in the name is an underscore in the file's) and its
line in `COMMANDS`. The file declares one of:

``def command(...) -> int | None``
    a function in typer's notation. Its docstring is the help page and begins with the summary of the
    table, word for word (a test compares them); what it returns is the exit code, None being 0. An
    optional ``SETTINGS = {...}`` beside it is handed to ``typer.Typer.command``; a command that wraps
    another one needs ``SETTINGS = options.WRAPS_A_COMMAND``.
``app = options.group("the help text")``
    a group of such functions, each under ``@app.command("name")``; its text is the group's help page.

Such a file is light: it imports at its top only what its options need, and the core inside the function.
An option's ``metavar`` tells what its value is, and so what a shell completes: see `tdbg.cli.options`.

A failure is raised as `TdbgError`: here, and nowhere else, it becomes two lines on stderr (what is wrong,
what to do next) and an exit code. ``TDBG_DEBUG=1`` shows the traceback as well.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, cast

import typer

from tdbg.cli import options
from tdbg.core.errors import TdbgError
from tdbg.core.output import close_quietly, escaped_output, say

INTERRUPTED = 130


class Entry(NamedTuple):
    """A line of the table of commands."""

    name: str
    summary: str
    hidden: bool = False

    @property
    def module(self) -> str:
        """The module that holds the command."""
        return f"{__name__}.{self.name.replace('-', '_')}"


# The order is that of `tdbg --help`.
COMMANDS = (
    Entry("run", "Run a training or evaluation command and say what went wrong in it."),
    Entry("profile", "Run a command with torch.profiler around some of its steps."),
    Entry("report", "Show the verdict of a run: findings, evidence, cost."),
    Entry("status", "Show how far a run is: rank, step, rate, loss, level, last finding."),
    Entry("control", "Change level and flags of a live run, on all ranks at one step."),
    Entry("filter-logs", "Print log lines by flag, rank, level, step and time; whole records."),
    Entry("inspect-pages", "Open captured tensors: list, show, compare, export, repair."),
    Entry("trace", "Read traces of torch.profiler: where time and memory went."),
    Entry("metrics", "Show, plot, compare and check the losses, rates and scores of a run."),
    Entry("flags", "List the debug flags, what they open and what they did."),
    Entry("explain", "Explain the code of a finding or of an advice, and what to do."),
    Entry("doctor", "Show what tdbg sees here: versions, settings and their sources."),
    Entry("demo", "Train a small model under tdbg, with a fault if you like."),
    Entry("hook", "Install or remove the hook for Pythons that ignore PYTHONPATH."),
    Entry("trust", "Allow a folder's configuration to run, send and load things."),
    Entry("docs", "Write the generated files: man pages, completions, help, docs.", hidden=True),
)

ABOUT = """Debug PyTorch training and evaluation runs, with no change to their code.

Put `tdbg run --` in front of any command that trains or evaluates:

    tdbg run -- python train.py --epochs 3
    tdbg run -f GRADIENTS --level advanced -- torchrun --nproc-per-node=2 train.py

Each command has its own --help and its own manual page (man tdbg-run).
"""


class Commands(options.Group):
    """The root command: it knows every name and summary, and loads only the command that is called."""

    def summaries(self) -> list[tuple[str, str]]:
        """The table itself: help for all costs no import of any."""
        return [(entry.name, entry.summary) for entry in COMMANDS if not entry.hidden]

    def get_command(self, ctx: Any, cmd_name: str) -> options.Command | options.Group:
        """The command of that name; TdbgError with the nearest name if there is none."""
        for entry in COMMANDS:
            if entry.name == cmd_name:
                return load(entry)
        import difflib

        near = difflib.get_close_matches(cmd_name, dict(self.summaries()), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise TdbgError(f"no command is named {cmd_name!r}", f"{hint}`tdbg --help` shows every command")


def load(entry: Entry) -> options.Command | options.Group:
    """Import one command's file and make its parser."""
    module = importlib.import_module(entry.module)
    if hasattr(module, "app"):
        found = cast(options.Group, typer.main.get_group(module.app))
        found.name = entry.name
        return found
    app = options.group()
    app.command(entry.name, **getattr(module, "SETTINGS", {}))(module.command)
    return cast(options.Command, typer.main.get_command(app))


def _version(wanted: bool) -> None:
    if wanted:
        from tdbg.version import __version__

        print(f"tdbg {__version__}")
        raise typer.Exit


def root() -> Commands:
    """The whole command line, for `main` and for those who walk it."""
    app = options.group(ABOUT, Commands)

    @app.callback()
    def tdbg(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
        ] = False,
    ) -> None:
        pass  # its options are all there is to it

    return cast(Commands, typer.main.get_group(app))


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    words = list(sys.argv[1:] if args is None else args)
    if sys.stdout is None:  # started with stdout closed: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    with escaped_output():
        try:
            code = _call(words)
            sys.stdout.flush()  # here, where a full disk can still be told
            return code
        except (Exception, KeyboardInterrupt) as error:  # the one place where every failure ends
            return failed(error, words)


def failed(error: Exception | KeyboardInterrupt, words: list[str]) -> int:
    """Say what ended a command line, and return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader has seen enough: no failure
        close_quietly()
        return 0
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    return _fail(error, words)


def _call(args: list[str]) -> int:
    """Parse and run; help pages and other early ends arrive as ``typer.Exit``."""
    command = root()
    try:
        with command.make_context("tdbg", args or ["--help"]) as ctx:
            result = command.invoke(ctx)
    except typer.Exit as end:
        return end.exit_code
    return result if isinstance(result, int) else 0


def _fail(error: Exception, words: list[str]) -> int:
    if os.environ.get("TDBG_DEBUG", "0") not in ("", "0"):
        import traceback

        say(*traceback.format_exc().splitlines())
    what, hint, code = _describe(error, words)
    say(*(" ".join(line.splitlines()) for line in (what, hint) if line))
    close_quietly()
    return code


def _describe(error: Exception, words: list[str]) -> tuple[str, str, int]:
    """What is wrong, what to do next, and the exit code."""
    if isinstance(error, TdbgError):
        return str(error), error.hint, error.exit_code
    if isinstance(error, typer.TyperException):
        return _wrong_use(error, words)
    if isinstance(error, OSError) and error.strerror:
        place = error.filename or "reading or writing failed"
        return f"{place}: {error.strerror}", "mend that; TDBG_DEBUG=1 shows where it happened", TdbgError.exit_code
    what = f"tdbg itself failed: {type(error).__name__}: {error}"
    return what, "TDBG_DEBUG=1 shows the traceback; please report it", TdbgError.exit_code


def _wrong_use(error: typer.TyperException, words: list[str]) -> tuple[str, str, int]:
    """What the parser says, in our form: one line, and the page that helps."""
    ctx = getattr(error, "ctx", None)
    known = [word for word in words[:1] if any(word == entry.name for entry in COMMANDS)]
    path = ctx.command_path if ctx else " ".join(["tdbg", *known])
    near = getattr(error, "possibilities", None)
    text = (error.message if near else error.format_message()).strip().rstrip(".")
    hint = f"did you mean {' or '.join(near[:2])}? " if near else ""
    return text[:1].lower() + text[1:], f"{hint}`{path} --help` shows how it is used", error.exit_code
