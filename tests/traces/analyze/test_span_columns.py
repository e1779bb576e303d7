"""The spans of a trace on the disk: any range of it, the longest first."""

import json
import random

import numpy as np
import pytest
from traces.material import make_annotation, make_gpu_span, make_launch, make_op, make_span, write_trace

from tdbg.traces.analyze import span_columns
from tdbg.traces.analyze.span_columns import SpanFile, SpanWriter, describe_range
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.parse import event_names

KEY = (1, "00", -1, 5, 6, 7)
SHIFT = 1_000_000.0  # microseconds: a trace need not begin at 0


def make_events(count=3_000, seed=0):
    """Nested spans on three threads, and kernels; lengths of a microsecond to seconds."""
    drawn, found = random.Random(seed), []
    for tid in (1, 2, 3):
        at = SHIFT
        for number in range(count // 9):
            length = float(drawn.choice((3, 30, 900, 40_000)))
            found.append(make_op(f"aten::outer{number % 5}", at, length, tid))
            found.append(make_op("aten::inner", at + length / 4, length / 2, tid))
            at += length + drawn.randrange(50)
    found += [make_gpu_span("kernel", SHIFT + 100 * number, 20.0, number) for number in range(count // 9)]
    found += [make_launch(SHIFT + 100 * number, 5.0, number) for number in range(3)]
    return sorted([*found, make_annotation("ProfilerStep#1", SHIFT, 2e6)], key=lambda one: (one["ts"], -one["dur"]))


def write_spans(path, trace):
    writer = SpanWriter(path)
    summary = summarize_trace(trace, size=1 << 12, follow=lambda events, base, read: writer.add_events(events, base))
    writer.finish(summary, KEY)
    return SpanFile(path), summary


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr(span_columns, "RUN", 100)
    return make_events()


@pytest.fixture
def spans(events, tmp_path):
    return write_spans(tmp_path / "a.spans", write_trace(tmp_path / "a.json.gz", events))[0]


def list_expected(events, begin_ms, end_ms):
    """What overlaps a range, from the events themselves: name, start and length in milliseconds."""
    found = [(one["name"], (one["ts"] - SHIFT) / 1e3, one["dur"] / 1e3) for one in events]
    return sorted((name, start, long) for name, start, long in found if start < end_ms and start + long > begin_ms)


@pytest.mark.parametrize(("begin_ms", "end_ms"), [(0, 1e9), (3.0, 9.5), (100, 300), (-50, 0.001), (1e6, 2e6)])
def test_a_range_has_each_span_that_overlaps_it(spans, events, begin_ms, end_ms):
    found = describe_range(spans, begin_ms, end_ms, 100_000)
    told = sorted((found.names[one.name][1:], one.start_ms, one.length_ms) for one in found.spans)
    expected = list_expected(events, begin_ms, end_ms)
    assert [one[0] for one in told] == [one[0] for one in expected] and found.left_out == 0
    assert np.allclose([one[1:] for one in told] or [0], [one[1:] for one in expected] or [0])


def test_spans_of_a_trace_out_of_order_are_where_they_were(events, tmp_path):
    shuffled = events[len(events) // 2 :] + events[: len(events) // 2]
    spans, summary = write_spans(tmp_path / "b.spans", write_trace(tmp_path / "b.json", shuffled))
    assert summary.start == 0 < (shuffled[0]["ts"] - SHIFT)  # sorted, so counted from another event than the spans
    found = describe_range(spans, 3.0, 9.5, 100_000)
    told = sorted((found.names[one.name][1:], one.start_ms, one.length_ms) for one in found.spans)
    expected = list_expected(events, 3.0, 9.5)
    assert [one[0] for one in told] == [one[0] for one in expected]
    assert np.allclose([one[1:] for one in told], [one[1:] for one in expected])


def test_a_range_that_ends_before_it_begins_is_empty(spans):
    for begin_ms, end_ms in ((60, 20), (9.5, 3.0), (20, 20)):
        found = describe_range(spans, begin_ms, end_ms, 5)
        assert found.left_out == 0 and all(one.start_ms < begin_ms for one in found.spans)


@pytest.mark.parametrize("far_ms", [1e12, 1e300, 1.7e308])
def test_a_range_without_end_has_all(spans, events, far_ms):
    found = describe_range(spans, -far_ms, far_ms, 100_000)
    assert len(found.spans) == len(events) and found.left_out == 0


def test_times_at_the_edge_of_what_is_a_time(tmp_path):
    far = event_names.FAR - 1e6
    events = [make_op("b", far, far), make_op("a", 1, 5), make_op("c", 0, 4e14)]
    spans, _ = write_spans(tmp_path / "a.spans", write_trace(tmp_path / "a.json", events))
    for begin_ms, end_ms, expected in (
        (-1e300, 1e300, "abc"),
        (0, 1e300, "abc"),
        (5e11, 1e300, "b"),
        (-1e300, -1e300, ""),
    ):
        found = describe_range(spans, begin_ms, end_ms, 10)
        assert sorted(found.names) == [f"o{name}" for name in expected]


def test_spans_beyond_a_bound_are_left_out_and_it_is_said(events, tmp_path, monkeypatch):
    monkeypatch.setattr(span_columns, "MOST_SPANS", 1_000)
    spans, _ = write_spans(tmp_path / "b.spans", write_trace(tmp_path / "b.json", events))
    found = describe_range(spans, 0, 1e9, 100_000)
    assert len(found.spans) == 1_000
    (line,) = spans.read_summary().problems
    assert line == f"the timeline has the first 1,000 spans: {len(events) - 1_000:,} later ones are left out"


@pytest.mark.parametrize("most", [1, 40, 700])
def test_of_many_spans_the_longest_are_told_and_the_others_counted(spans, events, most):
    found = describe_range(spans, 0, 1e9, most)
    longest = sorted((one["dur"] / 1e3 for one in events), reverse=True)[:most]
    assert np.allclose(sorted((one.length_ms for one in found.spans), reverse=True), longest)
    assert len(found.spans) + found.left_out == len(events)


def test_what_is_left_out_of_a_part_begins_in_it(spans, events):
    found = describe_range(spans, 20, 60, 5)
    begins = sum(20 <= (one["ts"] - SHIFT) / 1e3 < 60 for one in events)
    shown = sum(one.start_ms >= 20 for one in found.spans)
    assert found.left_out == begins - shown > 0


def test_more_spans_of_a_length_than_can_be_sorted_are_counted_alone(spans, events, monkeypatch):
    monkeypatch.setattr(span_columns, "MOST_SORTED", 10)
    found = describe_range(spans, 0, 1e9, 10_000)
    assert [found.names[one.name] for one in found.spans] == ["sProfilerStep#1"]
    assert found.left_out == len(events) - 1


def test_a_span_is_as_deep_as_others_hold_it_and_each_lane_has_its_name(spans):
    found = describe_range(spans, 0, 1e9, 100_000)
    assert sorted(found.lanes) == ["device 0, stream 7", "thread 1", "thread 2", "thread 3"]
    depths = {}
    for one in found.spans:
        depths.setdefault((found.lanes[one.lane], found.names[one.name]), set()).add(one.depth)
    assert depths["thread 2", "oaten::inner"] == {1} and depths["thread 2", "oaten::outer1"] == {0}
    assert depths["device 0, stream 7", "kkernel"] == {0}
    assert 2 in depths["thread 1", "oaten::inner"]  # in an operator, in the step


def test_the_summary_is_kept_with_the_spans(events, tmp_path):
    trace = write_trace(tmp_path / "a.json", events)
    spans, summary = write_spans(tmp_path / "a.spans", trace)
    assert spans.read_summary() == summary == summarize_trace(trace)
    assert tuple(spans.index.key) == KEY


def test_times_that_are_none_and_names_without_end_are_left_out(tmp_path):
    events = [make_op("é" * 500, 10, 5), make_op("a", -4, 5), make_op("b", 1e300, 5), make_op("c", 10, -1)]
    spans, _ = write_spans(tmp_path / "a.spans", write_trace(tmp_path / "a.json", [*events, make_op("d", 20, 5)]))
    found = describe_range(spans, 0, 1e9, 100)
    assert [found.names[one.name] for one in found.spans] == ["o" + "é" * span_columns.LETTERS, "od"]


def test_names_and_lanes_are_of_a_bounded_number(tmp_path, monkeypatch):
    monkeypatch.setattr(span_columns, "MOST_NAMES", 3)
    monkeypatch.setattr(span_columns, "MOST_LANES", 2)
    events = [make_span(f"name{number}", 10 * number, 5, tid=number) for number in range(9)]
    spans, _ = write_spans(tmp_path / "a.spans", write_trace(tmp_path / "a.json", events))
    found = describe_range(spans, 0, 1e9, 100)
    assert sorted(found.names) == ["o(more)", "oname0", "oname1", "oname2"] and len(found.spans) == 9
    assert sorted(found.lanes) == ["thread (more)", "thread 0", "thread 1"]


@pytest.mark.parametrize("mode", [0o622, 0o606])
def test_what_others_may_write_is_not_read(spans, tmp_path, mode):
    (tmp_path / "a.spans").chmod(mode)
    with pytest.raises(OSError, match="can write to it"):
        SpanFile(tmp_path / "a.spans")


def test_a_link_is_not_followed_and_the_file_is_the_users_alone(spans, tmp_path):
    (tmp_path / "link.spans").symlink_to(tmp_path / "a.spans")
    with pytest.raises(OSError, match="symbolic"):
        SpanFile(tmp_path / "link.spans")
    assert (tmp_path / "a.spans").stat().st_mode & 0o777 == 0o600


def test_half_a_file_is_none(spans, tmp_path):
    data = (tmp_path / "a.spans").read_bytes()
    for part in (data[:-1], data[: len(data) // 2], b"x" * 100, data[8:], json.dumps({}).encode()):
        (tmp_path / "b.spans").write_bytes(part)
        with pytest.raises(ValueError, match="no file of spans"):
            SpanFile(tmp_path / "b.spans")
