"""The small reader of options and the whole parser understand a command line alike."""

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.cli import parser
from tdbg.cli.filter_logs import COMMAND, OPTIONS
from tdbg.core.command_spec import parse_plain_args
from tdbg.core.errors import TdbgError
from tdbg.logs.filter_args import VIEWS, FilterArgs, validate_args

NAMES = [name for option in OPTIONS.values() for name in option.names]
WORDS = st.one_of(
    st.sampled_from(
        [*NAMES, "-", "--", "a.log", "b", "3", "-3", "--=", "-fX", "-A2", "-vv", "--flag=", "--jobs=4", "--fl", "-h"]
    ),
    st.sampled_from(NAMES).map(lambda name: f"{name}=7" if name.startswith("--") else f"{name}7"),
)


def parse_with_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> FilterArgs | None:
    """What the whole command line makes of it; None if it refuses."""
    found: list[FilterArgs] = []
    monkeypatch.setattr(COMMAND, "run", lambda args: found.append(args) or 0)
    try:
        parser.parse_and_run(COMMAND, "tdbg filter-logs", words)
    except Exception:
        return None
    return found[0] if found else None


def parse_plain(words: list[str]) -> FilterArgs | None:
    """What the small reader makes of it; None if it leaves it to the whole parser."""
    return cast(FilterArgs | None, parse_plain_args(COMMAND, words))


def list_fields(args: FilterArgs) -> dict[str, Any]:
    return {name: _to_plain(getattr(args, name)) for name in ("paths", *OPTIONS)}


def _to_plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


@settings(max_examples=400, deadline=None)
@given(words=st.lists(WORDS, max_size=6))
def test_whatever_the_small_reader_takes_the_whole_parser_takes_alike(words: list[str]) -> None:
    small = parse_plain(words)
    if small is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        whole = parse_with_typer(words, patch)
    assert whole is not None and list_fields(small) == list_fields(whole), words


def test_it_takes_what_people_write(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "logs -f GRADIENTS --flag=AMP -r 0,3-5 --level WARNING -C 2 -v --count -o out.txt --jobs 2 -fLR"
    words = line.split()
    small, whole = parse_plain(words), parse_with_typer(words, monkeypatch)
    assert small is not None and whole is not None and list_fields(small) == list_fields(whole)
    assert list(small.flag) == ["GRADIENTS", "AMP", "LR"] and small.context == 2 and small.invert


@pytest.mark.parametrize("words", (["--help"], ["-h"], ["--colapse"], ["-A", "x"], ["--jobs"], ["--count=1"], ["-f"]))
def test_it_leaves_the_rest_to_the_whole_parser(words: list[str]) -> None:
    assert parse_plain(words) is None


def test_every_option_is_a_field_and_every_field_an_option() -> None:
    declared = {name for name in vars(FilterArgs) if not name.startswith("_") and name not in ("paths", "views")}
    assert declared == set(OPTIONS)
    assert set(VIEWS) <= declared


@pytest.mark.parametrize(
    ("given_", "what"),
    [
        ({"kind": "most"}, "--type cannot be 'most'"),
        ({"format": "xml"}, "--format cannot be 'xml'"),
        ({"merge": True, "count": True}, "--merge and --count do not go together"),
        ({"collapse": True, "after": 2}, "-A, -B and -C do not go together with --collapse"),
    ],
)
def test_what_does_not_go_together(given_: dict[str, Any], what: str) -> None:
    with pytest.raises(TdbgError, match=what):
        validate_args(FilterArgs(**given_))
