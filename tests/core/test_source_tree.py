"""Source of the program's is parsed in silence, and the program's own filters of warnings stay as they are."""

import ast
import re
import warnings
from pathlib import Path

import pytest

import tdbg
from tdbg.core.source_tree import parse_source

INVALID_ESCAPE = r"pattern = '\d'"
TOUCHES_FILTERS = re.compile(r"\b(?:catch_warnings|simplefilter|filterwarnings|resetwarnings)\(")


@pytest.mark.parametrize("action", ["error", "always", "default"])
def test_warnings_about_the_text_are_not_shown_whatever_the_filters_are(action: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        before = list(warnings.filters)
        tree = parse_source(INVALID_ESCAPE)
        assert list(warnings.filters) == before
    assert not caught and ast.literal_eval(tree.body[0].value) == r"\d"  # type: ignore[attr-defined]


def test_the_filters_stay_as_they_are_where_the_text_is_no_python() -> None:
    before = list(warnings.filters)
    with pytest.raises(SyntaxError):
        parse_source("def")
    assert list(warnings.filters) == before


def test_tdbg_never_replaces_the_filters_of_the_process() -> None:
    """They belong to the program, in all of its threads at once."""
    folder = Path(tdbg.__file__).parent
    found = [str(path.relative_to(folder)) for path in folder.rglob("*.py") if TOUCHES_FILTERS.search(path.read_text())]
    assert found == []
