"""Reads one file: walks its statements and expressions with the flags known at each."""

import ast
import re
import warnings
from collections.abc import Sequence

from tdbg.logs.guards.asking import Asking
from tdbg.logs.guards.facts import Facts, Function, LogCall, Reference
from tdbg.logs.guards.flagsets import NONE, Flags
from tdbg.logs.guards.messages import LOG_METHODS, Messages
from tdbg.logs.guards.names import Names, Scope
from tdbg.logs.guards.shapes import GAP, percent
from tdbg.logs.guards.syntax import first_line, has_decorator, is_off, is_on, leaves, name_of, text_of

CHECKERS = ("check_debug_flag",)  # functions that are asked for a flag by its name
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


class _Reader:
    """Walks one module, statement by statement, with the flags known at each."""

    def __init__(self, tree: ast.Module, checkers: Sequence[str]) -> None:
        self.facts = Facts()
        self._names = Names(tree)
        self._asking = Asking(self._names, checkers)
        self._messages = Messages(self._names)
        self._met: set[str] = set()  # references that are noted
        self.block(tree.body, NONE, self._names.top)
        self.facts.flags = sorted(self._asking.flags)

    # statements

    def block(self, body: Sequence[ast.stmt], flags: Flags, scope: Scope) -> Flags:
        """Walk statements; returns what is known after them."""
        for statement in body:
            flags = self.statement(statement, flags, scope)
        return flags

    def statement(self, node: ast.stmt, flags: Flags, scope: Scope) -> Flags:
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
                    self.facts.functions[item.name][-1].is_method = not has_decorator(item, "staticmethod")
            return flags
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "handlers", "finalbody", "cases")]
        inner = [item for block in blocks for item in block]
        last = node.end_lineno or node.lineno
        self._mark(node.lineno, max(node.lineno, first_line(inner) - 1) if inner else last, flags)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.withitem):
                self.expression(child, flags, scope)
        if isinstance(node, ast.If | ast.While):
            return self._branch(node, flags, scope)
        if isinstance(node, ast.With | ast.AsyncWith):
            return self.block(node.body, flags, scope)
        if isinstance(node, ast.Assert):
            return flags | self._asking.test(node.test, scope)[0]
        for block in blocks:
            for item in block:
                if isinstance(item, ast.ExceptHandler | ast.match_case):
                    guard = getattr(item, "guard", None)
                    known = flags | self._asking.test(guard, scope)[0] if guard else flags
                    self.block(item.body, known, scope)
            self.block([item for item in block if isinstance(item, ast.stmt)], flags, scope)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in node.names:
                if name.asname and name.asname != name.name:  # under another name it cannot be followed
                    self._refer(name.name, Reference([], scope.name))
        if isinstance(node, ast.Return) and node.value is not None and scope.name:
            self._returns(node.value, flags, scope)
        return flags

    def _branch(self, node: ast.If | ast.While, flags: Flags, scope: Scope) -> Flags:
        true, false = self._asking.test(node.test, scope)
        self.block(node.body, flags | true, scope)
        self.block(node.orelse, flags | false, scope)
        if isinstance(node, ast.While):
            return flags
        if leaves(node.body):
            return flags | false
        if node.orelse and leaves(node.orelse):
            return flags | true
        return flags

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, flags: Flags, scope: Scope) -> None:
        for expression in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.expression(expression, flags, scope)
        params = [item.arg for item in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        told = all(HARMLESS_DECORATORS.search(ast.unparse(item)) for item in node.decorator_list)
        told = told and not node.name.startswith("__") and node.name not in CALLED_BY_OTHERS
        found = Function(node.lineno, node.end_lineno or node.lineno, params, told=told)
        self.facts.functions.setdefault(node.name, []).append(found)
        self.block(node.body, flags, self._names.scopes[node])

    def _returns(self, value: ast.expr, flags: Flags, scope: Scope) -> None:
        if scope.name in self.facts.functions and not is_off(value):
            true = self._asking.test(value, scope)[0] | (flags if is_on(value) else NONE)
            self.facts.functions[scope.name][-1].returns.append(" ".join(sorted(true)))

    def _mark(self, first: int, last: int, flags: Flags) -> None:
        for line in range(first, last + 1):
            if flags:
                self.facts.lines[line] = sorted(flags)
            else:
                self.facts.lines.pop(line, None)

    # expressions

    def expression(self, node: ast.AST, flags: Flags, scope: Scope, in_log: bool = False) -> None:
        """Note who is referred to and what is logged; parts of an expression may have guards of their own."""
        if isinstance(node, ast.BoolOp):
            known = flags
            for part in node.values:
                self.expression(part, known, scope, in_log)
                known = known | self._asking.test(part, scope)[0 if isinstance(node.op, ast.And) else 1]
        elif isinstance(node, ast.IfExp):
            true, false = self._asking.test(node.test, scope)
            self.expression(node.test, flags, scope, in_log)
            self.expression(node.body, flags | true, scope, in_log)
            self.expression(node.orelse, flags | false, scope, in_log)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            known = flags.union(*(self._asking.test(test, scope)[0] for loop in node.generators for test in loop.ifs))
            for child in ast.iter_child_nodes(node):
                self.expression(child, flags if isinstance(child, ast.comprehension) else known, scope, in_log)
        elif isinstance(node, ast.Call):
            self._call(node, flags, scope, in_log)
        else:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._refer(name_of(node), Reference(sorted(flags), scope.name))
            inner = self._names.scopes.get(node, scope) if isinstance(node, ast.Lambda) else scope
            for child in ast.iter_child_nodes(node):
                self.expression(child, flags, inner, in_log)

    def _call(self, node: ast.Call, flags: Flags, scope: Scope, in_log: bool) -> None:
        name = name_of(node.func)
        if name == "getattr" and len(node.args) > 1 and text_of(node.args[1]):
            self._refer(text_of(node.args[1]) or "", Reference([], scope.name))
        given: dict[str, list[str]] = {}
        for place, value in [*enumerate(node.args), *((key.arg, key.value) for key in node.keywords)]:
            found = self._asking.test(value, scope)[0]
            if found:
                given[str(place)] = sorted(found)
        self._refer(name, Reference(sorted(flags), scope.name, given, len(node.args)))
        message = None if in_log else self._messages.of(node)
        first, last = node.lineno, node.end_lineno or node.lineno
        if message is not None:
            self._mark(first, last, flags)
            shape = self._messages.shape_of(node, message, scope)
            self.facts.calls.append(LogCall(first, last, list(shape), sorted(flags), scope.name))
            self._passes_on(message, first, scope)
        elif not in_log and node.args and name and name not in LOG_METHODS:
            texts = [self._messages.shape(item, scope) for item in node.args]
            texts = [percent(shape[0]) if len(shape) == 1 < len(texts) else shape for shape in texts]
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

    def _passes_on(self, message: ast.expr, line: int, scope: Scope) -> None:
        """Note a function whose message, or the end of it, is what it was given."""
        owner = self.facts.functions.get(scope.name, [])
        last = message
        if isinstance(message, ast.JoinedStr) and isinstance(message.values[-1], ast.FormattedValue):
            last = message.values[-1].value
        named = isinstance(last, ast.Name) and (last is message or last.id in MESSAGE_NAMES)
        if owner and isinstance(last, ast.Name) and named and last.id in set(owner[-1].params) - scope.assigned.keys():
            self.facts.wrappers[scope.name] = [owner[-1].params.index(last.id), line, int(last is not message)]

    def _refer(self, name: str, reference: Reference) -> None:
        if not name:
            return
        mark = f"{name} {reference}"
        if mark not in self._met:
            self._met.add(mark)
            self.facts.references.setdefault(name, []).append(reference)
