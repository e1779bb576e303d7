"""The flag AMP: autocast, scales, skipped updates and lost gradients, with a GradScaler on the CPU."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import nn

EVERY_STEP = {"flags": {"AMP": True}, "max_overhead": 1e6}


def train_model(
    steps: int,
    *,
    dtype: torch.dtype | None = torch.float16,
    scaler: torch.amp.GradScaler | None = None,
    divide: float = 1.0,
    spoil: Any = None,
    clip: bool = False,
) -> nn.Module:
    """A small regression; ``spoil(step, model, loss)`` may return another loss, or spoil a gradient after backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    for step in range(1, steps + 1):
        inputs = torch.randn(64, 16)
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            outputs = model(inputs)
        loss = (outputs.float() - inputs[:, :4]).square().mean() / divide
        if spoil is not None:
            loss = spoil(step, model, loss)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model


def make_scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_shares_are_told_in_the_words_of_their_dtype(start_watch: Any, tmp_path: Path, dtype: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(10, dtype=dtype)
    told = list_observations(watched, "amp")
    name = str(dtype).removeprefix("torch.")
    assert [event.step for event in told] == list(range(1, 11))
    assert {event.values["autocast"] for event in told} == {name} == {event.values["dtype"] for event in told}
    assert told[0].values["elements"] == 256 + 128 and told[0].values["scaler"] is False
    assert ("needs no loss scale" in told[0].text) == (dtype is torch.bfloat16)
    assert judge_codes(watched, tmp_path) == []


def test_the_shares_are_those_of_the_gradient(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.zeros(1, 10))
    wanted = torch.full((10, 10), 0.1)
    wanted[0], wanted[1, :5], wanted[2, :2] = 0.0, 1e-6, math.inf
    model.weight.register_hook(lambda grad: wanted)
    out.float().sum().backward()
    optimizer.step()
    (told,) = list_observations(watched, "amp")
    shares = [told.values[name] for name in ("zero_share", "faint_share", "huge_share")]
    assert shares == pytest.approx([0.1, 0.05, 0.02]) and told.values["largest"] == "inf"


def test_a_program_without_mixed_precision_is_left_alone(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(20, dtype=None)
    assert not list_observations(watched, "amp") and "abstains-amp" in watched.notes
    assert watched.monitor.find_probe("amp")._looks == 8, "it stops looking"


def test_gradients_lost_without_a_scaler(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(8, divide=3e4)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-A003" and "no GradScaler" in finding.title and finding.first_step == 1


def test_gradients_lost_at_too_low_a_scale(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(8, divide=3e4, scaler=make_scaler(init_scale=1.0))
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-A003" and "at loss scale 1" in finding.title


def test_the_right_scale_and_the_range_of_bfloat16_save_them(start_watch: Any, tmp_path: Path) -> None:
    for number, options in enumerate(({"scaler": make_scaler()}, {"dtype": torch.bfloat16})):
        watched = start_watch(**EVERY_STEP)
        train_model(10, divide=3e4, **options)
        assert judge_codes(watched, tmp_path / str(number)) == []
        watched.monitor.detach()


def test_a_gradient_of_zeros_in_bfloat16_is_no_matter_of_range(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(8, dtype=torch.bfloat16, spoil=lambda step, model, loss: loss * 0.0)
    assert list_observations(watched, "amp")[-1].values["zero_share"] == 1.0
    assert judge_codes(watched, tmp_path) == []


def test_zeros_of_a_relu_are_no_loss(start_watch: Any, tmp_path: Path) -> None:
    def sparse(step: int, model: nn.Module, loss: Any) -> Any:
        if not step > 1:
            with torch.no_grad():
                model[0].bias[:24] = -100.0  # three units in four are dead
        return loss

    watched = start_watch(**EVERY_STEP)
    train_model(10, spoil=sparse)
    assert list_observations(watched, "amp")[-1].values["zero_share"] > 0.5
    assert judge_codes(watched, tmp_path) == []


def test_scale_growth_backoff_and_skips(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(12, scaler=make_scaler(init_scale=2.0**18, growth_interval=4))
    skips, scales = list_observations(watched, "amp", "SKIP"), list_observations(watched, "amp", "SCALE")
    assert [event.step for event in skips] == [step.step for step in watched.train_steps if step.skipped]
    assert skips[0].values["scale"] == 2.0**18 and skips[0].values["streak"] == 1
    assert scales[0].values == {"scale": 2.0**17, "before": 2.0**18, "growths": 0, "backoffs": 1}
    assert any("grows" in event.text for event in scales)
    assert "real" not in skips[0].values and skips[0].values["bad_count"] > 0
    assert judge_codes(watched, tmp_path) == []


def test_a_loss_of_nan_is_no_overflow(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(12, scaler=make_scaler(), spoil=lambda step, model, loss: loss * (math.nan if step == 9 else 1.0))
    skip = next(event for event in list_observations(watched, "amp", "SKIP") if event.step == 9)
    assert (skip.values["real"], skip.values["loss"]) == ("loss", "nan")
    finding = next(finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-A002")
    assert finding.first_step == 9 and "the loss itself is NaN" in finding.title


def make_bad_gradient(value: float) -> Any:
    """From step 3 on one element of a gradient is bad, whatever the scale."""

    def spoil_gradient(step: int, model: nn.Module, loss: Any) -> Any:
        if step == 3:
            model[2].weight.register_hook(lambda grad: grad.index_fill(0, torch.tensor([1]), value))
        return loss

    return spoil_gradient


def test_a_gradient_that_is_nan_at_every_scale(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(14, scaler=make_scaler(), spoil=make_bad_gradient(math.nan), clip=True)
    skip = list_observations(watched, "amp", "SKIP")[0]
    assert skip.step == 3 and skip.values["bad"] == [{"name": "2.weight", "kind": "nan", "count": 32}]
    finding = next(finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-A002")
    assert "NaN gradients at every scale" in finding.title and finding.first_step == 10


def test_an_overflow_is_left_to_the_scaler(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(14, scaler=make_scaler(), spoil=make_bad_gradient(math.inf))
    assert "TD-A002" not in judge_codes(watched, tmp_path)


def test_nothing_is_told_once_the_flag_is_off(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    watched.monitor.level_overrides.change_now("", {"AMP": False}, "api")
    train_model(3, scaler=make_scaler())
    assert not list_observations(watched, "amp")
    watched.monitor.level_overrides.change_now("", {"AMP": True}, "api")
    train_model(12, scaler=make_scaler(init_scale=2.0**20))
    skip = list_observations(watched, "amp", "SKIP")[0]
    assert skip.step == 4 and skip.values["bad_count"] > 0, "patched on top of what is there already"


def test_a_streak_of_skipped_updates_is_named_whatever_the_budget_leaves_on_record(
    start_watch: Any, tmp_path: Path
) -> None:
    watched = start_watch(max_overhead=1e-6)
    watched.monitor.inspection.begin_inspection(1.0)
    train_model(
        100, scaler=make_scaler(init_scale=4.0), spoil=lambda step, model, loss: loss * (1e38 if step >= 70 else 1.0)
    )
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-A001"]
    assert finding.first_step == 70 and "in a row from step 70 on" in finding.title
