"""What commands share on the command line: kinds of values, options that mean one thing, the house style.

The ``metavar`` of an option or argument names the kind of its value. Help pages print it, and the
completions of all shells follow from it: a new option gets its completion from its kind. Several kinds
are joined by a bar (``CODE|SEVERITY``).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tdbg.cli import pages
from tdbg.core.asked import Asked

if TYPE_CHECKING:
    from tdbg.core.asked import Subcommand

F = TypeVar("F", bound=Callable[..., Any])

# Kinds of values. A name from a list: the lists are in tdbg.cli.generate.words.
LISTED = ("FLAG", "LEVEL", "MODE", "PRESET", "SEVERITY", "CODE", "ADVICE", "LOG_LEVEL", "FAULT", "IMAGE", "KIND")
# Completed by looking at the disk: any file, any folder, either, a run (a folder, or a name under ./tdbg_runs).
ON_DISK = ("FILE", "DIR", "PATH", "RUN")
# A whole command line of its own.
COMMAND = "COMMAND"
# Nothing to complete.
FREE = (
    "N",
    "PCT",
    "TEXT",
    "SIZE",
    "NAME",
    "SECONDS",
    "CLASS",
    "SEED",
    "RANGE",
    "GLOB",
    "FIELD",
    "KEY",
    "CONDITION",
    "URL",
)

HELP = ("-h", "--help")

# For a command that wraps another: the first word that is no option ends tdbg's options, as does `--`.
WRAPS_A_COMMAND: dict[str, Any] = {
    "context_settings": {"allow_interspersed_args": False},
    "options_metavar": "[OPTIONS] [--]",
}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run directory, or its name under ./tdbg_runs; the newest if left out."),
]
Wrapped = Annotated[
    list[str] | None,
    typer.Argument(metavar=COMMAND, help="The command and its own options, passed on untouched."),
]


def declare(
    command: Callable[..., int],
    question: type[Asked],
    options: Mapping[str, tuple[tuple[str, ...], str, str]],
    paths: Any,
) -> None:
    """Give a function that takes ``**given`` the options of a table, as typer reads them from a signature."""
    found = [("paths", list[str] | None, paths, None)]
    for name, (names, kind, help_text) in options.items():
        default = getattr(question, name)
        many = not isinstance(default, str | bool | int)
        option = typer.Option(*names, metavar=kind or None, help=help_text)
        found.append((name, list[str] | None if many else type(default), option, None if many else default))
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])
        for name, kind, about, default in found
    ]
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {found.name: found.annotation for found in parameters}


def add(app: "App", name: str, found: "Subcommand") -> None:
    """Add a subcommand that has a file of its own, with its options, help and argument."""

    def command(**given: Any) -> int:
        return found.answer(found.Question(**{key: value for key, value in given.items() if value is not None}))

    metavar, text = found.ARGUMENTS
    command.__doc__ = found.HELP
    declare(command, found.Question, found.OPTIONS, typer.Argument(metavar=metavar, help=text))
    app.command(name)(command)


class Command(TyperCommand):
    """A command whose help is our own page."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's; but help needs no values, and making the converters of values takes longer than the page."""
        if asks_for_help(args, self.params, ctx.allow_interspersed_args):
            give_help(self, ctx)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands whose help is our own page."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's, but for help: see `Command`."""
        if asks_for_help(args, self.params, False):
            give_help(self, ctx)
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Any) -> None:
        """None: its help is given above, and a group with it would load the converters for every command."""

    def summaries(self) -> list[tuple[str, str]]:
        """Name and first line of each command that is not hidden."""
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        return [(name, (command.help or "").partition("\n")[0]) for name, command in shown]


class App(typer.Typer):
    """A typer application whose commands have our help pages."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[F], F]:
        """As typer's, with our class of command."""
        return super().command(*args, **{"cls": Command, **kwargs})


def group(about: str | None = None, cls: type[Group] = Group) -> App:
    """An empty application in the house style: plain help, no completion of its own, `-h` for help."""
    return App(
        cls=cls,
        help=about,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP)},
    )


def asks_for_help(args: list[str], params: Iterable[Any], anywhere: bool) -> bool:
    """True if help is asked for before ``--`` (and, unless ``anywhere``, before the first argument)."""
    options = [param for param in params if param.param_type_name == "option" and not param.is_flag]
    valued = {name for option in options for name in option.opts}
    words = iter(args)
    for word in words:
        if word in HELP:
            return True
        if word == "--" or not (word.startswith("-") or anywhere):
            return False
        if word in valued:
            next(words, None)
    return False


def give_help(command: Command | Group, ctx: Any) -> NoReturn:
    """Print the page of ``command`` as it was called, and end."""
    page = pages.read(command, tuple(ctx.command_path.split()))
    print(pages.render(page, pages.terminal_width()), end="")
    raise typer.Exit
