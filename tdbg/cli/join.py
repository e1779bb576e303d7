"""`tdbg join`: the run directories of several hosts as one run."""

from tdbg.core.command_spec import Args, Argument, Command, Option, Options

HELP = """Join the run directories that several hosts wrote into one run.

    For hosts without a shared file system: run `tdbg run` on each, bring the directories together, join them,
    and every command reads them as one run. Ranks keep their numbers, restarts are attempts. Where clocks differ,
    times are shifted by the steps that all ranks did together, or tdbg says that they are not aligned. All files
    are copied; the directories stay as they are.

    Examples:
        tdbg join node0 node1 -o whole
        tdbg report whole
    """
OPTIONS: Options = {"output": Option(("--output", "-o"), "DIR", "The run directory to write; it must not exist.")}
ARGUMENT = Argument("DIR", "The run directories of one job, one for each host.")


class JoinArgs(Args):
    """What `join` can be given."""

    output: str = ""


def join_directories(args: JoinArgs) -> int:
    """Join them."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_lines, print_messages
    from tdbg.core.tables import safe
    from tdbg.launch.joined_run import join_runs

    if not args.output:
        raise TdbgError("missing option: -o DIR", "name the run directory to write: -o whole")
    out = Path(args.output)
    joined = join_runs([str(path) for path in args.paths], out)
    print_messages(*map(safe, joined.list_warnings()))
    print_lines([safe(line) for line in joined.format_lines(out)])
    return 0


COMMAND = Command(join_directories, JoinArgs, HELP, OPTIONS, ARGUMENT)
