"""The subcommands of `tdbg inspect-pages`, each a file with what `tdbg.core.asked.Subcommand` names."""

from tdbg.core.asked import answer_plain, load

# The order of the help page.
NAMES = ("ls", "show", "stats", "find", "diff", "export", "html", "verify", "recover", "convert", "upload")


def thin(words: list[str]) -> int | None:
    """Answer a plain command line without a parser of options; None for what the whole command line has to look at."""
    words = command_first(words or ["ls"])
    if words[0] not in NAMES:
        return None
    return answer_plain(load(__name__, words[0]), words[1:])


def command_first(words: list[str]) -> list[str]:
    """A path before its command, or alone, where it stands for ``ls``, goes behind the command."""
    from tdbg.pages.selection.locations import is_place

    if words and words[0] not in NAMES and not words[0].startswith("-") and is_place(words[0]):
        path, *others = words
        return [others[0], path, *others[1:]] if others and others[0] in NAMES else ["ls", *words]
    return words
