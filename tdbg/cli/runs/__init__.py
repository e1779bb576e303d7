"""`tdbg runs`: the runs of a folder."""

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
    """Words without a command are those of ``ls``."""
    if words and (words[0] in NAMES or words[0] in ("-h", "--help")):
        return words
    return ["ls", *words]


COMMAND = Group(HELP, NAMES, make_loader(__name__), reorder=put_command_first)
