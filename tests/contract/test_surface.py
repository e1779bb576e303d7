"""Nothing that others rely on goes away or changes; what is added is listed, and stays as well."""

import copy
from typing import Any

import pytest

from tests.contract import surface


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return surface.describe_surface()


def test_nothing_is_removed_or_changed_and_what_is_added_is_listed() -> None:
    assert surface.list_differences() == []


def test_what_was_added_is_there(described: dict[str, Any]) -> None:
    assert surface.list_missing_additions(described) == []


def test_nothing_that_was_added_is_removed_or_changed(described: dict[str, Any]) -> None:
    assert surface.list_losses(described) == []


@pytest.mark.parametrize(
    ("path", "is_listed"),
    [
        (("commands", "join"), True),
        (("commands", "run", "--serve"), True),
        (("findings", "TD-P007"), True),
        (("python", "View"), True),
        (("overridden", "tdbg.rules.PerProcessRule"), True),
        (("overridden", "tdbg.rules.PerProcessRule", "evaluate"), False),
        (("entry_points", "tdbg.trace_rules"), True),
        (("commands", "join", "--output/-o"), False),
    ],
)
def test_what_was_added_is_missed(described: dict[str, Any], path: tuple[str, ...], is_listed: bool) -> None:
    """All of it came after `surface.json`, which says nothing of it."""
    now = copy.deepcopy(described)
    *above, name = path
    place = now
    for one in above:
        place = place[one]
    del place[name]
    assert len(surface.list_losses(now)) == 1
    assert (".".join(path) in surface.list_missing_additions(now)) is is_listed


def test_a_changed_signature_is_told(described: dict[str, Any]) -> None:
    now = copy.deepcopy(described)
    now["overridden"]["tdbg.rules.PerProcessRule"]["evaluate"][-1:] = []
    assert len(surface.list_losses(now)) == 1
