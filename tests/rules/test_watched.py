"""What was watched and how often, and what was not."""

from collections.abc import Callable

import pytest
from streams import Stream

from tdbg.core.events import Cost, Note, Observation, Switch
from tdbg.core.observations.checkpoint import CheckpointRead, CheckpointSaved, SaveFailed
from tdbg.rules.watched import NotWatched, format_not_watched

NOTHING_MORE = "not watched: nothing that a flag or a higher level would add"


def read_coverage(run: Stream) -> tuple[str, str]:
    headline, watched, unwatched, *_ = run.judge_stream().format_summary()
    assert headline.startswith("verdict: ")
    return watched, unwatched.partition("; more: ")[0]


def test_a_run_says_how_often_each_thing_was_watched(make_stream: Callable[..., Stream]) -> None:
    run = make_stream(level="advanced")
    rank = run.begin_rank()
    for epoch in range(2):
        for batch in (1, 2, 3):
            step = 3 * epoch + batch
            run.emit_steps(rank, [2.0], first=step, epoch=epoch, batch=batch, checked="all" if batch < 3 else "some")
        for call in (1, 2):
            run.emit_steps(rank, [2.0], first=3 * epoch + 3, phase="eval", call=2 * epoch + call)
    for kind in (CheckpointSaved, CheckpointRead, SaveFailed):
        run.emit_events(rank, Observation(probe="checkpoint", flag="CHECKPOINT", part=kind.PART, values={}))
    run.end_process(rank, 6)
    verdict = run.judge_stream()
    line = next(line for line in verdict.format_page() if line.startswith("watched"))
    assert line.startswith(
        "watched (--level advanced): 6 of 6 steps on record, gradients read in 4 steps, 2 evaluation passes,"
        " 6 batches, 2 checkpoints; "
    )
    assert verdict.watched is not None and verdict.as_dict()["watched"] == verdict.watched
    assert (verdict.watched["eval_calls"], verdict.watched["gradient_reads"]) == (4, 4)
    assert (
        verdict.watched["rules_armed"] + sum(len(row["codes"]) for row in verdict.not_watched)
        == verdict.watched["rules"]
    )


def test_what_has_no_record_is_not_counted_as_watched(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.0], batch=1, checked="all")
    run.emit_steps(rank, [2.0], first=500, batch=500)
    run.emit_events(rank, Cost(step=1000, own_ms=1.0, wall_ms=1000.0, budget_pct=1.0, sampled=7, away_ms=400.0))
    run.end_process(rank, 1000)
    watched, _ = read_coverage(run)
    assert watched.startswith(
        "watched (--level basic): 2 of 1,000 steps on record, gradients read in 7 steps, no evaluation on record, at least 500 batches;"
        " hooks on modules for 60 % of the time (short calls); "
    )


@pytest.mark.parametrize(
    ("allowance", "missing"), [(1.0, []), (0.0, ["TD-D010", "TD-D011", "TD-D012", "TD-D013", "TD-D014"])]
)
def test_without_an_allowance_what_the_inspection_alone_has_is_not_watched(
    make_stream: Callable[..., Stream], allowance: float, missing: list[str]
) -> None:
    run = make_stream(allowance=allowance)
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0], epoch=0, batch=1)
    run.end_process(rank, 1)
    reason = "needs the opening inspection (--allowance)"
    codes = [code for row in run.judge_stream().not_watched if row["reason"] == reason for code in row["codes"]]
    assert sorted(codes) == missing


def test_of_several_ranks_the_least_watched_one_counts(make_stream: Callable[..., Stream]) -> None:
    run = make_stream()
    for rank, records in enumerate((9, 4)):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.0] * records, checked="all")
        run.end_process(folder, 9)
    headline, watched, unwatched = run.judge_stream().format_summary()
    assert headline == "verdict: no problem found in what was watched; 2 ranks, 9 steps; exit 0"
    assert (
        ": 4 of 9 steps on record, gradients read in 4 steps, no evaluation on record, on each of 2 ranks; " in watched
    )
    assert unwatched.startswith("not watched: ")


def test_an_evaluation_alone(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    for call in (1, 2, 3):
        run.emit_steps(rank, [2.0], first=call, phase="eval", call=call)
    run.end_process(rank)
    watched, _ = read_coverage(run)
    assert watched.startswith("watched (--level basic): 3 evaluation calls; ")
    verdict = run.judge_stream()
    assert verdict.watched is not None and verdict.watched["eval_passes"] == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"level": "off"}, "not watched: everything (--level basic)"),
        ({"level": "extreme"}, "not watched: arguments of loss functions (-f LOSS)"),
        (
            {"level": "advanced"},
            "not watched: updates by parameter, the order of calls, calls of wandb and 2 more (--level extreme);"
            " arguments of loss functions (-f LOSS)",
        ),
    ],
)
def test_what_was_not_watched_names_the_option(
    make_stream: Callable[..., Stream], settings: dict[str, object], says: str
) -> None:
    run = make_stream(**settings)
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0, 2.0], epoch=0, batch=1)
    run.end_process(rank, 2)
    assert read_coverage(run)[1] == says
    if settings["level"] == "off":
        assert read_coverage(run)[0] == "watched: nothing (--level off)"
        assert run.judge_stream().format_headline().startswith("verdict: level off: nothing was looked at")


BATCH_CODES = {f"TD-D{number:03}" for number in (1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15)}


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_without_a_loader_batches_are_told_as_not_watched(
    make_stream: Callable[..., Stream], level: str, ranks: int
) -> None:
    """A loop that cuts its batches itself: probes of loaders were there, and had nothing to look at."""
    run = make_stream(level=level)
    for rank in range(ranks):
        folder = run.begin_rank(rank, world=ranks)
        run.emit_steps(folder, [2.0] * 5)
        inspected = ["dataloader", "data-splits", "worker-states"]
        run.emit_events(folder, Cost(step=5, own_ms=1.0, wall_ms=1000.0, budget_pct=1.0, inspected=inspected))
        run.end_process(folder, 5)
    verdict = run.judge_stream()
    (row,) = [row for row in verdict.not_watched if row["reason"] == "no DataLoader gave a batch"]
    assert set(row["codes"]) - {"TD-P002"} == BATCH_CODES | ({"TD-R011"} if ranks > 1 else set())
    assert verdict.watched is not None
    assert verdict.watched["rules_armed"] == verdict.watched["rules"] - sum(
        len(other["codes"]) for other in verdict.not_watched
    )
    lines = verdict.format_summary()
    assert len(lines) == 3 and lines[2].startswith("not watched: batches (no DataLoader gave a batch)")
    assert "their loader (--level" not in lines[2], "no level would add them"


@pytest.mark.parametrize("kind", ["a batch", "an evaluation's batch", "another rank's batch", "no step"])
def test_a_loader_that_gave_a_batch_is_watched(make_stream: Callable[..., Stream], kind: str) -> None:
    run = make_stream(level="advanced")
    for rank in (0, 1):
        folder = run.begin_rank(rank, world=2)
        if kind == "a batch" or (kind == "another rank's batch" and rank):
            run.emit_steps(folder, [2.0] * 5, epoch=0, batch=1)
        elif kind != "no step":
            run.emit_steps(folder, [2.0] * 5)
        if kind == "an evaluation's batch":
            run.emit_events(folder, Observation(probe="dataloader", flag="DATALOADER", part="LOADER", values={}))
        run.end_process(folder, 5)
    verdict = run.judge_stream()
    assert not [row for row in verdict.not_watched if "DataLoader" in row["reason"]]
    assert "DataLoader" not in verdict.format_summary()[2]


def test_where_an_option_would_add_nothing_none_is_named() -> None:
    other = NotWatched(codes=["TD-R001"], reason="needs 2 ranks", flag="", level="")
    profile = NotWatched(codes=["TD-P004"], reason="needs --flag PROFILER", flag="PROFILER", level="")
    for rows in ([], [other], [profile]):
        assert format_not_watched("extreme", rows) == NOTHING_MORE


def test_a_higher_level_for_some_steps_is_told(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.0, 2.0])
    run.emit_events(rank, Switch(level="advanced", flags={}))
    run.end_process(rank, 2)
    assert read_coverage(run)[0].startswith("watched (--level basic, at times advanced): 2 of 2 steps")


def test_where_no_step_came_nothing_is_said_to_be_in_order(make_stream: Callable[..., Stream]) -> None:
    run = make_stream()
    run.emit_events(run.begin_rank(), Note(code="x", text="y"))
    headline, watched, *_ = run.judge_stream().format_summary()
    assert headline.startswith("verdict: no step and no evaluation was seen")
    assert watched.startswith("watched (--level basic): no step and no evaluation; ") and "hooks on" not in watched


def test_a_rank_that_did_not_end_as_the_others_has_its_line(make_stream: Callable[..., Stream]) -> None:
    run = make_stream()
    for rank, steps in enumerate((9, 9)):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.0] * steps)
        if rank == 0:
            run.end_process(folder, steps)
    lines = run.judge_stream().format_summary()
    assert "rank 0: step 9, ended, loss 2" in lines and len(lines) > 3
