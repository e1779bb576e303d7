"""TD-G..., TD-S..., TD-A...: gradients, learning rate and loss scale off their course."""

import math
import random

import pytest
from streams import Stream, make_nonfinite

from tdbg.core.events import Step


def find_first(run: Stream, code: str):
    return next(finding for finding in run.judge_stream().findings if finding.code == code)


def make_noisy(level: float, count: int, seed: int = 0, spread: float = 0.2) -> list[float]:
    noise = random.Random(seed)
    return [level * noise.lognormvariate(0, spread) for _ in range(count)]


def test_gradient_explosion(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 60) + make_noisy(2.6, 10), norms=make_noisy(1.2, 60) + make_noisy(300, 10))
    finding = find_first(run, "TD-G001")
    assert finding.first_step == 61 and "gradient norm rose from 1.2" in finding.title


def test_an_explosion_from_a_small_base(one_rank):
    """Three values in a row are far up long before one is above 10."""
    run, rank = one_rank
    growth = [0.05 * 10 ** (9 * step / 40) for step in range(1, 41)]
    run.emit_steps(rank, make_noisy(2.0, 60) + make_noisy(2.6, 40), norms=make_noisy(0.05, 60) + growth)
    finding = find_first(run, "TD-G001")
    assert "gradient norm rose from 0.05" in finding.title and 61 <= finding.first_step <= 70


def test_larger_gradients_while_the_noisy_loss_falls_are_no_explosion(one_rank):
    """Some steps are worse than the median; three in a row would count."""
    run, rank = one_rank
    losses = [1.0 if step % 3 else 2.2 for step in range(60)]
    run.emit_steps(rank, make_noisy(2.0, 60, spread=0.02) + losses, norms=make_noisy(2.0, 60) + make_noisy(40, 60))
    assert "TD-G001" not in run.judge_codes()


def test_no_explosion_while_small_or_while_the_loss_gets_better(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 60) + make_noisy(2.6, 10), norms=make_noisy(0.01, 60) + make_noisy(1.0, 10))
    run.emit_steps(rank, make_noisy(1.0, 10), norms=make_noisy(300, 10), first=71)
    assert "TD-G001" not in run.judge_codes()


def test_a_short_spike_is_no_explosion(one_rank):
    run, rank = one_rank
    norms = make_noisy(1.0, 200)
    norms[100:102] = [500.0, 80.0]
    run.emit_steps(rank, make_noisy(2.0, 200), norms=norms)
    assert run.judge_codes() == []


def test_lr_spike_with_a_loss_that_suffers(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 50) + make_noisy(11.0, 10), lr=[1e-3] * 50 + [0.1] + [1e-3] * 9)
    finding = find_first(run, "TD-S001")
    assert finding.title.startswith("learning rate jumped 100x at step 51 (0.001 to 0.1), rank 0, and the loss went")
    assert run.judge_stream().findings[0].code == "TD-S001"  # the cause before its consequences


def test_lr_spike_that_ends_in_nan(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [*make_noisy(2.0, 50), 40.0, "nan"], lr=[1e-3] * 50 + [1.0] * 2)
    assert find_first(run, "TD-S001").first_step == 51


def test_lr_spike_through_sparse_records(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, [5.0 - step / 10 for step in range(20)] + [2.8] * 8, lr=2e-3)
    for step, loss in (
        (31, 2.8),
        (39, 2.7),
        (45, 2.7),
        (48, 2.7),
        (58, 8.8),
        (61, 18.2),
        (65, 7.0),
        (68, 5.3),
        (80, 3.8),
    ):
        run.emit_events(rank, Step(step=step, loss=loss, lr=[2e-3 if step < 48 else 0.3], grad_norm=0.5))
    finding = find_first(run, "TD-S001")
    assert finding.first_step == 48 and "no record between steps 45 and 48" in finding.evidence


def test_lr_jump_that_nobody_suffers_from(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 50) + make_noisy(1.8, 60), lr=[1e-5] * 50 + [1e-3] * 60)
    assert run.judge_codes() == []


def test_warm_restart_is_no_spike(one_rank):
    run, rank = one_rank
    rates = ([1e-3] * 20 + [1e-4] * 20 + [1e-6] * 80) * 3
    run.emit_steps(rank, (make_noisy(2.0, 20) + make_noisy(0.5, 100)) * 3, lr=rates)
    assert "TD-S001" not in run.judge_codes()


def test_lr_zero_for_long(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 100), lr=[1e-3] * 60 + [0.0] * 40)
    finding = find_first(run, "TD-S002")
    assert finding.first_step == 61 and finding.evidence[0] == "40 steps with such a rate up to the end"


def test_a_rate_that_decays_to_nothing(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 160), lr=[1e-2 * 0.8**step for step in range(160)])
    finding = find_first(run, "TD-S002")
    assert finding.first_step == 105  # 0.8 ** 104 is the first below 1e-10
    assert finding.title.startswith(
        "the learning rate has been below 1e-10 of its highest for 20 steps, since step 105"
    )
    assert finding.evidence[0] == "56 steps with such a rate up to the end"


def cosine(left: float) -> float:
    return 0.5 - 0.5 * math.cos(math.pi * left)


@pytest.mark.parametrize("end", [300, 8_000])
@pytest.mark.parametrize(
    "schedule", [cosine, lambda left: cosine(left) ** 2, lambda left: left**4, lambda left: left**5]
)
def test_a_schedule_that_ends_at_zero_is_healthy(one_rank, schedule, end):
    run, rank = one_rank
    rates = [1e-3 * schedule(1 - step / end) for step in range(end)]
    run.emit_steps(rank, make_noisy(2.0, end), lr=rates)
    assert "TD-S002" not in run.judge_codes()


def test_a_warm_up_from_next_to_nothing_is_healthy(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 100), lr=[1e-16 * 1.4**step for step in range(100)])
    assert "TD-S002" not in run.judge_codes()


def test_lr_zero_at_both_ends_of_a_schedule_is_healthy(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 100), lr=[0.0] + [1e-3] * 97 + [0.0] * 2)
    assert run.judge_codes() == []


def test_one_group_at_zero_is_frozen_on_purpose(one_rank):
    run, rank = one_rank
    for step in range(1, 100):
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[1e-3, 0.0]))
    assert run.judge_codes() == []


def test_negative_lr(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 20), lr=[1e-3] * 19 + [-1e-4])
    assert find_first(run, "TD-S002").severity == "error"
    assert run.judge_codes() == ["TD-S002"]


def test_rounding_below_zero_is_not_negative(one_rank):
    run, rank = one_rank
    run.emit_steps(rank, make_noisy(2.0, 20), lr=[1e-3] * 19 + [-1e-19])
    assert run.judge_codes() == []


def emit_amp_steps(run: Stream, rank: str, skips: set[int], steps: int = 300) -> None:
    scale = 65536.0
    for step in range(1, steps + 1):
        scale = scale / 2 if step in skips else scale
        skipped = step in skips
        run.emit_events(rank, Step(step=step, loss=2.0, lr=[1e-3], scale=scale, skipped=skipped, finite=not skipped))


def test_five_skips_in_a_row(one_rank):
    run, rank = one_rank
    emit_amp_steps(run, rank, set(range(130, 140)))
    finding = find_first(run, "TD-A001")
    assert finding.title == "GradScaler skipped 5 updates in a row from step 130 on, rank 0, scale now 2048"


def test_one_update_in_four_skipped(one_rank):
    run, rank = one_rank
    emit_amp_steps(run, rank, set(range(100, 300, 4)))
    assert "of the last" in find_first(run, "TD-A001").title


def test_healthy_scaling(one_rank):
    run, rank = one_rank
    emit_amp_steps(run, rank, {1, 2, 3, 4, 5, 6, 7, 90, 91, 200})
    assert run.judge_codes() == []


def test_a_first_bad_value_is_told_beside_the_streak(one_rank):
    run, rank = one_rank
    run.emit_events(rank, *(Step(step=step, loss=2.0, scale=1024.0) for step in range(1, 100)))
    run.emit_events(rank, make_nonfinite(step=100))
    for step in range(100, 130):
        run.emit_events(rank, Step(step=step, loss="nan", scale=1024.0, skipped=True, finite=False))
    assert {"TD-A001", "TD-N001", "TD-N002"} <= set(run.judge_codes())
