"""argparse: flags go into the parsed namespace, for options the program's own parser declares.

A parser that knows ``--debug-null-masking`` (or ``--debug.loss.null_masking``, ``--debug_...``) gets its
value as though the option stood last on the command line. Nothing is put into argv: a parser without the
option never sees a word it does not know. With ``--inject argv`` the override list of the program
(``opts KEY VALUE ...``, ``--overrides KEY=VALUE``) is lengthened instead.

Every tool written in Python parses arguments, so nothing of tdbg's is loaded before an option matches.
"""

import functools
import os
import sys
from types import ModuleType

from tdbg.core.guard import Guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Action, ArgumentParser, Namespace
    from typing import Any

LAUNCHERS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "tdbg",
    "torch.distributed.",
    "accelerate.commands.",
    "deepspeed.launcher.",
)
PAIRS = ("opts", "opt", "options")  # KEY VALUE KEY VALUE, as yacs programs take them
EQUALS = ("overrides", "override", "cfg_options", "config_overrides")  # KEY=VALUE


def arrive(module: ModuleType) -> None:
    """Patch ArgumentParser; subparsers and subclasses come with it."""
    parser = module.ArgumentParser
    for name in ("parse_known_args", "parse_known_intermixed_args"):
        _after_parse(parser, name)


def _after_parse(cls: object, name: str) -> None:
    real, guard = getattr(cls, name), Guard("inject-argparse", _report_failure)

    @functools.wraps(real)
    def parse_and_set_flags(
        self: "ArgumentParser", args: object = None, namespace: "Namespace | None" = None
    ) -> object:
        try:
            result = real(self, args, namespace)
        except BaseException as error:
            from tdbg.core.frames import drop_own_frames

            drop_own_frames(error)
            raise
        guard.call_guarded(_look_at, self, result)
        return result

    setattr(cls, name, parse_and_set_flags)  # not by `foreign_patches`: it would be loaded wherever options are parsed


def _report_failure(part: str, error: BaseException) -> None:
    from tdbg.inject.agent import get_agent

    get_agent().record_failure(part, error)


def _look_at(parser: "ArgumentParser", result: object) -> None:
    if _worth_a_look(parser):
        _apply_flags(parser, result)


def _worth_a_look(parser: "ArgumentParser") -> bool:
    """Cheap: does the parser declare a debug option or an override list, and is it the program's own?"""
    options = any("debug" in option.lower() or "enable" in option.lower() for option in parser._option_string_actions)
    lists = any(action.dest in PAIRS or action.dest in EQUALS for action in parser._actions)
    return (options or lists) and not _is_launcher(parser)


def _is_launcher(parser: "ArgumentParser") -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    names = (os.path.basename(str(parser.prog)).split(" ")[0], getattr(spec, "name", None) or "")
    return any(name.startswith(LAUNCHERS) for name in names)


def _apply_flags(parser: "ArgumentParser", result: object) -> None:
    from tdbg.inject.take import get_injection_log, may_set

    if not (isinstance(result, tuple) and result):  # a subclass may return what it likes
        return
    if get_injection_log().agent.settings.inject == "argv":
        _extend_overrides(parser, result[0])
    elif may_set("argparse"):
        _set_options(parser, result[0])
    _report_on(parser, result[0])


def _report_on(parser: "ArgumentParser", namespace: "Namespace") -> None:
    """Debug options that are on without tdbg: by the user's own command line, or by default."""
    from tdbg.inject.program_flags import report_values

    report_values(
        (option.lstrip("-"), getattr(namespace, action.dest, None), f"argparse {option}")
        for option, action in parser._option_string_actions.items()
        if option.lower().startswith("--debug") and action.const is not False  # store_false: True means off
    )


def _set_options(parser: "ArgumentParser", namespace: "Namespace") -> None:
    from tdbg.inject.take import MisfitError, get_injection_log

    book = get_injection_log()
    for flag, value in book.agent.settings.flags.items():
        option, action = _find_option(parser, flag)
        if action is None:
            continue
        old = getattr(namespace, action.dest, None)
        try:
            _apply_option(parser, namespace, action, option, value)
        except MisfitError as misfit:
            book.record_rejected(flag, f"argparse {option}", str(misfit))
        else:
            book.record_accepted(flag, f"argparse {option}", old, getattr(namespace, action.dest, None))


def _find_option(parser: "ArgumentParser", flag: str) -> "tuple[str, Any]":
    """The parser's option for a flag, whatever joins its words."""
    from tdbg.inject.take import get_injection_log, list_flag_paths

    typed = get_injection_log().agent.settings.flag_names.get(flag, "")
    options = {
        option.lstrip("-").lower().replace("-", "_").replace(".", "_"): (option, action)
        for option, action in reversed(parser._option_string_actions.items())
        if option.startswith("--")
    }
    found = ("_".join(path) for path in list_flag_paths(flag, typed))
    return next((options[name] for name in found if name in options), ("", None))


def _apply_option(
    parser: "ArgumentParser", namespace: "Namespace", action: "Action", option: str, value: "bool | str"
) -> None:
    """What the option does to the namespace when it is given with ``value``."""
    import argparse

    if isinstance(action, argparse.BooleanOptionalAction):
        setattr(namespace, action.dest, _parse_switch(value))
    elif action.nargs == 0:
        if _parse_switch(value):
            action(parser, namespace, [], option)
        else:
            setattr(namespace, action.dest, action.default)
    elif isinstance(value, bool) and isinstance(getattr(namespace, action.dest, None), bool):
        setattr(namespace, action.dest, value)  # type=bool or a str2bool: the text "False" could mean either
    elif value is True and action.nargs == "?":
        action(parser, namespace, action.const, option)
    else:
        action(parser, namespace, _convert_value(parser, action, str(value)), option)


def _parse_switch(value: "bool | str") -> bool:
    from tdbg.inject.take import coerce_value

    return bool(coerce_value(value, False))


def _convert_value(parser: "ArgumentParser", action: "Action", text: str) -> "Any":
    import argparse

    from tdbg.inject.take import MisfitError

    try:
        converted = parser._get_value(action, text)
        parser._check_value(action, converted)
    except argparse.ArgumentError as error:
        raise MisfitError(f"the program's parser says: {error.message}") from None
    return [converted] if action.nargs in ("*", "+", 1) else converted


def _extend_overrides(parser: "ArgumentParser", namespace: "Namespace") -> None:
    """``--inject argv``: add the flags to the program's override list."""
    from tdbg.inject.take import get_injection_log

    book = get_injection_log()
    action = next((item for item in parser._actions if item.dest in PAIRS or item.dest in EQUALS), None)
    given = getattr(namespace, action.dest, None) if action else None
    if action is None or not isinstance(given, list | tuple | None):
        return
    words = list(given or ())
    equals = action.dest in EQUALS or any("=" in str(word) for word in words[:1])
    for flag, value in book.agent.settings.flags.items():
        key, text = f"DEBUG.{flag}", str(value)
        words += [f"{key}={text}"] if equals else [key, text]
        book.record_accepted(flag, f"argv {action.dest}", None, value)
    setattr(namespace, action.dest, words)
