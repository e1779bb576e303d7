"""`tdbg filter-logs`: log lines by flag, rank, level, step, time and text; whole records."""

from typing import Any

import typer

from tdbg.cli.options import declare
from tdbg.logs.question import OPTIONS, Question

PATHS = typer.Argument(metavar="FILE", help="Log files, folders, globs, run directories, or - for stdin.")


def command(**given: Any) -> int:
    """Print log lines by flag, rank, level, step and time; whole records.

    A record is a line with its traceback or dump. Different options narrow: a record has to fit all of them. The same
    option several times widens: any of its values will do. What is printed is what was read, byte for byte. The newest run is
    read if no path is given.

    Examples:
        tdbg filter-logs -f GRADIENTS
        tdbg filter-logs -f GRADIENTS -f LR --steps 100:200
        tdbg filter-logs tdbg_runs/20261121-031500-train --level WARNING --ranks 0,3-5
        tdbg filter-logs train.log -e "loss=nan" --steps 100:200
        tdbg filter-logs logs/ --collapse
    """
    from tdbg.logs.answer import answer

    return answer(Question(**{name: value for name, value in given.items() if value is not None}))


declare(command, Question, OPTIONS, PATHS)
