"""What a test says of flags: which are on where it is true, and where it is false."""

import ast
import operator
from collections.abc import Callable, Sequence

from tdbg.logs.guards.flagsets import NONE, Flags, Pair, flag_name, flag_of, merge_alternatives
from tdbg.logs.guards.names import Definition, Names, Place
from tdbg.logs.guards.syntax import is_off, is_on, name_of

UNKNOWN: Pair = (NONE, NONE)
COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], object]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Asking:
    """Knows the flags that an expression asks for, itself or by the names in it. checkers: functions that are asked by name."""

    def __init__(self, names: Names, checkers: Sequence[str]) -> None:
        self.flags: set[str] = set()  # every flag that was asked for so far
        self._names = names
        self._checkers = frozenset(checkers)

    def evaluate_test(self, node: ast.expr, place: Place) -> Pair:
        """What an expression says of flags where it is true, and where it is false."""
        if isinstance(node, ast.Constant):
            return UNKNOWN
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            true, false = self.evaluate_test(node.operand, place)
            return false, true
        if isinstance(node, ast.BoolOp):
            return self._evaluate_operands(isinstance(node.op, ast.And), node.values, place)
        if isinstance(node, ast.BinOp):  # dbg |= cfg.DEBUG.X
            if not isinstance(node.op, ast.BitAnd | ast.BitOr):
                return UNKNOWN
            return self._evaluate_operands(isinstance(node.op, ast.BitAnd), (node.left, node.right), place)
        if isinstance(node, ast.NamedExpr):
            return self.evaluate_test(node.value, place)
        if isinstance(node, ast.IfExp):
            return self._either_value(node, place)
        if isinstance(node, ast.Compare):
            return self._evaluate_comparison(node, place) if len(node.ops) == 1 else UNKNOWN
        return self._evaluate_leaf(node, place)

    def _evaluate_operands(self, is_and: bool, parts: Sequence[ast.expr], place: Place) -> Pair:
        if not is_and:
            parts = [part for part in parts if not self._is_never_on(part, place)]
        return self._join_pairs(is_and, [self.evaluate_test(part, place) for part in parts])

    def _is_never_on(self, node: ast.expr, place: Place) -> bool:
        """True for ``False``, and for a name that has it there."""
        if not isinstance(node, ast.Name):
            return is_off(node)
        found, exact = self._names.find_definitions(node, place)
        return exact and all(one.value is not None and not one.param and is_off(one.value) for one in found)

    @staticmethod
    def _join_pairs(is_and: bool, pairs: Sequence[Pair]) -> Pair:
        trues, falses = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return (
            (NONE.union(*trues), merge_alternatives(*falses))
            if is_and
            else (merge_alternatives(*trues), NONE.union(*falses))
        )

    def _either_value(self, node: ast.IfExp, place: Place) -> Pair:
        known = self.evaluate_test(node.test, place)
        trues, falses = [], []
        for value, reached in zip((node.body, node.orelse), known, strict=True):
            true, false = self.evaluate_test(value, place)
            if not is_off(value):
                trues.append(reached | true)
            if not (isinstance(value, ast.Constant) and value.value):
                falses.append(reached | false)
        return merge_alternatives(*trues), merge_alternatives(*falses)

    def _evaluate_comparison(self, node: ast.Compare, place: Place) -> Pair:
        left, op, right = node.left, node.ops[0], node.comparators[0]
        if isinstance(op, ast.In | ast.NotIn):
            path = self._names.resolve_path(right, place)
            text = self._names.resolve_text(left, place) if path else None
            true = self._record_flags(flag_of([*path, text])) if text else NONE
            return (true, NONE) if isinstance(op, ast.In) else (NONE, true)
        if isinstance(left, ast.Constant):
            left, right = right, left
            op = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}.get(type(op), type(op))()
        off, on = is_off(right), is_on(right)

        def derive_outcome(true: Flags, false: Flags) -> Pair:
            """What the comparison says, from what the value itself says as a condition."""
            if isinstance(op, ast.Eq | ast.Is):
                return (false, true) if off else (true, false if on else NONE)
            if isinstance(op, ast.NotEq | ast.IsNot):
                return (true, false) if off else (false if on else NONE, true)
            return true, NONE

        if isinstance(left, ast.Name | ast.Attribute) and isinstance(right, ast.Constant):
            found, exact = self._names.find_definitions(left, place)
            if found and not flag_of(self._names.resolve_path(left, place)):
                return self._of_definitions(
                    found, exact, lambda value: _compare_constants(value, op, right.value), derive_outcome
                )
        return derive_outcome(*self.evaluate_test(left, place))

    def _evaluate_leaf(self, node: ast.expr, place: Place) -> Pair:
        """The flags that a value stands for: asked directly, by another name, or by a function."""
        if isinstance(node, ast.Call):
            return self._evaluate_call(node, place)
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return UNKNOWN
        found_flag = flag_of(self._names.resolve_path(node, place))
        if found_flag:
            return self._record_flags(found_flag), NONE
        definitions, exact = self._names.find_definitions(node, place)
        if definitions:
            return self._of_definitions(definitions, exact, bool, lambda true, false: (true, false))
        if isinstance(node, ast.Attribute):
            return frozenset({f"@{node.attr}()"}), NONE  # perhaps a property
        return UNKNOWN

    def _evaluate_call(self, node: ast.Call, place: Place) -> Pair:
        name = name_of(node.func)
        is_tdbg = name == "flag" and (isinstance(node.func, ast.Name) or name_of(node.func.value) == "tdbg")  # type: ignore[attr-defined]
        if name in self._checkers or name.endswith("debug_flag") or is_tdbg:
            given = (*node.args, *(key.value for key in node.keywords))
            text = next(filter(None, (self._names.resolve_text(item, place) for item in given)), None)
            if text:
                return self._record_flags(frozenset({flag_name(text)})), NONE
        if name in ("bool", "int", "any", "all") and len(node.args) == 1:
            return self._join_pairs(name == "all", self._evaluate_items(node.args[0], place))
        found_flag = flag_of(self._names.resolve_path(node, place))
        if found_flag:
            return self._record_flags(found_flag), NONE
        if not name:
            return UNKNOWN
        return frozenset({f"@{name}()"}), frozenset({f"@!{name}()"} if name in self._names.functions else ())

    def _evaluate_items(self, node: ast.expr, place: Place) -> list[Pair]:
        """What each of several values says: of a list, or of an expression that goes through one."""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return [self.evaluate_test(item, place) for item in node.elts]
        if isinstance(node, ast.GeneratorExp | ast.ListComp) and len(node.generators) == 1:
            loop = node.generators[0]
            known = self._names.find_single_definition(loop.iter, place)
            items = loop.iter if known is None or known.value is None else known.value
            if isinstance(items, ast.Tuple | ast.List | ast.Set) and isinstance(loop.target, ast.Name) and not loop.ifs:
                within = [
                    Place(place.scope, {**(place.env or {}), loop.target.id: (Definition(item, place),)})
                    for item in items.elts
                ]
                return [self.evaluate_test(node.elt, each) for each in within]
        return [self.evaluate_test(node, place)]

    def _record_flags(self, found: Flags) -> Flags:
        self.flags |= found
        return found

    def _of_definitions(
        self,
        found: Sequence[Definition],
        exact: bool,
        decided: Callable[[object], bool | None],
        outcome: Callable[[Flags, Flags], Pair],
    ) -> Pair:
        """What a variable says that was given one of these values; ``dbg = False`` to begin with says nothing.

        exact: one of them it was; otherwise there may be others, and all have to say something.
        decided: what the test makes of a constant. outcome: what it makes of any other value.
        """
        trues: list[Pair] = []  # what the value says, and what is known where it is given
        falses: list[Pair] = []
        for one in found:
            if not one.param and isinstance(one.value, ast.Constant):
                result = decided(one.value.value)
                if result is not False:
                    trues.append((NONE, one.flags))
                if result is not True:
                    falses.append((NONE, one.flags))
            else:
                true, false = outcome(*self.pair_of(one))
                trues.append((true, one.flags))
                falses.append((false, one.flags))
        return _of_sides(trues, exact), _of_sides(falses, exact)

    def pair_of(self, found: Definition) -> Pair:
        """What the value of a definition says as a condition."""
        if found.param:
            return frozenset({found.param}), NONE
        if found.pair is None:
            if found.value is None or found.open:
                return UNKNOWN
            found.open = True
            found.pair = self.evaluate_test(found.value, found.place)
            found.open = False
        return found.pair


def _of_sides(sides: Sequence[Pair], exact: bool) -> Flags:
    """What all the values of a variable say; where a value is given counts only if that tells them all from others."""
    whole = [said | where for said, where in sides]
    if all(whole):
        return merge_alternatives(*whole)
    return merge_alternatives(*(said for said, _ in sides)) if exact else NONE


def _compare_constants(value: object, op: ast.cmpop, other: object) -> bool | None:
    """The outcome of a comparison of two constants; None if it has none."""
    compare = COMPARISONS.get(type(op))
    if compare is not None:
        return bool(compare(value, other))
    order = ORDER.get(type(op))
    if order is None or not isinstance(value, int | float) or not isinstance(other, int | float):
        return None
    return order(value, other)
