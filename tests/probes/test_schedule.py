"""The flags LR and SCHEDULING: torch's schedulers and the order, unit and effect of their steps."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from tdbg.probes.schedule import _read_target

EVERY_STEP = {"flags": {"LR": True, "SCHEDULING": True}, "max_overhead": 1e6}
Schedulers = Callable[[torch.optim.Optimizer], Any]


def make_setup(lr: float = 0.1, kind: Any = torch.optim.SGD) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, kind(model.parameters(), lr=lr)


def run_update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any = None) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4) if batch is None else batch).square().mean().backward()
    optimizer.step()


def run_updates(steps: int, make: Schedulers, *, lr: float = 0.1, every: int = 1, times: int = 1) -> None:
    """``steps`` updates; the scheduler steps ``times`` times after every ``every``-th."""
    model, optimizer = make_setup(lr)
    scheduler = make(optimizer)
    for step in range(1, steps + 1):
        run_update(model, optimizer)
        if scheduler is not None and step % every == 0:
            for _ in range(times):
                scheduler.step()


def run_epochs(count: int, make: Schedulers, *, batches: int = 40, per_batch: bool = True) -> None:
    """Passes over a loader; the scheduler steps after every batch, or after every pass."""
    model, optimizer = make_setup()
    scheduler = make(optimizer)
    loader = DataLoader(TensorDataset(torch.randn(2 * batches, 4)), batch_size=2)
    for _ in range(count):
        for (batch,) in loader:
            run_update(model, optimizer, batch)
            if scheduler is not None and per_batch:
                scheduler.step()
        if scheduler is not None and not per_batch:
            scheduler.step()


def test_what_was_built_and_each_step_of_it(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(5, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=1e-3))
    (built,) = list_observations(watched, "schedule", "BUILT")
    assert built.flag == "SCHEDULING" and built.values["planned"] == 10
    assert built.values["parameters"] == {"T_max": 10, "eta_min": 1e-3, "base_lrs": [0.1]}
    steps = list_observations(watched, "schedule", "STEP")
    assert [event.step for event in steps] == [1, 2, 3, 4] and steps[0].values["why"] == "first"
    assert steps[2].values["before"] == pytest.approx([0.09055], rel=1e-3) and steps[2].values["advanced"] == 3
    assert steps[2].values["rates"] == pytest.approx([0.0796], rel=1e-3)


def test_each_change_of_the_rate_under_its_own_flag(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(4, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2))
    rates = list_observations(watched, "schedule", "RATE")
    assert [(event.step, event.flag) for event in rates] == [(1, "LR"), (3, "LR")]
    assert rates[1].values["rates"] == pytest.approx([0.01]) and rates[1].values["phase"] == "falling"


def test_one_flag_alone_carries_all_lines_without_saying_them_twice(start_watch: Any) -> None:
    watched = start_watch(flags={"LR": True}, max_overhead=1e6)
    run_updates(6, lambda optimizer: lr_scheduler.ExponentialLR(optimizer, gamma=0.9))
    assert {event.flag for part in ("BUILT", "STEP") for event in list_observations(watched, "schedule", part)} == {
        "LR"
    }
    assert len(list_observations(watched, "schedule", "RATE")) == 1


def test_rates_set_by_hand_are_seen(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    model, optimizer = make_setup()
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 * (step + 1)
        run_update(model, optimizer)
    assert len(list_observations(watched, "schedule", "RATE")) == 4 and not list_observations(
        watched, "schedule", "STEP"
    )


def test_a_warm_up_is_recognised_and_its_end_told(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)

    def build_warmup_cosine(optimizer: Any) -> Any:
        warm = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)
        return lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[5])

    run_updates(20, build_warmup_cosine)
    rates = list_observations(watched, "schedule", "RATE")
    assert [event.values["phase"] for event in rates if event.step in (4, 5)] == ["warm-up"] * 2
    ends = [event.values["warm_up_steps"] for event in rates if "warm_up_steps" in event.values]
    assert ends == [7]
    assert "switch" in [event.values["why"] for event in list_observations(watched, "schedule", "STEP")]
    assert judge_codes(watched, tmp_path) == []


# the order of calls


def run_in_order(first: str, make: Schedulers, steps: int = 6, ahead: int = 0) -> None:
    model, optimizer = make_setup()
    scheduler = make(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(ahead):
            scheduler.step()
        for _ in range(steps):
            if first == "scheduler":
                scheduler.step()
            run_update(model, optimizer)
            if first == "optimizer":
                scheduler.step()


def make_decay(optimizer: Any) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, gamma=0.9)


def test_the_scheduler_before_the_optimizer(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_in_order("scheduler", make_decay)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S003" and "the rate 0.1 was never used" in finding.title
    (told,) = list_observations(watched, "schedule", "ORDER")
    assert told.flag == "LR"


def test_the_right_order_and_a_fast_forward_are_healthy(start_watch: Any, tmp_path: Path) -> None:
    for ahead in (0, 3):
        watched = start_watch(**EVERY_STEP)
        run_in_order("optimizer", make_decay, ahead=ahead)
        assert judge_codes(watched, tmp_path / str(ahead)) == []
        watched.monitor.detach()


def test_a_first_rate_of_zero_is_no_loss(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_in_order("scheduler", lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 4, 1.0)))
    assert judge_codes(watched, tmp_path) == []


def test_step_with_an_epoch_sets_the_rate_whatever_came_before(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model, optimizer = make_setup()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)
    for step in range(12):
        scheduler.step(step / 4)
        run_update(model, optimizer)
    assert judge_codes(watched, tmp_path) == []


def test_a_first_update_that_gradscaler_skips_is_no_wrong_order(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model, optimizer = make_setup()
    scheduler, scaler = make_decay(optimizer), torch.amp.GradScaler("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(8):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
            if step == 0:
                model.weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    assert [step.skipped for step in watched.train_steps] == [True] + [False] * 7
    assert "TD-S003" not in judge_codes(watched, tmp_path)


def test_a_resumed_run_that_is_one_step_ahead_is_healthy(start_watch: Any, tmp_path: Path) -> None:
    model, optimizer = make_setup(kind=torch.optim.Adam)
    run_update(model, optimizer)
    watched = start_watch(**EVERY_STEP)
    resumed = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = make_decay(resumed)
    resumed.load_state_dict(optimizer.state_dict())
    resumed.param_groups[0]["initial_lr"] = 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler.step()
        for _ in range(6):
            run_update(model, resumed)
            scheduler.step()
    assert judge_codes(watched, tmp_path) == []


def test_torchs_own_warning_still_names_the_programs_line(start_watch: Any) -> None:
    """Older torch (2.6, 2.9) names a line of its own, without tdbg as well."""

    def warned() -> str:
        scheduler = make_decay(make_setup()[1])
        with pytest.warns(UserWarning, match="before `optimizer.step") as caught:
            scheduler.step()
        return caught[0].filename

    plain = warned()
    start_watch(**EVERY_STEP)
    assert warned() == plain
    assert plain == __file__ or plain == lr_scheduler.__file__


# the length of a schedule


def make_cosine(length: int) -> Schedulers:
    return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)


def test_a_cosine_in_epochs_that_steps_after_each_batch(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(1, make_cosine(5))
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S005" and "of 5 steps was over after" in finding.title and "first epoch" in finding.title


@pytest.mark.parametrize("length", [80, 50])
def test_a_cosine_of_the_runs_own_length_or_longer_than_an_epoch(start_watch: Any, tmp_path: Path, length: int) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(2, make_cosine(length))
    assert judge_codes(watched, tmp_path) == []


def test_a_step_decay_that_is_gone_in_the_first_epoch(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(1, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=4))
    assert [finding.code for finding in judge_watch(watched, tmp_path)] == ["TD-S005"]


@pytest.mark.parametrize(("batches", "size"), [(8, 1), (10, 1), (16, 2), (23, 3)])
def test_a_step_decay_that_is_gone_in_a_short_first_epoch(
    start_watch: Any, tmp_path: Path, batches: int, size: int
) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(1, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=size), batches=batches)
    assert [finding.code for finding in judge_watch(watched, tmp_path)] == ["TD-S005"]


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, step_size=10),
        lambda o: lr_scheduler.MultiStepLR(o, milestones=[10, 20]),
        lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=31, final_div_factor=1e9),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=30),
        lambda o: lr_scheduler.LinearLR(o, start_factor=1e-8, total_iters=5),
    ],
)
def test_schedules_per_batch_of_short_epochs_are_healthy(start_watch: Any, tmp_path: Path, make: Schedulers) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(3, make, batches=10)
    assert "TD-S005" not in judge_codes(watched, tmp_path)


@pytest.mark.parametrize("batches", [1, 8])
def test_a_step_decay_once_a_short_epoch_is_healthy(start_watch: Any, tmp_path: Path, batches: int) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(9, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=1), batches=batches, per_batch=False)
    assert "TD-S005" not in judge_codes(watched, tmp_path)


def test_a_step_decay_once_an_epoch_is_healthy(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(9, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=1), per_batch=False)
    assert judge_codes(watched, tmp_path) == []


def test_several_steps_between_two_updates(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(15, make_cosine(40), times=4)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S005" and "micro-batch" in finding.cause and "first epoch" not in finding.title


def test_several_steps_that_its_length_was_made_for(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(10, make_cosine(40), times=4)
    assert judge_codes(watched, tmp_path) == []


def test_as_many_steps_as_ranks_are_accelerates_custom(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    watched.monitor.world_size = 4
    run_updates(15, make_cosine(40), times=4)
    assert judge_codes(watched, tmp_path) == []


def test_a_length_in_updates_that_steps_once_an_epoch(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(4, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=160), per_batch=False)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S005" and "OneCycleLR of 160 steps had barely begun after 160 updates" in finding.title


def test_a_length_in_epochs_that_steps_once_an_epoch(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(4, make_cosine(4), per_batch=False)
    assert judge_codes(watched, tmp_path) == []


# a schedule without effect


def without_scheduler(make: Schedulers) -> Schedulers:
    def keep_scheduler(optimizer: Any) -> None:
        kept.append(make(optimizer))

    return keep_scheduler


kept: list[Any] = []


def test_a_scheduler_that_never_steps_is_told_while_the_run_goes_on(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(5, without_scheduler(make_cosine(5)), batches=5)
    assert list_observations(watched, "schedule", "IDLE")[0].values["kind"] == "never"
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S004" and "never stepped in 3 epochs" in finding.title


def test_a_scheduler_that_never_steps_is_told_at_the_end(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(30, without_scheduler(make_cosine(30)))
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S004" and "never stepped in 30 steps" in finding.title


def test_within_its_first_epoch_a_scheduler_may_wait(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_epochs(1, without_scheduler(make_cosine(5)))
    assert judge_codes(watched, tmp_path) == []


def test_one_step_at_the_very_end_counts(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(30, make_cosine(30), every=30)
    assert "TD-S004" not in judge_codes(watched, tmp_path)


def test_a_flag_that_was_off_for_a_time_judges_nothing(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    run_updates(30, without_scheduler(make_cosine(30)))
    watched.monitor.level_overrides.change_now("", {"LR": False}, "api")
    assert judge_codes(watched, tmp_path) == []


class ByHand(lr_scheduler.LRScheduler):
    """Somebody's own scheduler, with a step() of its own."""

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1


class PartlyByHand(lr_scheduler.ExponentialLR):
    """Uses torch's step() for the beginning alone."""

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch < 0:
            super().step()


def test_schedulers_with_a_step_of_their_own_or_that_start_late(start_watch: Any, tmp_path: Path) -> None:
    late = [
        ByHand,
        lambda optimizer: PartlyByHand(optimizer, gamma=0.9),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer),
    ]
    for number, make in enumerate(late):
        watched = start_watch(**EVERY_STEP)
        run_epochs(5, without_scheduler(make), batches=5)
        assert judge_codes(watched, tmp_path / str(number)) == []
        watched.monitor.detach()


def test_an_optimizer_built_anew_leaves_its_scheduler_behind(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model, old = make_setup()
    scheduler = make_decay(old)
    new = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(8):
            run_update(model, new)
            scheduler.step()
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S004" and "steers an optimizer that does not update" in finding.title


def test_a_rate_copied_over_by_hand_is_healthy(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model, old = make_setup()
    scheduler = make_decay(old)
    new = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(30):
            run_update(model, new)
            scheduler.step()
            new.param_groups[0]["lr"] = scheduler.get_last_lr()[0]
    assert judge_codes(watched, tmp_path) == []


# plateau, and a rate too high


def test_what_a_plateau_scheduler_decides(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model, optimizer = make_setup()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for metric in (3.0, torch.tensor(2.0), 2.5, 2.5, float("nan")):
        run_update(model, optimizer)
        scheduler.step(metric)
    told = list_observations(watched, "schedule", "PLATEAU")
    assert [event.values["metric"] for event in told] == [3.0, 2.0, 2.5, 2.5, "nan"]
    assert [event.values["bad_epochs"] for event in told] == [0, 0, 1, 0, 1]
    assert [event.values["reduced"] for event in told] == [False, False, False, True, False]
    assert told[3].values["best"] == 2.0 and "0.1 -> 0.01" in told[3].text and told[3].flag == "SCHEDULING"
    assert judge_codes(watched, tmp_path) == []


def test_a_rate_above_one_with_adam(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    model, optimizer = make_setup(3.0, torch.optim.AdamW)
    for _ in range(5):
        run_update(model, optimizer)
    finding = next(finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-S008")
    assert "learning rate 3 with AdamW at step 3" in finding.title


class Prodigy(torch.optim.Adam):
    """Its rate is a factor."""


@pytest.mark.parametrize(("kind", "lr"), [(torch.optim.SGD, 3.0), (torch.optim.Adam, 1.0), (Prodigy, 2.0)])
def test_such_a_rate_is_fine_elsewhere(start_watch: Any, tmp_path: Path, kind: Any, lr: float) -> None:
    watched = start_watch(**EVERY_STEP)
    model, optimizer = make_setup(lr, kind)
    for _ in range(5):
        run_update(model, optimizer)
    assert "TD-S008" not in judge_codes(watched, tmp_path)


def test_the_bound_is_settable(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP, thresholds={"LR.high": 0.01})
    model, optimizer = make_setup(0.02, torch.optim.Adam)
    for _ in range(5):
        run_update(model, optimizer)
    assert list_observations(watched, "schedule", "HIGH")[0].values["above"] == 0.01


def test_a_swinging_rate_does_not_fill_the_log(start_watch: Any) -> None:
    watched = start_watch(flags={"SCHEDULING": True}, max_overhead=1e6, steps="1:2")
    run_updates(200, lambda optimizer: lr_scheduler.CyclicLR(optimizer, 1e-3, 0.1, step_size_up=1))
    assert len(list_observations(watched, "schedule", "STEP")) < 16 + 200 / 8 + 4
    assert len(list_observations(watched, "schedule", "STEP")) > 20


def test_every_scheduler_of_torch_leaves_a_healthy_run_alone(start_watch: Any, tmp_path: Path) -> None:
    kinds: list[Schedulers] = [
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.99**step),
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.99),
        lambda o: lr_scheduler.MultiStepLR(o, milestones=[10, 20]),
        lambda o: lr_scheduler.ConstantLR(o),
        lambda o: lr_scheduler.PolynomialLR(o, total_iters=30),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=60),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7, T_mult=2),
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.99)]),
        lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05),
    ]
    for number, make in enumerate(kinds):
        watched = start_watch(**EVERY_STEP)
        run_updates(40, make)
        assert list_observations(watched, "schedule", "STEP") and list_observations(watched, "schedule", "BUILT"), (
            number
        )
        assert judge_codes(watched, tmp_path / str(number)) == [], number
        watched.monitor.detach()


def test_of_a_schedule_whose_first_steps_nobody_saw_no_share_is_told(start_watch: Any, tmp_path: Path) -> None:
    model, optimizer = make_setup(0.01)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=40)
    for _ in range(8):
        run_update(model, optimizer)
        scheduler.step()
    watched = start_watch(**EVERY_STEP)
    for _ in range(31):
        run_update(model, optimizer)
        scheduler.step()
    stepped = list_observations(watched, "schedule", "STEP")
    assert "is seen stepping for the first time" in stepped[0].text
    assert not any("planned" in step.values or " of 40" in step.text for step in stepped)
    assert "TD-S005" not in judge_codes(watched, tmp_path)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("plan = StepLR(optimizer, 1)", "plan"),
        ("self.plan = torch.optim.lr_scheduler.StepLR(o, 1)", "self.plan"),
        ("optimizer, plan = Adam(ps), StepLR(o, 1)", "plan"),
        ("plan = StepLR(", "plan"),
        ("return StepLR(o, 1)", ""),
        ("plan = make(StepLR(o, 1))", ""),
        ("plan = x[0", ""),
    ],
)
def test_the_name_of_a_scheduler_is_read_from_its_line(statement: str, name: str) -> None:
    assert _read_target(statement, "StepLR") == name


def test_a_scheduler_whose_step_waits_for_a_condition_is_a_note(start_watch: Any, tmp_path: Path) -> None:
    def train(parameter: nn.Parameter) -> None:
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        plan = lr_scheduler.StepLR(optimizer, 1)
        for number in range(30):
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
            if number > 100:
                plan.step()

    watched = start_watch(**EVERY_STEP)
    train(nn.Parameter(torch.ones(2)))
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-S004"]
    assert finding.severity == "info" and "which was not reached" in finding.cause
    assert (
        "plan.step()" in Path(__file__).read_text().splitlines()[int(finding.cause.split("line ")[1].split(",")[0]) - 1]
    )


def test_a_step_of_the_same_name_in_another_function_is_none_of_its_own(start_watch: Any, tmp_path: Path) -> None:
    def train(parameter: nn.Parameter) -> None:
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        plan = lr_scheduler.StepLR(optimizer, 1)
        for _ in range(30):
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
        del plan

    watched = start_watch(**EVERY_STEP)
    train(nn.Parameter(torch.ones(2)))
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-S004"]
    assert finding.severity == "warning"
