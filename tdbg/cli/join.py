"""`tdbg join`: the run directories of several hosts as one run."""

from tdbg.core.command_spec import Args, Argument, Command, Option, Options

HELP = """Join the run directories that several hosts wrote into one run.

    For hosts without a shared file system: run `tdbg run` on each, bring the directories together, join them,
    and every command reads them as one run. Ranks keep their numbers, restarts are attempts. Where clocks differ,
    times are shifted by the steps that all ranks did together, or tdbg says that they are not aligned. All files
    are copied; the directories stay as they are. Each may be the URL of a run that `tdbg run --run-dir URL` wrote;
    of one URL alone an ordinary run directory is made.

    Examples:
        tdbg join node0 node1 -o whole
        tdbg report whole
        tdbg join s3://bucket/runs/train -o train
    """
OPTIONS: Options = {"output": Option(("--output", "-o"), "DIR", "The run directory to write; it must not exist.")}
ARGUMENT = Argument("DIR", "The run directories of one job, or their URLs, one for each host.")


class JoinArgs(Args):
    """What `join` can be given."""

    output: str = ""


def join_directories(args: JoinArgs) -> int:
    """Join them."""
    from pathlib import Path

    from tdbg.core.errors import TdbgError
    from tdbg.core.output import print_lines, print_messages
    from tdbg.core.redaction import redact_text
    from tdbg.core.tables import format_count, safe
    from tdbg.launch.joined_run import join_runs
    from tdbg.launch.run_copies import RunCopies, fetch_run, is_on_store

    if not args.output:
        raise TdbgError("missing option: -o DIR", "name the run directory to write: -o whole")
    out = Path(args.output)
    if len(args.paths) == 1 and is_on_store(args.paths[0]):
        count = fetch_run(args.paths[0], out)
        print_lines([safe(f"{format_count(count, 'file')} of {redact_text(args.paths[0])} are in {out}")])
        return 0
    with RunCopies("all") as copies:
        joined = join_runs(copies.replace_urls(map(str, args.paths)), out)
    print_messages(*map(safe, joined.list_warnings()))
    print_lines([safe(line) for line in joined.format_lines(out)])
    return 0


COMMAND = Command(join_directories, JoinArgs, HELP, OPTIONS, ARGUMENT)
