"""The flag GRADIENTS: what the norms of a step mean, on models whose gradients are known."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn

EVERY_STEP = {"flags": {"GRADIENTS": True}, "max_overhead": 1e6}


class Scaled(nn.Module):
    """One weight each, whose gradient is the factor it is multiplied by."""

    def __init__(self, names: str) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(2, 2)))

    def forward(self, factors: dict[str, float]) -> Tensor:
        return sum((getattr(self, name) * factor).sum() / 2 for name, factor in factors.items())  # norm: the factor


def train_model(model: nn.Module, steps: list[dict[str, float]], clip: float | None = None, lr: float = 1e-3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for factors in steps:
        optimizer.zero_grad()
        model(factors).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def test_norms_before_and_after_clipping(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("ab"), [{"a": 3.0, "b": 4.0}], clip=1.0)
    (told,) = list_observations(watched, "gradient-report")
    values = told.values
    assert values["total"] == pytest.approx(5.0) and values["total_after"] == pytest.approx(1.0, rel=1e-4)
    assert values["clip_limit"] == 1.0 and values["clip_factor"] == pytest.approx(0.2, rel=1e-4)
    assert (values["largest_name"], values["smallest_name"]) == ("b", "a")
    assert told.step == 1 and "after clipping 1" in told.text


def test_a_limit_above_the_norm_changes_nothing(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("ab"), [{"a": 3.0, "b": 4.0}], clip=100.0)
    assert list_observations(watched, "gradient-report")[0].values["total_after"] == pytest.approx(5.0)


def test_clipping_of_a_part_is_called_so(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    model = Scaled("ab")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model({"a": 3.0, "b": 4.0}).backward()
    nn.utils.clip_grad_norm_([model.a], 1.0)
    optimizer.step()
    (told,) = list_observations(watched, "gradient-report")
    assert "partly clipped" in told.text and "total_after" not in told.values


def test_explosion_vanishing_none_and_zero_are_named(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("abcde"), [{"a": 50.0, "b": 1.0, "c": 1e-8, "d": 0.0}])
    values = list_observations(watched, "gradient-report")[0].values
    assert [values[kind] for kind in ("exploding", "vanishing", "zero", "none")] == [["a"], ["c"], ["d"], ["e"]]
    assert values["none_count"] == 1


def test_thresholds_are_settable(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP, thresholds={"GRADIENTS.explosion": 0.5, "GRADIENTS.vanishing": 0.1})
    train_model(Scaled("ab"), [{"a": 1.0, "b": 0.05}])
    values = list_observations(watched, "gradient-report")[0].values
    assert values["exploding"] == ["a"] and values["vanishing"] == ["b"]


def test_names_are_bounded(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    letters = "abcdefghijkl"
    train_model(Scaled(letters), [dict.fromkeys(letters, 50.0)])
    values = list_observations(watched, "gradient-report")[0].values
    assert len(values["exploding"]) == 8 and values["exploding_count"] == 12


def test_vanishing_is_found_and_growing_is_not(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("abc"), [{"a": 1.0, "b": 1e-8, "c": 1e-9}] * 8)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-G002" and "2 parameters" in finding.title and finding.first_step == 1
    assert "(1e-08 at b, 1 at a)" in finding.title


def test_small_gradients_that_grow_are_on_their_way(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("abc"), [{"a": 1.0, "b": 1e-10 * 1.6**i, "c": 1e-10 * 1.6**i} for i in range(12)])
    assert judge_codes(watched, tmp_path) == []


def test_a_model_that_has_converged_does_not_vanish(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("abc"), [{"a": 1e-8, "b": 3e-9, "c": 1e-9}] * 20)
    assert judge_codes(watched, tmp_path) == []


def test_a_parameter_without_a_gradient(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("abc"), [{"a": 1.0, "b": 1.0}] * 14)
    (finding,) = judge_watch(watched, tmp_path)
    assert (
        finding.code == "TD-G003" and "1 parameter got no gradient" in finding.title and ": c, rank 0" in finding.title
    )


def test_a_gradient_of_zeros(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("ab"), [{"a": 1.0, "b": 0.0}] * 14)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-G003" and "gradient of zeros" in finding.title


def test_heads_that_take_turns_and_frozen_ones_are_healthy(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model = Scaled("abcd")
    model.d.requires_grad_(False)
    train_model(model, [{"a": 1.0, ("b" if step % 5 else "c"): 1.0} for step in range(30)])
    assert judge_codes(watched, tmp_path) == []
    assert (
        "none" in list_observations(watched, "gradient-report")[0].values
        and "d" not in list_observations(watched, "gradient-report")[0].values["none"]
    )


def test_one_parameter_runs_away(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    calm, wild = {"a": 100.0, "b": 1.0}, {"a": 100.0, "b": 60.0}
    train_model(Scaled("ab"), [calm] * 20 + [wild] * 5)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-G004" and "gradient of b rose to 60" in finding.title and finding.first_step == 21


def test_a_jump_of_the_total_is_left_to_its_own_rule(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    train_model(Scaled("ab"), [{"a": 1.0, "b": 1.0}] * 20 + [{"a": 1.0, "b": 60.0}] * 5)
    assert "TD-G004" not in judge_codes(watched, tmp_path)


def test_a_short_spike_is_no_finding(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    calm, wild = {"a": 100.0, "b": 1.0}, {"a": 100.0, "b": 60.0}
    train_model(Scaled("ab"), [calm] * 20 + [wild] * 2 + [calm] * 5)
    assert judge_codes(watched, tmp_path) == []


def test_nan_and_inf_are_counted_before_clipping_blurs_them(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    model = Scaled("ab")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model({"a": 1.0, "b": 1.0}).backward()
    model.a.grad[0, 0] = math.nan
    model.b.grad[0] = math.inf
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    (told,) = list_observations(watched, "gradient-report", "NONFINITE")
    assert told.values["bad_count"] == 2
    rows = {row["name"]: (row["kind"], row["count"], row["numel"]) for row in told.values["bad"]}
    assert rows == {"a": ("nan", 1, 4), "b": ("inf", 2, 4)}


def test_it_is_part_of_advanced_and_silent_at_basic(start_watch: Any) -> None:
    watched = start_watch()
    train_model(Scaled("ab"), [{"a": 50.0, "b": 1.0}])
    assert not list_observations(watched, "gradient-report")
    watched.monitor.detach()
    above = start_watch(level="advanced")
    train_model(Scaled("ab"), [{"a": 50.0, "b": 1.0}])
    assert list_observations(above, "gradient-report")


def test_two_optimizers_only_the_main_one_is_reported(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    main, other = Scaled("ab"), Scaled("cd")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (main, other)]
    for _ in range(3):
        for model, optimizer, names in zip((main, other), optimizers, ("ab", "cd"), strict=True):
            optimizer.zero_grad()
            model(dict.fromkeys(names, 2.0)).backward()
            optimizer.step()
    told = list_observations(watched, "gradient-report")
    assert [event.step for event in told] == [1, 2, 3]
    assert all("Scaled.a" in event.text or "a" in event.values["largest_name"] for event in told)
