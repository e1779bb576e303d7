"""The flag EARLY_STOPPING: a program's own early stoppers, and whether they count the way their metric's name says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import nn

from tdbg.probes.early_stopping.stoppers import Course, State, as_number, find_direction, find_metric, read_state

FLAG = {"flags": {"EARLY_STOPPING": True}, "max_overhead": 1e6}
FALLING = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3]
RISING = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


class EarlyStopping:
    """As in many programs."""

    def __init__(self, patience: int = 3, mode: str = "min", delta: float = 0.0, start: float | None = None) -> None:
        self.patience, self.mode, self.delta = patience, mode, delta
        self.best_score, self.counter, self.early_stop = start, 0, False

    def __call__(self, val_loss: float) -> None:
        best = self.best_score
        if best is None or (val_loss < best - self.delta if self.mode == "min" else val_loss > best + self.delta):
            self.best_score, self.counter = val_loss, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


class EarlyStoppingOnScore:
    """The well-known one: keeps the negative loss as its score, and takes NaN for an improvement."""

    def __init__(self, patience: int = 3) -> None:
        self.patience, self.counter, self.best_score, self.early_stop = patience, 0, None, False

    def __call__(self, val_loss: float, model: nn.Module) -> None:
        score = -val_loss
        if self.best_score is None or not score < self.best_score:
            self.best_score, self.counter = score, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


class Stopper:
    """The base of the next one."""

    def __init__(self) -> None:
        self.patience, self.counter, self.best = 3, 0, 0.0


class AccuracyEarlyStopper(Stopper):
    """Says True when it is enough; has a base, and its check another name."""

    def step(self, epoch: int, val_accuracy: float) -> bool:
        if self.is_better(val_accuracy):
            self.best, self.counter = val_accuracy, 0
        else:
            self.counter += 1
        return self.counter >= self.patience

    def is_better(self, value: float) -> bool:
        return value > self.best


def train_model(steps: int = 1) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).square().mean().backward()
        optimizer.step()


def run_checks(stopper: Any, values: Sequence[Any], *more: Any) -> None:
    """A training step, then a check."""
    for value in values:
        train_model()
        stopper(value, *more)
        if stopper.early_stop:
            break


def list_checks(watched: Any) -> list[dict[str, Any]]:
    return [event.values for event in list_observations(watched, "early-stopping", "CHECK")]


# what is wrong


def test_it_stops_while_the_loss_falls(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_checks(EarlyStopping(mode="max"), FALLING)
    assert [row.get("fault") for row in list_checks(watched)] == [None, None, None, "ignores"]
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S009" and finding.try_next.startswith("mode='min' for val_loss")
    assert finding.title.startswith("early stopping counts an improving val_loss as no improvement (from 1 to 0.5)")


def test_a_best_value_that_is_never_beaten(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_checks(EarlyStopping(start=0.0), FALLING)
    assert [row["best"] for row in list_checks(watched)] == [0.0] * 3
    assert judge_codes(watched, tmp_path) == ["TD-S009"]


def test_short_patience_is_enough(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    run_checks(EarlyStopping(patience=1, mode="max"), FALLING)
    assert [row.get("fault") for row in list_checks(watched)] == [None, "ignores"]


def test_a_small_improvement_does_not_end_a_row(start_watch: Any, tmp_path: Path) -> None:
    """Between clear improvements one of half a percent: it says nothing, neither way."""
    watched = start_watch(**FLAG)
    run_checks(EarlyStopping(patience=5, mode="max"), [1.0, 0.9, 0.896, 0.8, 0.7])
    assert [row.get("fault") for row in list_checks(watched)] == [None] * 4 + ["ignores"]
    assert judge_codes(watched, tmp_path) == ["TD-S009"]


def test_it_follows_a_loss_that_rises(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_checks(EarlyStopping(mode="max"), RISING)
    assert list_checks(watched)[-1]["fault"] == "follows"
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.title.startswith("early stopping takes a worse val_loss for a better one (from 0.3 to 0.8)")


def test_nan_that_nobody_counts(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_checks(EarlyStoppingOnScore(), [1.0, 0.9, float("nan"), float("nan"), float("nan")], nn.Linear(1, 1))
    rows = list_checks(watched)
    assert [row.get("fault") for row in rows] == [None, None, None, "nan", "nan"]
    assert rows[-1]["value"] == "nan"
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.title.startswith("early stopping does not count val_loss = NaN and goes on")


def test_accuracy_with_another_method_and_a_base(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    stopper = AccuracyEarlyStopper()
    for epoch, value in enumerate([0.5, 0.6, 0.55, 0.54, 0.53]):
        train_model()
        stopped = stopper.step(epoch, value)
    assert stopped
    rows = list_checks(watched)
    assert [row["value"] for row in rows] == [0.5, 0.6, 0.55, 0.54, 0.53]
    assert [row["counter"] for row in rows] == [0, 0, 1, 2, 3] and [row["stop"] for row in rows][-2:] == [False, True]
    assert {row["metric"] for row in rows} == {"val_accuracy"} and {row["better"] for row in rows} == {"max"}
    assert judge_codes(watched, tmp_path) == []


# what is right


RIGHT: dict[str, tuple[Any, Sequence[float]]] = {
    "falls": (EarlyStopping(), FALLING),
    "rises and stops": (EarlyStopping(), RISING),
    "noise": (EarlyStopping(), [1.0, 0.9, 1.2, 0.85, 0.95, 0.86, 0.87]),
    "small gains": (EarlyStopping(patience=4), [1.0, 0.999, 0.998, 0.997, 0.996]),
    "gains within its delta": (EarlyStopping(delta=0.1), [1.0, 0.95, 0.92, 0.91]),
    "a best value of an earlier run": (EarlyStopping(patience=5, start=0.2), [1.0, 0.8, 0.6, 0.5, 0.4, 0.3]),
    "a negative metric": (EarlyStopping(mode="max"), [-0.3, -0.4, -0.5, -0.6]),
    "nan that counts": (EarlyStopping(), [1.0, float("nan"), float("nan"), float("nan")]),
    "a spike": (EarlyStopping(patience=2), [1.0, 5.0, 0.5, 0.4, 0.3]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone(start_watch: Any, tmp_path: Path, name: str) -> None:
    stopper, values = RIGHT[name]
    watched = start_watch(**FLAG)
    run_checks(stopper, values)
    assert list_checks(watched) and not any("fault" in row for row in list_checks(watched))
    assert judge_codes(watched, tmp_path) == []


def test_a_name_that_says_nothing_is_left_alone(start_watch: Any) -> None:
    class EarlyStop(EarlyStopping):
        def __call__(self, score: float) -> None:
            super().__call__(score)

    watched = start_watch(**FLAG)
    run_checks(EarlyStop(mode="max"), FALLING)
    rows = list_checks(watched)
    assert len(rows) == 4, "the call of the base is part of it"
    assert rows[-1]["stop"] and not any("fault" in row for row in rows)


# what is told


def test_what_is_told_of_a_check(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    run_checks(EarlyStopping(), [1.0, torch.tensor(1.5)])
    first, second = list_observations(watched, "early-stopping", "CHECK")
    assert (first.step, second.step) == (1, 2)
    assert second.values == {
        "stopper": "EarlyStopping",
        "check": 2,
        "metric": "val_loss",
        "value": 1.5,
        "best": 1.0,
        "first": 1.0,
        "counter": 1.0,
        "patience": 3.0,
        "mode": "min",
        "better": "min",
        "stop": False,
    }
    assert second.text == (
        "EarlyStopping, check 2: val_loss 1.5, best 1, 1 of 3 without improvement (mode min); continues"
    )


def test_two_stoppers_are_told_apart(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    train_model()
    one, two = EarlyStopping(), EarlyStopping()
    one(1.0)
    two(2.0)
    one(3.0)
    assert [(row["value"], row["check"]) for row in list_checks(watched)] == [(1.0, 1), (2.0, 1), (3.0, 2)]


def test_the_class_is_as_it_was_afterwards(start_watch: Any) -> None:
    before = dict(vars(EarlyStopping))
    watched = start_watch(**FLAG)
    train_model()
    assert dict(vars(EarlyStopping)) != before
    watched.monitor.activate_probes([])
    assert dict(vars(EarlyStopping)) == before


def test_a_stopper_that_raises(start_watch: Any) -> None:
    class EarlyStopper:
        def __init__(self) -> None:
            self.patience, self.counter, self.best = 2, 0, None

        def step(self, loss: float) -> None:
            if loss > 1:
                raise ValueError(loss)
            self.best = loss

    watched = start_watch(**FLAG)
    train_model()
    stopper = EarlyStopper()
    with pytest.raises(ValueError, match="2"):
        stopper.step(2.0)
    stopper.step(0.5)
    assert [row["value"] for row in list_checks(watched)] == [0.5]


def test_one_with_slots_or_properties_is_not_asked(start_watch: Any) -> None:
    class EarlyStopper:
        patience = 1

        @property
        def counter(self) -> int:
            raise AssertionError("a property of the program's was called")

        def __call__(self, loss: float) -> None:
            pass

    watched = start_watch(**FLAG)
    train_model()
    EarlyStopper()(1.0)
    assert not list_checks(watched)


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("val_loss", "min"),
        ("valLoss", "min"),
        ("eval/mae", "min"),
        ("val_acc", "max"),
        ("top1-accuracy", "max"),
        ("score", ""),
        ("negLoss", ""),
        ("invertedAccuracy", ""),
        ("success", "max"),
        ("eer", "min"),
        ("epoch_time", ""),
        ("samples_per_second", ""),
        ("loss_weight", ""),
        ("neg_loss", ""),
        ("accuracy_loss", ""),
        ("", ""),
    ],
)
def test_which_way_is_better(name: str, better: str) -> None:
    assert find_direction(name) == better


def test_the_metric_of_a_call() -> None:
    assert find_metric(object(), ["epoch", "val_loss"], (3, 0.5), {}) == ("val_loss", 0.5)
    assert find_metric(object(), ["value"], (), {"value": 2}) == ("value", 2.0)
    assert find_metric(object(), ["model"], (nn.Linear(1, 1),), {}) == ("", None)
    stopper = EarlyStopping()
    stopper.monitor = "f1"  # type: ignore[attr-defined]
    assert find_metric(stopper, ["metrics"], ({"f1": 0.7, "loss": 1.0},), {}) == ("f1", 0.7)


def test_numbers() -> None:
    assert as_number(True) is None and as_number("1") is None and as_number(torch.ones(2)) is None
    assert as_number(torch.tensor(2)) == 2.0 and as_number(3) == 3.0


def test_what_a_stopper_keeps() -> None:
    assert read_state(object()) == State()
    assert read_state(EarlyStopping(patience=5, delta=-0.1)) == State(
        patience=5.0, counter=0.0, best=None, delta=0.1, mode="min"
    )


def test_one_that_smooths_its_metric_lags_behind_a_spike() -> None:
    course = Course("loss")
    rows = [(1.0, 0, 0, False), (5.0, 0, 1, False), (0.9, 1, 2, True)]
    states = [(value, State(2, before, 1.0), State(2, after, 1.0, stop)) for value, before, after, stop in rows]
    assert [course.add_check(value, before, after, 1) for value, before, after in states] == ["", "", ""]


def test_a_value_that_is_not_known_says_nothing() -> None:
    course = Course("loss")
    assert [course.add_check(None, State(), State(), step) for step in range(5)] == [""] * 5
