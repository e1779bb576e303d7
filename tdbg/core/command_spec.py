"""A command as data: name, help, arguments and options, declared once in a table.

Everything about a command line follows from its `Command`: the parser, the fast path, help, manual page, completions and
docs. `Args` holds what was typed: the defaults are those of the class, and with them the type of each value.

`parse_plain_args` reads a command line that is as plain as it can be and loads no library for it; `tdbg.cli.parser` reads every
other one (bundled letters, an abbreviation, an error) from the same table.
"""

from tdbg.core.terminal import choose_color

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeVar

    A = TypeVar("A", bound="Args")


class Args:
    """What was typed, by the name of its field. A subclass has a default for each."""

    paths: "Sequence[str]" = ()
    color: str = "auto"

    def __init__(self, **given: object) -> None:
        for name, value in given.items():
            setattr(self, name, value)


class Option:
    """An option: how it is typed, what its value is, and a line of help.

    The type of its value is that of its default in `Args`: bool for a switch, int, float, str, or a tuple where it may be
    repeated. Where the default is None, ``value`` and ``many`` say it.
    """

    __slots__ = (
        *(
            "bare",
            "group",
            "help",
            "least",
            "many",
            "metavar",
            "names",
            "old_names",
            "shows_default",
            "takes_empty",
            "value",
        ),
    )

    def __init__(
        self,
        names: tuple[str, ...],
        metavar: str,
        help: str,
        *,
        group: str = "",
        value: type = str,
        many: bool = False,
        least: int | None = None,
        old_names: tuple[str, ...] = (),
        shows_default: bool = True,
        takes_empty: bool = False,
        bare: str = "",
    ) -> None:
        self.names, self.metavar, self.help, self.group = names, metavar, help, group
        self.takes_empty = takes_empty  # the empty text is a value: rows and pages without a phase have the phase ""
        self.bare = bare  # the value where no whole number follows; empty: one has to follow
        self.value, self.many, self.least = value, many, least
        self.shows_default = shows_default  # in its line of help; not where it stands for something left out
        self.old_names = old_names  # accepted, and shown nowhere

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every name that is accepted, the old ones last."""
        return (*self.names, *self.old_names)


class Argument:
    """The words of a command that belong to no option: one, or ``many``."""

    __slots__ = ("field", "help", "many", "metavar", "required")

    def __init__(
        self, metavar: str, help: str, *, field: str = "paths", many: bool = True, required: bool = False
    ) -> None:
        self.metavar, self.help, self.field, self.many, self.required = metavar, help, field, many, required


class Command:
    """A command: what runs it, what it can be given, and its help."""

    def __init__(
        self,
        run: "Callable[[A], int]",
        args: "type[A]",
        help: str,
        options: "Mapping[str, Option]",
        argument: Argument | None = None,
        *,
        wraps: bool = False,
        colors: bool = True,
    ) -> None:
        self.run: Callable[[Any], int] = run
        self.args, self.help, self.argument = args, help, argument
        group = [*options.values()][-1].group if options else ""
        self.options: Mapping[str, Option] = {**options, "color": color_option(group)} if colors else options
        self.wraps = wraps  # a whole command line: the first word that is no option ends the options, as does `--`

    def execute(self, args: Args) -> int:
        """Run it with what was typed; returns the exit code."""
        choose_color(args.color)
        return self.run(args) or 0

    def get_default(self, field: str) -> "Any":
        """What a field holds if it is not given."""
        return getattr(self.args, field)

    def is_switch(self, field: str) -> bool:
        """True if the option takes no value."""
        return isinstance(self.get_default(field), bool) or self.options[field].value is bool

    def is_repeatable(self, field: str) -> bool:
        """True if the option may be given several times."""
        return self.options[field].many or isinstance(self.get_default(field), tuple)

    def value_type(self, field: str) -> type:
        """The type of one value of an option."""
        if self.is_switch(field):
            return bool
        default = self.get_default(field)
        return type(default) if isinstance(default, int | float | str) else self.options[field].value


class Group:
    """A command of commands: their names in the order of its help, and where each is found."""

    def __init__(
        self,
        help: str,
        names: "Sequence[str]",
        load: "Callable[[str], Command | Group]",
        *,
        summaries: "Sequence[tuple[str, str]]" = (),
        options: "Mapping[str, Option] | None" = None,
        reorder: "Callable[[list[str]], list[str]] | None" = None,
    ) -> None:
        self.help, self.names, self.load = help, names, load
        self.options = options or {}
        self.reorder = reorder  # what was typed, with the name of the command first
        self._summaries = summaries

    def list_summaries(self) -> "list[tuple[str, str]]":
        """Name and first line of each."""
        return list(self._summaries) or [(name, self.load(name).help.partition("\n")[0]) for name in self.names]


Options = dict[str, Option]
JSON = Option(("--json",), "", "Print one JSON document.")
RUN = Argument("RUN", "Run directory, or its name under ./tdbg_runs; the newest if left out.", field="run", many=False)
RUN_ANYWHERE = Argument(
    "RUN", "Run directory, its name under ./tdbg_runs, or its URL; the newest if left out.", field="run", many=False
)


def color_option(group: str) -> Option:
    """The option that every command has."""
    return Option(
        ("--color",),
        "WHEN",
        "Colour the output: auto, always or never; always formats a pipe like a terminal.",
        group=group,
    )


def make_loader(package: str) -> "Callable[[str], Command]":
    """Where the commands of a group are found that are each a file of one package."""

    def load_command(name: str) -> Command:
        import importlib

        found: Command = importlib.import_module(f"{package}.{name}").COMMAND
        return found

    return load_command


def convert_value(text: str, value: type) -> object:
    """A value as its type; ValueError says what it should be."""
    if not text:
        raise ValueError("it is empty")
    if value is int:
        try:
            return int(_refuse_unusual_digits(text))
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
    if value is float:
        try:
            return float(_refuse_unusual_digits(text))
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
    return text


def _refuse_unusual_digits(text: str) -> str:
    """The text; ValueError for what Python alone takes for a number: ``1_0``, digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError
    return text


def fill_bare_options(command: Command, words: "Sequence[str]") -> list[str]:
    """The command line with a value for each option that may be typed without one."""
    bare = {name: option.bare for option in command.options.values() if option.bare for name in option.all_names}
    found, left = [], list(words)
    if not bare.keys() & set(words):
        return left
    valued = {name for field, one in command.options.items() if not command.is_switch(field) for name in one.all_names}
    while left:
        word = left.pop(0)
        found.append(word)
        if word == "--" or (command.wraps and not word.startswith("-")):
            break
        if word in bare and not (left and left[0].isdigit()):
            found.append(bare[word])
        elif word in valued and left:
            found.append(left.pop(0))
    return found + left


def parse_plain_args(command: Command, words: "Sequence[str]") -> Args | None:
    """What a plain command line says; None for one that the whole parser has to read."""
    fields = {name: field for field, option in command.options.items() for name in option.all_names}
    found = command.args()
    plain: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            plain += left
        elif word == "-" or not word.startswith("-"):
            plain.append(word)
            if command.wraps:
                plain += left
        elif not _read_option(command, found, word, fields, left):
            return None
    return found if _assign_positionals(command, found, plain) else None


def _read_option(command: Command, found: Args, word: str, fields: "Mapping[str, str]", left: "Iterator[str]") -> bool:
    """Store one option and its value; False if that is not as plain as it can be."""
    name, glued, text = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
    field = fields.get(name)
    if field is None:
        return False
    if command.is_switch(field):
        setattr(found, field, True)
        return not glued
    if not glued:
        following = next(left, None)
        if following is None or following.startswith("-"):
            return False
        text = following
    try:
        value = convert_value(text, command.value_type(field))
    except ValueError:
        return False
    least = command.options[field].least
    if least is not None and isinstance(value, int) and value < least:
        return False
    setattr(found, field, [*(getattr(found, field) or ()), value] if command.is_repeatable(field) else value)
    return True


def _assign_positionals(command: Command, found: Args, plain: list[str]) -> bool:
    """Store the words that belong to no option; False if there are too many or too few."""
    argument = command.argument
    if argument is None:
        return not plain
    if argument.many:
        if plain:
            setattr(found, argument.field, plain)
        return bool(plain) or not argument.required
    if plain:
        setattr(found, argument.field, plain[0])
    return len(plain) == 1 or (not plain and not argument.required)
