"""WANDB_METRICS: what is sent to the tracker, what it drops, and what fails."""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tdbg.core.events import Observation
from tdbg.probes.wandb_metrics import WandbMetrics, number_of


class Run:
    """The parts of a wandb run that matter here, with wandb's own way of counting steps."""

    def __init__(self, timed_out: bool = False, step: int = 0, **settings: Any) -> None:
        self._local_step = step
        self._finish_timed_out = timed_out
        self._settings = SimpleNamespace(**{"run_id": "abc", "mode": "offline", "project": "p", **settings})

    @property
    def step(self) -> int:
        raise AssertionError("this asks the tracker's service, and waits for its answer")

    def log(self, data: Any, step: int | None = None, commit: bool | None = None) -> None:
        self._log(data=data, step=step, commit=commit) if step is None else self._log(data, step, commit)

    def _log(self, data: Any, step: int | None = None, commit: bool | None = None) -> None:
        if not isinstance(data, dict):
            raise TypeError("wandb.log must be passed a dictionary")
        self._local_step = max(self._local_step, step or 0)
        if (step is None and commit is None) or commit:
            self._local_step += 1

    def finish(self) -> None:
        self._on_finish()

    def _on_finish(self) -> None:
        pass


@pytest.fixture
def fake_tracker(start_watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A monitor with the flag on, in a program that has imported a tracker."""
    wandb: Any = ModuleType("wandb")
    wandb.Run = type("Run", (Run,), {"_log": Run._log, "_on_finish": Run._on_finish})
    wandb.init = lambda **settings: wandb.Run(**settings)
    wandb.login = lambda key=None: key is not None
    term: Any = ModuleType("wandb.errors.term")
    term._log = lambda string="", newline=True, repeat=True, prefix=True, silent=False, level=logging.INFO: None
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "wandb.errors.term", term)
    wandb.term = term
    run = start_watch(flags={"WANDB_METRICS": True})
    run.monitor.become_rank_now()
    run.wandb = wandb
    run.parts = lambda part: [event for event in run.events if isinstance(event, Observation) and event.part == part]
    return run


def end_step(watching: Any) -> None:
    """The program takes a step."""
    watching.monitor.step += 1


def test_the_beginning_is_told(fake_tracker: Any) -> None:
    fake_tracker.wandb.login("key")
    fake_tracker.wandb.init(step=40)
    (login,), (init,) = fake_tracker.parts("LOGIN"), fake_tracker.parts("INIT")
    assert login.values == {"ok": True}
    assert (init.values["run"], init.values["mode"], init.values["starting_step"]) == ("abc", "offline", 40)


def test_a_line_a_step(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    for step in range(1, 4):
        end_step(fake_tracker)
        run.log({"loss": 1.0 / step, "note": "a"}, step=step)
        run.log({"lr": 0.1}, step=step, commit=False)
    run.finish()
    lines = fake_tracker.parts("LOG")
    assert [event.step for event in lines] == [1, 2, 3]
    first = lines[0].values
    assert first["keys"] == ["loss", "note", "lr"] and first["values"] == {"loss": 1.0, "lr": 0.1}
    assert first["new"] == {"loss": "number", "note": "text", "lr": "number"}
    assert (first["calls"], first["uncommitted"], first["wandb_step"]) == (2, 1, 1)
    assert "new" not in lines[1].values and lines[1].values["values"]["loss"] == 0.5


def test_all_keys_of_a_step_are_counted(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    run.log({f"loss_{number}": 0.5 for number in range(30)}, step=1)
    run.finish()
    (line,) = fake_tracker.parts("LOG")
    assert (
        line.values["key_count"] == 30 and len(line.values["keys"]) < 30 and line.text.startswith("30 keys in 1 call")
    )


def test_a_step_that_has_passed_is_dropped(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    run.log({"a": 1}, step=5)
    run.log({"a": 1}, step=5)
    assert fake_tracker.parts("DROPPED") == []
    for step in range(5):
        run.log({"val": 1, "b": 2}, step=step)
    told = [event.values for event in fake_tracker.parts("DROPPED")]
    assert [values["dropped"] for values in told] == [1, 2, 4]
    assert (told[0]["wandb_step"], told[0]["current_step"], told[0]["keys"]) == (0, 5, ["val", "b"])
    run.finish()
    assert fake_tracker.parts("FINISH")[0].values["dropped"] == 5
    assert fake_tracker.parts("LOG")[0].values["keys"] == ["a"], "what is dropped is not told as sent"


def test_calls_without_a_step_move_the_run_on(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    for _ in range(3):
        run.log({"a": 1})
    run.log({"a": 1}, step=2)
    assert fake_tracker.parts("DROPPED")[0].values["current_step"] == 3


def test_where_several_write_one_run_no_step_counts(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init(_shared=True)
    run.log({"a": 1}, step=5)
    run.log({"a": 1}, step=1)
    assert fake_tracker.parts("DROPPED") == []


def test_numbers_as_text_make_no_chart(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    for value in (0.5, 0.4, 0.3, 0.2):
        run.log({"loss": f"{value:.2f}", "version": "2.0", "name": f"run {value}", "fine": value})
    (told,) = fake_tracker.parts("CHART")
    assert (told.values["key"], told.values["why"], told.values["example"]) == ("loss", "text", "'0.30'")


def test_keys_that_are_never_finite_are_told_at_the_end(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    for value in (float("nan"), float("inf"), float("nan"), 1.0):
        run.log({"late": value, "never": float("nan"), "once": float("nan")} if value != 1.0 else {"late": value})
    run.log({"late": 2.0})
    assert fake_tracker.parts("CHART") == []
    run.finish()
    assert [event.values["key"] for event in fake_tracker.parts("CHART")] == ["never", "once"]
    assert fake_tracker.parts("LOG")[0].values["bad"][:2] == ["late", "never"]
    assert fake_tracker.parts("FINISH")[0].values["bad"] == {"late": 3, "never": 3, "once": 3}


def test_keys_that_came_once_are_listed(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    run.log({"loss": 1.0, "accuraccy": 0.5})
    run.log({"loss": 1.0, "accuracy": 0.5})
    run.log({"loss": 1.0, "accuracy": 0.5})
    run.finish()
    assert fake_tracker.parts("FINISH")[0].values["once"] == ["accuraccy"]


def test_what_the_tracker_says_is_heard_though_it_is_silent(fake_tracker: Any) -> None:
    fake_tracker.wandb.term._log("\x1b[33mWARNING\x1b[0m Tried to log to step 3", silent=True, level=logging.WARNING)
    fake_tracker.wandb.term._log("WARNING Tried to log to step 4", level=logging.WARNING)
    fake_tracker.wandb.term._log("uploading", level=logging.INFO)
    fake_tracker.wandb.term._log("ERROR Problem finishing run", level=logging.ERROR)
    told = [(event.values["severity"], event.values["message"]) for event in fake_tracker.parts("SAYS")]
    assert told == [("warning", "WARNING Tried to log to step 3"), ("error", "ERROR Problem finishing run")]


def test_failures_are_told_and_raised(start_watch: Any, fake_tracker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_tracker.wandb.init()
    with pytest.raises(TypeError):
        run.log([1])
    (failed,) = fake_tracker.parts("FAILED")
    assert failed.values["what"] == "log" and "must be passed a dictionary" in failed.values["error"]


def test_an_end_that_timed_out(fake_tracker: Any) -> None:
    fake_tracker.wandb.init(timed_out=True).finish()
    assert fake_tracker.parts("FAILED")[0].values["what"] == "finish"


def test_a_disabled_tracker_is_said_to_show_nothing(fake_tracker: Any) -> None:
    fake_tracker.wandb.init(mode="disabled")
    assert fake_tracker.parts("INIT")[0].values["mode"] == "disabled"
    assert "abstains-wandb-metrics" in fake_tracker.notes


def test_a_folder_of_that_name_is_no_tracker(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    start_watch(flags={"WANDB_METRICS": True})


def test_many_keys_and_runs_stay_bounded(fake_tracker: Any) -> None:
    for number in range(20):
        run = fake_tracker.wandb.init(run_id=f"run{number}")
        run.log({f"k{i}": i for i in range(3000)})
        run.log({"last": 1})
    probe = fake_tracker.monitor.find_probe("wandb-metrics")
    assert len(probe._runs) == 8 and all(len(kept.keys) <= 2000 for kept in probe._runs.values())


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (10**400, None),
        (np.float32(0.5), 0.5),
        (np.array([2]), 2.0),
        (torch.tensor(3.0), 3.0),
        (torch.tensor([[4]]), 4.0),
        (torch.ones(2), None),
        (torch.ones(1, dtype=torch.complex64), None),
        (torch.ones((), device="meta"), None),
        (np.array(["a"]), None),
        ("1.0", None),
        (None, None),
        ({"a": 1}, None),
    ],
)
def test_what_is_a_number(value: Any, number: float | None) -> None:
    assert number_of(value) == number


def test_a_call_costs_little(fake_tracker: Any) -> None:
    run = fake_tracker.wandb.init()
    data = {f"k{number}": float(number) for number in range(20)}
    spent = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(200):
            run.log(data)
        spent.append((time.perf_counter() - begun) * 1e6 / 200)
    assert min(spent) < 250.0, f"{min(spent):.1f} us a call"


def test_the_real_one(start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    run = start_watch(flags={"WANDB_METRICS": True})
    run.monitor.become_rank_now()
    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True)
    tracker = wandb.init(project="p", settings=settings)
    wandb.log({"loss": 0.5}, step=3)
    wandb.log({"loss": 0.5}, step=2)
    wandb.log({"hist": wandb.Histogram([1, 2, 3])})
    tracker.finish()
    found = [event for event in run.events if isinstance(event, Observation)]
    parts = [event.part for event in found]
    assert {"INIT", "LOG", "DROPPED", "FINISH"} <= set(parts), parts
    assert next(event for event in found if event.part == "INIT").values["mode"] == "offline"
    new = {key: kind for event in found for key, kind in event.values.get("new", {}).items()}
    assert new == {"loss": "number", "hist": "Histogram"}
    assert all(set(event.values) <= set(WandbMetrics.fields) for event in found)
