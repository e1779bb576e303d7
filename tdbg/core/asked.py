"""Options of a command as data, and a reader of them that loads no library.

A command that must start fast declares its options in a table: field of its question -> (names, kind of the value,
help). `tdbg.cli` makes the command of the same table, with its help, manual page and completions; `read` reads a
command line that is as plain as it can be, and leaves everything else (help, an error, an abbreviation) to the command.

A command with subcommands keeps each in a file of one package, which holds what `Subcommand` names: the package lists
the names, `load` finds the file, and `answer` runs it.
"""

import sys

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Protocol, TypeVar

    Q = TypeVar("Q", bound="Asked")

    class Subcommand(Protocol):
        """What the file of a subcommand holds."""

        HELP: str  # its page; the first line is the summary
        ARGUMENTS: tuple[str, str]  # how a usage line names its words, and what they are
        Question: type["Asked"]
        OPTIONS: "Options"

        def answer(self, question: "Asked") -> int:
            """Answer on stdout; returns the exit code."""
            ...


Options = dict[str, tuple[tuple[str, ...], str, str]]


class Asked:
    """What was asked: options by name, their defaults in the class. A str, bool, int, or a tuple if it is repeatable."""

    paths: "Sequence[str]" = ()

    def __init__(self, **given: object) -> None:
        for name, value in given.items():
            setattr(self, name, value)


def read(question: "Q", options: "Options", words: "Sequence[str]") -> "Q | None":
    """The question that a command line asks; None for what the whole parser has to look at."""
    known = {name: field for field, (names, _, _) in options.items() for name in names}
    paths: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            paths += left
        elif word == "-" or not word.startswith("-"):
            paths.append(word)
        elif not _option(question, word, known, left):
            return None
    question.paths = paths
    return question


def _option(question: "Asked", word: str, known: "Mapping[str, str]", left: "Iterator[str]") -> bool:
    """Take one option and its value; False if that is not as plain as it can be."""
    name, glued, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
    if name not in known:
        return False
    field = known[name]
    default = getattr(type(question), field)
    if isinstance(default, bool):
        setattr(question, field, True)
        return not glued
    if not glued:
        following = next(left, None)
        if following is None or following.startswith("-"):
            return False
        value = following
    if isinstance(default, int):
        if not value.isdecimal():
            return False
        setattr(question, field, int(value))
    elif isinstance(default, str):
        setattr(question, field, value)
    else:
        setattr(question, field, [*getattr(question, field), value])
    return True


def load(package: str, name: str) -> "Subcommand":
    """The file of a subcommand."""
    import importlib

    found: Subcommand = importlib.import_module(f"{package}.{name}")
    return found


def answer_plain(found: "Subcommand", words: "Sequence[str]") -> int | None:
    """Answer a plain command line without a parser of options; None for what the whole command line has to look at."""
    question = None if sys.stdout is None else read(found.Question(), found.OPTIONS, words)
    if question is None:
        return None
    code = found.answer(question)
    sys.stdout.flush()
    return code
