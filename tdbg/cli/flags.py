"""`tdbg flags`: the table of debug flags; which lines of a program they open; what those of a run really did."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tdbg.core.command_spec import JSON, Args, Argument, Command, Group, Option, Options
from tdbg.core.flags import FLAGS, PRESETS, Flag, expand
from tdbg.core.output import print_json, print_lines, print_messages
from tdbg.core.tables import format_count, print_table

MAX_REPORTED = 10  # files that cannot be read

HELP = """List the debug flags, what they open and what they did.

    A flag is switched on with `tdbg run -f FLAG`. The leading DEBUG. may be written or left out, upper and
    lower case are the same, and a name above others (LOSS) means all below it.
    """
LIST = """List every flag with its group, short names and summary.

    Examples:
        tdbg flags list
        tdbg flags list --json
    """
SHOW = """Show one flag: when to use it, its tag, short names and presets.

    Examples:
        tdbg flags show LOSS.NULL_MASKING
        tdbg flags show gradient_norms
        tdbg flags show LOSS
    """
SCAN = """Map the flags of a program to the log lines they open.

    The source is read, never run. The map (TOML) names the tags and texts of each flag; a text that is also printed
    without the flag is listed as ambiguous, and not used. A log that was written without tdbg can be searched with it.

    Examples:
        tdbg flags scan . -o map.toml
        tdbg flags scan src/train --function debug_on
    """
DOCTOR = """Show what the flags of a run really did.

    Lists flags without effect (no code reads them, the config rejects them, or a logger drops their records),
    flags the config already had on, records printed while their flag was off, and prefixes that no flag owns. The
    exit code is 1 if a flag that was on had no effect.

    Examples:
        tdbg flags doctor
        tdbg flags doctor tdbg_runs/20261121-031500-train --json
    """
OPTIONS: Options = {"json": JSON}


class ListArgs(Args):
    """What `flags list` can be given."""

    json: bool = False


class ShowArgs(Args):
    """What `flags show` can be given."""

    name: str = ""
    json: bool = False


class ScanArgs(Args):
    """What `flags scan` can be given."""

    source: str = ""
    output: str = "-"
    function: "Sequence[str]" = ()


class DoctorArgs(Args):
    """What `flags doctor` can be given."""

    run: str | None = None
    json: bool = False


def describe_flag(flag: Flag) -> dict[str, Any]:
    """One flag as plain data."""
    return {
        "flag": flag.name,
        "group": flag.group,
        "tag": flag.tag,
        "summary": flag.summary,
        "help": flag.help,
        "aliases": list(flag.aliases),
        "presets": [name for name, members in PRESETS.items() if flag.name in members],
        "probe": flag.probe,
        "default": flag.default,
    }


def list_flags(args: ListArgs) -> int:
    """Print the table of flags."""
    if args.json:
        print_json("flags", [describe_flag(flag) for flag in FLAGS])
        return 0
    print_table(
        ("flag", "group", "also", "summary"),
        [(flag.name, flag.group, flag.aliases, flag.summary) for flag in FLAGS],
    )
    return 0


def show_flags(args: ShowArgs) -> int:
    """Print one flag, or those below a name."""
    wanted = expand(args.name)
    found = [describe_flag(flag) for flag in FLAGS if flag.name in wanted]
    if args.json:
        print_json("flags", found)
        return 0
    print_lines("\n\n".join(_format_flag(item) for item in found).split("\n"))
    return 0


def scan_source(args: ScanArgs) -> int:
    """Write the map; 1 if there is nothing in it."""
    from tdbg.core.errors import TdbgError
    from tdbg.logs import tagmap
    from tdbg.logs.guards.program_files import files_below, maps_below
    from tdbg.logs.guards.reader import CHECKERS

    source = Path(args.source)
    if not source.exists():
        raise TdbgError(f"there is no {source}", "name the folder of the program's Python files")
    unreadable: dict[str, str] = {}
    maps = maps_below(source, (*CHECKERS, *args.function), on_unreadable=unreadable.__setitem__)
    if unreadable and all(path in unreadable for path in files_below(source)):
        path, why = next(iter(unreadable.items()))
        more = f" (nor can {len(unreadable) - 1:,} more below {source})" if len(unreadable) > 1 else ""
        raise TdbgError(f"{path} cannot be read: {why}{more}", "name a folder of Python files that you may read")
    found = tagmap.build_map(maps.values())
    text = tagmap.dump_map(found)
    if args.output == "-":
        print(text, end="")
    else:
        _write_map(Path(args.output), text)
    _report_unreadable(unreadable)
    for path, item in maps.items():
        if item.broken:
            print_messages(f"{path} cannot be parsed ({item.broken}): its lines are not in the map")
    calls = sum(bool(call.flags) for item in maps.values() for call in item.calls)
    print_messages(
        f"{format_count(calls, 'log call')} under {format_count(len(found.entries), 'flag')}; {format_count(len(found.ambiguous), 'ambiguous text')}"
    )
    return 0 if found.entries else 1


def _report_unreadable(unreadable: Mapping[str, str]) -> None:
    for path, why in list(unreadable.items())[:MAX_REPORTED]:
        print_messages(f"{path} cannot be read ({why}): its lines are not in the map")
    if len(unreadable) > MAX_REPORTED:
        print_messages(f"and {len(unreadable) - MAX_REPORTED:,} more cannot be read")


def _write_map(path: Path, text: str) -> None:
    """Write it; never over anything but a map."""
    from tdbg.core.errors import TdbgError

    first = text.partition("\n")[0].encode()
    try:
        if path.exists() and path.stat().st_size and not path.read_bytes().startswith(first):
            raise TdbgError(f"{path} is no map, and is left as it is", "choose another file for --output")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TdbgError(f"cannot write {path}: {error.strerror}", "choose another file for --output") from None


def check_run_flags(args: DoctorArgs) -> int:
    """Print what was found; 1 if a flag that was on had no effect."""
    from dataclasses import asdict

    from tdbg.core.rundir import RunDir
    from tdbg.launch.scan import find_roots
    from tdbg.logs.examine import collect_checks

    found = RunDir.open(args.run)
    info = found.read_info()
    checks = collect_checks(found, find_roots(info.get("command", []), Path(info.get("cwd", "."))))
    if args.json:
        print_json("flags-doctor", [asdict(check) for check in checks])
    else:
        print_table(
            ("flag", "check", "status", "found", "next"), [(c.name, c.kind, c.status, c.found, c.next) for c in checks]
        )
    return 1 if any(check.status == "problem" for check in checks) else 0


def _format_flag(item: dict[str, Any]) -> str:
    """One flag as a paragraph and a list of its names."""
    rows = [
        ("switch on", f"tdbg run -f {item['flag']} -- COMMAND"),
        ("tag", item["tag"]),
        ("group", item["group"]),
        ("also", ", ".join(item["aliases"])),
        ("presets", ", ".join(item["presets"])),
        ("probe", item["probe"]),
    ]
    lines = [item["flag"], f"  {item['summary']}", f"  {item['help']}", ""]
    return "\n".join(lines + [f"  {label:<10} {value}" for label, value in rows if value])


SCAN_OPTIONS: Options = {
    "output": Option(("--output", "-o"), "FILE", "Write the map there instead of to stdout (-)."),
    "function": Option(("--function",), "NAME", "A function of the program that tests a flag given by name."),
}
FLAG = Argument(
    "FLAG", "A flag, its short name, or a group of flags, such as LOSS.", field="name", many=False, required=True
)
SOURCE = Argument("DIR", "A folder of Python files, or one file.", field="source", many=False, required=True)
RUN = Argument("RUN", "A run directory; without one, the newest.", field="run", many=False)
COMMANDS = {
    "list": Command(list_flags, ListArgs, LIST, OPTIONS),
    "show": Command(show_flags, ShowArgs, SHOW, OPTIONS, FLAG),
    "scan": Command(scan_source, ScanArgs, SCAN, SCAN_OPTIONS, SOURCE),
    "doctor": Command(check_run_flags, DoctorArgs, DOCTOR, OPTIONS, RUN),
}
COMMAND = Group(HELP, tuple(COMMANDS), COMMANDS.__getitem__)
