"""TD-D... and TD-P002: data that is wrong, and data that comes late."""

from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Finding, Observation, Traceback

WAIT = {"dataset": "Images", "share": 0.71, "median_ms": 48.2, "p95_ms": 60.0, "max_ms": 91.0, "count": 20, "cores": 8}
RANGE = {"pipeline": "Compose", "step_name": "Normalize", "order": [3], "count": 4, "low_in": [-2.1], "high_in": [2.6]}
RANGE |= {"low_out": [-11.5], "high_out": [9.5]}


def make_observation(part: str, step: int = 3, probe: str = "dataloader", **values: Any) -> Observation:
    return Observation(probe=probe, flag=probe.upper(), part=part, step=step, text="", values=values)


def judge_only(run: Stream, code: str) -> Finding:
    (finding,) = run.judge_stream().findings
    assert finding.code == code and finding.first_step == 3 and finding.rank == 0
    return finding


def run_after(one: Any, *events: Any) -> Stream:
    run, rank = one
    run.emit_steps(rank, [2.0, 1.9, 1.8])
    run.emit_events(rank, *events)
    run.end_process(rank, 3)
    return run


def test_nan_in_the_data_names_batch_and_sample(one_rank: Any) -> None:
    facts = {"dataset": "Images", "tensor": "0", "kind": "nan", "count": 7, "batch": 7, "rows": [2], "indices": [1042]}
    finding = judge_only(run_after(one_rank, make_observation("NONFINITE", loss_finite=False, **facts)), "TD-D001")
    assert (
        finding.title == ("NaN in tensor 0 of batch 7 (dataset index 1042), and the loss is not finite, rank 0")
        and "Images: 7 elements not finite" in finding.evidence
    )


def test_constant_batches(one_rank: Any) -> None:
    facts = {"dataset": "Images", "tensor": "0", "count": 3, "looked": 3, "batch": 3}
    zeros = make_observation("CONSTANT", constant=["0"], low=[0.0], **facts)
    assert (
        judge_only(run_after(one_rank, zeros), "TD-D002").title
        == "input 0 is 0 all over in 3 of 3 batches looked at, rank 0"
    )


def test_one_sample_over_and_over(one_rank: Any) -> None:
    same = make_observation(
        "CONSTANT", constant=[], low=[-2.0], tensor="image", count=4, looked=5, dataset="Images", batch=9
    )
    assert (
        "input image holds one sample over and over in 4 of 5 batches"
        in judge_only(run_after(one_rank, same), "TD-D002").title
    )


@pytest.mark.parametrize(("iterable", "advice"), [(True, "get_worker_info"), (False, "indices")])
def test_repeated_batches_and_their_likely_cause(one_rank: Any, iterable: bool, advice: str) -> None:
    facts = {"dataset": "Stream", "batch": 6, "first": 5, "repeats": 3, "compared": 6, "workers": 2}
    finding = judge_only(run_after(one_rank, make_observation("REPEAT", iterable=iterable, **facts)), "TD-D003")
    assert "batch 6 holds what batch 5 held: 3 of 6 batches" in finding.title and advice in finding.try_next


LABELS = {
    "dataset": "Images",
    "label": "1",
    "label_low": 1,
    "label_high": 10,
    "width": 10,
    "rows": [4],
    "indices": [77],
}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Target 10 is out of bounds.", ["TD-D004"]),
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be ...", ["TD-D004"]),
        ("connection lost", []),
        (None, []),
    ],
)
def test_labels_out_of_range_explain_a_failure_and_nothing_else(
    one_rank: Any, message: Any, expected: list[str]
) -> None:
    failure = [] if message is None else [Traceback(exception="IndexError", message=message, step=2, how="uncaught")]
    run = run_after(one_rank, make_observation("LABELS", **LABELS), *failure)
    found = [finding for finding in run.judge_stream().findings if finding.code == "TD-D004"]
    assert [finding.code for finding in found] == expected
    if found:
        assert found[0].title == "labels from 1 to 10, but the model has 10 classes, rank 0 at step 3"
        assert any("dataset indices 77" in line for line in found[0].evidence)


def test_a_failure_without_such_labels_is_not_about_labels(one_rank: Any) -> None:
    run = run_after(
        one_rank, Traceback(exception="IndexError", message="Target 10 is out of bounds.", step=2, how="logged")
    )
    assert "TD-D004" not in run.judge_codes()


def test_a_failing_worker(one_rank: Any) -> None:
    facts = {"dataset": "Images", "workers": 4, "batch": 17, "indices": [340, 341]}
    broken = make_observation("ERROR", worker=2, error="ValueError: truncated image", where="data.py:40", **facts)
    finding = judge_only(run_after(one_rank, broken), "TD-D005")
    assert finding.title == "worker 2 failed at batch 17: ValueError: truncated image (data.py:40), rank 0"
    assert "dataset indices in that batch: [340, 341]" in finding.evidence


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible ...", "/dev/shm"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "fewer workers"),
        ("RuntimeError: DataLoader timed out after 5 seconds", "reads from"),
        ("RuntimeError: Too many open files. Communication with the workers", "file_system"),
    ],
)
def test_what_ended_a_worker(one_rank: Any, error: str, hint: str) -> None:
    line = make_observation(
        "ERROR", worker=None, error=error, where="", dataset="Images", workers=4, batch=1, indices=[]
    )
    assert hint in judge_only(run_after(one_rank, line), "TD-D005").try_next


def test_two_ranks_whose_sampler_keeps_its_epoch_are_one_finding(make_stream: Any) -> None:
    run = make_stream()
    for rank in (0, 1):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.0] * 12)
        run.emit_events(
            folder, make_observation("SAMPLER", step=7, dataset="Images", sampler_epoch=0, passes=2, before=1)
        )
        run.end_process(folder, 12)
    (finding,) = run.judge_stream().findings
    assert finding.code == "TD-D006" and "the sampler's epoch is still 0, rank 0" in finding.title
    assert finding.evidence[-1] == "also on rank 1 at step 7"


def test_a_transform_that_makes_nan(one_rank: Any) -> None:
    line = make_observation(
        "NAN", probe="augmentation", **{**RANGE, "step_name": "ByItsMaximum", "order": [1], "count": 1}
    )
    finding = judge_only(run_after(one_rank, line), "TD-D007")
    assert finding.title == "transform ByItsMaximum turned a finite image into NaN or Inf, rank 0"
    assert finding.evidence[0].startswith("Compose, step 2")


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("normalised-twice", "Normalize normalises values that Standardize has already normalised"),
        ("not-scaled", "treats values from 0 to 255 as values from 0 to 1"),
        ("scaled-twice", "returns values that were scaled down twice"),
    ],
)
def test_value_ranges(one_rank: Any, problem: str, words: str) -> None:
    line = make_observation("RANGE", probe="augmentation", problem=problem, other="Standardize", **RANGE)
    finding = judge_only(run_after(one_rank, line), "TD-D008")
    assert words in finding.title and "-2.1 to 2.6 becomes -11.5 to 9.5" in finding.evidence[0]


def test_a_transform_without_effect_is_told_as_info(one_rank: Any) -> None:
    finding = judge_only(run_after(one_rank, make_observation("NOEFFECT", probe="augmentation", **RANGE)), "TD-D009")
    assert finding.severity == "info" and "changed none of 4 measured samples" in finding.title


@pytest.mark.parametrize(
    ("workers", "cores", "advice"),
    [(0, 8, "num_workers=8"), (0, 64, "num_workers=8"), (2, 8, "up to the 8 cores"), (8, 8, "cheaper")],
)
def test_waiting_for_data(one_rank: Any, workers: int, cores: int, advice: str) -> None:
    facts = {"workers": workers, "cores": cores, "use": "evaluation", "whole_share": 0.31}
    finding = judge_only(run_after(one_rank, make_observation("WAIT", **{**WAIT, **facts})), "TD-P002")
    assert finding.title == (
        "waiting for batches of Images (evaluation) takes 71% of the time between batches (median 48.2 ms each),"
        " 31% of the run's time, rank 0"
    )
    assert advice in finding.try_next and f"{cores} cores" in finding.evidence[1]


SLOW = {"slow_line": "train.py:27", "slow_function": "Images.__getitem__", "slow_share": 0.83}


@pytest.mark.parametrize(
    ("callee", "words"),
    [
        ("load (numpy/io.py)", "a sample in load (numpy/io.py), called at train.py:27"),
        (None, "a sample at train.py:27"),
    ],
)
def test_waiting_names_the_slow_line(one_rank: Any, callee: str | None, words: str) -> None:
    line = make_observation("WAIT", **{**WAIT, **SLOW, "slow_callee": callee})
    finding = judge_only(run_after(one_rank, line), "TD-P002")
    assert finding.evidence[0] == f"Images.__getitem__: 83% of the time to fetch {words}"
    assert finding.try_next.startswith("look at train.py:27: ") and "num_workers=8" in finding.try_next


def test_the_figures_of_a_wait_are_brought_up_to_date(one_rank: Any) -> None:
    early = {**WAIT, "run_over": False, "count": 50, "whole_share": 0.77}
    late = {**WAIT, "run_over": True, "count": 254, "whole_share": 0.92, "share": 0.93}
    title = judge_only(run_after(one_rank, make_observation("WAIT", **early)), "TD-P002").title
    assert "71% of the time between its last 50 batches" in title and "77% of the run's time up to step 3" in title
    events = [make_observation("WAIT", step=step, **facts) for step, facts in ((3, early), (101, early), (256, late))]
    finding = judge_only(run_after(one_rank, *events), "TD-P002")
    assert "takes 93% of the time between batches" in finding.title and "92% of the run's time, rank 0" in finding.title
    assert "after 254 batches" in finding.evidence[0]
    assert not [line for line in finding.evidence if line.startswith(("also", "again"))]


def test_a_wait_that_was_soon_over_is_not_blown_up(one_rank: Any) -> None:
    early = {**WAIT, "run_over": False, "count": 50, "whole_share": 0.77}
    late = {**WAIT, "run_over": True, "count": 5000, "whole_share": 0.08, "share": 0.09}
    events = [make_observation("WAIT", **early), make_observation("WAIT", step=5000, **late)]
    finding = judge_only(run_after(one_rank, *events), "TD-P002")
    assert "77% of the run's time up to step 3" in finding.title
    assert "over the whole run: 9% of the time between batches, 8% of the run's time" in finding.evidence


def test_waits_recorded_before_the_end_was_are_of_one_process(one_rank: Any) -> None:
    events = [make_observation("WAIT", step=step, **WAIT) for step in (3, 101, 202)]
    finding = judge_only(run_after(one_rank, *events), "TD-P002")
    assert finding.evidence[-1] == "again at steps 101 and 202"


def test_workers_that_start_anew(one_rank: Any) -> None:
    facts = {"starting": 0.6, "first_s": 1.2, "count": 3, "workers": 4, "persistent": False}
    finding = judge_only(run_after(one_rank, make_observation("START", **{**WAIT, **facts})), "TD-P002")
    assert (
        "first batch of a pass over Images takes 60% of the run's time (1.2 s each)" in finding.title
        and "persistent_workers=True" in finding.try_next
    )


def test_a_slow_transform_stands_beside_the_wait_it_causes(one_rank: Any) -> None:
    facts = {"pipeline": "Compose", "slow": "Elastic", "slow_share": 0.83, "slow_ms": 31.0, "samples": 16}
    run = run_after(
        one_rank,
        make_observation("WAIT", **WAIT),
        make_observation("SLOW", probe="augmentation", wait_share=0.71, **facts),
    )
    titles = [finding.title for finding in run.judge_stream().findings]
    assert len(titles) == 2 and any("transform Elastic takes 83% of each fetch" in title for title in titles)


def test_what_is_only_told_is_no_finding(one_rank: Any) -> None:
    run = run_after(
        one_rank,
        make_observation("LOADER", workers=0, length=100),
        make_observation("BATCH", low=[0.0], high=[0.0], constant=["0"]),
        make_observation("EPOCH", share=0.99, repeats=0),
        make_observation("PIPELINE", probe="augmentation", steps=["Normalize"], changed=[0.0]),
        make_observation("LABELS", **LABELS),
    )
    assert run.judge_stream().findings == []


def test_another_probe_with_the_same_part_is_not_meant(one_rank: Any) -> None:
    parts = ("NONFINITE", "CONSTANT", "REPEAT", "ERROR", "SAMPLER", "WAIT", "NAN", "RANGE", "NOEFFECT", "SLOW")
    assert (
        run_after(one_rank, *(make_observation(part, probe="forward") for part in parts)).judge_stream().findings == []
    )
