"""The floors: a module imports only those below its own (see docs: which floor may know which)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tdbg
from benchmarks.structure import FLOOR, SEPARATE, name_part

ROOT = Path(tdbg.__file__).parent
ANYWHERE = ("API",)  # names of the package itself
HEAVY = {"torch", "numpy", "rich", "wandb", "yacs", "msgspec", "psutil", "safetensors", "pydantic", "fsspec"}


def find_part(path: Path) -> str:
    return name_part(path.relative_to(ROOT).with_suffix("").parts)


def iter_imports(path: Path) -> Iterator[str]:
    """The parts of tdbg that a file imports, at its top or inside its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write the whole name, not a relative import"
            names = [f"{node.module}.{name.name}" for name in node.names]
        else:
            continue
        words = [name.split(".") for name in names]
        yield from (
            name_part(word[1:]) for word in words if word[0] == "tdbg" and len(word) > 1 and word[1] not in ANYWHERE
        )


def list_sources() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def test_every_part_has_a_floor():
    assert {find_part(path) for path in list_sources()} <= FLOOR.keys()


@pytest.mark.parametrize("path", list_sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_downwards(path):
    own = find_part(path)
    for other in iter_imports(path):
        beside = FLOOR[other] == FLOOR[own] and (other == own or FLOOR[own] != SEPARATE)
        assert FLOOR[other] < FLOOR[own] or beside, f"{own} must not import {other}"


def test_no_circle_between_parts():
    graph: dict[str, set[str]] = {}
    for path in list_sources():
        graph.setdefault(find_part(path), set()).update(set(iter_imports(path)) - {find_part(path)})
    TopologicalSorter(graph).prepare()  # raises CycleError


def list_loaded_modules(code: str) -> set[str]:
    """The top-level modules that a fresh Python has loaded after ``code``."""
    show = "import sys; print('\\n'.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_command_line_loads_nothing_heavy():
    assert not list_loaded_modules("import tdbg.cli") & HEAVY


def test_no_command_file_loads_anything_heavy():
    code = "from tdbg.cli import COMMANDS, load_parser\nfor entry in COMMANDS: load_parser(entry)"
    assert not list_loaded_modules(code) & HEAVY


@pytest.mark.parametrize(
    "line", (["flags", "list"], ["explain", "--help"], ["run", "--help"], ["doctor"]), ids=" ".join
)
def test_a_command_never_loads_torch(line):
    assert "torch" not in list_loaded_modules(f"import tdbg.cli; tdbg.cli.main({line})")


def test_the_package_itself_loads_nothing():
    before, after = list_loaded_modules(""), list_loaded_modules("import tdbg")
    assert after - before <= {"tdbg"}
