"""Two sides of traces against each other, and the file that keeps one."""

import json

import pytest
from traces.material import make_gpu_span, make_launch, make_op, make_step, write_trace

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.analyze.trace_baseline import Baseline, load_baseline, make_baseline, merge_baselines, save_baseline
from tdbg.traces.analyze.trace_comparison import compare_traces, is_notable
from tdbg.traces.parse.trace_files import TraceFile

LENGTHS = (100, 102, 98, 101, 99, 103)


def make_trace(tmp_path, lengths, calls=2, name="aten::mm", rank=0, head=None):
    """A trace whose steps take so many microseconds: half of each is `calls` calls of an operator."""
    events, at = [], 0
    for number, length in enumerate(lengths, 1):
        events.append(make_step(number, at, length))
        events += [make_op(name, at + call * length / (2 * calls), length / (2 * calls)) for call in range(calls)]
        at += length
    path = write_trace(tmp_path / "t.json", events, head=head)
    return TraceFile(path, rank), summarize_trace(path)


def make_one_baseline(tmp_path, lengths, **more):
    return make_baseline("it", [make_trace(tmp_path, lengths, **more)])


def test_a_slower_run_is_a_regression_beyond_the_tolerance(tmp_path):
    a = make_one_baseline(tmp_path, LENGTHS)
    b = make_one_baseline(tmp_path, [length * 1.2 for length in LENGTHS])
    found = compare_traces(a, b, 0.05)
    assert found.verdict == "slower" and found.is_regression and found.change.guess == pytest.approx(0.2)
    assert not compare_traces(a, b, 0.25).is_regression and compare_traces(a, b, 0.25).verdict == "slower"
    assert compare_traces(b, a).verdict == "faster" and not compare_traces(b, a).is_regression
    parts = {part.name: (part.a, part.b, part.change.sign) for part in found.parts}
    assert parts == {"forward": (50_250, 60_300, 1), "other": (50_250, 60_300, 1)}


def test_a_run_is_no_different_from_itself_and_from_its_like(tmp_path):
    a = make_one_baseline(tmp_path, LENGTHS)
    for other in (LENGTHS, LENGTHS[::-1], [length + 2 for length in LENGTHS]):
        found = compare_traces(a, make_one_baseline(tmp_path, other))
        assert (found.verdict, found.is_regression) == ("no difference", False)
        assert all(part.change.sign == 0 for part in found.parts)
    assert found.operators == []


def test_too_few_steps_are_told_and_are_no_regression(tmp_path):
    found = compare_traces(make_one_baseline(tmp_path, (100, 100, 100)), make_one_baseline(tmp_path, (900, 900)))
    assert (found.verdict, found.is_regression) == ("too few steps", False)
    unmarked = make_baseline(
        "it",
        [(TraceFile(tmp_path / "t.json", 0), summarize_trace(write_trace(tmp_path / "t.json", [make_op("a", 0, 9)])))],
    )
    found = compare_traces(unmarked, make_one_baseline(tmp_path, LENGTHS))
    assert (
        found.verdict == "too few steps" and "A has no step marks, so the spread of its steps is unknown" in found.notes
    )
    assert found.parts and not any(is_notable(part, found) for part in found.parts)


def test_operators_are_matched_by_name_with_their_calls(tmp_path):
    a, b = (
        make_one_baseline(tmp_path, LENGTHS, calls=2),
        make_one_baseline(tmp_path, LENGTHS, calls=4, name="aten::bmm"),
    )
    changes = {change.name: change for change in compare_traces(a, b).operators}
    gone, come = changes["aten::mm"], changes["aten::bmm"]
    assert (gone.a_calls, gone.b_calls, gone.b_time) == (2, 0, 0) and gone.a_time == pytest.approx(50_250)
    assert (come.a_calls, come.b_calls, come.a_time) == (0, 4, 0) and come.grown == pytest.approx(50_250, rel=1e-3)


def test_kernels_are_matched_too(tmp_path):
    def on_device(dur):
        events = [make_step(number, number * 1000, 1000) for number in range(4)]
        for number in range(4):
            at = number * 1000
            events += [
                make_op("aten::mm", at, 20),
                make_launch(at + 5, 2, number),
                make_gpu_span("sgemm", at + 100, dur, number),
            ]
        return make_baseline(
            "it", [(TraceFile(tmp_path, 0), summarize_trace(write_trace(tmp_path / "t.json", events)))]
        )

    (change,) = compare_traces(on_device(100), on_device(300)).kernels
    assert (change.name, change.grown, change.a_calls) == ("sgemm", 200_000, 1)


def test_a_step_of_several_ranks_is_as_long_as_on_the_slowest(tmp_path):
    every = [make_trace(tmp_path, (100, 250, 100), rank=0), make_trace(tmp_path, (200, 100, 150), rank=1)]
    found = make_baseline("it", every)
    assert found.lengths == [200_000, 250_000, 150_000] and found.ranks == [0, 1]
    assert found.steps[0].bar["forward"] == 75_000  # of 50 and 100 us
    assert found.operators[0].calls == 2 and found.operators[0].time == pytest.approx(900_000 / 2 / 6)


def test_ranks_that_only_the_traces_tell_are_ranks_too(tmp_path):
    def load_rank_trace(rank, lengths):
        return TraceFile(tmp_path / f"{rank}.json", None), make_trace(tmp_path, lengths, head={"tdbg": {"rank": rank}})[
            1
        ]

    found = make_baseline("it", [load_rank_trace(0, (100, 250, 100)), load_rank_trace(1, (200, 100, 150))])
    assert found.lengths == [200_000, 250_000, 150_000] and found.ranks == [0, 1]
    again = make_baseline(
        "it", [load_rank_trace(0, (100, 100)), load_rank_trace(0, (200, 200))]
    )  # two windows of one rank
    assert again.lengths == [100_000, 100_000, 200_000, 200_000]


def test_a_step_that_stands_out_is_left_out_and_told(tmp_path):
    found = compare_traces(make_one_baseline(tmp_path, LENGTHS), make_one_baseline(tmp_path, [*LENGTHS, 5000]))
    assert found.verdict == "no difference" and len(found.b.steps) == 6
    assert "steps of B that took three times its median or more are left out: 1" in found.notes


def test_what_makes_two_sides_hard_to_compare_is_told(tmp_path):
    a = make_one_baseline(tmp_path, LENGTHS, head={"with_stack": 1, "deviceProperties": [{"name": "Card"}]})
    notes = compare_traces(a, make_baseline("it", [make_trace(tmp_path, LENGTHS, rank=rank) for rank in (0, 1)])).notes
    assert notes == [
        "A ran on Card, B on cpu",
        "A has the traces of 1 rank, B of 2 ranks",
        "only A recorded stacks, which slows its steps",
    ]


def test_several_runs_of_one_side_show_how_far_runs_differ(tmp_path):
    runs = [
        make_one_baseline(tmp_path, [length * factor for length in LENGTHS]) for factor in (1, 0.98, 0.96, 1.02, 1.3)
    ]
    kept = merge_baselines(runs)
    assert max(kept.medians) == 130_650 and len(kept.medians) == 5 and len(kept.steps) == 30
    assert kept.operators[0].calls == 2
    like = compare_traces(kept, make_one_baseline(tmp_path, [length * 1.25 for length in LENGTHS]))
    assert like.change.sign == 1 and (like.verdict, like.is_regression) == ("no difference", False)
    assert compare_traces(kept, make_one_baseline(tmp_path, [length * 1.5 for length in LENGTHS])).is_regression


# the file


def test_a_baseline_comes_back_as_it_was(tmp_path):
    a = make_one_baseline(tmp_path, LENGTHS)
    save_baseline(a, tmp_path / "b.json")
    assert load_baseline(str(tmp_path / "b.json")) == a
    assert (tmp_path / "b.json").stat().st_size < 4000
    data = json.loads((tmp_path / "b.json").read_text())
    assert (data["kind"], data["version"]) == ("trace-baseline", 1)


def test_what_is_no_baseline_is_left_to_others(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    assert load_baseline(str(tmp_path / "x.json")) is None and load_baseline(str(tmp_path)) is None
    assert load_baseline(str(write_trace(tmp_path / "t.json.gz", []))) is None


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version": 1', '"version": 2', "version 2; this tdbg reads 1"),
        ('"version": 1,', "", "version none"),
        ('"length": 100000', '"length": "long"', "damaged"),
        ('"length": 100000', '"length": -5', "make no sense"),
        ('"forward": 50000.0', '"forward": 1e308', "make no sense"),
        ('"medians"', '"medicines"', "make no sense"),
        ('"operators"', '"operatives"', None),
        ('"data": {', '"data": [', "damaged"),
        ("}", "", "damaged"),
    ],
)
def test_a_bad_baseline_is_told(tmp_path, old, new, says):
    path = tmp_path / "b.json"
    save_baseline(Baseline("it", *[[], []]) if says is None else make_one_baseline(tmp_path, LENGTHS), path)
    path.write_text(path.read_text().replace(old, new))
    if says is None:  # a newer tdbg may keep more
        assert load_baseline(str(path)) == Baseline("it")
        return
    with pytest.raises(TdbgError, match=says):
        load_baseline(str(path))


def test_a_baseline_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(TdbgError, match="cannot write"):
        save_baseline(Baseline("it"), tmp_path / "none" / "b.json")
    other = write_trace(tmp_path / "t.json", [make_op("a", 0, 9)])
    before = other.read_bytes()
    with pytest.raises(TdbgError, match="already exists and is not a baseline"):
        save_baseline(Baseline("it"), other)
    assert other.read_bytes() == before
