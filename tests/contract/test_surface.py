"""Nothing that others rely on goes away or changes; what is added is listed."""

from tests.contract import surface


def test_nothing_is_removed_or_changed_and_what_is_added_is_listed() -> None:
    assert surface.list_differences() == []
