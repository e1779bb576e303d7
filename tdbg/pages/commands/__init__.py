"""The subcommands of `tdbg inspect-pages`, each a file with what `tdbg.core.asked.Subcommand` names."""

from tdbg.core.asked import answer_plain, load

# The order of the help page.
NAMES = ("ls", "show", "stats", "find", "diff", "export", "html", "verify", "recover", "convert", "upload")


def thin(words: list[str]) -> int | None:
    """Answer a plain command line without a parser of options; None for what the whole command line has to look at."""
    from tdbg.pages.places import is_place

    words = words or ["ls"]
    if words[0].startswith("-"):
        return None
    name, rest = (words[0], words[1:]) if words[0] in NAMES else ("ls", words)
    if name == "ls" and words[0] != "ls" and not is_place(words[0]):
        return None
    return answer_plain(load(__name__, name), rest)
