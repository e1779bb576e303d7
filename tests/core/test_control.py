"""The control file, and how a rank brings what it asks for into force."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tdbg.core import control
from tdbg.core.control import KEPT, Request
from tdbg.core.errors import TdbgError
from tdbg.core.events import Cost, Note, Switch
from tdbg.core.flags import FLAGS
from tdbg.probes import PROBES, Probe
from tdbg.probes.catalog import CATALOG
from tdbg.probes.updates import EveryUpdate
from tdbg.runtime.level_overrides import LevelOverrides
from tdbg.runtime.monitor import Monitor
from tests.probes.conftest import Watch, start_watch  # noqa: F401 - the fixture

Start = Callable[..., Watch]


# the file


def test_requests_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    wanted = [Request(number=n, t=1.5 * n, level="extreme", flags={"MEMORY": True, "X": "7"}) for n in (1, 2)]
    control.write_requests(path, wanted)
    assert control.read_requests(path) == wanted
    control.write_requests(path, list(reversed(wanted)))
    assert control.read_requests(path) == wanted


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    control.write_requests(tmp_path / "control.json", [Request(number=n) for n in range(KEPT + 5)])
    assert [request.number for request in control.read_requests(tmp_path / "control.json")] == list(range(5, KEPT + 5))


def test_no_file_is_no_request(tmp_path: Path) -> None:
    assert control.read_requests(tmp_path / "control.json") == []


def test_a_newer_tdbgs_fields_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "c").write_text(json.dumps({"version": 9, "more": 1, "requests": [{"number": 3, "colour": "red"}]}))
    assert control.read_requests(tmp_path / "c") == [Request(number=3)]


BROKEN: dict[str, Any] = {
    "nothing": "",
    "half": '{"requests": [{"number": 1',
    "a list": [],
    "no requests": {},
    "requests that are no list": {"requests": 3},
    "a request that is none": {"requests": [3]},
    "no number": {"requests": [{"level": "basic"}]},
    "a number in words": {"requests": [{"number": "1"}]},
    "a negative number": {"requests": [{"number": -1}]},
    "true for a number": {"requests": [{"number": True}]},
    "a step between two": {"requests": [{"number": 1, "at_step": 1.5}]},
    "an unknown level": {"requests": [{"number": 1, "level": "max"}]},
    "a level that is no word": {"requests": [{"number": 1, "level": ["basic"]}]},
    "flags that are a list": {"requests": [{"number": 1, "flags": ["A"]}]},
    "a flag that is a table": {"requests": [{"number": 1, "flags": {"A": {"b": 1}}}]},
    "a time in words": {"requests": [{"number": 1, "t": "now"}]},
    "deep": "[" * 100_000,
    "a negative window": {"requests": [{"number": 1, "profile_for": -1}]},
    "a number for a reason": {"requests": [{"number": 1, "profile_for": 1, "why": 3}]},
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_told_apart(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "control.json"
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(TdbgError, match="cannot read"):
        control.read_requests(path)


# in the rank


class Training:
    """A tiny training that goes on step by step; the control file is looked at after every step."""

    def __init__(self, seen: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tdbg.runtime.level_overrides.POLL_EVERY_S", 0.0)
        self.seen = seen
        self.layer = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=1e-3)

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.layer(torch.ones(2, 4)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def add_request(self, number: int, **wish: Any) -> None:
        self.seen.requests.append(Request(number=number, **{"t": 2e9, **wish}))

    @property
    def switch_rows(self) -> list[tuple[int, str, list[str], str]]:
        """Step, level, flags and reason of each switch."""
        switches = [event for event in self.seen.events if isinstance(event, Switch)]
        return [(event.step, event.level, sorted(event.flags), event.why) for event in switches]

    @property
    def current_settings(self) -> tuple[str, list[str]]:
        settings = self.seen.monitor.settings
        return settings.level, sorted(name for name, value in settings.flags.items() if value is not False)


@pytest.fixture
def training(start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> Training:  # noqa: F811
    return Training(start_watch(max_overhead=1e5), monkeypatch)


def list_probe_names(monitor: Monitor) -> list[str]:
    return [probe.name for probe in monitor.dispatcher.probes]


def test_it_switches_at_the_step_and_goes_back(training: Training) -> None:
    training.add_request(1, at_step=5, level="advanced", for_steps=3)
    training.run_steps(10)
    assert training.switch_rows == [(4, "advanced", [], "control"), (7, "basic", [], "end")]
    steps = [event.step for event in training.seen.events if getattr(event, "probe", "") == "tensor-stats"]
    assert steps == [5, 6, 7]
    assert list_probe_names(training.seen.monitor) == [cls.name for cls in CATALOG.select_probes("basic", {})]


def test_a_profiler_is_woken_up_without_its_flag(training: Training) -> None:
    training.add_request(1, at_step=4, profile_for=2)
    training.run_steps(8)
    assert training.switch_rows == [(3, "basic", [], "profile")]
    assert "profiler" in list_probe_names(training.seen.monitor) and training.current_settings == ("basic", [])
    assert not training.seen.monitor.quiet, "the window is over"
    assert training.seen.failures == []


@pytest.mark.parametrize("step_s", [0.0004, 0.004, 0.03, 0.1, 0.24, 0.7, 5.0])
def test_ranks_look_for_requests_after_the_same_steps(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """One begins earlier than the other, and none takes the same time for each step."""
    polls: list[list[tuple[float, int]]] = []
    for rank in (0, 1):
        random, now, seen = Random(rank), 100.0 + 0.3 * rank, []
        monitor: Any = SimpleNamespace(step=0, eval_calls=0)
        overrides = LevelOverrides(monitor)
        for monitor.step in range(1, 600):
            now += step_s * random.uniform(0.9, 1.1)
            monkeypatch.setattr("tdbg.runtime.level_overrides.time.monotonic", lambda now=now: now)
            monitor.requests = lambda seen=seen, now=now, step=monitor.step: seen.append((now, step)) or []
            overrides.apply_due_changes()
        polls.append(seen)
    first, second = ([step for _, step in seen] for seen in polls)
    assert first == second
    waits = [after[0] - before[0] for before, after in zip(polls[0], polls[0][1:], strict=False)]
    assert max(waits) <= max(0.5, 1.1 * step_s) and len(first) <= 3 + 1.2 * 600 * step_s / 0.0625


def test_where_steps_become_slow_requests_are_looked_for_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    now, polls = 100.0, []
    monitor: Any = SimpleNamespace(step=0, eval_calls=0, requests=lambda: polls.append(monitor.step) or [])
    overrides = LevelOverrides(monitor)
    for monitor.step in range(1, 1010):
        now += 0.001 if monitor.step <= 1000 else 2.0
        monkeypatch.setattr("tdbg.runtime.level_overrides.time.monotonic", lambda now=now: now)
        overrides.apply_due_changes()
    assert polls[-9:] == list(range(1001, 1010)) and len(polls) < 30


@pytest.mark.parametrize("wait", [2, 5, 9, 14])
def test_a_request_keeps_its_step_where_the_budget_pays_for_no_glance(
    start_watch: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    wait: int,
) -> None:
    """Steps are then only counted, many in a row, and in those nobody looks for requests."""
    training = Training(start_watch(max_overhead=0.001), monkeypatch)
    monitor = training.seen.monitor
    monitor.world_size = 2
    training.run_steps(30)
    while monitor.plan.deaf != 1:  # the last step of such a row
        training.run_steps(1)
    training.add_request(1, at_step=monitor.step + 2 + wait, flags={"MEMORY": True})
    expected = (monitor.step + 1 + wait, False)
    training.run_steps(30)
    assert [(event.step, event.late) for event in training.seen.events if isinstance(event, Switch)] == [expected]


def test_a_switch_says_what_it_answers(training: Training) -> None:
    training.add_request(7, at_step=3, flags={"MEMORY": True})
    training.run_steps(4)
    (switch,) = [event for event in training.seen.events if isinstance(event, Switch)]
    assert (switch.asked, switch.late, switch.flags) == (7, False, {"MEMORY": True})
    assert "memory" in list_probe_names(training.seen.monitor)


def test_a_step_that_has_passed(training: Training) -> None:
    training.run_steps(5)
    training.add_request(1, at_step=3, level="advanced")
    training.run_steps(2)
    (switch,) = [event for event in training.seen.events if isinstance(event, Switch)]
    assert (switch.step, switch.late, switch.level) == (6, True, "advanced")


def test_a_late_rank_goes_back_with_the_others(training: Training) -> None:
    training.run_steps(5)
    training.add_request(1, at_step=4, level="advanced", for_steps=6)
    training.run_steps(10)
    assert training.switch_rows == [(6, "advanced", [], "control"), (9, "basic", [], "end")]


def test_a_rank_that_is_later_than_the_whole_change_answers_all_the_same(training: Training) -> None:
    training.run_steps(9)
    training.add_request(1, at_step=2, level="advanced", for_steps=3)
    training.run_steps(2)
    (switch,) = [event for event in training.seen.events if isinstance(event, Switch)]
    assert (switch.asked, switch.late, switch.level) == (1, True, "basic")


def test_a_request_is_done_once(training: Training) -> None:
    training.add_request(1, level="advanced")
    training.add_request(2, level="basic")
    training.run_steps(5)
    assert [row[1] for row in training.switch_rows] == ["advanced", "basic"]


def test_the_later_change_lies_above_the_earlier(training: Training) -> None:
    training.add_request(1, at_step=3, level="extreme", for_steps=10)  # 3 to 12
    training.add_request(2, at_step=5, flags={"MEMORY": True}, for_steps=3)  # 5 to 7
    training.add_request(3, at_step=9, level="advanced", for_steps=20)  # 9 to 28
    training.run_steps(30)
    assert training.switch_rows == [
        (2, "extreme", [], "control"),
        (4, "extreme", ["MEMORY"], "control"),
        (7, "extreme", [], "end"),
        (8, "advanced", [], "control"),
        (12, "advanced", [], "end"),
        (28, "basic", [], "end"),
    ]


def test_a_change_for_good_is_not_undone_by_the_end_of_another(training: Training) -> None:
    training.add_request(1, at_step=3, level="extreme", flags={"AMP": True}, for_steps=10)
    training.add_request(2, at_step=5, flags={"MEMORY": True})
    training.run_steps(6)
    assert training.current_settings == ("extreme", ["AMP", "MEMORY"])
    training.run_steps(10)
    assert training.current_settings == ("basic", ["MEMORY"])


def test_a_level_for_good_ends_a_level_for_some_steps(training: Training) -> None:
    training.add_request(1, at_step=3, level="extreme", for_steps=10)
    training.add_request(2, at_step=5, level="basic")
    training.run_steps(20)
    assert training.switch_rows == [(2, "extreme", [], "control"), (4, "basic", [], "control")]
    assert not training.seen.monitor.level_overrides.temporary


def test_off_and_on_again(training: Training) -> None:
    training.add_request(1, at_step=4, level="off")
    training.add_request(2, at_step=9, level="basic")
    training.run_steps(12)
    assert training.switch_rows == [(3, "off", [], "control"), (8, "basic", [], "control")]
    assert [record.step for record in training.seen.train_steps] == [1, 2, 3, 9, 10, 11, 12]


def test_while_off_it_gives_signs_of_life_and_earns_nothing(training: Training, monkeypatch) -> None:
    monkeypatch.setattr("tdbg.runtime.cost_reports.COST_EVERY_S", 0.0)
    training.add_request(1, at_step=4, level="off")
    training.run_steps(8)
    costs = [event for event in training.seen.events if isinstance(event, Cost) and event.step > 3]
    assert [cost.step for cost in costs] == [4, 5, 6, 7, 8]
    assert {cost.level for cost in costs} == {"off"} and len({cost.earned_ms for cost in costs}) == 1


def test_a_step_the_scaler_skips_counts_while_off_too(training: Training) -> None:
    training.run_steps(2)
    training.seen.monitor.set_active(False)
    training.seen.monitor.skipped_update(training.optimizer, 0.0)
    assert training.seen.monitor.step == 3


def test_clear_history(training: Training) -> None:
    training.run_steps(4)
    training.add_request(1, clear_history=True)
    training.run_steps(1)
    assert [record.step for record in training.seen.monitor.recorder.ring] == []
    assert training.switch_rows == [(5, "basic", [], "control")]


def test_evaluation_alone_can_be_controlled(training: Training) -> None:
    training.add_request(1, at_step=4, flags={"MEMORY": True})
    with torch.no_grad():
        for _ in range(6):
            training.layer(torch.ones(2, 4))
    assert training.switch_rows == [(3, "basic", ["MEMORY"], "control")]


def test_a_restarted_rank_takes_up_what_holds_for_good(training: Training) -> None:
    training.seen.monitor.level_overrides.asked_since = 1000.0
    training.add_request(1, t=900.0, at_step=500, level="advanced")
    training.add_request(2, t=910.0, at_step=2, level="extreme", for_steps=30)
    training.add_request(3, t=920.0, clear_history=True, flags={"MEMORY": True}, at_step=700)
    training.run_steps(3)
    assert training.current_settings == ("advanced", ["MEMORY"])
    assert [row[0] for row in training.switch_rows] == [1, 1]
    assert len(training.seen.monitor.recorder.ring) == 3, "history that was not there cannot be cleared"


def test_a_forked_child_keeps_what_holds_for_good(training: Training) -> None:
    training.add_request(1, at_step=2, flags={"MEMORY": True})
    training.add_request(2, at_step=3, level="extreme", for_steps=100)
    training.run_steps(4)
    training.seen.monitor.forked()
    assert training.current_settings == ("basic", ["MEMORY"]) and not training.seen.monitor.level_overrides.temporary


def test_a_broken_file_is_ignored_and_noted(training: Training, monkeypatch) -> None:
    def broken() -> list[Request]:
        raise TdbgError("cannot read it")

    monkeypatch.setattr(training.seen.monitor, "requests", broken)
    training.run_steps(3)
    assert training.switch_rows == [] and set(training.seen.notes) == {"control"}
    assert len(training.seen.train_steps) == 3


def test_waking_probes_up_is_start_up_and_not_running_cost(training: Training) -> None:
    training.run_steps(3)
    before = training.seen.monitor.build_cost()
    training.add_request(1, level="extreme", flags={"MEMORY": True})
    training.run_steps(1)
    after = training.seen.monitor.build_cost()
    assert after.startup_ms > before.startup_ms


# probes that raise


@pytest.fixture
def third_party():
    """Register probes for one test."""
    added: list[str] = []

    def add_probe(cls: type[Probe]) -> type[Probe]:
        PROBES.add(cls)
        added.append(cls.name)
        return cls

    PROBES.load()
    yield add_probe
    for name in added:
        del PROBES._items[name]


def train_weights(steps: int, between: Callable[[int], None] = lambda step: None) -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        loss = layer(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        between(step)
    return layer.weight.detach().clone()


POINTS = [
    "__init__",
    "attach",
    "changed",
    "call_begins",
    "backward_ended",
    "step_ended",
    "record_written",
    "after_step",
]


@pytest.mark.parametrize("where", [*POINTS, "after_update", "before_update"])
@pytest.mark.parametrize("leaves", ["well", "badly"])
def test_a_probe_that_raises_is_switched_off_for_good(
    start_watch: Start,  # noqa: F811
    third_party: Callable[[type[Probe]], type[Probe]],
    where: str,
    leaves: str,
) -> None:
    expected, calls = train_weights(6), []

    def raises(self: Any, *args: Any) -> None:
        if where in ("__init__", "attach"):
            getattr(EveryUpdate, where)(self, *args)
        calls.append(where)
        raise RuntimeError("planted: a probe of somebody else's")

    def detach(self: Probe) -> None:
        EveryUpdate.detach(self)
        if leaves == "badly":
            raise RuntimeError("planted: it cannot even leave")

    def change_level_twice(step: int) -> None:
        if step == 3:
            seen.monitor.level_overrides.change_now("extreme", {}, "api")
            seen.monitor.level_overrides.change_now("advanced", {}, "api")

    third_party(
        type(
            "ThirdParty",
            (EveryUpdate,),
            {"name": "thirdparty", "levels": ("advanced",), where: raises, "detach": detach},
        )
    )
    seen = start_watch(level="advanced", max_overhead=1e5)
    assert torch.equal(train_weights(6, change_level_twice), expected)
    assert len(calls) == 1, "it is not brought back by a change of level"
    assert "thirdparty" not in list_probe_names(seen.monitor) and [record.step for record in seen.train_steps] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert {name for name, _ in seen.failures} == {"thirdparty"}
    seen.failures.clear()


def test_every_probe_may_come_and_go_while_the_optimizer_steps(training: Training) -> None:
    """Level and flags change inside an optimizer's hook; torch does not bear hooks that come or go there."""
    flags = {flag.name: True for flag in FLAGS if flag.probe}
    training.add_request(1, at_step=3, level="extreme", flags=flags)
    training.add_request(2, at_step=6, level="basic", flags=dict.fromkeys(flags, False))
    training.run_steps(8)
    assert [(row[0], row[1], len(row[2])) for row in training.switch_rows] == [
        (2, "extreme", len(flags)),
        (5, "basic", 0),
    ]
    assert list_probe_names(training.seen.monitor) == [cls.name for cls in CATALOG.select_probes("basic", {})]


def test_a_failed_trigger_condition_is_its_own_probes_affair(start_watch: Start) -> None:  # noqa: F811
    seen = start_watch(when=["los > 1"])  # cannot come from `tdbg run`, which checks
    train_weights(3)
    assert [name for name, _ in seen.failures] == ["triggers"] and len(seen.train_steps) == 3
    seen.failures.clear()
    assert not [event for event in seen.events if isinstance(event, Note)]
