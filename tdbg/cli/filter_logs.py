"""`tdbg filter-logs`: log lines by flag, rank, level, step, time and text; whole records."""

from tdbg.cli.on_stores import read_from_stores
from tdbg.core.command_spec import Argument, Command, Option, Options
from tdbg.logs.filter_args import FilterArgs

HELP = """Print log lines by flag, rank, level, step and time; whole records.

    A record is a line with its traceback or dump. Different options narrow: a record has to fit all of them. The same
    option several times widens: any of its values will do. What is printed is what was read, byte for byte. The newest run is
    read if no path is given.

    Examples:
        tdbg filter-logs -f GRADIENTS
        tdbg filter-logs -f GRADIENTS -f LR --steps 100:200
        tdbg filter-logs tdbg_runs/20261121-031500-train --log-level WARNING --ranks 0,3-5
        tdbg filter-logs train.log -e "loss=nan" --steps 100:200
        tdbg filter-logs logs/ --collapse
    """
OPTIONS: Options = {
    "flag": Option(("--flag", "-f"), "FLAG", "Records of this flag and of those below it; repeat for more flags."),
    "exclude_flag": Option(
        ("--exclude-flag", "-x"), "FLAG", "Leave out records of this flag; repeat to leave out more."
    ),
    "prefix": Option(("--prefix", "-p"), "PREFIX", "Records whose tag starts with PREFIX; repeat for more prefixes."),
    "ranks": Option(("--ranks", "-r"), "RANGE", "These ranks only: 0,3-5, or all."),
    "kind": Option(("--type", "-t"), "NAME", "Which of tdbg's two logs of a rank: debug, info or both."),
    "level": Option(
        ("--log-level",), "LOG_LEVEL", "This level and above: DEBUG, STATS, INFO ...", old_names=("--level",)
    ),
    "steps": Option(("--steps",), "RANGE", "These steps only: 100:200,500.", old_names=("--step",)),
    "since": Option(("--since",), "TIME", "From this time on, as the log writes it, or its beginning: 2026-11-21T03."),
    "until": Option(("--until",), "TIME", "Up to this time."),
    "regex": Option(("--regex", "-e"), "REGEX", "Only records that match this regular expression."),
    "invert": Option(("--invert-match", "-v"), "", "Only records that do not match."),
    "map": Option(("--map",), "FILE", "How this program spells its flags, from `tdbg flags scan`."),
    "after": Option(("--after-context", "-A"), "N", "Print N records after each match."),
    "before": Option(("--before-context", "-B"), "N", "Print N records before each match."),
    "context": Option(("--context", "-C"), "N", "Print N records before and after each match."),
    "merge": Option(("--merge",), "", "One stream of all logs, by time, each line with its rank."),
    "follow": Option(("--follow", "-F"), "", "Keep reading as the logs grow or rotate and as new ranks start."),
    "collapse": Option(("--collapse",), "", "Print lines that several ranks share once: [r0-63]."),
    "diverge": Option(
        ("--diverge",), "", "Print only what some ranks write and others do not; names the first such step."
    ),
    "silent": Option(("--silent",), "", "Print the last record of each rank, and which rank went quiet first."),
    "errors": Option(("--errors",), "", "Print the first error of each rank, causes before consequences."),
    "count": Option(("--count",), "", "Print only the number of records."),
    "stats": Option(("--stats",), "", "Print the number of records and bytes by tag, rank and level."),
    "list_prefixes": Option(("--list-prefixes",), "", "List the tags, and the flag that owns each."),
    "output": Option(("--output", "-o"), "FILE", "Write there instead of to stdout (-)."),
    "format": Option(("--format",), "FORMAT", "text, as it was read, or jsonl: one JSON object a record."),
    "log_format": Option(
        ("--log-format",),
        "FORMAT",
        "Format of the log lines, if it cannot be detected from the first ones.",
    ),
    "jobs": Option(("--jobs",), "N", "Worker processes; 0: one a CPU."),
}


def filter_logs(args: FilterArgs) -> int:
    """Print what was asked for; 1 if no record fits."""
    from tdbg.logs.run_filter import run_filter

    return run_filter(args)


COMMAND = Command(
    read_from_stores(filter_logs, "logs", local="follow"),
    FilterArgs,
    HELP,
    OPTIONS,
    Argument("FILE", "Log files, folders, globs, run directories, URLs of runs, or - for stdin."),
)
