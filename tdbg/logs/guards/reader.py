"""Reads one file: walks its statements and expressions with the flags known at each."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tdbg.core.source_tree import parse_source
from tdbg.logs.guards.facts import Facts, Function, LogCall, Reference
from tdbg.logs.guards.flagsets import NONE, Flags, Pair, merge_alternatives
from tdbg.logs.guards.guard_tests import Asking
from tdbg.logs.guards.logged_messages import LOG_METHODS, PRINTS, Messages, Said
from tdbg.logs.guards.names import Definition, Env, Names, Place, Scope, bound_in, iter_bindings, joined_env
from tdbg.logs.guards.shapes import GAP, parse_percent_format
from tdbg.logs.guards.syntax import (
    ends_program,
    first_line,
    has_decorator,
    is_off,
    is_on,
    is_true,
    name_of,
    text_of,
    walk_statements,
)

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


def parse_facts(source: bytes, checkers: Sequence[str] = CHECKERS) -> Facts:
    """The facts of one file's text; of one that cannot be parsed only that."""
    try:
        return _Reader(parse_source(source), checkers).facts
    except SyntaxError as error:
        return Facts(broken=f"line {error.lineno or 0}: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Facts(broken=str(error) or type(error).__name__)


class _End(NamedTuple):
    """How a block ends: what is known there, None if its end is never reached; what was known at its beginning; its names."""

    flags: Flags | None
    begin: Flags
    env: Env


class _Loop:
    """A loop that is being read: the states in which it is left by ``break``."""

    def __init__(self) -> None:
        self.breaks: list[tuple[Flags, Env]] = []


class _Reader:
    """Walks one module, statement by statement, with the flags and the definitions of names known at each."""

    def __init__(self, tree: ast.Module, checkers: Sequence[str]) -> None:
        self.facts = Facts()
        self._names = Names(tree)
        self._asking = Asking(self._names, checkers)
        self._messages = Messages(self._names)
        self._met: set[str] = set()  # references that are noted
        self._env: Env = {}
        self._loops: list[_Loop] = []
        self._raised = False  # in the `try` that is being read
        self.walk_block(tree.body, NONE, self._names.top)
        self.facts.flags = sorted(self._asking.flags)

    def _build_place(self, scope: Scope) -> Place:
        return Place(scope, self._env)

    def _evaluate_test(self, node: ast.expr, scope: Scope) -> Pair:
        return self._asking.evaluate_test(node, Place(scope, self._env))

    # statements

    def walk_block(self, body: Sequence[ast.stmt], flags: Flags, scope: Scope) -> Flags | None:
        """Walk statements; returns what is known after them, None if their end is never reached."""
        ends = True
        for statement in body:
            after = self.walk_statement(statement, flags, scope)
            if after is None:
                ends = False
            else:
                flags = after
        return flags if ends else None

    def _walk_inner_block(self, body: Sequence[ast.stmt], flags: Flags, scope: Scope, env: Env) -> _End:
        """Walk a block that begins with these definitions."""
        self._env = env
        end = self.walk_block(body, flags, scope)
        return _End(end, flags, self._env)

    def walk_statement(self, node: ast.stmt, flags: Flags, scope: Scope) -> Flags | None:
        """Walk one statement; returns what is known in those that follow, None if they are never reached."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._walk_function(node, flags, scope)
            self._bind_names([(node.name, None)], flags, scope)
            return flags
        if isinstance(node, ast.ClassDef):
            return self._walk_class(node, flags, scope)
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "handlers", "finalbody", "cases")]
        inner = [item for block in blocks for item in block]
        last = node.end_lineno or node.lineno
        self._record_line_flags(node.lineno, max(node.lineno, first_line(inner) - 1) if inner else last, flags)
        if isinstance(node, ast.While):
            return self._walk_while(node, flags, scope)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            self._walk_lambda(node, node.value, flags, scope)
            return flags
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.withitem):
                self.walk_expression(child, flags, scope)
        if inner:
            return self._walk_compound(node, flags, scope)
        self._bind_names(iter_bindings(node), flags, scope)
        if isinstance(node, ast.Expr):
            return None if ends_program(node) else flags
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._walk_import(node, flags, scope)
        elif isinstance(node, ast.Assert):
            return None if is_off(node.test) else flags | self._evaluate_test(node.test, scope)[0]
        elif isinstance(node, ast.Return):
            if node.value is not None and scope.name:
                self._record_return(node.value, flags, scope)
            return None
        elif isinstance(node, ast.Raise):
            self._raised = True
            return None
        elif isinstance(node, ast.Break | ast.Continue):
            if self._loops and isinstance(node, ast.Break):
                self._loops[-1].breaks.append((flags, self._env))
            return None
        return flags

    def _walk_compound(self, node: ast.stmt, flags: Flags, scope: Scope) -> Flags | None:
        """Walk the blocks of a statement."""
        if isinstance(node, ast.If):
            true, false = self._evaluate_test(node.test, scope)
            env = self._env
            ends = [
                self._walk_inner_block(node.body, flags | true, scope, env),
                self._walk_inner_block(node.orelse, flags | false, scope, env),
            ]
            return self._join_blocks(ends, flags)
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._bind_names(iter_bindings(item), flags, scope)
            return self.walk_block(node.body, flags, scope)
        if isinstance(node, ast.For | ast.AsyncFor):
            return self._walk_for(node, flags, scope)
        if isinstance(node, ast.Match):
            return self._walk_match(node, flags, scope)
        return self._walk_try(node, flags, scope)

    def _join_blocks(self, ends: Sequence[_End], flags: Flags) -> Flags | None:
        """What is known where several blocks come together: what all know, and what they learnt from early returns."""
        reached = [end for end in ends if end.flags is not None]
        if not reached:
            return None
        self._env = joined_env([end.env for end in reached])
        known = [end.flags for end in reached if end.flags is not None]
        if len(known) == 1:
            return known[0]
        learnt = len(reached) < len(ends) or any(end.flags != end.begin for end in reached)
        return flags | merge_alternatives(*(found - flags for found in known)) if learnt else flags

    def _walk_while(self, node: ast.While, flags: Flags, scope: Scope) -> Flags | None:
        env = self._at_loop(node.body, scope)
        self.walk_expression(node.test, flags, scope)
        true, false = self._evaluate_test(node.test, scope)
        loop, end = self._walk_loop_body(node.body, flags | true, scope, self._env)
        if is_true(node.test):
            return self._after_loop(None, loop, flags)
        exits = self._walk_inner_block(node.orelse, flags | false, scope, joined_env([env, end.env]))
        return self._after_loop(exits, loop, flags)

    def _walk_for(self, node: ast.For | ast.AsyncFor, flags: Flags, scope: Scope) -> Flags | None:
        env = self._at_loop(node.body, scope)
        items = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else ()
        if items and isinstance(node.target, ast.Name):
            place = self._build_place(scope)
            self._env = {**self._env, node.target.id: tuple(Definition(item, place, flags) for item in items)}
        else:
            self._bind_names(iter_bindings(node), flags, scope)
        loop, end = self._walk_loop_body(node.body, flags, scope, self._env)
        exits = self._walk_inner_block(node.orelse, flags, scope, joined_env([env, end.env]))
        return self._after_loop(exits, loop, flags)

    def _at_loop(self, body: Sequence[ast.stmt], scope: Scope) -> Env:
        """Begin a loop: its names may already have what it gives them."""
        found = bound_in(body, at_the_end=not _has_continue(body))
        self._env = self._widen_env(self._env, found, scope)
        return self._env

    def _walk_loop_body(self, body: Sequence[ast.stmt], flags: Flags, scope: Scope, env: Env) -> tuple[_Loop, _End]:
        self._loops.append(_Loop())
        end = self._walk_inner_block(body, flags, scope, env)
        return self._loops.pop(), end

    def _after_loop(self, exits: _End | None, loop: _Loop, flags: Flags) -> Flags | None:
        """What is known after a loop: it ended by itself, or was left."""
        ways = [*loop.breaks, *([(exits.flags, exits.env)] if exits is not None and exits.flags is not None else ())]
        if not ways:
            return None
        self._env = joined_env([env for _, env in ways])
        learnt = [known - flags for known, _ in ways if known is not None]
        return flags | (merge_alternatives(*learnt) if all(learnt) else NONE)

    def _widen_env(self, env: Env, found: Mapping[str, Sequence[ast.expr | None]], scope: Scope) -> Env:
        """Definitions, with others that may have come in between."""
        more = {
            name: (*env.get(name, ()), *(Definition(value, scope.everywhere) for value in values))
            for name, values in found.items()
            if self._is_followed(name, scope) and ("." not in name or name in env)
        }
        return {**env, **more} if more else env

    def _walk_match(self, node: ast.Match, flags: Flags, scope: Scope) -> Flags | None:
        env, ends, rest, complete = self._env, [], flags, False
        for case in node.cases:
            self._env = env
            true, false, complete = self._evaluate_case(node.subject, case, scope)
            for part in ast.walk(case.pattern):
                self._bind_names(iter_bindings(part), rest, scope)
            if case.guard is not None:
                self.walk_expression(case.guard, rest | true, scope)
                guarded, not_guarded = self._evaluate_test(case.guard, scope)
                true, complete = true | guarded, False
                false = merge_alternatives(false, true | not_guarded) if false else NONE
            ends.append(self._walk_inner_block(case.body, rest | true, scope, self._env))
            rest |= false
        if not complete:
            ends.append(_End(rest, rest, env))
        return self._join_blocks(ends, flags)

    def _evaluate_case(self, subject: ast.expr, case: ast.match_case, scope: Scope) -> tuple[Flags, Flags, bool]:
        """What is known where a pattern fits and where it does not, and whether it fits everything."""
        pattern = case.pattern
        if isinstance(pattern, ast.MatchSingleton):
            value: ast.expr = ast.Constant(pattern.value)
        elif isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
            value = pattern.value
        else:
            return NONE, NONE, isinstance(pattern, ast.MatchAs) and pattern.pattern is None
        true, false = self._evaluate_test(ast.Compare(subject, [ast.Eq()], [value]), scope)
        return true, false, False

    def _walk_try(self, node: ast.stmt, flags: Flags, scope: Scope) -> Flags | None:
        """An exception is the exception: what the body's end knows counts, unless the body itself raises one."""
        body, handlers, orelse, final = (
            getattr(node, name, []) for name in ("body", "handlers", "orelse", "finalbody")
        )
        before, outer, self._raised = self._env, self._raised, False
        end = self._walk_inner_block(body, flags, scope, before)
        raised = self._raised
        if orelse and end.flags is not None:
            end = self._walk_inner_block(orelse, end.flags, scope, end.env)
        begin = self._widen_env(joined_env([before, end.env]), bound_in(body), scope) if handlers or final else before
        caught = []
        for handler in handlers:
            self._env = begin
            if handler.type is not None:
                self.walk_expression(handler.type, flags, scope)
            self._bind_names(iter_bindings(handler), flags, scope)
            caught.append(self._walk_inner_block(handler.body, flags, scope, self._env))
        self._raised = outer or self._raised if handlers else outer or raised
        ends = [item for item in (end, *caught) if item.flags is not None]
        known = end.flags
        if raised and known is not None and len(ends) > 1:
            known = flags
        elif known is None:
            known = self._join_blocks(caught, flags)
        self._env = joined_env([item.env for item in ends]) if ends else begin
        if final and self._walk_inner_block(final, flags, scope, self._env).flags is None:
            return None
        return known

    def _walk_class(self, node: ast.ClassDef, flags: Flags, scope: Scope) -> Flags:
        for expression in (*node.bases, *node.decorator_list):
            self.walk_expression(expression, flags, scope)
        env = self._env
        for item in node.body:
            self.walk_statement(item, flags, scope)
        self._env = env
        self._bind_names([(node.name, None)], flags, scope)
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                self.facts.functions[item.name][-1].is_method = not has_decorator(item, "staticmethod")
        return flags

    def _walk_import(self, node: ast.Import | ast.ImportFrom, flags: Flags, scope: Scope) -> None:
        for name in node.names:
            self._bind_names([(name.asname or name.name.partition(".")[0], None)], flags, scope)
            if name.asname and name.asname != name.name:  # under another name it cannot be followed
                self._record_reference(name.name, Reference([], scope.name))

    def _walk_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, flags: Flags, scope: Scope) -> None:
        for expression in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.walk_expression(expression, flags, scope)
        is_traceable = all(HARMLESS_DECORATORS.search(ast.unparse(item)) for item in node.decorator_list)
        is_traceable = is_traceable and not node.name.startswith("__") and node.name not in CALLED_BY_OTHERS
        found = Function(
            node.lineno, node.end_lineno or node.lineno, _list_parameters(node.args), is_traceable=is_traceable
        )
        self.facts.functions.setdefault(node.name, []).append(found)
        outer = self._env, self._loops, self._raised
        inner = self._names.scopes[node]
        self._env, self._loops = {name: (found,) for name, found in inner.params.items()}, []
        self.walk_block(node.body, flags, inner)
        self._env, self._loops, self._raised = outer

    def _walk_lambda(self, node: ast.Assign, value: ast.Lambda, flags: Flags, scope: Scope) -> None:
        """``log = lambda text: logger.info(text)`` is a function too."""
        self._bind_names(iter_bindings(node), flags, scope)
        name = self._names.scopes[value].name
        if name != scope.name:
            found = Function(value.lineno, value.end_lineno or value.lineno, _list_parameters(value.args))
            self.facts.functions.setdefault(name, []).append(found)
        self.walk_expression(value, flags, scope)

    def _record_return(self, value: ast.expr, flags: Flags, scope: Scope) -> None:
        if scope.name not in self.facts.functions:
            return
        true, false = self._evaluate_test(value, scope)
        function = self.facts.functions[scope.name][-1]
        if not is_off(value):
            function.returns.append(" ".join(sorted(true | (flags if is_on(value) else NONE))))
        if not is_true(value):
            function.denies.append(" ".join(sorted(false | (flags if is_off(value) else NONE))))

    # names

    def _is_followed(self, name: str, scope: Scope) -> bool:
        """False for a name that functions may change behind the reader's back."""
        return name not in scope.shared and name[:1] != "."

    def _bind_names(self, found: Iterable[tuple[str, ast.expr | None]], flags: Flags, scope: Scope) -> None:
        """From here on these names have these values."""
        new: dict[str, tuple[Definition, ...]] = {}
        for name, value in found:
            if self._is_followed(name, scope):
                new[name] = (Definition(value, Place(scope, self._env), flags),)
        if new:
            kept = self._env
            if any("." in name for name in kept):
                kept = {name: value for name, value in kept.items() if name.partition(".")[0] not in new}
            self._env = {**kept, **new}

    def _forget_attributes(self, base: str) -> None:
        """A method of an object was called: it may have changed what its attributes are."""
        lead = f"{base}."
        if any(name.startswith(lead) for name in self._env):
            self._env = {name: value for name, value in self._env.items() if not name.startswith(lead)}

    def _record_line_flags(self, first: int, last: int, flags: Flags) -> None:
        for line in range(first, last + 1):
            if flags:
                self.facts.lines[line] = sorted(flags)
            else:
                self.facts.lines.pop(line, None)

    # expressions

    def walk_expression(self, node: ast.AST, flags: Flags, scope: Scope, in_log: bool = False) -> None:
        """Note who is referred to and what is logged; parts of an expression may have guards of their own."""
        if isinstance(node, ast.BoolOp):
            known = flags
            for part in node.values:
                self.walk_expression(part, known, scope, in_log)
                known = known | self._evaluate_test(part, scope)[0 if isinstance(node.op, ast.And) else 1]
        elif isinstance(node, ast.IfExp):
            true, false = self._evaluate_test(node.test, scope)
            self.walk_expression(node.test, flags, scope, in_log)
            self.walk_expression(node.body, flags | true, scope, in_log)
            self.walk_expression(node.orelse, flags | false, scope, in_log)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            env = self._env
            for loop in node.generators:
                self._bind_names(((name, None) for name in _names_in(loop.target)), flags, scope)
            known = flags.union(*(self._evaluate_test(test, scope)[0] for loop in node.generators for test in loop.ifs))
            for child in ast.iter_child_nodes(node):
                self.walk_expression(child, flags if isinstance(child, ast.comprehension) else known, scope, in_log)
            self._env = env
        elif isinstance(node, ast.Call):
            self._walk_call(node, flags, scope, in_log)
        else:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._record_reference(name_of(node), Reference(sorted(flags), scope.name))
            if isinstance(node, ast.Lambda):
                env, inner = self._env, self._names.scopes[node]
                self._bind_names(((name, None) for name in inner.params), flags, scope)
                for child in ast.iter_child_nodes(node):
                    self.walk_expression(child, flags, inner, in_log)
                self._env = env
                return
            for child in ast.iter_child_nodes(node):
                self.walk_expression(child, flags, scope, in_log)
            if isinstance(node, ast.NamedExpr):
                self._bind_names(iter_bindings(node), flags, scope)

    def _walk_call(self, node: ast.Call, flags: Flags, scope: Scope, in_log: bool) -> None:
        name = name_of(node.func)
        if name == "getattr" and len(node.args) > 1 and text_of(node.args[1]):
            self._record_reference(text_of(node.args[1]) or "", Reference([], scope.name))
        given: dict[str, list[str]] = {}
        for place, value in [*enumerate(node.args), *((key.arg, key.value) for key in node.keywords)]:
            found = self._evaluate_test(value, scope)[0]
            if found:
                given[str(place)] = sorted(found)
        self._record_reference(name, Reference(sorted(flags), scope.name, given, len(node.args)))
        said = None if in_log else self._messages.resolve_log_call(node, self._build_place(scope))
        first, last = node.lineno, node.end_lineno or node.lineno
        if said is not None:
            self._record_line_flags(first, last, flags)
            for shape, more in self._messages.shapes_of(said, self._build_place(scope)):
                found_call = LogCall(
                    first, last, list(shape), sorted(flags | more), scope.name, printed=said.is_printed
                )
                self.facts.calls.append(found_call)
            self._passes_on(said, first, scope)
        elif not in_log and node.args and name and name not in LOG_METHODS:
            here = self._build_place(scope)
            texts = [self._messages.build_shape(item, here) for item in node.args]
            texts = [parse_percent_format(shape[0]) if len(shape) == 1 < len(texts) else shape for shape in texts]
            if any(shape != GAP for shape in texts):  # it may pass its message on: `link` knows
                given_texts = [list(shape) for shape in texts]
                self.facts.calls.append(LogCall(first, last, [], sorted(flags), scope.name, name, given_texts))
        children = [*node.args, *(key.value for key in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            children.append(node.func.value)
        elif not isinstance(node.func, ast.Name):
            children.append(node.func)
        for child in children:
            self.walk_expression(child, flags, scope, in_log or said is not None)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and said is None:
            self._forget_attributes(node.func.value.id)

    def _passes_on(self, said: Said, line: int, scope: Scope) -> None:
        """Note a function whose message, or the end of it, is what it was given."""
        owner = self.facts.functions.get(scope.name, [])
        if not owner:
            return
        params = owner[-1].params
        last, printed = said.message, int(said.name in PRINTS)
        if printed and isinstance(said.args[-1], ast.Starred):
            last = said.args[-1]
        if isinstance(last, ast.Starred):
            name = f"*{name_of(last.value)}"
            if name in params:
                self.facts.wrappers[scope.name] = [
                    params.index(name),
                    line,
                    int(last is not said.message),
                    printed,
                    printed,
                ]
            return
        if isinstance(said.message, ast.JoinedStr) and isinstance(said.message.values[-1], ast.FormattedValue):
            last = said.message.values[-1].value
        named = isinstance(last, ast.Name) and (last is said.message or last.id in MESSAGE_NAMES)
        if isinstance(last, ast.Name) and named and last.id in set(params) - scope.definitions.keys():
            self.facts.wrappers[scope.name] = [
                params.index(last.id),
                line,
                int(last is not said.message),
                0,
                int(said.is_printed),
            ]

    def _record_reference(self, name: str, reference: Reference) -> None:
        if not name:
            return
        mark = f"{name} {reference}"
        if mark not in self._met:
            self._met.add(mark)
            self.facts.references.setdefault(name, []).append(reference)


def _list_parameters(found: ast.arguments) -> list[str]:
    """Names of parameters by place; one that takes all the rest has its star."""
    rest = [f"*{found.vararg.arg}"] if found.vararg is not None else []
    return [*(item.arg for item in (*found.posonlyargs, *found.args)), *rest, *(item.arg for item in found.kwonlyargs)]


def _names_in(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _has_continue(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Continue) for statement in body for node in walk_statements(statement))
