"""The figures of the source: what issue after issue has brought them to, they stay below. `benchmarks/structure.py` says what each is."""

import ast
from pathlib import Path

import pytest

import tdbg
from benchmarks.structure import (
    FLOOR,
    Source,
    _iter_blanket_lines,
    compute_figures,
    find_places,
    is_upward_import,
    read_sources,
)

TREE = Path(tdbg.__file__).parents[1]
NONE = ("circles", "upward", "values_get", "torch_inside_files")  # torch_compat and torch_hooks are not counted
BELOW = {"any_per_1000": 12, "blanket_per_1000": 0.4, "shared_stems": 15, "function_lines_p95": 31}


@pytest.fixture(scope="module")
def sources() -> dict[str, Source]:
    return read_sources(TREE)


def test_the_figures_are_held(sources: dict[str, Source]) -> None:
    figures, places = compute_figures(sources), find_places(sources)
    assert {name: figures[name] for name in NONE} == dict.fromkeys(NONE, 0), [places[name] for name in NONE[:3]]
    for name, bound in BELOW.items():
        assert figures[name] < bound, (name, figures[name], places["stems"])


def make_source(name: str, text: str = "") -> Source:
    path = Path(*name.split("."))
    return Source(name, path.with_suffix(".py"), text.splitlines(), ast.parse(text))


def test_every_part_has_a_floor(sources: dict[str, Source]) -> None:
    assert {source.part_name for source in sources.values()} - {""} <= FLOOR.keys()


def test_a_part_without_a_floor_is_an_error_and_not_passed_over() -> None:
    new, old = make_source("tdbg.core.quite_new"), make_source("tdbg.core.events")
    with pytest.raises(KeyError, match=r"core\.quite_new"):
        is_upward_import(old, new)


@pytest.mark.parametrize(
    ("importing", "imported", "is_upward"),
    [
        ("core.flags", "core.config", True),
        ("core.config", "core.flags", False),
        ("rules.view", "metrics.rows", True),
        ("rules.view", "rules.text", False),
        ("runtime.monitor", "probes.amp", True),
        ("probes.amp", "runtime.monitor", False),
    ],
)
def test_upward_imports_are_told(importing: str, imported: str, is_upward: bool) -> None:
    assert is_upward_import(make_source(f"tdbg.{importing}"), make_source(f"tdbg.{imported}")) is is_upward


@pytest.mark.parametrize(
    "kinds", ["", " Exception", " BaseException", " (Exception, SystemExit)", " (OSError, Exception)"]
)
def test_a_blanket_except_is_counted_whatever_stands_beside_it(kinds: str) -> None:
    text = f"try:\n    pass\nexcept{kinds}:\n    pass\n"
    assert list(_iter_blanket_lines(make_source("tdbg.cli.some", text))) == [3]


def test_a_narrow_except_is_not() -> None:
    text = "try:\n    pass\nexcept (OSError, ValueError):\n    pass\n"
    assert list(_iter_blanket_lines(make_source("tdbg.cli.some", text))) == []
