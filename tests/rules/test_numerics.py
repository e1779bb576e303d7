"""TD-N...: NaN, Inf, dead runs, loss jumps."""

import json
import random

import pytest
from streams import Stream, make_nonfinite

from tdbg.core.events import Cost, End, Finding, Params, Step
from tdbg.rules.verdict import format_finding


def find_first(run: Stream, code: str):
    return next(finding for finding in run.judge_stream().findings if finding.code == code)


def test_first_nan_is_said_at_once_with_where_and_what(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, make_nonfinite())
    (finding,) = run.list_live_findings()
    assert finding.title == 'first NaN at step 3 on rank 0, in backward of module "blocks.2.act" (Act)'
    assert (finding.severity, finding.first_step, finding.rank) == ("critical", 3, 0)
    text = "\n".join(format_finding(finding))
    assert (
        "12 of 4,096 elements" in text and "last good record: step 2, loss 2.3" in text and "batch_step00000003" in text
    )
    assert len(format_finding(finding)) <= 6


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        (range(1, 231), "last good record: step 230, loss 2.3"),
        (range(1, 230), "last good record: step 230, loss 2.3"),  # the last one is written a step late
        ((*range(1, 51), *range(56, 231, 7)), "last good record: step 230 (75 of 230 steps on record), loss 2.3"),
        (range(1, 51), "last good record: step 230 (50 of 230 steps on record), loss 2.3"),
    ],
)
def test_where_records_are_sparse_the_last_good_one_says_so(one_rank, recorded, says):
    run, rank = one_rank
    for step in recorded:
        run.emit_steps(rank, [2.5], first=step)
    run.emit_events(rank, make_nonfinite(step=231))
    run.emit_steps(rank, ["nan"] * 3, first=231)
    assert any(line.startswith(f"{says}, ") for line in find_first(run, "TD-N001").evidence)


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ({"phase": "input", "module": "embed", "module_class": "Conv2d"}, 'in the input of module "embed" (Conv2d)'),
        ({"phase": "forward", "kind": "inf", "tensor": "output"}, 'in forward of module "blocks.2.act" (Act)'),
        ({"phase": "loss", "module": "", "module_class": ""}, "in the loss"),
        ({"phase": "gradient", "parameter": "blocks.4.proj.weight"}, "in the gradient of blocks.4.proj.weight"),
        (
            {"phase": "weights", "parameter": "head.weight"},
            "in weight head.weight, written between two updates",
        ),
        ({"phase": "optimizer", "parameter": "head.weight"}, "in weight head.weight, written by the update"),
    ],
)
def test_each_phase_has_its_words(one_rank, event, where):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, make_nonfinite(**event))
    kind = "Inf" if event.get("kind") == "inf" else "NaN"
    assert find_first(run, "TD-N001").title == f"first {kind} at step 3 on rank 0, {where}"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"rows": [20]}, ", all in row 20 of 32 (counted from 0); "),
        ({"rows": [3, 20]}, ", all in rows 3, 20 of 32 (counted from 0); "),
        (
            {"rows": [20], "samples": [4711], "dataset": "Sensors"},
            ", all in row 20 of 32 (from sample 4711 of Sensors); ",
        ),
    ],
)
def test_few_rows_are_named_with_their_samples(one_rank, event, words):
    run, rank = one_rank
    run.emit_events(rank, make_nonfinite(phase="forward", tensor="output", shape=[32, 8], dtype="float32", **event))
    assert words in find_first(run, "TD-N001").evidence[0]


def test_rows_of_a_gradient_are_no_samples(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_nonfinite(phase="gradient", parameter="head.weight", shape=[32, 8], rows=[20]))
    assert "row" not in find_first(run, "TD-N001").evidence[0]


@pytest.mark.parametrize(
    ("operation", "phase", "cause"),
    [
        ("aten.div", "forward", "likely: division by zero in aten.div: check the divisor"),
        ("aten.exp", "forward", "likely: overflow in aten.exp: check how large its input is"),
        ("aten.addmm", "forward", "the module made it out of finite inputs"),
        ("DivBackward0", "backward", "likely: the forward result is finite but its derivative is not"),
    ],
)
def test_an_operation_tells_the_likely_cause(one_rank, operation, phase, cause):
    run, rank = one_rank
    run.emit_events(rank, make_nonfinite(operation=operation, phase=phase))
    assert find_first(run, "TD-N001").cause.startswith(cause)


def test_weights_that_were_bad_before_training_are_no_fault_of_an_update(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank, make_nonfinite(step=1, phase="optimizer", module="", module_class="", parameter="", weights="intact")
    )
    finding = find_first(run, "TD-N001")
    assert finding.title == "first NaN at step 1 on rank 0, in initial weights"
    assert "initialisation" in finding.cause and "learning rate" not in finding.try_next


def test_steps_that_nobody_watched_are_all_named_and_no_cause_is_invented(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(
        rank,
        make_nonfinite(until=5, phase="", parameter="head.weight", module="head", tensor="weight", weights="updated"),
    )
    finding = find_first(run, "TD-N001")
    assert finding.title == "first NaN in one of steps 3 to 5 on rank 0, in weight head.weight"
    assert not finding.cause and "--window" in finding.try_next


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_rank_of_origin_is_named_whoever_writes_first(make_stream, order):
    run = make_stream()
    folders = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for folder in folders:
        run.emit_steps(folder, [2.5, 2.4])
    for rank in order:
        run.emit_events(folders[rank], make_nonfinite(origin="here" if rank == 1 else "other-rank"))
    run.emit_steps(folders[0], ["nan"], first=3)
    run.emit_steps(folders[1], ["nan"], first=3)
    (said,) = run.list_live_findings()
    assert said.rank == 1
    finding = find_first(run, "TD-N001")
    assert finding.rank == 1 and any(
        "rank 0 received it in the gradient reduction" in line for line in finding.evidence
    )


def test_an_unclear_origin_waits_two_steps_for_a_rank_that_knows(make_stream):
    run = make_stream()
    zero, one = run.begin_rank(0, world=2), run.begin_rank(1, world=2)
    run.emit_steps(zero, [2.5, 2.4])
    run.emit_events(zero, make_nonfinite(origin="unknown"))
    run.emit_steps(zero, ["nan"], first=3)
    assert run.list_live_findings() == []
    run.emit_steps(zero, ["nan", "nan"], first=4)
    assert [finding.rank for finding in run.list_live_findings()] == [0]
    run.emit_steps(one, [2.5, 2.4])
    run.emit_events(one, make_nonfinite(origin="here"))
    assert find_first(run, "TD-N001").rank == 1  # amended: a rank knew better after all


def test_a_value_from_another_rank_never_accuses_the_one_that_got_it(make_stream):
    run = make_stream()
    zero = run.begin_rank(0, world=2)
    run.emit_steps(zero, [2.5, 2.4])
    run.emit_events(zero, make_nonfinite(origin="other-rank"))
    run.emit_steps(zero, ["nan"] * 10, first=3)
    assert run.list_live_findings() == []
    assert "received by rank 0 from another" in find_first(run, "TD-N001").title


def test_the_earlier_step_wins_among_independent_ranks(make_stream):
    run = make_stream()
    zero, one = run.begin_rank(0, world=2), run.begin_rank(1, world=2)
    run.emit_events(zero, make_nonfinite(step=40))
    run.emit_events(one, make_nonfinite(step=7))
    assert find_first(run, "TD-N001").first_step == 7


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([2.3, 1.1, 0.4, 0.9, 3341.0, 2.9e6, 1.5e24], True),
        ([2.3, 1.1, 0.4, 0.9, 0.4, 0.7, 1.2], False),
        ([1e-7, 1e-7, 1e-7, 1e-7, 1e-3, 1e-3, 2e-3], False),  # noise of a loss that is next to nothing
        ([1e6, 3e6, 2e6, 1e6, 3e6, 2e6, 4e6], False),  # a sum over many elements
    ],
)
def test_an_overflow_after_a_rise_of_the_loss_is_a_run_that_diverged(one_rank, losses, told):
    run, rank = one_rank
    run.emit_steps(rank, losses)
    ring = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    run.emit_events(
        rank, make_nonfinite(step=8, phase="forward", kind="inf", ring=ring, last_good={"step": 7, "loss": losses[-1]})
    )
    finding = find_first(run, "TD-N001")
    assert ("the run had diverged: loss 1.5e+24 at step 7" in finding.cause) == told
    assert ("learning rate" in finding.try_next) == told


def make_scaled_step(step: int, **more) -> Step:
    return Step(step=step, loss=2.0, lr=[1e-3], scale=65536.0, **more)


def test_overflow_that_the_scaler_skipped_is_no_finding(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_scaled_step(1),
        make_scaled_step(2),
        make_nonfinite(kind="inf"),
        make_scaled_step(3, skipped=True, finite=False),
        make_scaled_step(4),
    )
    assert run.judge_codes() == []


def test_overflow_in_the_very_first_step_too(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank, make_nonfinite(step=1, kind="inf"), make_scaled_step(1, skipped=True, finite=False), make_scaled_step(2)
    )
    assert run.judge_codes() == []


def test_a_nan_that_the_scaler_skipped_is_only_told(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_scaled_step(1),
        make_scaled_step(2),
        make_nonfinite(),
        make_scaled_step(3, skipped=True, finite=False),
        make_scaled_step(4),
    )
    assert find_first(run, "TD-N001").severity == "info"


def test_of_nans_in_updates_that_the_scaler_skips_the_first_is_named_and_its_cause(one_rank):
    """As written by a loss that divides by 0 from step 3 on, whose first bad record the budget left out."""
    run, rank = one_rank
    run.emit_events(
        rank,
        make_scaled_step(1),
        make_scaled_step(2),
        make_nonfinite(phase="loss"),
        make_nonfinite(step=4, phase="loss"),
    )
    run.emit_events(rank, Step(step=4, loss="nan", scale=32768.0, skipped=True, finite=False))
    run.emit_events(
        rank, make_nonfinite(step=5, phase="loss"), Step(step=5, loss="nan", scale=16384.0, skipped=True, finite=False)
    )
    finding = find_first(run, "TD-N001")
    assert (finding.severity, finding.first_step) == ("info", 3)
    assert [said.first_step for said in run.list_live_findings()] == [3]
    assert "loss" in finding.cause and any("GradScaler skipped" in line for line in finding.evidence)


def test_overflows_that_the_scaler_skips_in_a_row_are_no_finding(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank, make_scaled_step(1), make_scaled_step(2), make_nonfinite(kind="inf"), make_nonfinite(step=4, kind="inf")
    )
    run.emit_events(rank, make_scaled_step(4, skipped=True, finite=False), make_scaled_step(5))
    assert run.judge_codes() == []


def test_a_later_nan_that_was_not_skipped_replaces_it(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_scaled_step(1),
        make_scaled_step(2),
        make_nonfinite(),
        make_scaled_step(3, skipped=True, finite=False),
        make_scaled_step(4),
    )
    run.emit_events(rank, make_nonfinite(step=5), make_scaled_step(5, finite=False))
    finding = find_first(run, "TD-N001")
    assert (finding.severity, finding.first_step) == ("critical", 5)


def test_under_a_scaler_a_nan_that_reached_the_weights_is_critical(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_scaled_step(1), make_scaled_step(2), make_nonfinite(), make_scaled_step(3, finite=False))
    assert find_first(run, "TD-N001").severity == "critical"


def test_a_run_that_stops_before_its_record_still_has_its_finding(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_scaled_step(1), make_scaled_step(2), make_nonfinite())
    assert run.list_live_findings() == []
    assert find_first(run, "TD-N001").first_step == 3


def test_without_a_located_value_the_records_speak(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4, "nan", "nan", "nan", "nan"])
    assert find_first(run, "TD-N001").title == "first NaN at step 3 on rank 0, in the loss"


def test_a_dead_run_is_said_once_and_counted_to_its_end(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4] + ["nan"] * 60)
    assert [finding.code for finding in run.list_live_findings()].count("TD-N002") == 1
    assert find_first(run, "TD-N002").evidence[0] == "60 steps without a finite loss, from step 3 on"


def test_steps_without_a_record_are_counted_too(one_rank):
    """Most steps have no record, the last ones among them: the end of the process names the last loss."""
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    for step in [*range(3, 33), 35, 40, 50]:
        run.emit_steps(rank, ["nan"], first=step)
    run.emit_events(rank, End(step=1200, loss="nan", loss_step=1200))
    finding = find_first(run, "TD-N002")
    assert finding.evidence[0] == "1,198 steps without a finite loss, from step 3 on (33 of them recorded, none finite)"
    assert finding.title.startswith("the loss has been NaN or Inf for 1,198 steps, to the end of the run,")


def test_a_loss_that_is_finite_at_the_end_adds_no_steps(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4] + ["nan"] * 30)
    run.emit_events(rank, End(step=1200, loss=2.2, loss_step=1200))
    assert find_first(run, "TD-N002").evidence[0] == "30 steps without a finite loss, from step 3 on"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["rank 0 first", "rank 1 first"])
@pytest.mark.parametrize(("first", "second", "told"), [(60, 61, 60), (61, 60, 61), (40, 400, 400)])
def test_title_and_evidence_are_of_the_rank_that_is_named(tmp_path, order, first, second, told):
    run = Stream(tmp_path / "run")
    counts = {0: first, 1: second}
    for rank in order:
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.5, 2.4] + ["nan"] * counts[rank])
        run.emit_events(folder, End(step=2 + counts[rank], loss="nan", loss_step=2 + counts[rank]))
    finding = find_first(run, "TD-N002")
    assert finding.rank == 0 and f"for {first} steps, to the end" in finding.title
    assert finding.evidence[0].startswith(f"{told} steps without a finite loss, from step 3 on")


def test_of_two_streaks_the_title_counts_the_one_that_it_tells_of(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5] * 9 + ["nan"] * 30 + [2.4] * 60 + ["nan"] * 51)
    run.emit_events(rank, End(step=150, loss="nan", loss_step=150))
    finding = find_first(run, "TD-N002")
    assert finding.title == "the loss has been NaN or Inf for 30 steps, rank 0, since step 10"
    assert finding.evidence[0] == "51 steps without a finite loss, from step 100 on"


def test_a_loss_that_nobody_met_before_the_end_is_told(one_rank):
    """The budget left the last steps without a record, or a part of tdbg was off."""
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, End(step=45, loss="nan", loss_step=45))
    finding = find_first(run, "TD-N002")
    assert finding.title == "the last loss read, at step 45, was NaN, rank 0"
    assert finding.evidence == ["last finite loss on record: 2.4 at step 2"]


def test_the_last_loss_is_not_told_beside_where_the_nan_began(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, make_nonfinite(step=44, phase="loss", loss="nan"), End(step=45, loss="nan", loss_step=45))
    assert run.judge_codes().count("TD-N002") == 0


def test_of_a_run_without_an_end_the_steps_are_a_lower_bound(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4] + ["nan"] * 30)
    run.emit_events(rank, Cost(step=1200))
    assert find_first(run, "TD-N002").evidence[0] == "at least 30 steps without a finite loss, from step 3 on"


def test_a_dead_run_begins_where_the_first_bad_loss_was_located(one_rank):
    """The rule of the first NaN and this one name the same step, although the budget left out its record."""
    run, rank = one_rank
    run.emit_steps(rank, [2.5])
    run.emit_events(rank, make_nonfinite(step=3, phase="loss", loss="nan"))
    run.emit_steps(rank, [2.4], first=2)  # written late
    run.emit_steps(rank, ["nan"] * 60, first=4)
    finding = find_first(run, "TD-N002")
    assert finding.first_step == find_first(run, "TD-N001").first_step == 3
    assert finding.evidence == ["61 steps without a finite loss, from step 3 on", "loss at step 3: NaN"]


@pytest.mark.parametrize(
    ("phase", "weights", "until", "since"),
    [
        ("gradient", "updated", 0, 4),
        ("backward", "updated", 0, 4),
        ("", "updated", 5, 6),
        ("loss", "updated", 0, 3),
        ("forward", "intact", 0, 3),
    ],
)
def test_a_dead_run_begins_with_the_first_bad_loss_and_not_with_the_update_before(
    one_rank, phase, weights, until, since
):
    """Weights that went bad in the update of step 3 make the loss of step 4 bad; that of step 3 was finite."""
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, make_nonfinite(step=3, until=until, phase=phase, weights=weights, loss="nan"))
    run.emit_steps(rank, ["nan"] * 30, first=since)
    finding = find_first(run, "TD-N002")
    assert finding.first_step == since and finding.title.endswith(f", since step {since}")
    assert finding.evidence == [f"30 steps without a finite loss, from step {since} on", f"loss at step {since}: NaN"]


def test_a_dead_run_after_a_recovery_begins_anew(one_rank):
    run, rank = one_rank
    run.emit_events(rank, make_nonfinite(step=3, phase="loss", loss="nan"))
    run.emit_steps(rank, [2.4, 2.3], first=4)
    run.emit_steps(rank, ["inf"] * 30, first=6)
    assert (find_first(run, "TD-N002").first_step, find_first(run, "TD-N002").evidence[1]) == (6, "loss at step 6: Inf")


def test_a_dead_run_whose_updates_the_scaler_skips_does_not_blame_its_weights(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5], scale=65536.0)
    run.emit_steps(rank, ["nan"] * 30, first=2, scale=65536.0, skipped=True)
    assert "no weight changes" in find_first(run, "TD-N002").cause


def test_nineteen_bad_steps_are_not_yet_a_dead_run(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5] + ["nan"] * 19 + [2.4])
    assert "TD-N002" not in run.judge_codes()


def test_nan_in_evaluation(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, make_nonfinite(eval=True, during="eval", phase="forward", step=2))
    finding = find_first(run, "TD-N003")
    assert finding.title == "first NaN in evaluation at step 2, rank 0, blocks.2.act (Act)"
    assert run.judge_codes() == ["TD-N003"]


@pytest.mark.parametrize(
    ("phase", "batch", "says", "leaves_out"),
    [
        ("forward", "batch.safetensors", "look at the saved batch: empty samples", "checkpoint"),
        ("forward", "", "look for empty samples", "saved batch"),
        ("input", "batch.safetensors", "look at the saved batch: decoding", "masked"),
        ("optimizer", "batch.safetensors", "evaluate an earlier checkpoint", "batch"),
    ],
)
def test_the_advice_for_evaluation_follows_the_cause(one_rank, phase, batch, says, leaves_out):
    run, rank = one_rank
    run.emit_events(rank, make_nonfinite(eval=True, phase=phase, batch=batch, parameter="fc.weight", tensor="weight"))
    finding = find_first(run, "TD-N003")
    assert finding.try_next.startswith(says) and leaves_out not in finding.try_next
    assert ("weight fc.weight: 12 of" in finding.evidence[0]) == (phase == "optimizer")


def test_where_else_it_was_seen(make_stream):
    run = make_stream()
    for rank, step in ((0, 3), (1, 4), (2, 6)):
        run.emit_events(run.begin_rank(rank, world=3), make_nonfinite(step=step))
    assert "also seen on rank 1 at step 4, rank 2 at step 6" in find_first(run, "TD-N001").evidence


@pytest.mark.parametrize("phase", ["input", "forward", "loss"])
def test_no_batch_is_spoken_of_that_was_not_saved(one_rank, phase):
    run, rank = one_rank
    run.emit_events(rank, make_nonfinite(phase=phase, batch=""))
    finding = find_first(run, "TD-N001")
    assert finding.try_next and "saved batch" not in finding.try_next
    assert not any("batch kept" in line for line in finding.evidence)


def test_nan_in_evaluation_after_one_in_training_is_a_consequence(make_stream):
    run = make_stream()
    zero, one = run.begin_rank(0, world=2), run.begin_rank(1, world=2)
    run.emit_events(zero, make_nonfinite(eval=True, during="eval", phase="forward", step=9))
    run.emit_events(one, make_nonfinite(step=3))
    assert find_first(run, "TD-N003").severity == "info"


@pytest.mark.parametrize("evaluated_before", [False, True])
def test_nan_in_evaluation_after_a_restart_follows_from_no_nan_before_it(make_stream, evaluated_before):
    """The restart went on from a checkpoint that the training's NaN had not touched."""
    run = make_stream()
    before, again = run.begin_rank(0), run.begin_rank(0, attempt=1, env={"TORCHELASTIC_RESTART_COUNT": "1"})
    run.emit_events(before, make_nonfinite(step=3))
    if evaluated_before:
        run.emit_events(before, make_nonfinite(eval=True, during="eval", phase="forward", step=9))
    run.emit_events(again, make_nonfinite(eval=True, during="eval", phase="forward", step=20))
    told = [(found.severity, found.title) for found in run.judge_stream().findings if found.code == "TD-N003"]
    titles = [
        ("error", "first NaN in evaluation at step 20, rank 0 attempt 1, blocks.2.act (Act)"),
        ("info", "first NaN in evaluation at step 9, rank 0, blocks.2.act (Act)"),
    ]
    assert told == titles[: 1 + evaluated_before]


def test_nan_in_training_of_a_rank_of_the_same_round_explains_it_whatever_its_folder(make_stream):
    """Rank 1 died before its first step, so its first folder is of the restart."""
    run = make_stream()
    counted = {"env": {"TORCHELASTIC_RESTART_COUNT": "1"}}
    run.begin_rank(0, world=2)
    zero, one = run.begin_rank(0, 2, 1, **counted), run.begin_rank(1, 2, 0, **counted)
    run.emit_events(zero, make_nonfinite(eval=True, during="eval", phase="forward", step=9))
    run.emit_events(one, make_nonfinite(step=3))
    assert find_first(run, "TD-N003").severity == "info"


def test_loss_that_jumps_and_stays_up(one_rank):
    run, rank = one_rank
    noise = random.Random(1)
    run.emit_steps(
        rank, [2.0 + noise.gauss(0, 0.1) for _ in range(60)] + [9.0 + noise.gauss(0, 0.5) for _ in range(20)]
    )
    finding = find_first(run, "TD-N004")
    assert finding.first_step == 61 and "from 2" in finding.title
    assert [found.code for found in run.list_live_findings()] == ["TD-N004"]


@pytest.mark.parametrize(("last", "severity"), [(1.5, "info"), (2.6, "warning")])
def test_a_jump_after_which_the_loss_has_come_back_is_a_note(one_rank, last, severity):
    """Seen: the reduction of the loss switched from mean to sum; `stayed up` was said of a loss below where it began."""
    run, rank = one_rank
    noise = random.Random(1)
    run.emit_steps(rank, [2.0 + noise.gauss(0, 0.1) for _ in range(60)])
    run.emit_steps(rank, [50.0 + noise.gauss(0, 0.5) for _ in range(20)] + [last] * 30, first=61)
    finding = find_first(run, "TD-N004")
    assert finding.severity == severity and finding.title.endswith(
        "rank 0, and came back" if severity == "info" else "rank 0, and stayed up"
    )


@pytest.mark.parametrize("late", [0, 1, 8])
@pytest.mark.parametrize(("numel", "jumps"), [([4, 2], False), ([9, 3], False), ([4, 2, 8], True)])
def test_the_first_loss_of_another_model_is_no_jump(one_rank, numel, jumps, late):
    """Of the same architecture, of another one, and the same model with a layer that was unfrozen."""
    run, rank = one_rank
    noise = random.Random(1)
    after = [9.0 + noise.gauss(0, 0.5) for _ in range(60)]
    run.emit_events(rank, Params(names=["a", "b"], numel=[4, 2], optimizers=["Adam"]))
    run.emit_steps(rank, [2.0 + noise.gauss(0, 0.1) for _ in range(60)] + after[:late])
    run.emit_events(rank, Params(names=["a", "b", "c"][: len(numel)], numel=numel, optimizers=["Adam"]))
    run.emit_steps(rank, after[late:], first=61 + late)
    found = [finding for finding in run.judge_stream().findings if finding.code == "TD-N004"]
    assert [finding.severity for finding in found] == (["warning"] if jumps else ["info"] if late >= 5 else [])
    assert all((finding.cause == "another model is trained from about that step on") != jumps for finding in found)


def test_single_spikes_are_no_jump(one_rank):
    run, rank = one_rank
    noise = random.Random(2)
    losses = [2.0 + noise.gauss(0, 0.1) for _ in range(300)]
    for index in range(40, 300, 10):
        losses[index : index + 3] = [30.0, 20.0, 9.0]
    run.emit_steps(rank, losses)
    assert run.judge_codes() == []


def test_a_jump_means_nothing_with_two_optimizers(one_rank):
    run, rank = one_rank
    run.emit_events(rank, Params(optimizers=["Adam", "Adam"]))
    run.emit_steps(rank, [2.0] * 60 + [9.0] * 20)
    assert run.judge_codes() == []


def test_a_jump_after_the_sum_had_grown_already(one_rank):
    """The sum is far up since step 61; the loss per call jumps at step 71."""
    run, rank = one_rank
    run.emit_steps(rank, [2.0, 2.1, 1.9] * 20, micro=1)
    run.emit_steps(rank, [16.0] * 10, first=61, micro=8)
    run.emit_steps(rank, [48.0] * 10, first=71, micro=8)
    (finding,) = [found for found in run.judge_stream().findings if found.code == "TD-N004"]
    assert finding.first_step == 71


def test_single_high_losses_after_the_sum_had_grown_are_no_jump(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0, 2.1, 1.9] * 20, micro=1)
    run.emit_steps(rank, [16.0, 16.0, 40.0] * 10, first=61, micro=8)
    assert "TD-N004" not in run.judge_codes()


def test_a_sum_over_more_backward_calls_is_no_jump(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [2.0, 2.1, 1.9] * 20, micro=1)
    run.emit_steps(rank, [16.0] * 20, first=61, micro=8)
    assert run.judge_codes() == []


def test_a_skip_whose_record_the_budget_left_out_is_known_by_the_scale(one_rank):
    run, rank = one_rank
    run.emit_events(
        rank,
        make_scaled_step(1),
        make_scaled_step(2),
        make_nonfinite(kind="inf"),
        Step(step=9, loss=2.0, scale=32768.0),
    )
    assert run.judge_codes() == []


def test_a_dead_run_is_seen_through_sparse_records(one_rank):
    run, rank = one_rank
    for step in (1, 2, 3, 9, 22, 31):
        run.emit_events(rank, Step(step=step, loss=2.0 if step < 3 else "nan"))
    assert "TD-N002" in run.judge_codes()


def emit_on_two(stream, *events):
    """A run of two ranks: each event goes to the rank of its place."""
    run = stream()
    for rank, event in enumerate(events):
        folder = run.begin_rank(rank, world=2)
        run.emit_steps(folder, [2.5, 2.4])
        run.emit_events(folder, event)
        run.emit_steps(folder, ["nan"] * 4, first=event.step)
    return run


INPUT = {"phase": "input", "module": "0", "module_class": "Linear", "how": "rerun", "weights": "intact"}
IN_WEIGHTS = {"phase": "backward", "module": "2", "how": "bracket", "weights": "updated", "own_finite": 0}


@pytest.mark.parametrize("step", [101, 102])
def test_a_rank_that_located_the_value_beats_one_that_saw_it_in_its_weights(make_stream, step):
    """As written by a run of two DDP ranks with steps of a few milliseconds, whose rank 1 had one bad batch."""
    late = make_nonfinite(step=step, origin="unknown", **IN_WEIGHTS)
    finding = find_first(emit_on_two(make_stream, late, make_nonfinite(step=101, origin="here", **INPUT)), "TD-N001")
    assert (finding.first_step, finding.rank, finding.phase) == (101, 1, "input")


def test_a_bad_gradient_of_its_own_beats_one_seen_after_the_reduction_one_step_earlier(make_stream):
    own = make_nonfinite(step=8, origin="here", phase="gradient", parameter="2.weight", how="check", weights="intact")
    run = emit_on_two(make_stream, make_nonfinite(step=7, origin="other-rank", **IN_WEIGHTS), own)
    assert (find_first(run, "TD-N001").first_step, find_first(run, "TD-N001").rank) == (8, 1)


def test_a_weight_that_went_bad_on_one_rank_alone_came_through_no_reduction(make_stream):
    """Every rank's own gradients were finite at step 6; rank 1 saw bad weights first, and rank 0 got them at step 7."""
    shared = {**IN_WEIGHTS, "parameter": "2.weight", "tensor": "weight"}
    one = make_nonfinite(step=6, origin="other-rank", **{**shared, "own_finite": 6})
    zero = make_nonfinite(step=7, origin="other-rank", **{**shared, "own_finite": 7})
    finding = find_first(emit_on_two(make_stream, zero, one), "TD-N001")
    assert (finding.first_step, finding.rank, finding.phase) == (7, 1, "weights")
    assert finding.title.endswith("in weight 2.weight, written between two updates")


def test_a_gradient_that_the_program_ruins_after_the_reduction_is_that_ranks(make_stream):
    """It divides by a number of tokens that is 0 on rank 1; through the weights rank 0 gets it a step later."""
    shared = {"phase": "backward", "module": "2", "how": "bracket", "weights": "intact", "tensor": "gradient"}
    one = make_nonfinite(step=6, origin="other-rank", parameter="2.weight", **shared, own_finite=6)
    zero = make_nonfinite(step=7, origin="other-rank", parameter="2.weight", **shared, own_finite=7)
    finding = find_first(emit_on_two(make_stream, zero, one), "TD-N001")
    assert (finding.first_step, finding.rank, finding.phase) == (6, 1, "gradient")


def test_a_gradient_that_all_ranks_have_after_the_reduction_is_nobodys_own(make_stream):
    """An overflow of the sum, say."""
    shared = {"phase": "backward", "module": "2", "how": "bracket", "weights": "intact", "tensor": "gradient"}
    both = [make_nonfinite(step=6, origin="other-rank", parameter="2.weight", **shared, own_finite=6) for _ in range(2)]
    assert find_first(emit_on_two(make_stream, *both), "TD-N001").phase == "backward"


def test_the_verdict_corrects_a_live_finding_in_words_and_confirms_one_in_silence(make_stream):
    run = emit_on_two(make_stream, make_nonfinite(step=3), make_nonfinite(step=3, origin="other-rank"))
    told = find_first(run, "TD-N001").as_dict()
    findings = run.run.path / "findings.jsonl"
    findings.write_text(json.dumps(told) + "\n")
    assert not any("corrects" in line for line in find_first(run, "TD-N001").evidence)
    findings.write_text(json.dumps({**told, "rank": 1, "title": "first NaN at step 3 on rank 1, in the loss"}) + "\n")
    (line,) = (line for line in find_first(run, "TD-N001").evidence if "corrects" in line)
    assert line == 'corrects what was reported during the run: "first NaN at step 3 on rank 1, in the loss"'
    findings.write_text(json.dumps({**told, "code": "TD-N005", "title": "a dead module"}) + "\n")
    assert any("not confirmed at the end: TD-N005 a dead module" in note for note in run.judge_stream().notes)


def leave_what_was_said_live(run: Stream) -> None:
    said = "".join(json.dumps(finding.as_dict()) + "\n" for finding in run.list_live_findings())
    (run.run.path / "findings.jsonl").write_text(said)


def list_corrections(finding: Finding) -> list[str]:
    return [line for line in finding.evidence if line.startswith("corrects what was reported")]


def test_a_severity_that_the_end_changes_is_corrected_in_words(make_stream):
    """Evaluation on rank 0 was told before rank 1 said that training had gone bad first."""
    run = make_stream()
    zero, one = run.begin_rank(0, world=2), run.begin_rank(1, world=2)
    run.emit_events(zero, make_nonfinite(eval=True, during="eval", phase="forward", step=9))
    leave_what_was_said_live(run)
    assert list_corrections(find_first(run, "TD-N003")) == [], "it was an error, and still is"
    run.emit_events(one, make_nonfinite(step=3))
    finding = find_first(run, "TD-N003")
    assert finding.severity == "info"
    assert list_corrections(finding) == ["corrects what was reported during the run: severity error, now info"]
    assert list_corrections(find_first(run, "TD-N001")) == []


def test_a_severity_in_the_live_findings_that_is_none_is_passed_over(make_stream):
    run = emit_on_two(make_stream, make_nonfinite(step=3), make_nonfinite(step=3, origin="other-rank"))
    told = find_first(run, "TD-N001").as_dict()
    for severity in ("{x}", None, ["error"], 3):
        (run.run.path / "findings.jsonl").write_text(json.dumps({**told, "severity": severity}) + "\n")
        assert list_corrections(find_first(run, "TD-N001")) == []


def test_a_weight_that_is_bad_after_an_update_is_no_proof_of_a_bad_gradient(make_stream):
    """Live too, where a block has room for three lines of evidence."""
    note = "seen one step late: the gradients were not read at this step"
    facts = {"phase": "gradient", "how": "check", "weights": "updated", "origin": "here", "parameter": "2.weight"}
    unread = make_nonfinite(step=40, tensor="weight", bad_params=["2.weight"], bad_param_count=1, note=note, **facts)
    finding = find_first(emit_on_two(make_stream, unread), "TD-N001")
    assert "in weight 2.weight, seen after the update" in finding.title and "gradient" not in finding.title
    shown = "\n".join(format_finding(finding))
    assert "the gradients were not read at this step" in shown and "wrote the parameter after the update" in shown
    assert "non-finite weights in 1 parameter: 2.weight" in "\n".join(finding.evidence)


def test_a_moment_of_the_optimizer_that_is_bad_proves_a_bad_gradient(make_stream):
    facts = {"phase": "gradient", "how": "check", "weights": "updated", "origin": "here", "parameter": "2.weight"}
    traced = make_nonfinite(step=40, tensor="moment in the optimizer", **facts)
    assert "in the gradient of 2.weight" in find_first(emit_on_two(make_stream, traced), "TD-N001").title


@pytest.mark.parametrize("weights", ["updated", "intact"])
def test_a_module_is_not_named_as_certain_where_others_lie_between_it_and_the_loss(one_rank, weights):
    """A generator whose bad gradients a discriminator made."""
    run, rank = one_rank
    shared = {"module_class": "", "tensor": "moment in the optimizer", "bad_param_count": 4, "batch": ""}
    run.emit_events(rank, make_nonfinite(step=303, **{**IN_WEIGHTS, **shared, "module": "Gen.fc2", "weights": weights}))
    finding = find_first(run, "TD-N001")
    assert finding.title.endswith('on rank 0, in backward at module "Gen.fc2" or between it and the loss')
    assert "another model" in finding.cause and ("--max-overhead" in finding.try_next) == (weights == "updated")


def test_a_rank_that_could_only_look_after_the_reduction_says_nothing_against_one_whose_loss_was_bad(make_stream):
    """Of shards that are not run again neither rank is certain; one of them saw what was its own."""
    after = make_nonfinite(
        step=40, origin="unknown", how="bracket", tensor="gradient after the reduction", weights="intact"
    )
    lost = make_nonfinite(step=40, origin="unknown", phase="forward", module="", how="check", weights="intact")
    finding = find_first(emit_on_two(make_stream, after, lost), "TD-N001")
    assert (finding.rank, finding.phase) == (1, "forward")
