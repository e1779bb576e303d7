"""What tdbg can say: the texts of its sources by `ast`, and the help of its commands, each with its place.

For a reader who checks that all of them are in plain English. A value in a text stands as ``{value}``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tdbg

KINDS = {
    "finding": "titles, evidence, causes and advice of findings",
    "observation": "lines of probes in the debug log",
    "field": "what a field of an event or an observation holds",
    "note": "notes of a rank, as the verdict repeats them",
    "error": "what a command or a call of the API refuses, and what to do about it",
    "warning": "what is said on stderr, logged or warned of, while things go on",
    "help": "pages, options and arguments of the command line, and debug flags",
    "output": "what commands print",
    "text": "any other words in the code: parts of the above, tables and headings",
}
FINDING_CALLS = re.compile(r"(^|_)(finding|fault|unarmed)$|^(Finding|Fault|Unarmed|_Fault)$|_finding$")
NOTE_CALLS = re.compile(r"^(_?(emit_)?note(_once)?|_?record_note|Note|on_trouble)$")
WARNING_CALLS = re.compile(
    r"^(print_messages?|print_message_once|_say|warn|warning|info|error|debug|exception|critical|log|_log)$"
)
OUTPUT_CALLS = re.compile(r"^print|^_print|_lines$")
HELP_CALLS = re.compile(r"^(Option|Argument|Flag|Entry|Group|HelpGroup|Command)$")
WORDS = re.compile(r"[A-Za-z]{2,}[,:;]? [A-Za-z]{2,}")
HELP_NAMES = ("HELP", "ABOUT", "EPILOG")


class Message(NamedTuple):
    """One text. place: file:line in the source tree."""

    place: str
    kind: str
    text: str


def extract_messages(kind: str = "", source: Path | None = None) -> list[Message]:
    """The texts of all sources, or of one kind, in the order of files and lines."""
    folder = source or Path(tdbg.__file__).parent
    found: list[Message] = []
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder.parent).as_posix()
        for line, one, text in read_texts(path.read_text(encoding="utf-8"), name):
            found.append(Message(f"{name}:{line}", one, text))
    return [message for message in found if kind in ("", message.kind)]


def read_texts(source: str, name: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of every text in one module, in the order of lines."""
    reader = _Reader(name)
    reader.visit(ast.parse(source))
    yield from sorted(set(reader.found))


class _Reader(ast.NodeVisitor):
    """Walks a module and knows of each string which call, function or name it is given to."""

    def __init__(self, name: str) -> None:
        self.found: list[tuple[int, str, str]] = []
        self._kinds = ["observation" if "/observations/" in name else "text"]

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "format_count":  # a noun alone
            return
        self.visit(node.func)
        with_kind = self._kind_of_call(called)
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self._visit_as(value, with_kind)

    def _kind_of_call(self, called: str) -> str:
        if called == "doc":
            return "field"
        for kind, calls in (
            ("finding", FINDING_CALLS),
            ("note", NOTE_CALLS),
            ("help", HELP_CALLS),
            ("warning", WARNING_CALLS),
            ("output", OUTPUT_CALLS),
        ):
            if calls.search(called):
                return kind
        return (
            "error" if called.endswith(("Error", "Exit")) or called in ("build_argument_error", "suggest_name") else ""
        )

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._visit_as(node.exc, "error")

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        is_help = any(name.startswith(HELP_NAMES) for name in names)
        self._visit_as(node.value, "help" if is_help else "finding" if names == ["title"] else "")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:  # an annotation is no text
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Nor is one here."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *node.body):
            self.visit(part)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring is for readers of the code
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._add_text(node, "".join(_format_part(value) for value in node.values))
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add_text(node, node.value)

    def _visit_as(self, node: ast.AST, kind: str) -> None:
        self._kinds.append(kind or self._kinds[-1])
        self.visit(node)
        self._kinds.pop()

    def _add_text(self, node: ast.expr, text: str) -> None:
        text = " ".join(text.split())
        if WORDS.search(text):
            self.found.append((node.lineno, self._kinds[-1], text))


def _format_part(value: ast.expr) -> str:
    if isinstance(value, ast.FormattedValue):
        return f"{{{ast.unparse(value.value)}}}"
    return str(value.value) if isinstance(value, ast.Constant) else ""
