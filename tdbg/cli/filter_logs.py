"""`tdbg filter-logs`: log lines by flag, rank, level, step, time and text; whole records."""

import inspect
from typing import Annotated, Any

import typer

from tdbg.logs.question import OPTIONS, Question

PATHS = typer.Argument(metavar="FILE", help="Log files, folders, globs, run directories, or - for stdin.")


def command(**given: Any) -> int:
    """Print log lines by flag, rank, level, step and time; whole records.

    A record is a line with its traceback or dump. What is printed is what was read, byte for byte. The newest run is
    read if no path is given.

    Examples:
        tdbg filter-logs -f GRADIENTS
        tdbg filter-logs tdbg_runs/20261121-031500-train --level WARNING --ranks 0,3-5
        tdbg filter-logs train.log -e "loss=nan" --steps 100:200
        tdbg filter-logs logs/ --collapse
    """
    from tdbg.logs.answer import answer

    return answer(Question(**{name: value for name, value in given.items() if value is not None}))


def _parameters() -> list[inspect.Parameter]:
    """The options as typer reads them from a signature; `tdbg.logs.question` declares them."""
    found = [("paths", list[str] | None, PATHS, None)]
    for name, (names, kind, help_text) in OPTIONS.items():
        default = getattr(Question, name)
        many = not isinstance(default, str | bool | int)
        option = typer.Option(*names, metavar=kind or None, help=help_text)
        found.append((name, list[str] | None if many else type(default), option, None if many else default))
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, about])
        for name, kind, about, default in found
    ]


PARAMETERS = _parameters()
command.__signature__ = inspect.Signature(PARAMETERS, return_annotation=int)  # type: ignore[attr-defined]
command.__annotations__ = {found.name: found.annotation for found in PARAMETERS}
