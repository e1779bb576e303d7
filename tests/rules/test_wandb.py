"""TD-C017 to TD-C019: what goes wrong between a program and Weights & Biases."""

from typing import Any

from streams import Stream

from tdbg.core.events import Finding, Observation


def make_observation(part: str, step: int = 3, **values: Any) -> Observation:
    """One observation of the probe."""
    return Observation(probe="wandb-metrics", flag="WANDB_METRICS", part=part, step=step, text="-", values=values)


def make_dropped(calls: int = 1, step: int = 6, keys: tuple[str, ...] = ("val/loss",)) -> Observation:
    return make_observation("DROPPED", step, wandb_step=1, current_step=step, keys=list(keys), dropped=calls)


def find_only(run: Stream, code: str) -> Finding:
    (found,) = [finding for finding in run.judge_stream().findings if finding.code == code]
    return found


def test_what_is_dropped_is_named(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_dropped(), make_dropped(2, keys=("val/acc",)), make_observation("FINISH", dropped=3))
    run.end_process(rank, 6)
    found = find_only(run, "TD-C017")
    assert found.title == (
        "wandb dropped val/loss: logged for step 1 when the run was at step 6, after training step 6, rank 0"
    )
    assert found.evidence == ["3 calls dropped, with val/loss, val/acc"]


def test_another_rank_is_only_added(make_stream):
    run = make_stream()
    folders = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for folder in folders:
        run.emit_events(folder, make_dropped())
        run.end_process(folder, 0)
    assert "also on rank 1 at step 6" in find_only(run, "TD-C017").evidence


def test_a_run_that_drops_nothing_is_fine(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_observation("INIT", run="a"),
        make_observation("LOG", keys=["a"]),
        make_observation("FINISH", dropped=0, once=["a"]),
    )
    run.emit_events(
        rank, make_observation("SAYS", severity="warning", message="Tried to log"), make_observation("LOGIN", ok=False)
    )
    run.end_process(rank, 0)
    assert run.judge_codes() == []


def test_keys_without_a_chart_share_a_finding(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_observation("CHART", key="loss", why="text", example="'0.3'"))
    run.emit_events(rank, make_observation("CHART", key="loss", why="text", example="'0.2'"))
    run.emit_events(rank, make_observation("CHART", 9, key="auc", why="non-finite", example="nan"))
    run.end_process(rank, 0)
    found = find_only(run, "TD-C018")
    assert found.title == (
        "loss makes no chart in wandb: its numbers are written as text, such as '0.3', at step 3, rank 0"
    )
    assert found.evidence == [
        "auc makes no chart in wandb: none of its values is a finite number, such as nan, at step 9, rank 0"
    ]


def test_failures_share_a_finding(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_observation("FAILED", 1, what="login", error="UsageError: no key\nconfigured"))
    run.emit_events(rank, make_observation("FAILED", 1, what="init", error="UsageError: no key"))
    run.emit_events(rank, make_observation("FAILED", 1, what="init", error="UsageError: no key"))
    run.end_process(rank, 0)
    found = find_only(run, "TD-C019")
    assert found.title == "wandb.login failed: UsageError: no key configured, at step 1, rank 0"
    assert found.evidence == ["wandb.init failed: UsageError: no key, at step 1"]


def test_what_wandb_says_of_the_data_counts(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_observation("SAYS", severity="error", message="ERROR Problem finishing run"))
    run.end_process(rank, 0)
    assert find_only(run, "TD-C019").title == "wandb says: ERROR Problem finishing run, at step 3, rank 0"


def test_what_wandb_says_of_the_program_does_not(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_observation("SAYS", severity="error", message="ERROR ValueError: bad label"))
    run.end_process(rank, 0)
    assert run.judge_codes() == []
