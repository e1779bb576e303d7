"""`tdbg hook`: the opt-in for Pythons that do not look at PYTHONPATH."""

from tdbg.core.command_spec import Args, Command, Group, Option, Options
from tdbg.core.output import print_lines

HELP = """Install or remove the hook for Pythons that ignore PYTHONPATH.

    `tdbg run` reaches a program's processes through PYTHONPATH. `python -I` and `python -E` ignore it, and some
    programs overwrite it. The hook is a small startup file in an environment's site-packages; it does nothing
    outside `tdbg run`.
    """
INSTALL = """Install the hook into an environment's site-packages.

    Examples:
        tdbg hook install
        tdbg hook install --python /path/to/env/bin/python
    """
REMOVE = """Remove the hook; exit code 1 if there was none.

    Examples:
        tdbg hook remove
    """
OPTIONS: Options = {
    "python": Option(("--python",), "FILE", "Interpreter of the environment; tdbg's own if left out."),
}


class HookArgs(Args):
    """Which environment is meant."""

    python: str | None = None


def install_hook(args: HookArgs) -> int:
    """Install it, and print where."""
    from tdbg.launch import startup_files

    print_lines([str(startup_files.install_hook(args.python))])
    return 0


def remove_hook(args: HookArgs) -> int:
    """Remove it; 1 if there was none."""
    from tdbg.launch import startup_files

    path = startup_files.remove_hook(args.python)
    print_lines([str(path or "no hook is installed")])
    return 0 if path else 1


COMMANDS = {
    "install": Command(install_hook, HookArgs, INSTALL, OPTIONS),
    "remove": Command(remove_hook, HookArgs, REMOVE, OPTIONS),
}
COMMAND = Group(HELP, tuple(COMMANDS), COMMANDS.__getitem__)
