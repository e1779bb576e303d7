"""`tdbg inspect-pages`: captured tensors, offline."""

from difflib import get_close_matches
from typing import Any

from tdbg.cli import options
from tdbg.core.asked import load
from tdbg.core.errors import TdbgError
from tdbg.pages import commands


class Pages(options.Group):
    """A path alone lists what is there, and may stand before the command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer's, where a path may stand before its command."""
        args = commands.command_first(args)
        if args and args[0] not in self.commands and not get_close_matches(args[0], self.commands):
            raise TdbgError(f"{args[0]!r} is no command, and no path that is there", "`tdbg inspect-pages --help`")
        return super().resolve_command(ctx, args)


app = options.group(
    """Open captured tensors: list, show, compare, export, repair.

    What `tdbg run --capture` and the debuggers kept is read where it lies, without torch and without running anything
    that is in it. A path alone lists. The path may come before or after the command: RUN show KEY is the same as show RUN
    KEY. A path may also be a URL such as s3://bucket/run; only the parts that are read are fetched.

    Examples:
        tdbg inspect-pages tdbg_runs/20261121-031500-train
        tdbg inspect-pages tdbg_runs/20261121-031500-train stats
        tdbg inspect-pages show 17/layers.4.attn:output
    """,
    Pages,
)

for _name in commands.NAMES:
    options.add(app, _name, load(commands.__name__, _name))
