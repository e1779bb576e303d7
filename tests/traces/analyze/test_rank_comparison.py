"""Ranks beside each other."""

import pytest
from traces.material import make_annotation, make_op, make_step, write_trace

from tdbg.traces.analyze.rank_comparison import compare_loaded, compare_ranks, slowest_first, split_own_time
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.rules import evaluate_traces

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def make_summary(path, works, wait_until=900):
    """A rank that computes forward for 100 us and backward for `works` each step, then waits for the others."""
    events = []
    for number, work in enumerate(works):
        at = number * 1000
        events += [make_step(number, at, 1000), make_op("aten::mm", at, 100), make_op(BACKWARD, at + 100, work)]
        events += [make_annotation("gloo:all_reduce", at + 100 + work, wait_until - 100 - work)]
    return summarize_trace(write_trace(path / "t.json", events))


def test_the_slow_rank_its_part_the_skew_and_who_waits(tmp_path):
    every = {
        "rank 0": make_summary(tmp_path, [300] * 5),
        "rank 1": make_summary(tmp_path, [500] * 5),
        "rank 2": make_summary(tmp_path, [320] * 5),
    }
    found = compare_ranks(every)
    assert (found.slowest, found.longest, found.longer) == ("rank 1", "backward", 190_000)
    assert [one.own for one in found.each] == [500_000, 700_000, 520_000]  # 100 us of each are nobody's
    assert [one.exposed for one in found.each] == [500_000, 300_000, 480_000]
    assert found.each[1].extra == pytest.approx(700 / 510 - 1)
    assert (found.skew, found.common) == (200_000, 5)


def test_the_skew_is_of_the_steps_that_all_have(tmp_path):
    found = compare_ranks({"a": make_summary(tmp_path, [300, 400, 300]), "b": make_summary(tmp_path, [400, 300])})
    assert (found.skew, found.common) == (100_000, 2)
    assert found.each[0].extra == pytest.approx(500 / 550 - 1)


def test_a_part_is_the_cause_where_it_makes_most_of_the_difference(tmp_path):
    def rank(forward, backward):
        events = []
        for number in range(5):
            at = number * 1000
            events += [
                make_step(number, at, 1000),
                make_op("aten::mm", at, forward),
                make_op(BACKWARD, at + forward, backward),
            ]
            events += [make_annotation("gloo:all_reduce", at + forward + backward, 1000 - forward - backward)]
        return summarize_trace(write_trace(tmp_path / "t.json", events))

    def explain_slow_rank(slow):
        every = {"rank 0": rank(200, 200), "rank 1": slow}
        (found,) = (one for one in evaluate_traces(list(every.items()), {}, every)[0] if one.code == "TD-P115")
        return compare_ranks(every).covers, found.try_next, found.evidence[-1]

    covers, try_next, line = explain_slow_rank(rank(400, 240))
    assert covers == pytest.approx(200 / 240) and try_next == "look at forward on rank 1"
    covers, try_next, line = explain_slow_rank(rank(300, 320))  # slow at everything
    assert covers == pytest.approx(120 / 220) and try_next == "look at the machine of rank 1"
    assert line == "no single part explains it: the largest difference on rank 1 is backward, by 0.12 ms a step"


def test_the_parts_of_what_is_longer_add_up_to_it(tmp_path):
    """Of the median step: a few steps of which another part is long each have medians that no step has."""

    def rank(*pairs):
        events = []
        for number, (forward, backward) in enumerate(pairs):
            at = number * 100_000
            events += [
                make_step(number, at, 60_000),
                make_op("aten::mm", at, forward),
                make_op(BACKWARD, at + forward, backward),
            ]
            events += [make_annotation("gloo:all_reduce", at + forward + backward, 60_000 - forward - backward)]
        return summarize_trace(write_trace(tmp_path / "t.json", events))

    found = compare_ranks({"rank 0": rank((100, 2000)), "rank 1": rank((28_000, 1000), (20_000, 1000), (28_000, 0))})
    assert [one.own for one in found.each] == [2_100_000, 28_000_000]
    assert found.longest == "forward" and found.covers == pytest.approx(1.0, abs=0.08)
    for pairs in (((9000, 9000), (9000, 1000), (1000, 9000)), ((9000, 9000), (100, 100), (50_000, 0), (150, 150))):
        read = rank(*pairs)
        found = compare_ranks({"rank 0": rank((100, 100)), "rank 1": read})
        assert sum(split_own_time(read).values()) == pytest.approx(found.each[1].own)


def test_the_rank_that_is_shown_whole_is_not_one_that_waits(tmp_path):
    waits, works = make_summary(tmp_path, [100] * 3), make_summary(tmp_path, [700] * 3)
    for read in (waits, works):
        read.rank = 1 if read is works else 0
    for one in waits.steps:
        one.end += 5000  # the rank that waits may even have the longer steps
        one.bar["communication"] += 5000
    every = [(TraceFile(tmp_path / "a", 0), waits), (TraceFile(tmp_path / "b", 1), works)]
    assert [one.rank for one, _ in slowest_first(every)] == [1, 0]
    windows = [(TraceFile(tmp_path / "a", 0), waits), (TraceFile(tmp_path / "b", 0, window=1), works)]
    assert [one.window for one, _ in slowest_first(windows)] == [0, 1]


def test_one_rank_is_not_compared(tmp_path):
    assert compare_ranks({"rank 0": make_summary(tmp_path, [300])}) is None


def test_only_one_trace_of_each_rank_is_held_against_others(tmp_path):
    read = make_summary(tmp_path, [300] * 2)

    def compare_files(*found):
        return list(compare_loaded([(one, read) for one in found]))

    first, second = TraceFile(tmp_path / "a", 0), TraceFile(tmp_path / "b", 1)
    assert compare_files(first, second) == ["rank 0", "rank 1"]
    assert compare_files(first) == []
    assert compare_files(first, second, TraceFile(tmp_path / "c", 0, window=1)) == []  # windows of a rank
    assert (
        compare_files(TraceFile(tmp_path / "a", None), TraceFile(tmp_path / "b", None)) == []
    )  # nobody knows of which rank
    assert compare_files(first, TraceFile(tmp_path / "b", 1, attempt=1)) == []  # not the same steps
