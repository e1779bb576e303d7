"""docs/security.md: its tests exist, its table is the settings' own; and what tdbg never does at all."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import tdbg
from tdbg.core.config import Settings

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
ROOT = Path(tdbg.__file__).parent
ID = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
ROW = re.compile(r"^\| (?!check |who |setting |-)(.*) \|$", re.MULTILINE)


def test_each_named_test_exists() -> None:
    named = ID.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 40
    for file, name in named:
        tree = ast.parse((TESTS.parent / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def test_each_check_names_a_test() -> None:
    checks = PAGE.read_text(encoding="utf-8").partition("## Whose files count")[2]
    rows = [row for row in ROW.findall(checks) if row.count(" | ") == 1]
    assert rows and not [row for row in rows if not ID.search(row)]


def build_settings_table() -> str:
    """What stands in the page between its marks."""
    rows = [f"| `{item.name}` | {item.metadata['kind']} | {item.metadata['help']} |" for item in fields(Settings)]
    return "\n".join(["| setting | kind | what it is |", "|---|---|---|", *rows])


def test_the_table_of_settings_is_their_own() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- settings -->\n")[2].partition("\n<!-- end")[0]
    assert shown.strip() == build_settings_table(), "write it anew: python -m tests.security.test_page"


def list_calls() -> dict[str, set[str]]:
    """What each file of tdbg imports and calls by these names."""
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Call):
                names.add(ast.unparse(node.func))
        found[path.relative_to(ROOT).as_posix()] = names
    return found


def test_tdbg_never_unpickles() -> None:
    loaders = {
        "pickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "torch.load",
        "joblib.load",
        "numpy.load",
        "np.load",
    }
    found = {file: names & loaders for file, names in list_calls().items() if names & loaders}
    assert found == {"launch/bytecode.py": {"marshal"}}, "it writes the boot file's bytecode"
    assert "marshal.dumps" in list_calls()["launch/bytecode.py"]
    assert not {"marshal.load", "marshal.loads"} & list_calls()["launch/bytecode.py"]


def test_nothing_listens_but_the_viewer_on_the_loopback_address() -> None:
    servers = {"http.server", "socketserver", "uvicorn", "asyncio.start_server", "socket.create_server"}
    found = {file for file, names in list_calls().items() if names & servers}
    found |= {
        file for file, names in list_calls().items() if "socket" in names and any(n.endswith(".listen") for n in names)
    }
    assert found == {"viewer/server.py"}
    source = (ROOT / "viewer" / "server.py").read_text(encoding="utf-8")
    assert 'LOOPBACK = "127.0.0.1"' in source and re.findall(r"\.bind\((.*)\)", source) == ["(LOOPBACK, port)"]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, mark, rest = text.partition("<!-- settings -->\n")
    PAGE.write_text(
        f"{before}{mark}{build_settings_table()}\n<!-- end{rest.partition('<!-- end')[2]}", encoding="utf-8"
    )
