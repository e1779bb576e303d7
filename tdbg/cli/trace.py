"""`tdbg trace`: traces of torch.profiler, offline."""

from typing import Any

import typer

from tdbg.asked import Asked
from tdbg.cli import options
from tdbg.traces.commands import NAMES, Subcommand, escape_what_cannot_be_shown, load

app = options.group(
    """Read traces of torch.profiler: where time and memory went.

    A trace is what `tdbg profile` or torch.profiler exported, a .json or .json.gz of any size. It is read where it
    lies, without torch, on any machine.

    Examples:
        tdbg trace show
        tdbg trace show trace.json.gz
    """
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
