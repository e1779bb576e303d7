"""The whole parser: typer's, built from the table of a command. A plain command line never comes here."""

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tdbg.cli import pages
from tdbg.core.command_spec import Args, Argument, Command, Group, Option, convert_value
from tdbg.core.errors import TdbgError

Parser = TyperCommand | TyperGroup
# What other tools call an option: ours that does it, and the command line for a command that lacks it.
FOREIGN_OPTIONS = {
    "--verbose": ("--all", "tdbg report --all"),
    "-v": ("--all", "tdbg report --all"),
    "--grep": ("--regex", "tdbg filter-logs --regex"),
    "--pattern": ("--regex", "tdbg filter-logs --regex"),
    "--search": ("--regex", "tdbg filter-logs --regex"),
}
ANOTHER_NAME = "__"  # begins the name of a parameter that holds what was typed by an old name


class _Option(TyperOption):
    """An option whose value is what `convert` makes of it."""

    def __init__(self, spec: Option, command: Command, field: str, names: Sequence[str], *, old: bool) -> None:
        self.value, self.least, self.takes_empty = command.value_type(field), spec.least, spec.takes_empty
        many = command.is_repeatable(field)
        super().__init__(
            param_decls=[f"{ANOTHER_NAME if old else ''}{field}", *names],
            type_descriptor=_get_no_descriptor(),
            default=None if many else command.get_default(field),
            metavar=spec.metavar or None,
            is_flag=command.is_switch(field) or None,
            multiple=many,
            help=spec.help,
            hidden=old,
        )

    def process_value(self, ctx: Any, value: Any) -> Any:
        """The value, or the list of them."""
        if isinstance(value, tuple | list):
            return [self._convert_typed(ctx, one) for one in value] or None
        return self._convert_typed(ctx, value)

    def _convert_typed(self, ctx: Any, value: Any) -> Any:
        if not isinstance(value, str) or not _is_typed(ctx, self.name):
            return value
        name = self.opts[0]
        if not value and self.takes_empty:
            return value
        if not value:
            raise TdbgError(f"{name} is empty", f"write {name} {self.metavar or 'VALUE'}, or leave it out")
        try:
            found = convert_value(value, self.value)
        except ValueError as error:
            raise TdbgError(f"invalid value for '{name}': {error}", self._format_value_hint()) from None
        if self.least is not None and isinstance(found, int) and found < self.least:
            raise TdbgError(f"invalid value for '{name}': {found} is less than {self.least}", self._format_value_hint())
        return found

    def _format_value_hint(self) -> str:
        """The hint for a value that is no such number."""
        kind = "a whole number" if self.value is int else "a number"
        bound = "" if self.least is None else f" from {self.least} on"
        example = max(10, self.least or 0)
        return f"write {kind}{bound}, as in {self.opts[0]} {example}"


def _is_typed(ctx: Any, name: str | None) -> bool:
    """False for a default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


class _Argument(TyperArgument):
    """The words that belong to no option."""

    def __init__(self, spec: Argument) -> None:
        super().__init__(
            param_decls=[spec.field],
            type_descriptor=_get_no_descriptor(),
            required=spec.required,
            nargs=-1 if spec.many else None,
            metavar=spec.metavar,
            help=spec.help,
        )

    def process_value(self, ctx: Any, value: Any) -> Any:
        """As typed; None for none."""
        if self.required and not value:
            raise TdbgError(f"missing argument {self.metavar!r}", _format_usage_hint(ctx.command_path))
        return list(value) if isinstance(value, tuple) and value else value or None


def _format_usage_hint(path: str) -> str:
    return f"`{path} --help` shows how it is used"


def _get_no_descriptor() -> Any:
    """No descriptor of types of typer's: the classes above convert values themselves."""
    return None


class _Command(TyperCommand):
    """A command whose help is our own page."""

    spec: Command

    def get_help(self, ctx: Any) -> str:
        """The page of the command."""
        return pages.render_for_terminal(self.spec, tuple(ctx.command_path.split())).rstrip()


class _Group(TyperGroup):
    """A group of commands whose help is our own page."""

    spec: Group

    def get_help(self, ctx: Any) -> str:
        """The page of the group."""
        return pages.render_for_terminal(self.spec, tuple(ctx.command_path.split())).rstrip()


SETTINGS = {"help_option_names": ["-h", "--help"]}


def build_parser(spec: Command | Group, name: str) -> Parser:
    """The parser of a command or of a group."""
    if isinstance(spec, Group):
        commands: Any = {one: build_parser(spec.load(one), one) for one in spec.names}
        group = _Group(name=name, commands=commands, help=spec.help, context_settings=SETTINGS, rich_markup_mode=None)
        group.spec = spec
        return group
    command = _Command(
        name,
        context_settings={**SETTINGS, "allow_interspersed_args": not spec.wraps},
        callback=lambda **given: spec.execute(_build_args(spec, given)),
        params=_build_params(spec),
        help=spec.help,
        rich_markup_mode=None,
    )
    command.spec = spec
    return command


def _build_params(spec: Command) -> list[Any]:
    found: list[Any] = [_Argument(spec.argument)] if spec.argument else []
    for field, option in spec.options.items():
        found.append(_Option(option, spec, field, option.names, old=False))
        if option.old_names:
            found.append(_Option(option, spec, field, option.old_names, old=True))
    return found


def _build_args(spec: Command, given: dict[str, Any]) -> Args:
    """What was typed, whatever the name of the option; the defaults are those of the class."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        field = name.removeprefix(ANOTHER_NAME)
        if value is None or value == spec.get_default(field):
            continue
        found[field] = [*found[field], *value] if field in found and spec.is_repeatable(field) else value
    return spec.args(**found)


def parse_and_run(spec: Command | Group, path: str, words: Sequence[str]) -> int:
    """Parse and run; help pages and other early ends arrive as ``typer.Exit``, wrong use leaves as `TdbgError`."""
    command = build_parser(spec, path.rpartition(" ")[2])
    try:
        with command.make_context(path, list(words)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        raise _make_usage_error(error, path) from None


def _make_usage_error(error: typer.TyperException, path: str) -> TdbgError:
    """What the parser says, in our form: one line, and the page that helps."""
    context = getattr(error, "ctx", None)
    near = getattr(error, "possibilities", None)
    if near and context is not None:
        hidden = {name for param in context.command.params if getattr(param, "hidden", False) for name in param.opts}
        near = [name for name in near if name not in hidden]
    typed = getattr(error, "option_name", "")
    if typed in FOREIGN_OPTIONS and context is not None:
        option, line = FOREIGN_OPTIONS[typed]
        known = {name for param in context.command.params for name in param.opts}
        near = [option if option in known else f"`{line}`"]
    text = (error.message if near is not None else error.format_message()).strip().rstrip(".")
    hint = f"did you mean {' or '.join(near[:2])}? " if near else ""
    return TdbgError(text[:1].lower() + text[1:], hint + _format_usage_hint(context.command_path if context else path))
