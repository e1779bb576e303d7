"""Sets of time, held against sets of single nanoseconds."""

from hypothesis import given
from hypothesis import strategies as st

from tdbg.traces.analyze.time_spans import union, united

PAIRS = st.lists(st.tuples(st.integers(-30, 60), st.integers(-5, 20)), max_size=12)


def spans(pairs):
    return union([edge for start, size in pairs for edge in (start, start + size)])


def plain(pairs):
    return {time for start, size in pairs for time in range(start, start + size)}


def times(found):
    assert all(found.ends[:-1] < found.starts[1:]) and all(found.starts < found.ends)
    return {time for start, end in zip(found.starts, found.ends, strict=True) for time in range(start, end)}


@given(PAIRS, PAIRS)
def test_they_do_what_sets_do(one, other):
    a, b = plain(one), plain(other)
    assert times(spans(one)) == a
    assert times(spans(one) | spans(other)) == a | b
    assert times(spans(one) & spans(other)) == a & b
    assert times(spans(one) - spans(other)) == a - b
    assert times(united([spans(one), spans(other), spans([])])) == a | b
    assert spans(one).total == len(a)


@given(PAIRS, st.integers(-40, 90), st.integers(-40, 90))
def test_within_counts_what_lies_between(pairs, start, end):
    start, end = min(start, end), max(start, end)
    assert spans(pairs).within(start, end) == len(plain(pairs) & set(range(start, end)))
    assert bool(spans(pairs).holds(start)) == (start in plain(pairs))
