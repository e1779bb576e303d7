"""`tdbg completions`: set up completion in the user's own shell."""

from tdbg.core.command_spec import Args, Command, Group, Option, Options
from tdbg.core.output import print_lines

HELP = """Install or remove the completions of commands, options and runs.

    They complete commands, options, flags, codes and runs in bash, zsh and fish. No script calls tdbg while you type.
    """
INSTALL = """Install the completions for your shell; prints the files it wrote.

    The shell is that of $SHELL if none is named. bash and zsh also get two marked lines at the end of ~/.bashrc or
    ~/.zshrc. A second call changes nothing.

    Examples:
        tdbg completions install
        tdbg completions install --shell zsh
    """
REMOVE = """Remove the completions; exit code 1 if there were none.

    Examples:
        tdbg completions remove
    """
OPTIONS: Options = {"shell": Option(("--shell",), "NAME", "bash, zsh or fish; that of $SHELL if left out.")}
SCRIPTS = {"bash": "completions/tdbg.bash", "zsh": "completions/_tdbg", "fish": "completions/tdbg.fish"}


class CompletionsArgs(Args):
    """Which shell is meant."""

    shell: str | None = None


def install_completions(args: CompletionsArgs) -> int:
    """Write them, and print what was written."""
    from tdbg.cli import generate
    from tdbg.launch import shell_completions

    shell = shell_completions.detect_shell(args.shell)
    changed = shell_completions.install_script(shell, generate.render_completions()[SCRIPTS[shell]])
    print_lines([f"written: {path}" for path in changed] or [f"the completions for {shell} are up to date"])
    if changed:
        print_lines([f"start a new {shell} to use them"])
    return 0


def remove_completions(args: CompletionsArgs) -> int:
    """Remove them; 1 if there were none."""
    from tdbg.launch import shell_completions

    shell = shell_completions.detect_shell(args.shell)
    changed = shell_completions.remove_script(shell)
    lines = [f"{'changed' if path.exists() else 'removed'}: {path}" for path in changed]
    print_lines(lines or [f"no completions for {shell} are installed"])
    return 0 if changed else 1


COMMANDS = {
    "install": Command(install_completions, CompletionsArgs, INSTALL, OPTIONS),
    "remove": Command(remove_completions, CompletionsArgs, REMOVE, OPTIONS),
}
COMMAND = Group(HELP, tuple(COMMANDS), COMMANDS.__getitem__)
