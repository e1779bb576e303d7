"""The command line: an ordered table of commands, each in a file of its own that loads when it is called.

A command is a file ``tdbg/cli/<name>.py`` (a hyphen in the name is an underscore in the file's) and its line in `COMMANDS`.
The file holds ``COMMAND``, a `tdbg.core.command_spec.Command` or `Group`: what runs it, its options as a table, its
help, which begins with the summary of the table here, word for word (a test compares them). What it returns is the exit
code. A group is a folder whose ``__init__.py`` holds the ordered names of its commands, each in a file beside it.

Such a file is light: it imports at its top only what its options need, and the core inside the function. An option's
``metavar`` says what its value is, and so what a shell completes: see `tdbg.cli.kinds`.

A plain command line is read from the table alone; `tdbg.cli.parser`, which loads typer, reads any other.

A failure is raised as `TdbgError`: here, and nowhere else, it becomes two lines on stderr (what is wrong, what to do next)
and an exit code. ``TDBG_DEBUG=1`` shows the traceback as well.
"""

import os
import sys

from tdbg.core.command_spec import Args, Argument, Command, Group, Option, fill_bare_options, parse_plain_args
from tdbg.core.errors import TdbgError
from tdbg.core.output import close_stdout, escaped_output, print_messages

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.cli.parser import Parser

INTERRUPTED = 130
HELP = ("-h", "--help")


class Entry:
    """A line of the table of commands."""

    def __init__(self, name: str, summary: str, hidden: bool = False) -> None:
        self.name, self.summary, self.hidden = name, summary, hidden

    @property
    def module_name(self) -> str:
        """The module that holds the command."""
        return f"{__name__}.{self.name.replace('-', '_')}"


# The order is that of `tdbg --help`.
COMMANDS = (
    Entry("run", "Run a training or evaluation command and report what went wrong."),
    Entry("profile", "Run a command with torch.profiler around some of its steps."),
    Entry("report", "Show the verdict of a run: findings, evidence, cost."),
    Entry("runs", "List runs with their verdicts; copy them to a store; remove old ones."),
    Entry("join", "Join the run directories that several hosts wrote into one run."),
    Entry("status", "Show how far a run is: rank, step, rate, loss, level, last finding."),
    Entry("control", "Change level and flags of a live run, on all ranks at one step."),
    Entry("view", "Show runs in the browser, and serve them as an HTTP API on 127.0.0.1."),
    Entry("stacks", "Print all ranks' Python stacks as one tree: now, or at the last hang."),
    Entry("filter-logs", "Print log lines by flag, rank, level, step and time; whole records."),
    Entry("inspect-pages", "Open captured tensors: list, show, compare, export, repair."),
    Entry("trace", "Read traces of torch.profiler: where time and memory went."),
    Entry("metrics", "Show, plot, compare and check the losses, rates and scores of a run."),
    Entry("flags", "List the debug flags, what they open and what they did."),
    Entry("explain", "Explain the code of a finding or of advice, and what to do."),
    Entry("doctor", "Show what tdbg sees here: versions, settings and their sources."),
    Entry("demo", "Train a small model under tdbg, optionally with a fault."),
    Entry("hook", "Install or remove the hook for Pythons that ignore PYTHONPATH."),
    Entry("completions", "Install or remove the completions of commands, options and runs."),
    Entry("trust", "Allow a folder's configuration to run, send and load things."),
    Entry("docs", "Write the generated files: man pages, completions, help, docs.", hidden=True),
)

ABOUT = """Debug PyTorch training and evaluation runs, with no change to their code.

Put `tdbg run --` in front of any command that trains or evaluates:

    tdbg run -- python train.py --epochs 3
    tdbg run -f GRADIENTS --level advanced -- torchrun --nproc-per-node=2 train.py

Each command has its own --help and its own manual page (man tdbg-run).
"""


def find_entry(name: str, words: "Sequence[str]" = ()) -> Entry:
    """The line of that name; TdbgError with the nearest name, or with the command line that was probably meant."""
    for entry in COMMANDS:
        if entry.name == name:
            return entry
    import difflib
    import shutil

    near = difflib.get_close_matches(name, [entry.name for entry in COMMANDS if not entry.hidden], n=1)
    if near:
        hint = f"did you mean {near[0]}? "
    elif name.endswith(".py") or shutil.which(name):
        import shlex

        line = shlex.join([*(["python"] if name.endswith(".py") else []), name, *words])
        hint = f"did you mean: tdbg run -- {line}? "
    else:
        hint = ""
    raise TdbgError(f"no command is named {name!r}", f"{hint}`tdbg --help` shows every command")


def load_spec(entry: Entry) -> Command | Group:
    """Import one command's file; returns its table."""
    import importlib

    found: Command | Group = importlib.import_module(entry.module_name).COMMAND
    return found


def load_parser(entry: Entry) -> "Parser":
    """The whole parser of a command."""
    from tdbg.cli import parser

    return parser.build_parser(load_spec(entry), entry.name)


class RootArgs(Args):
    """What stands before the name of a command."""

    version: bool = False
    words: "Sequence[str]" = ()


def _run_root(args: RootArgs) -> int:
    if args.version:
        from tdbg.version import __version__

        print(f"tdbg {__version__}")
        return 0
    if not args.words:
        return _print_page(build_root_group(), "tdbg")
    name, *rest = args.words
    return _run_command_line(load_spec(find_entry(name, rest)), f"tdbg {name}", rest)


ROOT = Command(
    _run_root,
    RootArgs,
    ABOUT,
    {"version": Option(("--version",), "", "Print the version and exit.")},
    Argument("COMMAND", "The command.", field="words"),
    wraps=True,
    colors=False,  # each command has the option
)


def build_root_group() -> Group:
    """The whole command line, for those who walk it."""
    return Group(
        ABOUT,
        [entry.name for entry in COMMANDS if not entry.hidden],
        lambda name: load_spec(find_entry(name)),
        summaries=[(entry.name, entry.summary) for entry in COMMANDS if not entry.hidden],
        options=ROOT.options,
    )


def main(args: "Sequence[str] | None" = None) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    words = list(sys.argv[1:] if args is None else args)
    if sys.stdout is None:  # started with stdout closed: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    with escaped_output():
        try:
            code = _run_command_line(build_root_group() if asks_for_help(ROOT, words) else ROOT, "tdbg", words)
            sys.stdout.flush()  # here, where a full disk can still be told
            return code
        except (Exception, KeyboardInterrupt) as error:  # the one place where every failure ends
            return _report_failure(error)


def _run_command_line(spec: Command | Group, path: str, words: list[str]) -> int:
    """Run what a command line says below ``path``."""
    if asks_for_help(spec, words):
        return _print_page(spec, path)
    if isinstance(spec, Group):
        words = spec.reorder(words) if spec.reorder else words
        if not words:
            return _list_subcommands(spec, path)
        if words[0] in spec.names:
            return _run_command_line(spec.load(words[0]), f"{path} {words[0]}", words[1:])
    else:
        words = fill_bare_options(spec, words)
        args = parse_plain_args(spec, words)
        if args is not None:
            return spec.execute(args)
    from tdbg.cli import parser

    return parser.parse_and_run(spec, path, words)


def _list_subcommands(spec: Group, path: str) -> int:
    """Say which subcommands a group has; wrong use, as one is needed."""
    width = max(map(len, spec.names))
    rows = [f"  {name.ljust(width)}  {summary}" for name, summary in spec.list_summaries()]
    print_messages(f"`{path}` needs a subcommand:", *rows, f"`{path} SUBCOMMAND --help` shows its options")
    return TdbgError.exit_code


def _print_page(spec: Command | Group, path: str) -> int:
    from tdbg.cli import pages

    print(pages.render_for_terminal(spec, tuple(path.split())), end="")
    return 0


def asks_for_help(spec: Command | Group, words: "Sequence[str]") -> bool:
    """True if help is asked for before ``--`` (and, of a group or a command that wraps another, before the first word)."""
    if HELP[0] not in words and HELP[1] not in words:
        return False
    anywhere = isinstance(spec, Command) and not spec.wraps
    valued = {name for option in spec.options.values() if option.metavar for name in option.names}
    left = iter(words)
    for word in left:
        if word in HELP:
            return True
        if word == "--" or not (word.startswith("-") or anywhere):
            return False
        if word in valued:
            next(left, None)
    return False


def _report_failure(error: Exception | KeyboardInterrupt) -> int:
    """Say what ended a command line, and return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader has seen enough: no failure
        close_stdout()
        return 0
    typer = sys.modules.get("typer")
    if isinstance(error, KeyboardInterrupt) or (typer and isinstance(error, typer.Abort)):
        return INTERRUPTED
    if os.environ.get("TDBG_DEBUG", "0") not in ("", "0"):
        import traceback

        print_messages(*traceback.format_exc().splitlines())
    what, hint, code = _describe_error(error)
    print_messages(*(" ".join(line.splitlines()) for line in (what, hint) if line))
    close_stdout()
    return code


def _describe_error(error: Exception) -> tuple[str, str, int]:
    """What is wrong, what to do next, and the exit code."""
    if isinstance(error, TdbgError):
        return str(error), error.hint, error.exit_code
    if isinstance(error, OSError) and error.strerror:
        place = error.filename or "reading or writing failed"
        return f"{place}: {error.strerror}", "fix that; TDBG_DEBUG=1 shows where it happened", TdbgError.exit_code
    what = f"tdbg itself failed: {type(error).__name__}: {error}"
    return what, "TDBG_DEBUG=1 shows the traceback; please report it", TdbgError.exit_code
