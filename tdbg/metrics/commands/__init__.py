"""The subcommands of `tdbg metrics`, each a file with what `tdbg.core.asked.Subcommand` names."""

from tdbg.core.asked import answer_plain, load

# The order of the help page.
NAMES = ("show", "dump", "plot", "compare", "sanity")


def thin(words: list[str]) -> int | None:
    """Answer a plain command line without a parser of options; None for what the whole command line has to look at."""
    if not words or words[0] not in NAMES:
        return None
    return answer_plain(load(__name__, words[0]), words[1:])
