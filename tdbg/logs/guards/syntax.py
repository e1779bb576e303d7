"""Questions about single nodes of a syntax tree."""

import ast
from collections.abc import Sequence


def name_of(node: ast.AST) -> str:
    """The last word of a name or an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def text_of(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_off(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def is_on(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def has_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(name_of(item) == decorator for item in node.decorator_list)


def first_line(body: Sequence[ast.AST]) -> int:
    lines = [item.lineno for item in body if hasattr(item, "lineno")]
    lines += [item.pattern.lineno for item in body if isinstance(item, ast.match_case)]
    return min(lines, default=0)


def leaves(body: Sequence[ast.stmt]) -> bool:
    """True if a block never reaches its end."""
    end = body[-1]
    if isinstance(end, ast.Expr) and isinstance(end.value, ast.Call):
        return ast.unparse(end.value.func) in ("sys.exit", "exit", "os._exit")
    return isinstance(end, ast.Return | ast.Raise | ast.Continue | ast.Break)
