"""The subcommands of `tdbg metrics`, each in a file of its own.

Such a file holds ``HELP`` (its page; the first line is the summary), ``ARGUMENTS`` (how a usage line names its words,
and what they are), ``Question`` (a `tdbg.asked.Asked`), ``OPTIONS``, and ``answer(question) -> int``, the exit code.
"""

import importlib
import sys
from typing import Protocol

from tdbg.asked import Asked, Options, read

# The order of the help page.
NAMES = ("show", "dump", "plot", "sanity")


class Subcommand(Protocol):
    """What a file of this package holds."""

    HELP: str
    ARGUMENTS: tuple[str, str]
    Question: type[Asked]
    OPTIONS: Options

    def answer(self, question: Asked) -> int: ...


def load(name: str) -> Subcommand:
    """The file of a subcommand."""
    found: Subcommand = importlib.import_module(f"{__name__}.{name}")
    return found


def thin(words: list[str]) -> int | None:
    """Answer a plain command line without a parser of options; None for what the whole command line has to look at."""
    if not words or words[0] not in NAMES or sys.stdout is None:
        return None
    found = load(words[0])
    question = read(found.Question(), found.OPTIONS, words[1:])
    if question is None:
        return None
    escape_what_cannot_be_shown()
    code = found.answer(question)
    sys.stdout.flush()
    return code


def escape_what_cannot_be_shown() -> None:
    """Have characters that the terminal's encoding lacks written as escapes: names may be anything."""
    import io

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
