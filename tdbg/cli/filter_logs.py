"""`tdbg filter-logs`: log lines by flag, rank, level, step, time and text; whole records."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tdbg.errors import TdbgError
from tdbg.output import say

if TYPE_CHECKING:
    from tdbg.logs.query import Query

STDOUT = "-"


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Log files, folders, globs, run directories, or - for stdin."),
    ] = None,
    flag: Annotated[
        list[str] | None, typer.Option("--flag", "-f", metavar="FLAG", help="Records of this flag, or of all below it.")
    ] = None,
    exclude_flag: Annotated[
        list[str] | None, typer.Option("--exclude-flag", "-x", metavar="FLAG", help="No records of this flag.")
    ] = None,
    prefix: Annotated[
        list[str] | None, typer.Option("--prefix", "-p", metavar="TEXT", help="Records whose tag begins like this.")
    ] = None,
    ranks: Annotated[
        str, typer.Option("--ranks", "-r", metavar="RANGE", help="These ranks only: 0,3-5, or all.")
    ] = "all",
    kind: Annotated[
        str, typer.Option("--type", "-t", metavar="NAME", help="Which of tdbg's two logs: debug, info or both.")
    ] = "debug",
    level: Annotated[
        str, typer.Option("--level", metavar="LOG_LEVEL", help="This level and above: DEBUG, STATS, INFO ...")
    ] = "",
    steps: Annotated[str, typer.Option("--steps", metavar="RANGE", help="These steps only: 100:200,500.")] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TEXT", help="From this time on, as the log writes it.")
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="TEXT", help="Up to this time.")] = "",
    regex: Annotated[
        str, typer.Option("--regex", "-e", metavar="TEXT", help="Records in which this expression is found.")
    ] = "",
    invert: Annotated[bool, typer.Option("--invert-match", "-v", help="The records that do not fit.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of to stdout (-).")
    ] = STDOUT,
    count: Annotated[bool, typer.Option("--count", help="Only the number of records.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", help="Worker processes; 0: one a CPU.")] = 0,
) -> int:
    """Print log lines by flag, rank, level, step and time; whole records.

    A record is a line with its traceback or dump. What is printed is what was read, byte for byte. The newest run is
    read if no path is given.

    Examples:
        tdbg filter-logs -f GRADIENTS
        tdbg filter-logs tdbg_runs/20261121-031500-train --level WARNING --ranks 0,3-5
        tdbg filter-logs train.log -e "loss=nan" --steps 100:200
    """
    from tdbg.logs import parallel, sources

    query = asked(flag or [], exclude_flag or [], prefix or [], ranks, level, steps, since, until, regex)
    query.invert = invert
    if kind not in ("debug", "info", "both"):
        raise TdbgError(f"there is no log type {kind!r}", "write --type debug, info or both")
    found = sources.find(paths or [newest()], kind)
    handle = open_output(output, [source.path for source in found])
    try:
        target = os.open(os.devnull, os.O_WRONLY) if count else handle
        taken = parallel.run(found, query, target, jobs or os.cpu_count() or 1, each=count)
    finally:
        if handle > 2:
            os.close(handle)
    if count:
        print(taken)
    elif not taken:
        say("no record fits")
    return 0 if taken else 1


def asked(
    flag: list[str],
    exclude: list[str],
    prefix: list[str],
    ranks: str,
    level: str,
    steps: str,
    since: str,
    until: str,
    regex: str,
) -> "Query":
    """The query that the options ask for; TdbgError for what cannot be asked."""
    import re

    from tdbg.ranges import parse_ranges
    from tdbg.flags import expand
    from tdbg.logs.query import Query, family

    try:
        pattern = re.compile(regex.encode()) if regex else None
    except re.error as error:
        raise TdbgError(f"--regex {regex!r}: {error}", "it is a Python regular expression, matched on bytes") from None
    return Query(
        families=tuple(family(name) for word in flag for name in expand(word)),
        excluded=tuple(family(name) for word in exclude for name in expand(word)),
        prefixes=tuple(f"[{word.strip('[]')}".encode() for word in prefix),
        level=level_number(level),
        ranks=tuple(parse_ranges("ranks", "" if ranks == "all" else ranks, "-")),
        steps=tuple(parse_ranges("steps", steps, ":")),
        since=since.replace(" ", "T").encode(),
        until=until.replace(" ", "T").encode(),
        pattern=pattern,
    )


def level_number(word: str) -> int:
    """A level's number; TdbgError for a word that is none."""
    from tdbg.logs.formats import WORDS

    if not word:
        return 0
    found = WORDS.get(word.upper().encode())
    if found is None:
        known = ", ".join(name.decode() for name in WORDS)
        raise TdbgError(f"there is no log level {word!r}", f"known: {known}")
    return found


def newest() -> str:
    """The newest run's directory."""
    from tdbg.rundir import RunDir

    return str(RunDir.open(None).path)


def open_output(name: str, inputs: list[str]) -> int:
    """The file descriptor to write to; never one of the inputs."""
    if name == STDOUT:
        sys.stdout.flush()
        return 1
    try:
        if any(os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name) for path in inputs):
            raise TdbgError(f"{name} is one of the logs that are read", "choose another file for --output")
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TdbgError(f"cannot write {name}: {error.strerror}", "choose another file for --output") from None
