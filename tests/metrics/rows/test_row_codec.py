"""Rows as lines: what is written is read, whatever a value is."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metrics.rows_of import list_lines, make_row, read_raw, write_rows

from tdbg.core.errors import TdbgError
from tdbg.metrics.rows import row_codec
from tdbg.metrics.rows.row import Header, Row

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy
NUMBERS = st.floats() | st.integers(-(2**53), 2**53)
ROWS = st.builds(
    Row,
    t=st.floats(0, 4e9).map(lambda t: round(t, 3)),
    step=st.integers(0, 2**62),
    epoch=st.none() | st.integers(0, 10**6) | st.floats(0, 1e6),
    phase=st.none() | st.text(max_size=20),
    rank=st.integers(0, 10**5),
    values=st.dictionaries(st.text(max_size=40), NUMBERS, max_size=5),
    text=st.dictionaries(st.text(max_size=9), st.text(max_size=20), max_size=2),
    units=st.dictionaries(st.text(max_size=9), st.sampled_from(("pct", "ms")), max_size=2),
    source=st.sampled_from(("tracker", "tdbg", "wandb", "")),
    left_out=st.dictionaries(st.sampled_from(("overhead", "disk")), st.integers(1, 2**40), max_size=2),
)


def is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@QUIET
@given(ROWS)
def test_a_row_is_read_as_it_was_written(written):
    line = row_codec.encode_row(written)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    read = row_codec.decode_line(line)
    assert isinstance(read, Row)
    assert read.values.keys() == written.values.keys()
    assert all(is_same(read.values[key], value) for key, value in written.values.items())
    for name in ("t", "step", "epoch", "phase", "rank", "text", "units", "source", "left_out"):
        assert getattr(read, name) == getattr(written, name)


@QUIET
@given(st.lists(ROWS, max_size=8))
def test_the_fast_reader_reads_the_same(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    write_rows(path, Header(), *written)
    read = list(list_lines(path, rank=0))
    assert [line.step for line in read] == [one.step for one in written]
    for one, line in zip(written, read, strict=True):
        assert all(is_same(line.values[key], value) for key, value in one.values.items())
        assert (line.phase, line.source, line.text or {}) == (one.phase, one.source, one.text)
        assert (line.left_out or {}) == one.left_out


def test_words_for_what_is_not_finite(tmp_path):
    path = write_rows(tmp_path / "m.jsonl", make_row(1, {"a/x": math.nan, "a/y": math.inf, "a/z": -math.inf, "a/w": 1}))
    assert read_raw(path)[0]["values"] == {"a/x": "NaN", "a/y": "Infinity", "a/z": "-Infinity", "a/w": 1}


def test_numbers_of_numpy_and_truths_are_numbers():
    line = row_codec.encode_row(
        make_row(1, {"a/x": np.float32(0.5), "a/y": np.int64(7), "a/z": np.float64("nan"), "a/t": True})
    )
    assert json.loads(line)["values"] == {"a/x": 0.5, "a/y": 7, "a/z": "NaN", "a/t": 1}


@pytest.mark.parametrize("value", ["0.5", None, [1.0], {}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError):
        row_codec.encode_row(make_row(1, {"a/x": math.nan, "a/y": value}))


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b'{"step": 1}', b'{"step": "x", "values": {}}', b'{"step":1,"values":{"a":"b"}}'],
)
def test_a_line_of_somebody_else_is_none(line):
    assert row_codec.decode_line(line) is None


def test_a_newer_schema_is_refused():
    with pytest.raises(TdbgError, match="schema 9"):
        row_codec.decode_line(b'{"schema": 9, "run": "x"}')


def test_a_header_is_read_as_it_was_written():
    written = Header("run", 3, 2, 5.0, 77, {"tracker": 25})
    assert row_codec.decode_line(row_codec.encode_header(written)) == written
    assert row_codec.encode_header(written).startswith(row_codec.HEADER) and not row_codec.encode_row(
        make_row(1, {})
    ).startswith(row_codec.HEADER)
