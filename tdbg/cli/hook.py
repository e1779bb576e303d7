"""`tdbg hook`: the opt-in for Pythons that do not look at PYTHONPATH."""

from typing import Annotated

import typer

from tdbg.cli import options
from tdbg.core.output import print_lines

app = options.group(
    """Install or remove the hook for Pythons that ignore PYTHONPATH.

    `tdbg run` reaches a program's processes through PYTHONPATH. `python -I` and `python -E` ignore it, and some
    programs overwrite it. The hook is a small startup file in an environment's site-packages; it does nothing
    outside `tdbg run`.
    """
)

Python = Annotated[
    str | None,
    typer.Option("--python", metavar="FILE", help="Interpreter of the environment; tdbg's own if left out."),
]


@app.command()
def install(python: Python = None) -> None:
    """Install the hook into an environment's site-packages.

    Examples:
        tdbg hook install
        tdbg hook install --python /path/to/env/bin/python
    """
    from tdbg.launch import startup_files as hook

    print_lines([str(hook.install(python))])


@app.command()
def remove(python: Python = None) -> int:
    """Remove the hook; exit code 1 if there was none.

    Examples:
        tdbg hook remove
    """
    from tdbg.launch import startup_files as hook

    path = hook.remove(python)
    print_lines([str(path or "no hook is installed")])
    return 0 if path else 1
