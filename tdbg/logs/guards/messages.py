"""What a log call says: which of its arguments is the message, and the constant parts of it."""

import ast

from tdbg.flags import tag
from tdbg.logs.guards.flagsets import flag_name
from tdbg.logs.guards.names import Names, Scope
from tdbg.logs.guards.shapes import GAP, Shape, braces, joined, percent
from tdbg.logs.guards.syntax import name_of, text_of

LOG_METHODS = {
    "_log", "debug", "stats", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "trace",
}  # fmt: skip


class Messages:
    """Finds messages, and puts their texts together from constants and from names that stand for one."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def shape_of(self, node: ast.Call, message: ast.expr, scope: Scope) -> Shape:
        """The constant parts of what a call that prints or logs this message says."""
        name = name_of(node.func)
        if name in LOG_METHODS and node.args and message is not node.args[-1]:
            return self._logged(node, message, scope)
        if name == "print":
            shape = joined(*(part for item in node.args for part in ((" ",), self.shape(item, scope))))
            return (shape[0][1:], *shape[1:])
        return self.shape(message, scope)

    def of(self, node: ast.Call) -> ast.expr | None:
        """The message of a call that logs or prints; None for other calls."""
        name = name_of(node.func)
        if isinstance(node.func, ast.Name):
            return node.args[0] if name in ("print", "pprint") and node.args else None
        if not isinstance(node.func, ast.Attribute) or name not in LOG_METHODS | {"write"} or not node.args:
            return None
        owner = name_of(node.func.value) or (
            name_of(node.func.value.func) if isinstance(node.func.value, ast.Call) else ""
        )
        if name == "write":
            return node.args[0] if owner in ("stdout", "tqdm") else None
        if name in ("log", "_log"):
            is_logger = name == "_log" or "log" in owner.lower()
            return node.args[1] if is_logger and len(node.args) > 1 else None
        return node.args[0]

    def _logged(self, node: ast.Call, message: ast.expr, scope: Scope) -> Shape:
        """`logging` fills ``%s`` where there are arguments; where they are constant, so is the text."""
        text = text_of(message)
        if text is None:
            return self.shape(message, scope)
        parts = percent(text)
        values = node.args[node.args.index(message) + 1 :]
        if len(values) != len(parts) - 1:
            return parts
        return joined(
            (parts[0],), *(x for v, p in zip(values, parts[1:], strict=True) for x in (self.shape(v, scope), (p,)))
        )

    def shape(self, node: ast.expr, scope: Scope) -> Shape:
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
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and text_of(node.left) is not None:
            return percent(text_of(node.left) or "")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            text = text_of(node.func.value)
            return GAP if text is None else braces(text)
        if isinstance(node, ast.Call) and name_of(node.func) == "tag" and node.args and text_of(node.args[0]):
            return (tag(flag_name(text_of(node.args[0]) or ""), *filter(None, map(text_of, node.args[1:2]))),)
        values: list[ast.expr | None] = []
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            values = home.assigned.get(node.id, []) if home else []
        elif isinstance(node, ast.Attribute):
            values = [value for value, _ in self._names.attributes.get(node.attr, [])]
        text = text_of(values[0]) if len(values) == 1 and values[0] is not None else None
        return GAP if text is None else (text,)
