"""`tdbg inspect-pages`: captured tensors, offline."""

from difflib import get_close_matches
from typing import Any

import typer

from tdbg.asked import Asked
from tdbg.cli import options
from tdbg.errors import TdbgError
from tdbg.pages.commands import NAMES, Subcommand, escape_what_cannot_be_shown, load
from tdbg.pages.places import is_place


class Pages(options.Group):
    """A path alone lists what is there."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer's; a first word that is no subcommand but a path stands for ``ls``."""
        if args and args[0] not in self.commands and is_place(args[0]):
            args = ["ls", *args]
        elif args and args[0] not in self.commands and not get_close_matches(args[0], self.commands):
            raise TdbgError(f"{args[0]!r} is no command, and no path that is there", "`tdbg inspect-pages --help`")
        return super().resolve_command(ctx, args)


app = options.group(
    """Open captured tensors: list, show, compare, export, repair.

    What `tdbg run --capture` and the debuggers kept is read where it lies, without torch and without running anything
    that is in it. A path alone lists. A path may be a URL such as s3://bucket/run, of which only what is looked at is
    fetched.

    Examples:
        tdbg inspect-pages tdbg_runs/20261121-031500-train
        tdbg inspect-pages show 17/layers.4.attn:output
    """,
    Pages,
)


def _add(name: str, found: Subcommand) -> None:
    def command(**given: Any) -> int:
        question: Asked = found.Question(**{key: value for key, value in given.items() if value is not None})
        escape_what_cannot_be_shown()
        return found.answer(question)

    metavar, text = found.ARGUMENTS
    command.__doc__ = found.HELP
    options.declare(command, found.Question, found.OPTIONS, typer.Argument(metavar=metavar, help=text))
    app.command(name)(command)


for _name in NAMES:
    _add(_name, load(_name))
