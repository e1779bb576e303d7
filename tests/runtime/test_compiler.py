"""What is traced into a compiled region asks first whether it is: what it reads before becomes a guard of the region."""

import ast
from collections.abc import Iterator
from pathlib import Path

import tdbg

ROOT = Path(tdbg.__file__).parent


def asks_compiler(node: ast.AST) -> bool:
    """True for ``is_compiling()`` itself, or its negation."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "is_compiling"


def list_late_questions(tree: ast.AST) -> Iterator[int]:
    """The lines of conditions that read something else before they ask."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp):
            asking = [any(asks_compiler(one) for one in ast.walk(value)) for value in node.values]
            if any(asking) and not asks_compiler(node.values[0]):
                yield node.lineno


def test_a_late_question_is_seen() -> None:
    source = "if on and not torch.compiler.is_compiling(): pass\nif is_compiling() or off: pass\nif a and (is_compiling() or b): pass"
    assert list(list_late_questions(ast.parse(source))) == [1, 3]


def test_every_condition_asks_the_compiler_first() -> None:
    late = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        for line in list_late_questions(ast.parse(path.read_text(encoding="utf-8")))
        if path.relative_to(ROOT).parts[0] != "api"  # looks for torch before it can ask
    ]
    assert late == []
