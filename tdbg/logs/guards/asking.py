"""What a test says of flags: which are on where it is true, and where it is false."""

import ast
from collections.abc import Sequence

from tdbg.logs.guards.flagsets import NONE, Flags, Pair, either, flag_name, flag_of
from tdbg.logs.guards.names import Names, Scope
from tdbg.logs.guards.syntax import is_off, name_of, text_of


class Asking:
    """Knows the flags that an expression asks for, itself or by the names in it. checkers: functions that are asked by name."""

    def __init__(self, names: Names, checkers: Sequence[str]) -> None:
        self.flags: set[str] = set()  # every flag that was asked for so far
        self._names = names
        self._checkers = frozenset(checkers)
        self._aliases: dict[tuple[Scope | None, str], Flags] = {}

    def test(self, node: ast.expr, scope: Scope) -> Pair:
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
            if is_off(node.orelse):
                return true | body, NONE
            return either(true | body, false | other), NONE
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node, scope)
        return self._asked(node, scope), NONE

    def _compare(self, node: ast.Compare, scope: Scope) -> Pair:
        left, op, right = node.left, node.ops[0], node.comparators[0]
        if isinstance(op, ast.In):
            path = self._names.path(right, scope)
            text = text_of(left)
            return (flag_of([*path, text]) if path and text else NONE), NONE
        if isinstance(left, ast.Constant):
            left, right = right, left
        true, false = self.test(left, scope)
        off = is_off(right)
        if isinstance(op, ast.Eq | ast.Is):
            return (false, true) if off else (true, NONE)
        if isinstance(op, ast.NotEq | ast.IsNot):
            return (true, false) if off else (false, true)
        return true, NONE

    def _asked(self, node: ast.expr, scope: Scope) -> Flags:
        """The flags that a value stands for: asked directly, by another name, or by a function."""
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            words = [item for item in (*node.args, *(key.value for key in node.keywords)) if text_of(item)]
            is_tdbg = name == "flag" and (isinstance(node.func, ast.Name) or name_of(node.func.value) == "tdbg")  # type: ignore[attr-defined]
            if words and (name in self._checkers or name.endswith("debug_flag") or is_tdbg):
                return self._ask(frozenset({flag_name(text_of(words[0]) or "")}))
            if name in ("bool", "int", "any", "all") and len(node.args) == 1:
                inner = node.args[0]
                sides = inner.elts if isinstance(inner, ast.Tuple | ast.List) else [inner]
                found = [self.test(side, scope)[0] for side in sides]
                return NONE.union(*found) if name == "all" else either(*found)
        found_flag = flag_of(self._names.path(node, scope))
        if found_flag:
            return self._ask(found_flag)
        if isinstance(node, ast.Call):
            return frozenset({f"@{name_of(node.func)}()"}) if name_of(node.func) else NONE
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            if home is None:
                return NONE
            if node.id not in home.assigned:
                return frozenset({f"@{home.name}:{node.id}"})
            return self._alias((home, node.id), [(value, home) for value in home.assigned[node.id]])
        if isinstance(node, ast.Attribute):
            if node.attr in self._names.attributes:
                return self._alias((None, node.attr), self._names.attributes[node.attr])
            return frozenset({f"@{node.attr}()"})  # perhaps a property
        return NONE

    def _ask(self, found: Flags) -> Flags:
        self.flags |= found
        return found

    def _alias(self, key: tuple[Scope | None, str], values: Sequence[tuple[ast.expr | None, Scope]]) -> Flags:
        """What all values of a variable stand for; ``dbg = False`` to begin with says nothing."""
        if key not in self._aliases:
            self._aliases[key] = NONE  # while it is looked up: an alias may lead back to itself
            sides = []
            if not any(value is None for value, _ in values):
                sides = [self.test(value, scope)[0] for value, scope in values if value and not is_off(value)]
            self._aliases[key] = either(*sides) if sides and all(sides) else NONE
        return self._aliases[key]
