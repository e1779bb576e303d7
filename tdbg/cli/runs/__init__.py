"""`tdbg runs`: the runs of a folder."""

import os

from tdbg.core.command_spec import Group, make_loader

HELP = """List runs with their verdicts; copy them to a store; remove old ones.

    A bare `tdbg runs` lists those under ./tdbg_runs. Wherever a command takes a RUN, its name will do, the beginning of
    its name, or LAST for the newest.

    Examples:
        tdbg runs
        tdbg runs upload LAST s3://bucket/runs/train
        tdbg runs prune --keep 20 --older 30d
    """
# The order of the help page; a file each.
NAMES = ("ls", "upload", "prune")


def put_command_first(words: list[str]) -> list[str]:
    """Words without a command are those of ``ls``; a mistyped command is no folder."""
    if not words or words[0].startswith("-"):
        return words if words and words[0] in ("-h", "--help") else ["ls", *words]
    if words[0] in NAMES:
        return words
    from difflib import get_close_matches

    is_mistyped = bool(get_close_matches(words[0], NAMES)) and not os.path.exists(words[0])
    return words if is_mistyped else ["ls", *words]


COMMAND = Group(HELP, NAMES, make_loader(__name__), reorder=put_command_first)
