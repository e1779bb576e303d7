"""What the names in a file stand for at a place: scopes, definitions, attributes, dotted paths.

A name that is assigned several times means what it was last given on the way to the place (reaching definitions). Where
that way is not known, in a function that reads a name of the module, it may mean any of its definitions.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tdbg.logs.guards.flagsets import NONE, Flags, Pair
from tdbg.logs.guards.shapes import Shape
from tdbg.logs.guards.syntax import text_of, walk_statements

MAX_OPEN = 40  # how far a name is followed from definition to definition


class Scope:
    """The names of a function (or the module): every definition of each, and which are parameters."""

    def __init__(self, owner: ast.AST, parent: "Scope | None", name: str, class_name: str = "") -> None:
        self.parent = parent
        self.name = name
        self.class_name: str = class_name or (parent.class_name if parent is not None else "")
        self.definitions: dict[str, list[Definition]] = {}
        self.params: dict[str, Definition] = {}
        self.outer: dict[str, Scope] = {}  # names that a function declares global or nonlocal
        self.shared: set[str] = set()  # names that an inner function assigns
        self.everywhere = Place(self, None)
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found = owner.args
            every = [*found.posonlyargs, *found.args]
            defaults = [*[None] * (len(every) - len(found.defaults)), *found.defaults, *found.kw_defaults]
            for item, value in zip([*every, *found.kwonlyargs], defaults, strict=True):
                self.params[item.arg] = Definition(value, self.everywhere, param=f"@{name}:{item.arg}")

    def find_scope(self, name: str) -> "Scope | None":
        """The scope that knows the name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.definitions and name not in scope.params:
            scope = scope.parent
        return scope


class Definition:
    """What a name was given at one place. value: None if that cannot be said, of a parameter its default.

    The rest remembers what was looked up.
    """

    __slots__ = ("callee", "flags", "open", "pair", "param", "path", "place", "shape", "value")

    def __init__(self, value: ast.expr | None, place: "Place", flags: Flags = NONE, *, param: str = "") -> None:
        self.value, self.place, self.flags = value, place, flags
        self.param = param  # of a parameter: what stands for the flags that callers give it
        self.open = False  # being looked up: a name may lead back to itself
        self.pair: Pair | None = None
        self.path: list[str] | None = None
        self.shape: Shape | None = None
        self.callee: object = self  # itself: not looked up yet


Env = Mapping[str, tuple[Definition, ...]]  # the definitions of local names, and of `self.name`, that reach a place


class Place(NamedTuple):
    """Where a name is read: in which scope, and what reaches it there; None: no particular place of the scope."""

    scope: Scope
    env: Env | None


def joined_env(envs: Sequence[Env]) -> Env:
    """What reaches a place to which several ways lead."""
    first = envs[0]
    for other in envs[1:]:
        if other is first:
            continue
        found: dict[str, tuple[Definition, ...]] = {}
        for name in {**first, **other}:
            one, two = first.get(name), other.get(name)
            if one is None or two is None:
                if "." not in name:  # an attribute that one way leaves alone may be anything
                    found[name] = one or two or ()
            else:
                found[name] = one if one is two else tuple(dict.fromkeys((*one, *two)))
        first = found
    return first


class Names:
    """Every definition of a module, by scope, and those of attributes by class and name."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: dict[ast.AST, Scope] = {}
        self.attributes: dict[tuple[str, str], list[Definition]] = {}  # by class, and under "" of any class
        self.functions: set[str] = set()
        self.top = Scope(tree, None, "")
        self._depth = 0
        self._collect_definitions(tree, self.top, "")

    def _collect_definitions(self, owner: ast.AST, scope: Scope, in_class: str) -> None:
        self.scopes[owner] = scope
        waiting = list(ast.iter_child_nodes(owner))
        named: dict[ast.AST, str] = {}
        functions: list[
            ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ] = []  # after all that is assigned around them
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                functions.append(node)
                continue
            if isinstance(node, ast.ClassDef):
                self._collect_definitions(node, scope, node.name)
                continue
            if isinstance(node, ast.Global | ast.Nonlocal):
                self._declare_outer_names(node, scope)
            for name, value in iter_bindings(node):
                if isinstance(value, ast.Lambda):
                    named[value] = name
                self._record_definition(name, Definition(value, scope.everywhere), scope, in_class)
            waiting.extend(ast.iter_child_nodes(node))
        for function in functions:
            name = getattr(function, "name", None) or named.get(function, scope.name)
            self.functions.add(name)
            self._collect_definitions(function, Scope(function, scope, name, in_class), "")

    def _declare_outer_names(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            home: Scope | None = self.top if isinstance(node, ast.Global) else scope.parent
            while home is not self.top and home is not None and not (name in home.definitions or name in home.params):
                home = home.parent
            home = home or self.top
            home.shared.add(name)
            home.definitions.setdefault(name, []).extend(scope.definitions.pop(name, ()))
            scope.outer[name] = home

    def _record_definition(self, name: str, found: Definition, scope: Scope, in_class: str) -> None:
        base, dot, attribute = name.partition(".")
        if dot or in_class:
            owner = in_class or (scope.class_name if base in ("self", "cls") else base)
            for key in {"", owner}:
                self.attributes.setdefault((key, attribute if dot else name), []).append(found)
        else:
            scope.outer.get(name, scope).definitions.setdefault(name, []).append(found)

    def find_definitions(self, node: ast.AST, place: Place) -> tuple[Sequence[Definition], bool]:
        """The definitions that a name or an attribute may have at a place; whether they are all that reach it."""
        if isinstance(node, ast.Name):
            if place.env is not None and node.id in place.env:
                return place.env[node.id], True
            home = place.scope.find_scope(node.id)
            if home is None:
                return (), False
            found = home.definitions.get(node.id, ())
            if node.id in home.params:
                return (home.params[node.id], *found), False
            return found, False
        if isinstance(node, ast.Attribute):
            base = node.value.id if isinstance(node.value, ast.Name) else ""
            if place.env is not None and base and f"{base}.{node.attr}" in place.env:
                return place.env[f"{base}.{node.attr}"], True
            owner = place.scope.class_name if base in ("self", "cls") else base
            known = self.attributes.get((owner, node.attr)) or self.attributes.get(("", node.attr))
            return known or (), False
        return (), False

    def find_single_definition(self, node: ast.AST, place: Place) -> Definition | None:
        """The one definition of a name or an attribute, if there is but one and it says something."""
        found, _ = self.find_definitions(node, place)
        return found[0] if len(found) == 1 and found[0].value is not None and not found[0].param else None

    def resolve_text(self, node: ast.AST, place: Place) -> str | None:
        """A text constant, itself or by its name."""
        found = text_of(node)
        for _ in range(MAX_OPEN):
            known = self.find_single_definition(node, place) if found is None else None
            if known is None or known.value is None:
                return found
            node, place = known.value, known.place
            found = text_of(node)
        return None

    def resolve_path(self, node: ast.AST, place: Place) -> list[str]:
        """``a.b["c"].get("d")`` as its words; empty for anything else."""
        words: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                words.append(node.attr)
                if self._stands_for_debug(node, place, words):
                    return words[::-1]
                node = node.value
            elif isinstance(node, ast.Subscript):
                text = self.resolve_text(node.slice, place)
                if text is None:
                    return []
                words += reversed(text.split("."))
                node = node.value
            elif isinstance(node, ast.Call):
                func = node.func
                if isinstance(func, ast.Attribute) and func.attr == "get" and node.args:
                    key, node = node.args[0], func.value
                elif isinstance(func, ast.Name) and func.id == "getattr" and len(node.args) > 1:
                    node, key = node.args[:2]
                else:
                    return []
                text = self.resolve_text(key, place)
                if text is None or not all(part.isidentifier() for part in text.split(".")):
                    return []
                words += reversed(text.split("."))
            elif isinstance(node, ast.Name):
                if not self._stands_for_debug(node, place, words):
                    words.append(node.id)
                return words[::-1]
            else:
                return []

    def _stands_for_debug(self, node: ast.Name | ast.Attribute, place: Place, words: list[str]) -> bool:
        """Replace a name by the path it stands for, where that is one of flags: ``D = cfg.DEBUG``."""
        known = self.find_single_definition(node, place)
        if known is None or known.open or self._depth > MAX_OPEN:
            return False
        if known.path is None:
            known.open = True
            self._depth += 1
            known.path = self.resolve_path(known.value, known.place) if known.value is not None else []
            self._depth -= 1
            known.open = False
        if not any(word.upper() == "DEBUG" for word in known.path):
            return False
        if isinstance(node, ast.Attribute):
            words.pop()
        words += reversed(known.path)
        return True


def iter_bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names and attributes that a node itself gives a value, and the value where it can be said."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _iter_target_bindings(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
        if node.value is not None:
            yield from _iter_target_bindings(node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        for name, _ in _iter_target_bindings(node.target, None):
            left = ast.copy_location(_copy_as_load(node.target), node)
            yield name, ast.copy_location(ast.BinOp(left, node.op, node.value), node)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _iter_target_bindings(node.target, None)
    elif isinstance(node, ast.withitem):
        if node.optional_vars is not None:
            yield from _iter_target_bindings(node.optional_vars, None)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        if node.name:
            yield node.name, None
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _iter_target_bindings(target, None)


def _copy_as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    return target


def _iter_target_bindings(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Attribute):
        base = target.value.id if isinstance(target.value, ast.Name) else ""
        yield f"{base}.{target.attr}", value
    elif isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        fits = len(values) == len(target.elts)
        for place, item in enumerate(target.elts):
            yield from _iter_target_bindings(item, values[place] if fits else None)
    elif isinstance(target, ast.Starred):
        yield from _iter_target_bindings(target.value, None)


def bound_in(body: Sequence[ast.stmt], *, at_the_end: bool = False) -> dict[str, list[ast.expr | None]]:
    """What the statements of a block may give to which names. at_the_end: without what the block surely replaces."""
    found: dict[str, list[ast.expr | None]] = {}
    for statement in body:
        replaces = at_the_end and isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in walk_statements(statement):
            for name, value in iter_bindings(node):
                if replaces:
                    found[name] = [value]
                else:
                    found.setdefault(name, []).append(value)
    return found
