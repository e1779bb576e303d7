"""What is due when: intervals, their conflicts, warm-up, the table."""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from yacs.config import CfgNode

from tdbg.metrics.step_logger.early_stop import LevelSchedule
from tdbg.metrics.step_logger.ops_schedule import OPS, OpsSchedule
from tdbg.metrics.step_logger.schedule_intervals import ScheduleError, resolve_interval
from tdbg.metrics.tracker.state_fields import StateError


@given(st.sampled_from(sorted(OPS)), st.integers(1, 50), st.integers(1, 300))
def test_an_interval_in_steps_is_due_at_every_multiple_and_never_at_zero(operation, every, total):
    """Seen: it was looked at only at the ends of epochs, so that it fired where a multiple fell on one."""
    schedule = OpsSchedule(total_steps=total, **{operation: every})
    due = [step for step in range(total + 1) if schedule.due(operation, step)]
    assert due == list(range(every, total + 1, every))
    assert not any(schedule.due_after_epoch(operation, epoch) for epoch in range(100))


@given(st.integers(1, 10), st.integers(0, 40))
def test_an_interval_in_epochs_is_due_at_the_end_of_every_nth(every, epochs):
    schedule = OpsSchedule(validation={"epochs": every})
    due = [done for done in range(epochs + 1) if schedule.due_after_epoch("validation", done)]
    assert due == list(range(every, epochs + 1, every))
    assert not any(schedule.due("validation", step) for step in range(1000))


def test_an_interval_that_says_nothing_is_refused():
    with pytest.raises(ScheduleError, match="the interval of validation is empty") as caught:
        OpsSchedule(validation={})
    assert "steps, epochs, fraction" in caught.value.hint


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10**6))
def test_a_fraction_is_resolved_once_to_steps(fraction, total):
    schedule = OpsSchedule(total_steps=total, checkpoint={"fraction": fraction})
    assert schedule.interval("checkpoint").steps == max(1, round(fraction * total))


def test_zero_and_none_are_off():
    for off in (0, None, {"steps": 0}, {"steps": 0, "epochs": None, "fraction": 0}):
        schedule = OpsSchedule(wandb=off)
        assert schedule.interval("wandb").is_off
        assert not any(schedule.due("wandb", step) or schedule.due_after_epoch("wandb", step) for step in range(50))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"validation": {"steps": 10, "epochs": 1}}, "steps=10 and epochs=1"),
        ({"checkpoint": {"epochs": 1, "fraction": 0.5}, "total_steps": 9}, "epochs=1 and fraction=0.5"),
        ({"validation": -1}, "-1 steps"),
        ({"validation": {"epochs": -2}}, "-2 epochs"),
        ({"validation": 0.1}, "could mean a fraction"),
        ({"validation": True}, "True"),
        ({"validation": {"steps": 1.5}}, "1.5"),
        ({"validation": {"fraction": 0.1}}, "unknown length"),
        ({"validation": {"fraction": 1.5}, "total_steps": 10}, "1.5"),
        ({"validation": {"fraction": -0.5}, "total_steps": 10}, "-0.5"),
        ({"validation": {"hours": 1}}, "'hours'"),
        ({"validation": "10"}, "'10'"),
        ({"valdation": 10}, "valdation"),
        ({"total_steps": 0}, "total_steps is 0"),
        ({"total_steps": 100, "epochs": 3, "steps_per_epoch": 10}, "epochs=3 times"),
        ({"total_steps": 10, "warmup": 11}, "longer than the run"),
        ({"warmup": {"epochs": 1}}, "unknown length"),
        ({"early_stop": {"patiense": 3}}, "patiense"),
        ({"levels": {5: "loud"}}, "loud"),
        ({"levels": {-5: "basic"}}, "-5"),
    ],
)
def test_a_schedule_that_contradicts_itself(settings, says):
    with pytest.raises(ScheduleError, match=says) as caught:
        OpsSchedule(**settings)
    assert caught.value.hint and caught.value.exit_code == 2


def test_an_operation_that_there_is_not():
    schedule = OpsSchedule()
    for ask in (schedule.due, schedule.due_after_epoch):
        with pytest.raises(ScheduleError, match="valdation") as caught:
            ask("valdation", 1)
        assert "validation" in caught.value.hint


@pytest.mark.parametrize(
    ("given_", "found"),
    [
        ({"total_steps": 100, "epochs": 5}, (100, 5, 20)),
        ({"epochs": 5, "steps_per_epoch": 20}, (100, 5, 20)),
        ({"total_steps": 95, "steps_per_epoch": 20}, (95, 5, 20)),
        ({"total_steps": 95, "epochs": 5, "steps_per_epoch": 20}, (95, 5, 20)),
        ({}, (None, None, None)),
    ],
)
def test_the_length_of_the_run(given_, found):
    schedule = OpsSchedule(**given_)
    assert (schedule.total_steps, schedule.epochs, schedule.steps_per_epoch) == found


def test_the_next_time():
    assert resolve_interval(10, "x").next_due(0) == 10
    assert resolve_interval(10, "x").next_due(10) == 20
    assert resolve_interval(0, "x").next_due(3) is None


@pytest.mark.parametrize(
    ("wandb", "step", "averages"),
    [(10, 1, True), (1, 1, False), (10, 10, False), ({"epochs": 1}, 1, True), (0, 1, False)],
)
def test_averages_are_written_where_the_sink_is_slower_than_the_step(wandb, step, averages):
    assert OpsSchedule(wandb=wandb, step=step).averages is averages


def test_warming_up():
    schedule = OpsSchedule(total_steps=100, warmup={"fraction": 0.1})
    assert schedule.warmup_steps == 10
    assert [schedule.warming_up(step) for step in (1, 10, 11)] == [True, True, False]
    assert [schedule.warmup_factor(step) for step in (0, 5, 10, 50)] == [0.0, 0.5, 1.0, 1.0]
    assert OpsSchedule().warmup_factor(0) == 1.0
    assert OpsSchedule(steps_per_epoch=7, warmup={"epochs": 2}).warmup_steps == 14


def test_the_table_says_what_was_resolved():
    schedule = OpsSchedule(
        total_steps=100,
        epochs=5,
        validation={"fraction": 0.1},
        checkpoint={"epochs": 9},
        console=1,
        wandb=500,
        masking=0,
        warmup=3,
        early_stop={"patience": 3, "min_delta": 0.1, "max_loss": 9.0},
        levels={20: "advanced"},
    )
    rows = {row[0]: row[1:] for row in schedule.rows()}
    assert rows["validation"] == ("every 10 steps", "0.1 of 100 steps", "step 10")
    assert rows["checkpoint"] == ("every 9 epochs", "", "never: the run is shorter")
    assert rows["wandb"][2] == "never: the run is shorter"
    assert rows["console"][0] == "every step" and rows["masking"] == ("off", "", "never")
    assert rows["stop: patience"][0] == "3 checks of val/loss, better by 0.1"
    assert rows["stop: max_loss"][0] == "9" and rows["level"] == ("advanced", "", "step 20")
    assert set(OPS) <= set(rows)
    lines = str(schedule).splitlines()
    assert len(lines) == len(schedule.rows()) + 1 and not any(line.endswith(" ") for line in lines)


def test_levels_switch_at_their_step():
    levels = LevelSchedule({100: "advanced", 1: "basic", 120: "basic", 130: "basic"})
    assert [levels.level_at(step) for step in (0, 1, 99, 100, 119, 500)] == [
        None,
        "basic",
        "basic",
        "advanced",
        "advanced",
        "basic",
    ]
    assert {step: levels.switch_at(step) for step in range(200) if levels.switch_at(step)} == {
        1: "basic",
        100: "advanced",
        120: "basic",
    }
    assert OpsSchedule(levels={3: "extreme"}).level_at(3) == "extreme"


def test_a_schedule_goes_on_after_a_restart():
    settings = {"early_stop": {"patience": 2}}
    first = OpsSchedule(**settings)
    first.early_stop.check_metrics({"val/loss": 1.0}, epoch=0)
    first.early_stop.check_metrics({"val/loss": 2.0}, epoch=1)
    second = OpsSchedule(**settings)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    for broken in (
        {},
        {"version": 2, "early_stop": None},
        {"version": 1},
        {"version": 1, "early_stop": {"version": 1}},
    ):
        with pytest.raises(StateError):
            second.load_state_dict(broken)
    assert second.state_dict() == first.state_dict()
    OpsSchedule().load_state_dict(first.state_dict())


CONFIG = {
    "TOTAL_STEPS": 100,
    "EPOCHS": 0,
    "VALIDATION": {"INTERVAL_STEPS": 0, "INTERVAL_EPOCHS": 0, "INTERVAL_FRACTION": 0.25},
    "METRICS": {"STEP_INTERVAL": 1, "WANDB_INTERVAL": 20},
    "EARLY_STOP": {"METRIC": "val/acc1", "PATIENCE": 3},
}


@pytest.mark.parametrize("make", [dict, CfgNode, OmegaConf.create], ids=["mapping", "yacs", "omegaconf"])
def test_a_schedule_of_a_configuration(make):
    schedule = OpsSchedule.from_config(make(CONFIG))
    assert schedule.total_steps == 100 and schedule.epochs is None
    assert schedule.interval("validation").steps == 25 and schedule.interval("wandb").steps == 20
    assert schedule.averages and schedule.early_stop.patience == 3 and str(schedule.early_stop.key) == "val/acc1"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"VALIDATION": {"INTERVAL_STEPS": 5, "INTERVAL_EPOCHS": 1}}, "steps=5 and epochs=1"),
        ({"WANDB": 5, "METRICS": {"WANDB_INTERVAL": 6}}, "wandb is set twice in the configuration"),
        ({"METRICS": {"WANBD_INTERVAL": 6}}, "wanbd"),
        ({"EARLY_STOP": {"PATIENSE": 6}}, "patiense"),
    ],
)
def test_a_configuration_that_contradicts_itself(config, says):
    with pytest.raises(ScheduleError, match=says):
        OpsSchedule.from_config(config)


def test_a_traceback_shows_what_to_do_as_well():
    """Seen: the hint was lost where the error reached Python's own traceback."""
    with pytest.raises(ScheduleError) as caught:
        OpsSchedule(validaton=3)
    shown = "".join(traceback.format_exception(caught.value)).splitlines()
    assert shown[-2].endswith("no operation is called 'validaton'") and shown[-1] == "did you mean validation?"
    assert str(caught.value) == "no operation is called 'validaton'"
