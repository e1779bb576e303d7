"""The first checkpoint after the opening steps is looked at as these were, also where the probe cannot stay."""

import copy
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, list_observations
from torch import nn

from tdbg.runtime import inspection
from tdbg.runtime.inspection import AGAIN_STEPS, OPENING_STEPS

LATE = 300


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe of the inspection stays, however slow this machine is."""
    monkeypatch.setattr(inspection, "PRESENCE_SHARE", 0.0)


class SlowToSave:
    """Takes as long to save as many a model does."""

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        time.sleep(0.06)
        return int, ()


class Run:
    """A training of short steps, past its opening steps and into the stretches that are hardly watched."""

    def __init__(self, watched: Any, allowance_s: float = 1.0, steps: int = LATE) -> None:
        self.watched, self.monitor = watched, watched.monitor
        self.monitor.inspection.begin_inspection(allowance_s)
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.run_steps(steps)

    def run_steps(self, steps: int, rest_s: float = 0.0) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            x = torch.randn(4, 4)
            nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True)).backward()
            self.optimizer.step()
            if rest_s:
                time.sleep(rest_s)

    def save_file(self, path: Path, **counters: int) -> None:
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **counters}, path)

    def wait_for_stretch(self) -> None:
        """Take steps until they are hardly watched."""
        begun = time.perf_counter()
        while not self.monitor.duty.is_away and time.perf_counter() - begun < 30.0:
            self.run_steps(1)
        assert self.monitor.duty.is_away

    def list_steps(self, part: str) -> list[int]:
        return [event.step for event in list_observations(self.watched, "checkpoint", part)]

    def is_there(self) -> bool:
        return self.monitor.find_probe("checkpoint") is not None

    def assert_recorded_after(self, step: int) -> None:
        recorded = [record.step for record in self.watched.train_steps if step < record.step <= step + 20]
        assert any(set(range(first, first + AGAIN_STEPS)) <= set(recorded) for first in range(step + 1, step + 4)), (
            recorded
        )


@pytest.mark.usefixtures("short_steps")
def test_the_first_late_save_is_looked_at_with_the_steps_after_it(start_watch: Any, tmp_path: Path) -> None:
    run = Run(start_watch(max_overhead=None))
    assert run.is_there() and not run.monitor.hooks.before_each and not run.monitor.hooks.after_each
    run.wait_for_stretch()
    step = run.monitor.step
    run.save_file(tmp_path / "a.pt", step=step)
    assert not run.monitor.duty.is_away
    run.run_steps(20)
    assert run.list_steps("SAVE") == [step]
    run.assert_recorded_after(step)
    assert run.is_there() and not run.monitor.hooks.before_each, "it waits for a load"
    run.save_file(tmp_path / "b.pt")
    run.run_steps(20)
    assert run.list_steps("SAVE") == [step]
    torch.load(tmp_path / "a.pt")
    run.run_steps(20)
    assert len(run.list_steps("LOAD")) == 1
    assert run.is_there() and not run.monitor.hooks.before_each, "it tells of saves that take long"
    later = run.monitor.step
    torch.save(SlowToSave(), tmp_path / "c.pt")
    assert run.list_steps("SAVE") == [step, later]
    assert judge_codes(run.watched, tmp_path) == []


@pytest.mark.usefixtures("short_steps")
def test_what_a_late_load_leaves_out_is_named(start_watch: Any, tmp_path: Path) -> None:
    run = Run(start_watch(max_overhead=None))
    torch.save({f"module.{name}": value for name, value in run.model.state_dict().items()}, tmp_path / "a.pt")
    run.run_steps(200)
    run.wait_for_stretch()
    run.model.load_state_dict(torch.load(tmp_path / "a.pt"), strict=False)
    run.run_steps(20)
    assert judge_codes(run.watched, tmp_path) == ["TD-C010"]


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.usefixtures("short_steps")
def test_a_late_resume_is_compared_with_its_file(start_watch: Any, tmp_path: Path, forgets: bool) -> None:
    run = Run(start_watch(max_overhead=None))
    run.wait_for_stretch()
    run.save_file(tmp_path / "a.pt", step=run.monitor.step)
    run.run_steps(50)
    state = torch.load(tmp_path / "a.pt")
    restored = torch.optim.Adam(run.model.parameters(), lr=0.01)
    run.model.load_state_dict(state["model"])
    restored.load_state_dict(state["optimizer"])
    if not forgets:
        run.optimizer = restored
    run.run_steps(20)
    (resumed,) = list_observations(run.watched, "checkpoint", "RESUME")
    assert resumed.values.get("fault", "") == ("optimizer" if forgets else "")
    assert judge_codes(run.watched, tmp_path) == (["TD-C011"] if forgets else [])


@pytest.mark.usefixtures("short_steps")
def test_a_save_that_fails_late_is_told(start_watch: Any, tmp_path: Path) -> None:
    run = Run(start_watch(max_overhead=None))
    with pytest.raises(RuntimeError):
        run.save_file(tmp_path / "missing" / "a.pt")
    run.run_steps(20)
    assert run.list_steps("FAILED")


@pytest.mark.usefixtures("short_steps")
def test_a_save_in_another_thread_is_looked_at(start_watch: Any, tmp_path: Path) -> None:
    run = Run(start_watch(max_overhead=None))
    state = copy.deepcopy(run.model.state_dict())
    saver = threading.Thread(target=torch.save, args=[state, tmp_path / "a.pt"])
    saver.start()
    saver.join()
    begun = time.perf_counter()
    while not run.monitor.inspection.is_open and time.perf_counter() - begun < 30.0:
        run.run_steps(1)  # a stretch of the training's own thread ends in its own time
    assert run.monitor.inspection.is_repeat_open and len(run.list_steps("SAVE")) == 1


@pytest.mark.usefixtures("short_steps")
def test_nothing_waits_where_the_allowance_is_spent(start_watch: Any, tmp_path: Path) -> None:
    run = Run(start_watch(max_overhead=None), allowance_s=1e-6)
    assert not run.is_there()
    run.save_file(tmp_path / "a.pt")
    run.run_steps(5)
    assert run.list_steps("SAVE") == []


@pytest.mark.usefixtures("short_steps")
def test_an_allowance_that_is_spent_later_pays_for_no_look(start_watch: Any, tmp_path: Path) -> None:
    run = Run(start_watch(max_overhead=None))
    run.monitor.budget.inspection_s = run.monitor.budget.allowance_s
    run.save_file(tmp_path / "a.pt")
    run.run_steps(20)
    assert run.list_steps("SAVE") == [] and not run.monitor.inspection.is_open


def test_where_the_probe_stays_the_steps_after_the_first_late_save_are_recorded(
    start_watch: Any, tmp_path: Path
) -> None:
    run = Run(start_watch(max_overhead=5.0), steps=0)  # of 1 % a loaded machine may leave nothing for it
    run.run_steps(OPENING_STEPS + 20, rest_s=0.02)
    assert run.monitor.hooks.before_each, "it is told of updates"
    run.save_file(tmp_path / "a.pt")
    run.run_steps(20)
    assert run.list_steps("SAVE") == [OPENING_STEPS + 20]
    run.assert_recorded_after(OPENING_STEPS + 20)
    run.save_file(tmp_path / "b.pt")
    assert len(run.list_steps("SAVE")) == 2


@pytest.mark.parametrize("settings", [{"level": "advanced"}, {"flags": {"CHECKPOINT": True}}])
def test_what_was_asked_for_does_not_wait(start_watch: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    run = Run(start_watch(max_overhead=None, **settings), steps=OPENING_STEPS + 20)
    assert run.monitor.hooks.before_each
    for name in ("a.pt", "b.pt"):
        run.save_file(tmp_path / name)
        run.run_steps(1)
    assert len(run.list_steps("SAVE")) == 2
