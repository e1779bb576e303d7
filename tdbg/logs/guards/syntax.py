"""Questions about single nodes of a syntax tree."""

import ast
from collections.abc import Iterator, Sequence

ENDS = {"sys.exit", "exit", "quit", "os._exit", "os.abort"}


def name_of(node: ast.AST) -> str:
    """The last word of a name or an attribute."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def text_of(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def is_off(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def is_on(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def is_true(node: ast.expr) -> bool:
    """True for a constant that always counts as true."""
    return isinstance(node, ast.Constant) and bool(node.value)


def has_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    return any(name_of(item) == decorator for item in node.decorator_list)


def first_line(body: Sequence[ast.AST]) -> int:
    lines = [item.lineno for item in body if hasattr(item, "lineno")]
    lines += [item.pattern.lineno for item in body if isinstance(item, ast.match_case)]
    return min(lines, default=0)


def walk_statements(statement: ast.AST) -> Iterator[ast.AST]:
    """A statement with all those in it and what they bind names by, but not those of functions and classes in it."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "handlers", "finalbody", "cases", "items"):
            waiting += getattr(node, name, ())


def ends_program(node: ast.stmt) -> bool:
    """True for a call that never returns, such as ``sys.exit()``."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    func = node.value.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return f"{func.value.id}.{func.attr}" in ENDS
    return isinstance(func, ast.Name) and func.id in ENDS
