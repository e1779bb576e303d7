"""`tdbg inspect-pages`: captured tensors, offline."""

from tdbg.core.command_spec import Group, make_loader
from tdbg.core.errors import TdbgError

HELP = """Open captured tensors: list, show, compare, export, repair.

    What `tdbg run --capture` and the debuggers kept is read where it lies, without torch and without running anything
    that is in it. A path alone lists. The path may come before or after the command: RUN show KEY is the same as show RUN
    KEY. A path may also be a URL such as s3://bucket/run; only the parts that are read are fetched.

    Examples:
        tdbg inspect-pages tdbg_runs/20261121-031500-train
        tdbg inspect-pages tdbg_runs/20261121-031500-train stats
        tdbg inspect-pages show 17/layers.4.attn:output
    """
# The order of the help page; a file each.
NAMES = ("ls", "show", "stats", "find", "diff", "export", "html", "verify", "recover", "convert", "upload")


def put_command_first(words: list[str]) -> list[str]:
    """A path before its command, or alone, where it stands for ``ls``, goes behind the command."""
    if not words:
        return ["ls"]
    if words[0] in NAMES or words[0].startswith("-"):
        return words
    from tdbg.pages.selection.locations import is_place, is_under_runs

    if is_place(words[0]) or is_under_runs(words[0]):
        path, *others = words
        return [others[0], path, *others[1:]] if others and others[0] in NAMES else ["ls", *words]
    from difflib import get_close_matches

    if not get_close_matches(words[0], NAMES):
        raise TdbgError(f"{words[0]!r} is neither a command nor a path", "see `tdbg inspect-pages --help`")
    return words


COMMAND = Group(HELP, NAMES, make_loader(__name__), reorder=put_command_first)
