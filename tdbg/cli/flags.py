"""`tdbg flags`: the table of debug flags, as a list and one by one."""

from typing import Annotated, Any

import typer

from tdbg.cli import options
from tdbg.flags import FLAGS, PRESETS, Flag, expand
from tdbg.output import print_json, print_table

app = options.group(
    """List the debug flags, or show one.

    A flag is switched on with `tdbg run -f FLAG`. The leading DEBUG. may be written or left out, upper and
    lower case are the same, and a name above others (LOSS) means all below it.
    """
)


def describe(flag: Flag) -> dict[str, Any]:
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


@app.command("list")
def list_flags(json: options.Json = False) -> None:
    """List every flag with its group, short names and summary.

    Examples:
        tdbg flags list
        tdbg flags list --json
    """
    if json:
        print_json("flags", [describe(flag) for flag in FLAGS])
        return
    print_table(
        ("flag", "group", "also", "summary"),
        [(flag.name, flag.group, flag.aliases, flag.summary) for flag in FLAGS],
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="FLAG", help="A flag, a short name of one, or a name above several.")],
    json: options.Json = False,
) -> None:
    """Show one flag: when to use it, its tag, short names and presets.

    Examples:
        tdbg flags show LOSS.NULL_MASKING
        tdbg flags show gradient_norms
        tdbg flags show LOSS
    """
    wanted = expand(name)
    found = [describe(flag) for flag in FLAGS if flag.name in wanted]
    if json:
        print_json("flags", found)
        return
    print("\n\n".join(_text(item) for item in found))


def _text(item: dict[str, Any]) -> str:
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
