"""Which debug flags guard each line of a program, read from its syntax trees. Nothing is executed.

One file is read into `Facts`: lines under a guard, functions, who refers to them, log calls. `link` joins the facts of
a package: a function that is called only under a guard is guarded itself. Standard library alone: a rank reads too.

A set of flags says: the line is reached only while one of them is on. A flag in ``A or verbose`` is one way of several
to get there: it is kept as ``?A``, and counts only where it is known to be on. Names that begin with ``@`` stand for
what another function gives back (``@name()``) or is given (``@name:parameter``), until `link` knows it.
"""

import ast
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from tdbg.flags import FLAGS, canonical, covers, tag

Flags = frozenset[str]
Pair = tuple[Flags, Flags]  # what is known where a test came out true, and where it came out false
Shape = tuple[str, ...]  # the constant parts of a text, in order; something unknown stands between two of them

NONE: Flags = frozenset()
NOTHING: Pair = (NONE, NONE)
GAP: Shape = ("", "")
VERSION = 1  # of Facts: a new one leaves what older versions kept on disk alone
CHECKERS = ("check_debug_flag",)  # functions that are asked for a flag by its name
MAX_FILE_BYTES = 2_000_000
MAX_FILES = 5_000
MAX_FOLDERS = 20_000
MAX_ROUNDS = 12  # how far a guard is handed on from function to function
SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages", "tdbg_runs", "wandb", "build", "dist"}
# What a file that matters contains; each begins with a literal, for which the search is fast.
PROMISING = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rb"DEBUG(?:\s*[.\[,)]|[.\w]*[\"'])",
        rb"debug(?:\s*[.\[]|(?<=[\"']debug)[\"']|(?<=\.debug)_\w|_flag)",
        rb"tdbg\b",
        rb"def \w*(?:[Ll]og|print|say|debug|info|stats|[Ww]arn|write)\w*\(",  # it may pass messages on
    )
)
CONFIGS = re.compile(r"(cfg|conf|config|args?|opts?|options|hparams|params|settings|flags|_?c)$", re.IGNORECASE)
METHODS = frozenset(dir(dict)) | {"freeze", "defrost", "clone", "dump", "merge", "is_frozen", "set_new_allowed"}
LOG_METHODS = {
    "_log", "debug", "stats", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "trace",
}  # fmt: skip
MESSAGE_NAMES = {"msg", "message", "text", "line", "fmt", "string"}
CALLED_BY_OTHERS = {
    "forward",
    "backward",
    "main",
    "training_step",
    "validation_step",
    "test_step",
    "configure_optimizers",
}
HARMLESS_DECORATORS = re.compile(r"no_grad|inference_mode|staticmethod|classmethod|property|wraps|cache|override|torch")
PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[hlL]?([diouxXeEfFgGcrsa%])")
BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}")


@dataclass(slots=True)
class Function:
    """A function or method: the lines of its body, its parameters, whether references to it tell who calls it."""

    first: int
    last: int
    params: list[str]
    is_method: bool = False
    told: bool = True
    returns: list[str] = field(default_factory=list)  # flags that what it gives back stands for


@dataclass(slots=True)
class Reference:
    """A place that calls, or hands on, something of this name; ``given``: flags among the arguments, by place or name."""

    flags: list[str]
    inside: str
    given: dict[str, list[str]] = field(default_factory=dict)
    args: int = -1  # positional arguments; -1: no call


@dataclass(slots=True)
class LogCall:
    """A call that prints or logs: its lines, and its message's constant parts (a `Shape`)."""

    first: int
    last: int
    shape: list[str]
    flags: list[str]
    inside: str
    callee: str = ""  # of a call of a function that may only pass a message on: its name
    given: list[list[str]] = field(default_factory=list)  # and the shapes of what it is given


@dataclass(slots=True)
class Facts:
    """What one file says."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    functions: dict[str, list[Function]] = field(default_factory=dict)
    references: dict[str, list[Reference]] = field(default_factory=dict)
    calls: list[LogCall] = field(default_factory=list)
    wrappers: dict[str, list[int]] = field(
        default_factory=dict
    )  # a function -> place and line of the message it passes on, 1 if it adds to it
    flags: list[str] = field(default_factory=list)  # every flag the file asks for
    broken: str = ""  # why it could not be parsed


@dataclass(slots=True)
class GuardMap:
    """The flags of each line of one file."""

    lines: dict[int, Flags] = field(default_factory=dict)
    calls: list[LogCall] = field(default_factory=list)
    passing_on: Flags = NONE  # functions that only pass a message on: who calls them is the one who speaks
    passed_on: frozenset[int] = frozenset()  # the lines where they do so
    asked: Flags = NONE  # every flag that the file asks for
    broken: str = ""  # why it could not be parsed

    @classmethod
    def of_file(cls, path: str | os.PathLike[str], checkers: Sequence[str] = CHECKERS) -> "GuardMap":
        """The map of one file by itself; an empty one if it cannot be read."""
        name = str(path)
        return link({name: facts_of(name, checkers)})[name]

    def flags_at(self, line: int, on: Iterable[str] | None = None) -> Flags:
        """The flags that guard the calls of a line.

        on: the flags known to be on: ``A or verbose`` counts for A among them only; None: it always counts.
        """
        found = self.lines.get(line, NONE)
        return resolved(found, on) if found else NONE


def resolved(found: Iterable[str], on: Iterable[str] | None) -> Flags:
    """The plain names of a set of flags, without those that are only one way of several and not on."""
    known = None if on is None else tuple(on)
    return frozenset(
        name.removeprefix("?")
        for name in found
        if name[0] != "?" or known is None or any(covers(name[1:], other) or covers(other, name[1:]) for other in known)
    )


def either(*sides: Flags) -> Flags:
    """What is known where one of several conditions holds."""
    union = NONE.union(*sides)
    if all(side and not any(name[0] in "?@" for name in side) for side in sides):
        return union
    return frozenset(name if name[0] in "?@" else f"?{name}" for name in union)


@cache
def flag_name(text: str) -> str:
    """A flag as the table spells it; a name that is not in the table in upper case."""
    word = text.removeprefix("DEBUG.")
    name = canonical(word[len("debug_") :] if word.lower().startswith("debug_") else word)
    table = {flag.name: flag.name for flag in FLAGS}
    leaves = {flag.leaf: flag.name for flag in FLAGS} | {flag.name.replace(".", "_"): flag.name for flag in FLAGS}
    return table.get(name) or leaves.get(name, name)


def _flag_of(words: Sequence[str]) -> Flags:
    """The flag that a dotted path asks for: ``cfg.DEBUG.LOSS.X``, ``args.debug_x``; none for other paths."""
    for place, word in enumerate(words[:-1]):
        if word == "DEBUG" or (word == "debug" and place and CONFIGS.search(words[place - 1])):
            below = words[place + 1 :]
            if all(part.isidentifier() and part not in METHODS for part in below):
                return frozenset({flag_name(".".join(below))})
            return NONE
    if len(words) > 1 and words[-1].startswith("debug_") and CONFIGS.search(words[-2]):
        return frozenset({flag_name(words[-1])})
    return NONE


# Texts


def joined(*shapes: Shape) -> Shape:
    """Shapes one after the other."""
    found: Shape = ("",)
    for shape in shapes:
        found = (*found[:-1], found[-1] + shape[0], *shape[1:])
    return found


def _percent(text: str) -> Shape:
    parts, start, tail = [], 0, ""
    for match in PERCENT.finditer(text):
        tail += text[start : match.start()]
        start = match.end()
        if match[1] == "%":
            tail += "%"
        else:
            parts.append(tail)
            tail = ""
    return (*parts, tail + text[start:])


def _braces(text: str) -> Shape:
    shape: Shape = ("",)
    start = 0
    for match in BRACES.finditer(text):
        part: Shape = (match[0][0],) if match[0] in ("{{", "}}") else GAP
        shape = joined(shape, (text[start : match.start()],), part)
        start = match.end()
    return joined(shape, (text[start:],))


# One file


class _Scope:
    """The names of a function (or the module): what is assigned to them, and which are parameters."""

    def __init__(self, owner: ast.AST, parent: "_Scope | None", name: str) -> None:
        self.parent = parent
        self.name = name
        self.assigned: dict[str, list[ast.expr | None]] = {}
        self.params: set[str] = set()
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = owner.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            self.params = {item.arg for item in every}

    def find(self, name: str) -> "_Scope | None":
        """The scope that knows the name."""
        scope: _Scope | None = self
        while scope is not None and name not in scope.assigned and name not in scope.params:
            scope = scope.parent
        return scope


class _Reader:
    """Walks one module, statement by statement, with the flags known at each."""

    def __init__(self, tree: ast.Module, checkers: Sequence[str]) -> None:
        self.checkers = frozenset(checkers)
        self.facts = Facts()
        self.scopes: dict[ast.AST, _Scope] = {}
        self.attributes: dict[str, list[tuple[ast.expr | None, _Scope]]] = {}
        self.asked: set[str] = set()
        self._aliases: dict[tuple[_Scope | None, str], Flags] = {}
        self._open: set[int] = set()  # paths being looked up
        self._met: set[str] = set()  # references that are noted
        top = _Scope(tree, None, "")
        self._collect(tree, top)
        self.block(tree.body, NONE, top)
        self.facts.flags = sorted(self.asked)

    # names

    def _collect(self, owner: ast.AST, scope: _Scope) -> None:
        self.scopes[owner] = scope
        in_class = isinstance(owner, ast.ClassDef)
        waiting = list(ast.iter_child_nodes(owner))
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                name = getattr(node, "name", scope.name)
                self._collect(node, _Scope(node, scope, name))
                continue
            if isinstance(node, ast.ClassDef):
                self._collect(node, scope)
                continue
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value, scope, in_class)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                self._assign(node.target, node.value, scope, in_class)
            elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
                self._assign(node.target, None, scope, in_class)
            waiting.extend(ast.iter_child_nodes(node))

    def _assign(self, target: ast.expr, value: ast.expr | None, scope: _Scope, in_class: bool) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for place, item in enumerate(target.elts):
                single = values[place] if len(values) == len(target.elts) else None
                self._assign(item, single, scope, in_class)
        elif isinstance(target, ast.Attribute):
            self.attributes.setdefault(target.attr, []).append((value, scope))
        elif isinstance(target, ast.Name) and in_class:
            self.attributes.setdefault(target.id, []).append((value, scope))
        elif isinstance(target, ast.Name):
            scope.assigned.setdefault(target.id, []).append(value)

    def path(self, node: ast.AST, scope: _Scope) -> list[str]:
        """``a.b["c"].get("d")`` as its words; empty for anything else."""
        words: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                words.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript):
                text = _text(node.slice)
                if text is None:
                    return []
                words += reversed(text.split("."))
                node = node.value
            elif isinstance(node, ast.Call):
                name, text = _name(node.func), next(filter(None, map(_text, node.args)), None)
                if text is None or not all(part.isidentifier() for part in text.split(".")):
                    return []
                words += reversed(text.split("."))
                if name == "get" and isinstance(node.func, ast.Attribute):
                    node = node.func.value
                elif name == "getattr":
                    node = node.args[0]
                else:
                    return []
            elif isinstance(node, ast.Name):
                home = scope.find(node.id)
                values = home.assigned.get(node.id, []) if home else []
                begin = [node.id]
                if home and len(values) == 1 and values[0] is not None and id(values[0]) not in self._open:
                    self._open.add(id(values[0]))  # D = cfg.DEBUG
                    found = self.path(values[0], home)
                    self._open.discard(id(values[0]))
                    begin = found if any(word.upper() == "DEBUG" for word in found) else begin
                return [*begin, *reversed(words)]
            else:
                return []

    # tests

    def test(self, node: ast.expr, scope: _Scope) -> Pair:
        """What an expression says of flags where it is true, and where it is false."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            true, false = self.test(node.operand, scope)
            return false, true
        if isinstance(node, ast.BoolOp):
            pairs = [self.test(part, scope) for part in node.values]
            trues, falses = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            if isinstance(node.op, ast.And):
                return NONE.union(*trues), either(*falses)
            return either(*trues), NONE.union(*falses)
        if isinstance(node, ast.NamedExpr):
            return self.test(node.value, scope)
        if isinstance(node, ast.IfExp):
            true, false = self.test(node.test, scope)
            body, other = self.test(node.body, scope)[0], self.test(node.orelse, scope)[0]
            if _is_off(node.orelse):
                return true | body, NONE
            return either(true | body, false | other), NONE
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node, scope)
        return self._asked(node, scope), NONE

    def _compare(self, node: ast.Compare, scope: _Scope) -> Pair:
        left, op, right = node.left, node.ops[0], node.comparators[0]
        if isinstance(op, ast.In):
            path = self.path(right, scope)
            text = _text(left)
            return (_flag_of([*path, text]) if path and text else NONE), NONE
        if isinstance(left, ast.Constant):
            left, right = right, left
        true, false = self.test(left, scope)
        off = _is_off(right)
        if isinstance(op, ast.Eq | ast.Is):
            return (false, true) if off else (true, NONE)
        if isinstance(op, ast.NotEq | ast.IsNot):
            return (true, false) if off else (false, true)
        return true, NONE

    def _asked(self, node: ast.expr, scope: _Scope) -> Flags:
        """The flags that a value stands for: asked directly, by another name, or by a function."""
        if isinstance(node, ast.Call):
            name = _name(node.func)
            words = [item for item in (*node.args, *(key.value for key in node.keywords)) if _text(item)]
            is_tdbg = name == "flag" and (isinstance(node.func, ast.Name) or _name(node.func.value) == "tdbg")  # type: ignore[attr-defined]
            if words and (name in self.checkers or name.endswith("debug_flag") or is_tdbg):
                return self._ask(frozenset({flag_name(_text(words[0]) or "")}))
            if name in ("bool", "int", "any", "all") and len(node.args) == 1:
                inner = node.args[0]
                sides = inner.elts if isinstance(inner, ast.Tuple | ast.List) else [inner]
                found = [self.test(side, scope)[0] for side in sides]
                return NONE.union(*found) if name == "all" else either(*found)
        found_flag = _flag_of(self.path(node, scope))
        if found_flag:
            return self._ask(found_flag)
        if isinstance(node, ast.Call):
            return frozenset({f"@{_name(node.func)}()"}) if _name(node.func) else NONE
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            if home is None:
                return NONE
            if node.id not in home.assigned:
                return frozenset({f"@{home.name}:{node.id}"})
            return self._alias((home, node.id), [(value, home) for value in home.assigned[node.id]])
        if isinstance(node, ast.Attribute):
            if node.attr in self.attributes:
                return self._alias((None, node.attr), self.attributes[node.attr])
            return frozenset({f"@{node.attr}()"})  # perhaps a property
        return NONE

    def _ask(self, found: Flags) -> Flags:
        self.asked |= found
        return found

    def _alias(self, key: tuple[_Scope | None, str], values: Sequence[tuple[ast.expr | None, _Scope]]) -> Flags:
        """What all values of a variable stand for; ``dbg = False`` to begin with says nothing."""
        if key not in self._aliases:
            self._aliases[key] = NONE  # while it is looked up: an alias may lead back to itself
            sides = []
            if not any(value is None for value, _ in values):
                sides = [self.test(value, scope)[0] for value, scope in values if value and not _is_off(value)]
            self._aliases[key] = either(*sides) if sides and all(sides) else NONE
        return self._aliases[key]

    # statements

    def block(self, body: Sequence[ast.stmt], flags: Flags, scope: _Scope) -> Flags:
        """Walk statements; returns what is known after them."""
        for statement in body:
            flags = self.statement(statement, flags, scope)
        return flags

    def statement(self, node: ast.stmt, flags: Flags, scope: _Scope) -> Flags:
        """Walk one statement; returns what is known in those that follow."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node, flags, scope)
            return flags
        if isinstance(node, ast.ClassDef):
            for expression in (*node.bases, *node.decorator_list):
                self.expression(expression, flags, scope)
            for item in node.body:
                self.statement(item, flags, scope)
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.facts.functions[item.name][-1].is_method = not _has(item, "staticmethod")
            return flags
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "handlers", "finalbody", "cases")]
        inner = [item for block in blocks for item in block]
        last = node.end_lineno or node.lineno
        self._mark(node.lineno, max(node.lineno, _first_line(inner) - 1) if inner else last, flags)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.withitem):
                self.expression(child, flags, scope)
        if isinstance(node, ast.If | ast.While):
            return self._branch(node, flags, scope)
        if isinstance(node, ast.With | ast.AsyncWith):
            return self.block(node.body, flags, scope)
        if isinstance(node, ast.Assert):
            return flags | self.test(node.test, scope)[0]
        for block in blocks:
            for item in block:
                if isinstance(item, ast.ExceptHandler | ast.match_case):
                    guard = getattr(item, "guard", None)
                    known = flags | self.test(guard, scope)[0] if guard else flags
                    self.block(item.body, known, scope)
            self.block([item for item in block if isinstance(item, ast.stmt)], flags, scope)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in node.names:
                if name.asname and name.asname != name.name:  # under another name it cannot be followed
                    self._refer(name.name, Reference([], scope.name))
        if isinstance(node, ast.Return) and node.value is not None and scope.name:
            self._returns(node.value, flags, scope)
        return flags

    def _branch(self, node: ast.If | ast.While, flags: Flags, scope: _Scope) -> Flags:
        true, false = self.test(node.test, scope)
        self.block(node.body, flags | true, scope)
        self.block(node.orelse, flags | false, scope)
        if isinstance(node, ast.While):
            return flags
        if _leaves(node.body):
            return flags | false
        if node.orelse and _leaves(node.orelse):
            return flags | true
        return flags

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, flags: Flags, scope: _Scope) -> None:
        for expression in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.expression(expression, flags, scope)
        params = [item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        told = all(HARMLESS_DECORATORS.search(ast.unparse(item)) for item in node.decorator_list)
        told = told and not node.name.startswith("__") and node.name not in CALLED_BY_OTHERS
        found = Function(node.lineno, node.end_lineno or node.lineno, params, told=told)
        self.facts.functions.setdefault(node.name, []).append(found)
        self.block(node.body, flags, self.scopes[node])

    def _returns(self, value: ast.expr, flags: Flags, scope: _Scope) -> None:
        if scope.name in self.facts.functions and not _is_off(value):
            true = self.test(value, scope)[0] | (flags if _is_on(value) else NONE)
            self.facts.functions[scope.name][-1].returns.append(" ".join(sorted(true)))

    def _mark(self, first: int, last: int, flags: Flags) -> None:
        for line in range(first, last + 1):
            if flags:
                self.facts.lines[line] = sorted(flags)
            else:
                self.facts.lines.pop(line, None)

    # expressions

    def expression(self, node: ast.AST, flags: Flags, scope: _Scope, in_log: bool = False) -> None:
        """Note who is referred to and what is logged; parts of an expression may have guards of their own."""
        if isinstance(node, ast.BoolOp):
            known = flags
            for part in node.values:
                self.expression(part, known, scope, in_log)
                known = known | self.test(part, scope)[0 if isinstance(node.op, ast.And) else 1]
        elif isinstance(node, ast.IfExp):
            true, false = self.test(node.test, scope)
            self.expression(node.test, flags, scope, in_log)
            self.expression(node.body, flags | true, scope, in_log)
            self.expression(node.orelse, flags | false, scope, in_log)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            known = flags.union(*(self.test(test, scope)[0] for loop in node.generators for test in loop.ifs))
            for child in ast.iter_child_nodes(node):
                self.expression(child, flags if isinstance(child, ast.comprehension) else known, scope, in_log)
        elif isinstance(node, ast.Call):
            self._call(node, flags, scope, in_log)
        else:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._refer(_name(node), Reference(sorted(flags), scope.name))
            inner = self.scopes.get(node, scope) if isinstance(node, ast.Lambda) else scope
            for child in ast.iter_child_nodes(node):
                self.expression(child, flags, inner, in_log)

    def _call(self, node: ast.Call, flags: Flags, scope: _Scope, in_log: bool) -> None:
        name = _name(node.func)
        if name == "getattr" and len(node.args) > 1 and _text(node.args[1]):
            self._refer(_text(node.args[1]) or "", Reference([], scope.name))
        given: dict[str, list[str]] = {}
        for place, value in [*enumerate(node.args), *((key.arg, key.value) for key in node.keywords)]:
            found = self.test(value, scope)[0]
            if found:
                given[str(place)] = sorted(found)
        self._refer(name, Reference(sorted(flags), scope.name, given, len(node.args)))
        message = None if in_log else self._message(node, name)
        first, last = node.lineno, node.end_lineno or node.lineno
        if message is not None:
            self._mark(first, last, flags)
            shape = self.shape(message, scope)
            if name in LOG_METHODS and node.args and message is not node.args[-1]:
                shape = self._logged(node, message, scope)
            elif name == "print":
                shape = joined(*(part for item in node.args for part in ((" ",), self.shape(item, scope))))
                shape = (shape[0][1:], *shape[1:])
            self.facts.calls.append(LogCall(first, last, list(shape), sorted(flags), scope.name))
            self._passes_on(message, first, scope)
        elif not in_log and node.args and name and name not in LOG_METHODS:
            texts = [self.shape(item, scope) for item in node.args]
            texts = [_percent(shape[0]) if len(shape) == 1 < len(texts) else shape for shape in texts]
            if any(shape != GAP for shape in texts):  # it may pass its message on: `link` knows
                given_texts = [list(shape) for shape in texts]
                self.facts.calls.append(LogCall(first, last, [], sorted(flags), scope.name, name, given_texts))
        children = [*node.args, *(key.value for key in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            children.append(node.func.value)
        elif not isinstance(node.func, ast.Name):
            children.append(node.func)
        for child in children:
            self.expression(child, flags, scope, in_log or message is not None)

    def _passes_on(self, message: ast.expr, line: int, scope: _Scope) -> None:
        """Note a function whose message, or the end of it, is what it was given."""
        owner = self.facts.functions.get(scope.name, [])
        last = message
        if isinstance(message, ast.JoinedStr) and isinstance(message.values[-1], ast.FormattedValue):
            last = message.values[-1].value
        named = isinstance(last, ast.Name) and (last is message or last.id in MESSAGE_NAMES)
        if owner and isinstance(last, ast.Name) and named and last.id in set(owner[-1].params) - scope.assigned.keys():
            self.facts.wrappers[scope.name] = [owner[-1].params.index(last.id), line, int(last is not message)]

    def _message(self, node: ast.Call, name: str) -> ast.expr | None:
        """The message of a call that logs or prints; None for other calls."""
        if isinstance(node.func, ast.Name):
            return node.args[0] if name in ("print", "pprint") and node.args else None
        if not isinstance(node.func, ast.Attribute) or name not in LOG_METHODS | {"write"} or not node.args:
            return None
        owner = _name(node.func.value) or (_name(node.func.value.func) if isinstance(node.func.value, ast.Call) else "")
        if name == "write":
            return node.args[0] if owner in ("stdout", "tqdm") else None
        if name in ("log", "_log"):
            is_logger = name == "_log" or "log" in owner.lower()
            return node.args[1] if is_logger and len(node.args) > 1 else None
        return node.args[0]

    def _logged(self, node: ast.Call, message: ast.expr, scope: _Scope) -> Shape:
        """`logging` fills ``%s`` where there are arguments; where they are constant, so is the text."""
        text = _text(message)
        if text is None:
            return self.shape(message, scope)
        parts = _percent(text)
        values = node.args[node.args.index(message) + 1 :]
        if len(values) != len(parts) - 1:
            return parts
        return joined(
            (parts[0],), *(x for v, p in zip(values, parts[1:], strict=True) for x in (self.shape(v, scope), (p,)))
        )

    def shape(self, node: ast.expr, scope: _Scope) -> Shape:
        """The constant parts of a text that an expression makes."""
        if isinstance(node, ast.Constant):
            return (str(node.value),)
        if isinstance(node, ast.JoinedStr):
            return joined(*(self.shape(part, scope) for part in node.values))
        if isinstance(node, ast.FormattedValue):
            found = self.shape(node.value, scope)
            return found if len(found) == 1 and node.conversion == -1 and node.format_spec is None else GAP
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return joined(self.shape(node.left, scope), self.shape(node.right, scope))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _text(node.left) is not None:
            return _percent(_text(node.left) or "")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            text = _text(node.func.value)
            return GAP if text is None else _braces(text)
        if isinstance(node, ast.Call) and _name(node.func) == "tag" and node.args and _text(node.args[0]):
            return (tag(flag_name(_text(node.args[0]) or ""), *filter(None, map(_text, node.args[1:2]))),)
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            values = home.assigned.get(node.id, []) if home else []
        elif isinstance(node, ast.Attribute):
            values = [value for value, _ in self.attributes.get(node.attr, [])]
        text = _text(values[0]) if len(values) == 1 and values[0] is not None else None
        return GAP if text is None else (text,)

    def _refer(self, name: str, reference: Reference) -> None:
        if not name:
            return
        mark = f"{name} {reference}"
        if mark not in self._met:
            self._met.add(mark)
            self.facts.references.setdefault(name, []).append(reference)


def _name(node: ast.AST) -> str:
    """The last word of a name or an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_off(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _is_on(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _has(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(_name(item) == decorator for item in node.decorator_list)


def _first_line(body: Sequence[ast.AST]) -> int:
    lines = [item.lineno for item in body if hasattr(item, "lineno")]
    lines += [item.pattern.lineno for item in body if isinstance(item, ast.match_case)]
    return min(lines, default=0)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """True if a block never reaches its end."""
    end = body[-1]
    if isinstance(end, ast.Expr) and isinstance(end.value, ast.Call):
        return ast.unparse(end.value.func) in ("sys.exit", "exit", "os._exit")
    return isinstance(end, ast.Return | ast.Raise | ast.Continue | ast.Break)


def read(source: bytes, checkers: Sequence[str] = CHECKERS) -> Facts:
    """The facts of one file's text; of one that cannot be parsed only that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user's invalid escapes are not our business
            return _Reader(ast.parse(source), checkers).facts
    except SyntaxError as error:
        return Facts(broken=f"line {error.lineno or 0}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Facts(broken=str(error) or type(error).__name__)


# Many files


def link(
    files: Mapping[str, Facts], others: Iterable[bytes] = (), pause: Callable[[], object] = bool
) -> dict[str, GuardMap]:
    """The map of each file, with what its functions inherit from those who call them.

    others: texts of files that ask for no flag: a function they name is called without a guard. pause: called often.
    """
    functions: dict[str, list[Function]] = {}
    references: dict[str, list[Reference]] = {}
    for facts in files.values():
        for name, found in facts.functions.items():
            functions.setdefault(name, []).extend(found)
        for name, made in facts.references.items():
            references.setdefault(name, []).extend(made)
    single = {name: found[0] for name, found in functions.items() if len(found) == 1 and found[0].told}
    symbols = _symbols(single, references, pause)
    passing = {  # where the message stands among what a caller gives, and whether something is put before it
        name: (place - single[name].is_method, adds)
        for facts in files.values()
        for name, (place, _, adds) in facts.wrappers.items()
        if name in single
    }
    guards: dict[str, Flags] = {}
    for _ in range(MAX_ROUNDS):
        before = dict(guards)
        for name in (
            single.keys() - passing.keys()
        ):  # whoever passes a message on speaks for the one caller, not for all
            pause()
            sides = [
                _settled(place.flags, symbols) | guards.get(place.inside, NONE)
                for place in references.get(name, [])
                if place.inside != name
            ]
            if sides and all(sides):
                guards[name] = either(*sides)
        if guards == before:
            break
    for name in _named(guards, others):
        del guards[name]
    maps: dict[str, GuardMap] = {}
    for path, facts in files.items():
        pause()
        maps[path] = _map(facts, guards, symbols, passing)
    return maps


def _named(names: Mapping[str, Flags], texts: Iterable[bytes]) -> set[str]:
    """Those names that appear in one of the texts."""
    if not names:
        return set()
    search = re.compile(rb"\b(?:" + b"|".join(re.escape(name.encode()) for name in names) + rb")\b")
    return {found.decode() for text in texts for found in search.findall(text)}


def _symbols(
    single: Mapping[str, Function], references: Mapping[str, list[Reference]], pause: Callable[[], object]
) -> dict[str, Flags]:
    """What ``@name()`` and ``@name:parameter`` stand for."""
    found: dict[str, Flags] = {}
    for _ in range(3):  # a function may hand on what another gave it
        for name, function in single.items():
            pause()
            sides = [_settled(text.split(), found) for text in function.returns]
            if sides and all(sides):
                found[f"@{name}()"] = either(*sides)
            places = [place for place in references.get(name, []) if place.args >= 0]
            for index, param in enumerate(function.params):
                sides = []
                for place in places:
                    given = place.given.get(param) or place.given.get(str(index - function.is_method))
                    sides.append(_settled(given or [], found))
                if any(sides):
                    found[f"@{name}:{param}"] = NONE.union(*sides)
    return found


def _settled(flags: Iterable[str], symbols: Mapping[str, Flags]) -> Flags:
    """Flags with their symbols replaced; those that stand for nothing vanish."""
    return NONE.union(*(symbols.get(name, NONE) if name[0] == "@" else {name} for name in flags))


def _map(
    facts: Facts,
    guards: Mapping[str, Flags],
    symbols: Mapping[str, Flags],
    passing: Mapping[str, tuple[int, int]],
) -> GuardMap:
    lines = {line: _settled(flags, symbols) for line, flags in facts.lines.items()}
    for name, flags in guards.items():
        for function in facts.functions.get(name, []):
            for line in range(function.first, function.last + 1):
                lines[line] = lines.get(line, NONE) | flags
    passed_on = frozenset(facts.wrappers[name][1] for name in passing.keys() & facts.wrappers.keys())
    calls = []
    for call in facts.calls:
        if call.first in passed_on and call.inside in passing:
            continue  # its text is the caller's
        shape = call.shape
        if call.callee:
            place, adds = passing.get(call.callee, (0, 0))
            if call.callee not in passing or place >= len(call.given):
                continue
            shape = ["", *call.given[place]][1 - adds :]
        known = _settled(call.flags, symbols) | guards.get(call.inside, NONE)
        calls.append(LogCall(call.first, call.last, list(shape), sorted(known), call.inside))
    return GuardMap(
        {line: flags for line, flags in lines.items() if flags},
        calls,
        frozenset(passing),
        passed_on,
        frozenset(facts.flags),
        facts.broken,
    )


def files_below(root: str | os.PathLike[str]) -> Iterator[str]:
    """The Python files of a source tree: no environments, caches or hidden folders; a bounded number of them."""
    if os.path.isfile(root):
        yield str(root)
        return
    count = 0
    for folders_seen, (folder, folders, names) in enumerate(os.walk(root)):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED
            and not any(os.path.exists(os.path.join(folder, name, mark)) for mark in ("pyvenv.cfg", "run.json"))
        )  # fmt: skip
        for name in sorted(names):
            if name.endswith(".py"):
                count += 1
                yield os.path.join(folder, name)
        if count > MAX_FILES or folders_seen > MAX_FOLDERS:
            return


def maps_below(
    root: str | os.PathLike[str], checkers: Sequence[str] = CHECKERS, pause: Callable[[], object] = bool
) -> dict[str, GuardMap]:
    """The maps of all files of a source tree that ask for flags. ``pause`` is called again and again."""
    facts: dict[str, Facts] = {}
    others: list[str] = []
    for path in files_below(root):
        pause()
        source = source_of(path)
        if source is None:
            continue
        if is_promising(source, checkers):
            facts[path] = facts_of(path, checkers, source)
        else:
            others.append(path)
    return link(facts, (text for path in others if (text := source_of(path)) is not None), pause)


def source_of(path: str) -> bytes | None:
    """A file's bytes, if it can be read and is not far too big for one that a person wrote."""
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            return None
        return Path(path).read_bytes()
    except (OSError, ValueError):
        return None


def is_promising(source: bytes, checkers: Sequence[str] = CHECKERS) -> bool:
    """False for a file that cannot ask for a flag; cheap."""
    return any(pattern.search(source) for pattern in PROMISING) or any(name.encode() in source for name in checkers)


def facts_of(path: str, checkers: Sequence[str] = CHECKERS, source: bytes | None = None) -> Facts:
    """The facts of a file, from the cache if its text was met before; never raises."""
    source = source_of(path) if source is None else source
    if source is None or not is_promising(source, checkers):
        return Facts()
    key = hashlib.blake2b(source + repr(sorted(checkers)).encode(), digest_size=16).hexdigest()
    kept = cache_folder() / f"{key}.json"
    try:
        return decode(json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    facts = read(source, checkers)
    _keep(kept, facts)
    return facts


def cache_folder() -> Path:
    """Where facts are kept, by version and Python: another parser may count lines differently."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tdbg" / f"guards-v{VERSION}-py{sys.version_info[0]}{sys.version_info[1]}"


def _keep(path: Path, facts: Facts) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f".{path.name}.{os.getpid()}")
        half.write_text(json.dumps(asdict(facts)), encoding="utf-8")
        os.replace(half, path)
    except OSError:  # no home, no room: it is made anew next time
        pass


def decode(data: Mapping[str, object]) -> Facts:
    """Facts as they were kept; any error of shape is the caller's to catch."""
    raw: dict[str, object] = dict(data)
    lines: dict[str, list[str]] = raw["lines"]  # type: ignore[assignment]
    functions: dict[str, list[dict[str, object]]] = raw["functions"]  # type: ignore[assignment]
    references: dict[str, list[dict[str, object]]] = raw["references"]  # type: ignore[assignment]
    calls: list[dict[str, object]] = raw["calls"]  # type: ignore[assignment]
    return Facts(
        {int(line): flags for line, flags in lines.items()},
        {name: [Function(**item) for item in items] for name, items in functions.items()},  # type: ignore[arg-type]
        {name: [Reference(**item) for item in items] for name, items in references.items()},  # type: ignore[arg-type]
        [LogCall(**item) for item in calls],  # type: ignore[arg-type]
        raw["wrappers"],  # type: ignore[arg-type]
        raw["flags"],  # type: ignore[arg-type]
        str(raw["broken"]),
    )
