"""Sets of time, held against sets of single nanoseconds."""

from hypothesis import given
from hypothesis import strategies as st

from tdbg.traces.analyze.time_spans import union_sets, union_spans

PAIRS = st.lists(st.tuples(st.integers(-30, 60), st.integers(-5, 20)), max_size=12)


def make_union(pairs):
    return union_spans([edge for start, size in pairs for edge in (start, start + size)])


def list_covered(pairs):
    return {time for start, size in pairs for time in range(start, start + size)}


def list_times(found):
    assert all(found.ends[:-1] < found.starts[1:]) and all(found.starts < found.ends)
    return {time for start, end in zip(found.starts, found.ends, strict=True) for time in range(start, end)}


@given(PAIRS, PAIRS)
def test_they_do_what_sets_do(one, other):
    a, b = list_covered(one), list_covered(other)
    assert list_times(make_union(one)) == a
    assert list_times(make_union(one) | make_union(other)) == a | b
    assert list_times(make_union(one) & make_union(other)) == a & b
    assert list_times(make_union(one) - make_union(other)) == a - b
    assert list_times(union_sets([make_union(one), make_union(other), make_union([])])) == a | b
    assert make_union(one).total_ns == len(a)


@given(PAIRS, st.integers(-40, 90), st.integers(-40, 90))
def test_within_counts_what_lies_between(pairs, start, end):
    start, end = min(start, end), max(start, end)
    assert make_union(pairs).measure_within(start, end) == len(list_covered(pairs) & set(range(start, end)))
    assert bool(make_union(pairs).contains_times(start)) == (start in list_covered(pairs))
