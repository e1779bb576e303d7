"""The page of a command: it is read from the table, and help, manual and completions render it.

Help text is plain: paragraphs are wrapped, and indented lines (an example, below `Examples:`) are kept as
they stand.
"""

import inspect
import itertools
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from tdbg.core.command_spec import Argument, Command, Group, Option

HELP = ("-h", "--help")
WIDTH = 80
GAP = 2  # blanks between the columns of a list
NAMES_WIDTH = 30  # a longer entry has its text on the next line


@dataclass(frozen=True, slots=True)
class Param:
    """An option (it has names) or an argument (it has none)."""

    names: tuple[str, ...]  # as typed, short ones first
    kind: str  # what its value is (see tdbg.cli.kinds); empty for a switch
    text: str
    repeated: bool = False
    required: bool = False
    default: str = ""
    group: str = ""  # the heading that an option stands under in help

    @property
    def label(self) -> str:
        """How help shows it: ``-f, --flag FLAG`` or ``[COMMAND]...``."""
        if self.names:
            return " ".join(part for part in (", ".join(self.names), self.kind) if part)
        dots = "..." if self.repeated else ""
        return f"{self.kind}{dots}" if self.required else f"[{self.kind}]{dots}"

    @property
    def help(self) -> str:
        """Its text, with the default where there is one to tell."""
        return f"{self.text} [default: {self.default}]" if self.default else self.text


@dataclass(frozen=True, slots=True)
class Page:
    """All there is to know about one command."""

    words: tuple[str, ...]  # ("tdbg", "flags", "list")
    about: str  # the docstring, first line first
    options: tuple[Param, ...]
    arguments: tuple[Param, ...]
    commands: tuple[tuple[str, str], ...]  # of a group: name and summary of those that are not hidden
    synopsis: str  # what follows the words in a usage line

    @property
    def path(self) -> str:
        """The command as typed: ``tdbg flags list``."""
        return " ".join(self.words)

    @property
    def summary(self) -> str:
        """The first line of its text."""
        return self.about.partition("\n")[0]

    @property
    def grouped_options(self) -> list[tuple[str, list[Param]]]:
        """The options under their headings."""
        found: dict[str, list[Param]] = {}
        for option in self.options:
            found.setdefault(option.group or "Options", []).append(option)
        return list(found.items())

    @property
    def is_wrapper(self) -> bool:
        """True if its last argument is a whole command line."""
        return bool(self.arguments) and self.arguments[-1].kind == "COMMAND"


def build_page(spec: Command | Group, words: tuple[str, ...]) -> Page:
    """The page of a command; ``words`` is how it is called."""
    options = [_build_option_param(spec, field, option) for field, option in spec.options.items()]
    arguments = (_build_argument_param(spec.argument),) if isinstance(spec, Command) and spec.argument else ()
    commands = tuple(spec.list_summaries()) if isinstance(spec, Group) else ()
    usage = ["[OPTIONS] [--]" if isinstance(spec, Command) and spec.wraps else "[OPTIONS]"]
    usage += ["COMMAND ..."] if commands else [argument.label for argument in arguments]
    return Page(
        words=words,
        about=inspect.cleandoc(spec.help),
        options=(*options, Param(HELP, "", "Show this page and exit.", group=options[-1].group if options else "")),
        arguments=arguments,
        commands=commands,
        synopsis=" ".join(usage),
    )


def _build_option_param(spec: Command | Group, field: str, option: Option) -> Param:
    default = spec.get_default(field) if isinstance(spec, Command) else None
    typed = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return Param(
        names=tuple(sorted(option.names, key=lambda name: name.startswith("--"))),
        kind=option.metavar,
        text=option.help,
        repeated=isinstance(spec, Command) and spec.is_repeatable(field),
        default=str(default) if typed and option.shows_default else "",
        group=option.group,
    )


def _build_argument_param(argument: Argument) -> Param:
    return Param((), argument.metavar, argument.help, repeated=argument.many, required=argument.required)


def walk_pages(spec: Command | Group, words: tuple[str, ...]) -> Iterator[Page]:
    """The pages of a command and of all below it that are not hidden, parents first."""
    page = build_page(spec, words)
    yield page
    if isinstance(spec, Group):
        for name, _summary in page.commands:
            yield from walk_pages(spec.load(name), (*words, name))


def render_for_terminal(spec: Command | Group, words: tuple[str, ...]) -> str:
    """The help page as it fits the terminal."""
    return render_page(build_page(spec, words), terminal_width())


def render_page(page: Page, width: int = WIDTH) -> str:
    """The help page as text."""
    blocks = [f"Usage: {page.path} {page.synopsis}"]
    blocks += _build_text_blocks(page.about, width)
    for title, rows in (
        ("Arguments", [(item.label, item.help) for item in page.arguments]),
        *((title, [(item.label, item.help) for item in options]) for title, options in page.grouped_options),
        ("Commands", list(page.commands)),
    ):
        if rows:
            blocks.append(f"{title}:\n{_format_columns(rows, width)}")
    return "\n\n".join(blocks) + "\n"


def split_paragraphs(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text: paragraphs, joined to one line, and (True) indented lines, which keep their form."""
    for block in text.split("\n\n"):
        for verbatim, lines in itertools.groupby(block.splitlines(), lambda line: line.startswith(" ")):
            piece = list(lines)
            yield (textwrap.dedent("\n".join(piece)), True) if verbatim else (" ".join(piece), False)


def _build_text_blocks(about: str, width: int) -> list[str]:
    """The blocks of the text, wrapped; an example stays with the line that announces it."""
    blocks: list[str] = []
    for text, verbatim in split_paragraphs(about):
        if verbatim:
            indented = textwrap.indent(text, "  ")
            joined = blocks and blocks[-1].endswith(":")
            blocks[-1:] = [f"{blocks[-1]}\n{indented}"] if joined else [*blocks[-1:], indented]
        elif text:
            blocks.append(textwrap.fill(text, width, break_on_hyphens=False))
    return blocks


def _format_columns(rows: list[tuple[str, str]], width: int) -> str:
    """Two columns, the second wrapped beside the first."""
    left = min(max(len(label) for label, _text in rows), NAMES_WIDTH) + GAP
    lines = []
    for label, text in rows:
        wrapped = textwrap.wrap(text, max(width - left - GAP, 20), break_on_hyphens=False) or [""]
        head = f"  {label:<{left}}"
        if len(label) + GAP > left:
            lines.append(f"  {label}")
            head = " " * (left + GAP)
        lines.append((head + wrapped[0]).rstrip())
        lines += [" " * (left + GAP) + line for line in wrapped[1:]]
    return "\n".join(lines)


def terminal_width() -> int:
    """The width for help here: the terminal's, within reason."""
    return max(40, min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH))
