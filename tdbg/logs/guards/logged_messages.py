"""What a log call says: which of its arguments is the message, and the constant parts of it."""

import ast
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from tdbg.core.flags import tag
from tdbg.logs.guards.flagsets import NONE, Flags, flag_name
from tdbg.logs.guards.names import Definition, Names, Place
from tdbg.logs.guards.shapes import GAP, Shape, join_shapes, parse_brace_format, parse_percent_format
from tdbg.logs.guards.syntax import is_off, name_of, text_of

LOG_METHODS = {
    "_log", "debug", "stats", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "trace",
}  # fmt: skip
PRINTS = {"print", "pprint"}
PARAMETERS = {"log", "logger", "log_fn", "log_func", "logging_fn", "print_fn", "print_func", "printer", "echo"}
MESSAGE_KEYWORDS = ("msg", "message", "event", "text")
MAX_TEXTS = 4  # that one message may have
LONGEST_CONSTANT = 10_000  # of "=" * n


class Callee(NamedTuple):
    """What is called in the end: a method of a logger, or ``print``; bound: arguments that it was given before."""

    name: str
    bound: tuple[ast.expr, ...] = ()


class Said(NamedTuple):
    """A call that logs or prints: what is called, all its arguments, and which is the message."""

    name: str
    args: Sequence[ast.expr]
    keywords: Sequence[ast.keyword]
    message: ast.expr

    @property
    def is_printed(self) -> bool:
        """True if no logger puts a header in front of it."""
        return self.name in PRINTS or self.name == "write"


class Messages:
    """Finds messages, and puts their texts together from constants and from names that stand for one."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def resolve_log_call(self, node: ast.Call, place: Place) -> Said | None:
        """What a call says that logs or prints; None for other calls."""
        callee = self._resolve_callee(node.func, place)
        if callee is None:
            return None
        args, name = (*callee.bound, *node.args), callee.name
        index = int(name in ("log", "_log"))
        message = args[index] if len(args) > index else None
        if message is None:
            message = next((key.value for key in node.keywords if key.arg in MESSAGE_KEYWORDS), None)
        return None if message is None else Said(name, args, node.keywords, message)

    def _resolve_callee(self, func: ast.expr, place: Place) -> Callee | None:
        """What an expression that is called stands for, also by another name, in a table, or with arguments bound to it."""
        if isinstance(func, ast.Attribute):
            return self._resolve_method(func, place)
        if isinstance(func, ast.Name):
            if func.id in PRINTS:
                return Callee(func.id)
            return self._resolve_named_callee(func, place)
        if isinstance(func, ast.Call):
            return self._resolve_returned_callee(func, place)
        if isinstance(func, ast.IfExp):
            return self._resolve_callee(func.body, place) or self._resolve_callee(func.orelse, place)
        if isinstance(func, ast.BoolOp):
            return next(filter(None, (self._resolve_callee(item, place) for item in func.values)), None)
        if isinstance(func, ast.NamedExpr):
            return self._resolve_callee(func.value, place)
        if isinstance(func, ast.Subscript):
            return self._in_table(func.value, place)
        return None

    def _resolve_named_callee(self, func: ast.Name | ast.Attribute, place: Place) -> Callee | None:
        found, _ = self._names.find_definitions(func, place)
        for one in found:
            callee = self._of_definition(one)
            if callee is not None:
                return callee
        is_param = isinstance(func, ast.Name) and func.id in PARAMETERS and any(one.param for one in found)
        return Callee("info") if is_param else None

    def _of_definition(self, found: Definition) -> Callee | None:
        if found.callee is found:
            if found.open or found.value is None:
                return None
            found.open = True
            found.callee = self._resolve_callee(found.value, found.place)
            found.open = False
        return found.callee if isinstance(found.callee, Callee) else None

    def _resolve_method(self, func: ast.Attribute, place: Place) -> Callee | None:
        name, owner = func.attr, func.value
        if name == "write":
            return Callee(name) if name_of(owner) in ("stdout", "stderr", "tqdm") else None
        if name == "log":
            return Callee(name) if self._is_logger(owner, place) else self._resolve_named_callee(func, place)
        return Callee(name) if name in LOG_METHODS else self._resolve_named_callee(func, place)

    def _is_logger(self, node: ast.expr, place: Place) -> bool:
        word = name_of(node.func) if isinstance(node, ast.Call) else name_of(node)
        if "log" in word.lower():
            return True
        known = self._names.find_single_definition(node, place)
        return known is not None and isinstance(known.value, ast.Call) and "log" in name_of(known.value.func).lower()

    def _resolve_returned_callee(self, call: ast.Call, place: Place) -> Callee | None:
        """A function that a call gives back: ``getattr(logger, level)``, ``partial(print, ...)``, ``table.get(level)``."""
        name, args = name_of(call.func), call.args
        if name == "getattr" and len(args) > 1:
            text = self._names.resolve_text(args[1], place)
            if text is not None:
                return (
                    self._resolve_method(ast.Attribute(args[0], text, ast.Load()), place)
                    if text in LOG_METHODS
                    else None
                )
            return Callee("info") if self._is_logger(args[0], place) else None
        if name == "partial" and args:
            found = self._resolve_callee(args[0], place)
            return found and found._replace(bound=(*found.bound, *args[1:]))
        if isinstance(call.func, ast.Attribute) and name == "get" and args:
            return self._in_table(call.func.value, place) or (
                self._resolve_callee(args[1], place) if len(args) > 1 else None
            )
        return None

    def _in_table(self, node: ast.expr, place: Place) -> Callee | None:
        known = self._names.find_single_definition(node, place)
        if known is not None and known.value is not None:
            node, place = known.value, known.place
        values = node.values if isinstance(node, ast.Dict) else getattr(node, "elts", ())
        return next(filter(None, (self._resolve_callee(item, place) for item in values)), None)

    # texts

    def shapes_of(self, said: Said, place: Place) -> list[tuple[Shape, Flags]]:
        """The texts that a call may say, in constant parts, and the flags that are on where it says them."""
        name = said.name
        if name in LOG_METHODS and said.args and said.message is not said.args[-1]:
            return [(self._build_log_shape(said, place), NONE)]
        if name in PRINTS:
            if len(said.args) == 1 and not said.keywords:
                return self._collect_texts(said.message, place)
            return [(self._build_print_shape(said, place), NONE)]
        return self._collect_texts(said.message, place)

    def _collect_texts(self, message: ast.expr, place: Place) -> list[tuple[Shape, Flags]]:
        """One text, or those of each alternative."""
        if isinstance(message, ast.IfExp):
            sides = [*self._collect_texts(message.body, place), *self._collect_texts(message.orelse, place)]
            return sides if len(sides) <= MAX_TEXTS else [(GAP, NONE)]
        if isinstance(message, ast.Name):
            found, exact = self._names.find_definitions(message, place)
            if (exact or len(found) == 1) and 0 < len(found) <= MAX_TEXTS:
                sides = [(shape, flags | one.flags) for one in found for shape, flags in self._texts_of(one)]
                return sides if len(sides) <= MAX_TEXTS else [(GAP, NONE)]
        return [(self.build_shape(message, place), NONE)]

    def _texts_of(self, found: Definition) -> list[tuple[Shape, Flags]]:
        if found.open or found.param or not isinstance(found.value, ast.IfExp | ast.Name):
            return [(self._of_text(found), NONE)]
        found.open = True
        texts = self._collect_texts(found.value, found.place)
        found.open = False
        return texts

    def _build_print_shape(self, said: Said, place: Place) -> Shape:
        """``print`` puts its arguments together."""
        options = {key.arg: key.value for key in said.keywords}
        between = self.build_shape(options["sep"], place) if "sep" in options and not is_off(options["sep"]) else (" ",)
        if "sep" in options and text_of(options["sep"]) == "":
            between = ("",)
        parts = [part for item in said.args for part in (between, self.build_shape(item, place))]
        end = options.get("end")
        if end is not None and not (text_of(end) or "").endswith("\n"):
            parts.append(GAP)  # the line goes on
        return join_shapes(*parts[1:])

    def _build_log_shape(self, said: Said, place: Place) -> Shape:
        """`logging` fills ``%s`` where there are arguments; where they are constant, so is the text."""
        text = self._names.resolve_text(said.message, place)
        if text is None:
            return self.build_shape(said.message, place)
        parts = parse_percent_format(text)
        values = said.args[list(said.args).index(said.message) + 1 :]
        if len(values) != len(parts) - 1:
            return parts
        return join_shapes(
            (parts[0],),
            *(x for v, p in zip(values, parts[1:], strict=True) for x in (self.build_shape(v, place), (p,))),
        )

    def build_shape(self, node: ast.expr, place: Place) -> Shape:
        """The constant parts of a text that an expression makes."""
        if isinstance(node, ast.Constant):
            return (str(node.value),)
        if isinstance(node, ast.JoinedStr):
            return join_shapes(*(self.build_shape(part, place) for part in node.values))
        if isinstance(node, ast.FormattedValue):
            found = self.build_shape(node.value, place)
            return found if len(found) == 1 and node.conversion == -1 and node.format_spec is None else GAP
        if isinstance(node, ast.BinOp):
            return self._build_binop_template(node, place)
        if isinstance(node, ast.Call):
            return self._build_call_shape(node, place)
        if isinstance(node, ast.Name | ast.Attribute):
            known = self._names.find_single_definition(node, place)
            return GAP if known is None else self._of_text(known)
        return GAP

    def _of_text(self, found: Definition) -> Shape:
        if found.shape is None:
            if found.open or found.value is None or found.param:
                return GAP
            found.open = True
            found.shape = GAP if _is_number(found.value) else self.build_shape(found.value, found.place)
            found.open = False
        return found.shape

    def _build_binop_template(self, node: ast.BinOp, place: Place) -> Shape:
        if isinstance(node.op, ast.Add):
            return join_shapes(self.build_shape(node.left, place), self.build_shape(node.right, place))
        if isinstance(node.op, ast.Mod):
            text = self._names.resolve_text(node.left, place)
            return GAP if text is None else parse_percent_format(text)
        if isinstance(node.op, ast.Mult):
            unit, times = (node.left, node.right) if text_of(node.left) is not None else (node.right, node.left)
            word, count = text_of(unit), times.value if isinstance(times, ast.Constant) else None
            if word and isinstance(count, int) and len(word) * count <= LONGEST_CONSTANT:
                return (word * count,)
        return GAP

    def _build_call_shape(self, node: ast.Call, place: Place) -> Shape:
        name, args = name_of(node.func), node.args
        if isinstance(node.func, ast.Attribute):
            text = self._names.resolve_text(node.func.value, place)
            if name == "format" and text is not None:
                return parse_brace_format(text)
            if name == "join" and text is not None and len(args) == 1 and isinstance(args[0], ast.List | ast.Tuple):
                parts = [part for item in args[0].elts for part in ((text,), self.build_shape(item, place))]
                return (
                    join_shapes(*parts[1:]) if not any(isinstance(item, ast.Starred) for item in args[0].elts) else GAP
                )
        if name == "dedent" and args and self._names.resolve_text(args[0], place) is not None:
            return (textwrap.dedent(self._names.resolve_text(args[0], place) or ""),)
        if name == "tag" and args and text_of(args[0]):
            return (tag(flag_name(text_of(args[0]) or ""), *filter(None, map(text_of, args[1:2]))),)
        return GAP


def _is_number(node: ast.expr) -> bool:
    """True for a constant that is no text: a counter begins with one."""
    return isinstance(node, ast.Constant) and not isinstance(node.value, str)
