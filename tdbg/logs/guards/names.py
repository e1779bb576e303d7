"""What the names in a file stand for: scopes, assignments, attributes, dotted paths."""

import ast

from tdbg.logs.guards.syntax import name_of, text_of


class Scope:
    """The names of a function (or the module): what is assigned to them, and which are parameters."""

    def __init__(self, owner: ast.AST, parent: "Scope | None", name: str) -> None:
        self.parent = parent
        self.name = name
        self.assigned: dict[str, list[ast.expr | None]] = {}
        self.params: set[str] = set()
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = owner.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            self.params = {item.arg for item in every}

    def find(self, name: str) -> "Scope | None":
        """The scope that knows the name."""
        scope: Scope | None = self
        while scope is not None and name not in scope.assigned and name not in scope.params:
            scope = scope.parent
        return scope


class Names:
    """Every assignment of a module, by scope, and those to attributes by name alone."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: dict[ast.AST, Scope] = {}
        self.attributes: dict[str, list[tuple[ast.expr | None, Scope]]] = {}
        self.top = Scope(tree, None, "")
        self._open: set[int] = set()  # paths being looked up
        self._collect(tree, self.top)

    def _collect(self, owner: ast.AST, scope: Scope) -> None:
        self.scopes[owner] = scope
        in_class = isinstance(owner, ast.ClassDef)
        waiting = list(ast.iter_child_nodes(owner))
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                name = getattr(node, "name", scope.name)
                self._collect(node, Scope(node, scope, name))
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

    def _assign(self, target: ast.expr, value: ast.expr | None, scope: Scope, in_class: bool) -> None:
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

    def path(self, node: ast.AST, scope: Scope) -> list[str]:
        """``a.b["c"].get("d")`` as its words; empty for anything else."""
        words: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                words.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript):
                text = text_of(node.slice)
                if text is None:
                    return []
                words += reversed(text.split("."))
                node = node.value
            elif isinstance(node, ast.Call):
                name, text = name_of(node.func), next(filter(None, map(text_of, node.args)), None)
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
