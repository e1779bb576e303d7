"""Threads of a program beside training: one that fetches batches ahead, one that builds or saves, and the watchdog's."""

import threading
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
import torch
from probes.judging import judge_codes, list_observations
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tdbg.core.config import Settings
from tdbg.probes import Probe
from tdbg.probes.catalog import CATALOG
from tdbg.probes.distributed import Distributed, collectives
from tdbg.probes.distributed.collectives import Group, Order
from tdbg.runtime.budget import Budget
from tdbg.runtime.cost_reports import CostReports
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.duty_cycle import SKIPPED_STEPS, DutyCycle, Rarity
from tdbg.runtime.event_buffer import EventBuffer
from tdbg.runtime.root_modules import Roots
from tdbg.runtime.state import State

LOOP = {"flags": {"TRAINING_LOOP": True}, "max_overhead": 1e6}
WAIT_S = 0.3  # for a thread that is to be held up; one that is not is back much sooner


def run_in_thread(work: Callable[[], Any]) -> Any:
    """Do it in another thread, wholly."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(30)
    assert found, "it raised"
    return found[0]


def make_setup(kind: Any = torch.optim.SGD, **options: Any) -> tuple[nn.Sequential, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    loader = DataLoader(TensorDataset(torch.randn(200, 4)), batch_size=2)
    return model, kind(model.parameters(), lr=0.01, **options), iter(loader)


def compute_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


# batches that are fetched ahead


def test_a_batch_fetched_during_an_update_does_not_end_it(start_watch: Any, tmp_path: Any) -> None:
    watched = start_watch(**LOOP)
    model, optimizer, batches = make_setup()
    ahead = [run_in_thread(lambda: next(batches))]
    step = 0

    def fetch(*_: Any) -> None:
        """The optimizer's own hook runs after tdbg's: the update has begun."""
        ahead.append(run_in_thread(lambda: next(batches)))

    optimizer.register_step_pre_hook(lambda *_: fetch() if step % 2 else None)
    for step in range(20):
        optimizer.zero_grad()
        compute_loss(model, ahead.pop(0)[0]).backward()
        optimizer.step()
        if not step % 2:
            fetch()
    assert list_observations(watched, "training-loop", "FAULT") == []
    assert [event.values["window"] for event in list_observations(watched, "training-loop", "WINDOW")] == [1]
    assert "TD-C014" not in judge_codes(watched, tmp_path)


def test_a_batch_fetched_during_backward_leaves_the_nested_one_inside(start_watch: Any) -> None:
    watched = start_watch(**LOOP)
    model, optimizer, batches = make_setup()
    for _ in range(2):
        x = next(batches)[0]
        optimizer.zero_grad()
        loss = compute_loss(model, x)

        def nested(grad: torch.Tensor) -> None:
            run_in_thread(lambda: next(batches))
            with torch.enable_grad():
                torch.autograd.backward(torch.ones((), requires_grad=True) * 2)

        loss.register_hook(nested)
        loss.backward()
        optimizer.step()
    assert watched.monitor.find_probe("training-loop")._epoch.backwards == 2


def test_a_wrapping_optimizer_keeps_its_loss_while_batches_are_fetched(start_watch: Any) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__([p for group in inner.param_groups for p in group["params"]], {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            if losses[1:]:  # the first step says which of the two counts
                run_in_thread(lambda: next(batches))
            self.inner.step(closure)

    watched = start_watch()
    model, inner, batches = make_setup()
    optimizer = Wrapper(inner)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = compute_loss(model, next(batches)[0])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert [record.loss for record in watched.train_steps] == pytest.approx(losses)
    assert all(record.other_losses in (None, []) for record in watched.train_steps)


def test_a_closure_counts_its_first_evaluation_while_batches_are_fetched(start_watch: Any) -> None:
    watched = start_watch()
    model, optimizer, batches = make_setup(torch.optim.LBFGS, max_iter=4)
    x = next(batches)[0]
    losses = []

    def closure() -> torch.Tensor:
        run_in_thread(lambda: next(batches))
        optimizer.zero_grad()
        loss = compute_loss(model, x)
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    assert len(losses) > 1
    assert watched.train_steps[0].loss == pytest.approx(losses[0])


def test_an_update_that_raised_ends_with_the_next_batch_of_its_thread(start_watch: Any) -> None:
    watched = start_watch(**LOOP)
    _, optimizer, batches = make_setup()
    _, other, _ = make_setup()

    def refuse(*_: Any) -> None:
        raise ValueError("not now")

    refusal = optimizer.register_step_pre_hook(refuse)
    with pytest.raises(ValueError, match="not now"):
        optimizer.step()
    refusal.remove()
    assert watched.monitor.in_update is optimizer
    run_in_thread(lambda: next(batches))
    assert watched.monitor.in_update is optimizer, "another thread's batch says nothing of it"
    next(batches)
    assert watched.monitor.in_update is None and watched.monitor.find_probe("training-loop")._outer is None
    other.step()
    assert watched.monitor.step == 1


def test_batches_are_fetched_while_the_probes_change(start_watch: Any) -> None:
    """The moment is held open: to settle the order of the probes, each is asked whether it rests."""
    taken: list[Any] = []

    class Curious(Probe):
        name = "curious"
        fetches = False

        @property
        def rests(self) -> bool:  # type: ignore[override]
            if Curious.fetches:
                taken.append(run_in_thread(lambda: next(batches)))
            return False

    watched = start_watch()
    _, _, batches = make_setup()
    watched.monitor.lasting.append(Curious)
    watched.monitor.activate_probes([type(probe) for probe in watched.monitor.dispatcher.probes])
    Curious.fetches = True
    watched.monitor.dispatcher.rebuild_subscribers()
    Curious.fetches = False
    assert taken


def test_there_is_a_table_of_who_is_told_from_the_beginning() -> None:
    dispatcher = ProbeDispatcher(State(), CATALOG, lambda cls: cls(None), lambda name, error: None)
    dispatcher.dispatch("batch_taken", None, 0.0, None)
    assert not dispatcher.must_watch() and dispatcher.subscribers["must_watch"] == []


# becoming a rank


def make_event_buffer(become_rank: Callable[[], None]) -> EventBuffer:
    return EventBuffer(
        Budget(2.0, 0.0), emit=lambda event: None, log=lambda level, step, mark, text: None, become_rank=become_rank
    )


def test_the_second_thread_to_become_a_rank_waits_for_the_first() -> None:
    told: list[str] = []
    train = threading.Thread(target=lambda: (box.become_rank(), told.append("step")))
    speak = threading.Thread(target=lambda: box.when_rank(lambda: told.append("said")))

    def claim() -> None:
        assert not box.is_rank
        for thread in (speak, train):
            thread.start()
            thread.join(WAIT_S)
        told.append("claimed")

    box = make_event_buffer(claim)
    box.when_rank(lambda: told.append("held"))
    box.become_rank()
    for thread in (speak, train):
        thread.join(30)
    assert told[:2] == ["claimed", "held"] and sorted(told[2:]) == ["said", "step"]
    box.become_rank()
    assert told.count("claimed") == 1


def test_what_is_said_on_the_way_waits_for_the_claim() -> None:
    told: list[str] = []

    def claim() -> None:
        box.when_rank(lambda: told.append("said"))
        box.become_rank()
        told.append("claimed")

    box = make_event_buffer(claim)
    box.when_rank(lambda: box.when_rank(lambda: told.append("by another")))
    box.become_rank()
    box.when_rank(lambda: told.append("later"))
    assert told == ["claimed", "said", "by another", "later"] and box.is_rank


def test_a_claim_that_failed_is_not_tried_again() -> None:
    tries: list[int] = []

    def claim() -> None:
        tries.append(1)
        raise OSError("no space")

    box, told = make_event_buffer(claim), []
    with pytest.raises(OSError, match="no space"):
        box.become_rank()
    box.become_rank()
    box.when_rank(lambda: told.append("said"))
    assert len(tries) == 1 and told == ["said"]


# the watchdog's thread


def test_a_tail_asked_for_while_a_call_is_added_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(0)
    for _ in range(3):
        order.add_call("barrier", b"barrier", 1)
    watchdog = threading.Thread(target=order.mark_tail)

    def slow(raw: bytes, before: int) -> int:
        """The call has its number, and is not in the checksum yet."""
        watchdog.start()
        watchdog.join(WAIT_S)
        return crc32(raw, before)

    order._cut = 100
    monkeypatch.setattr(collectives, "crc32", slow)
    order.add_call("barrier", b"barrier", 1)
    watchdog.join(30)
    for first, last, crc, *_ in order.marks:
        assert crc == f"{crc32(b'barrier' * (last - first + 1)):08x}", (first, last)


class _Growing(Group):
    """A group; whenever somebody looks at its size, another thread makes one more."""

    def __init__(self, probe: Distributed) -> None:
        self.probe, self.name, self.ranks, self.order = probe, "world", [], Order(0)
        self.order.add_call("barrier", b"barrier", 1)

    def __getattribute__(self, name: str) -> Any:
        if name in ("size", "order"):
            groups = object.__getattribute__(self, "probe")._groups
            groups[f"new{len(groups)}"] = Group("new", 2)
        return 2 if name == "size" else object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def test_groups_may_be_made_while_the_order_is_told(start_watch: Any) -> None:
    watched = start_watch(flags={"DISTRIBUTED": True}, max_overhead=1e6)
    probe = watched.monitor.find_probe("distributed")
    probe._groups["world"] = _Growing(probe)
    probe._from_start = False
    probe.emit_order(tail=True)
    probe._begin_step(16)
    probe._tally.step = 1
    watched.monitor.step = 2
    probe.changed()
    watched.monitor.become_rank_now()
    assert [group["group"] for group in list_observations(watched, "distributed", "ORDER")[0].values["groups"]] == [
        "world"
    ]


# tables that grow meanwhile


def test_the_cost_is_told_while_a_part_of_it_is_booked_for_the_first_time() -> None:
    class Seconds(float):
        def __mul__(self, other: float) -> float:
            budget.charge(f"new{len(budget.by_part)}", 0.0)
            return float(self) * other

    budget, state = Budget(2.0, time.perf_counter()), State()
    state.reset_state()
    budget.by_part["forward"] = Seconds(0.5)
    dispatcher = ProbeDispatcher(state, CATALOG, lambda cls: cls(None), lambda name, error: None)
    roots = Roots(lambda part, error: None)
    duty = DutyCycle(state, budget, roots, dispatcher)
    cost = CostReports(state, Settings(), budget, duty, lambda event: None).build_cost()
    assert cost.by_part == {"forward": 500.0}


def test_a_module_built_beside_a_look_at_the_roots(start_watch: Any) -> None:
    class Busy(nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            if built is not None:
                built.append(run_in_thread(lambda: nn.Linear(1, 1)))
            return super().parameters(recurse)

    watched, built = start_watch(), None
    models = [Busy(1, 1) for _ in range(3)]
    built = []
    assert set(watched.monitor.roots.list_roots()) >= set(models) and len(built) == 3


def test_an_optimizer_built_beside_a_look_at_the_optimizers(start_watch: Any) -> None:
    class Busy(torch.optim.SGD):
        @property
        def param_groups(self) -> Any:
            if built is not None:
                built.append(run_in_thread(lambda: torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)))
            return self.__dict__["param_groups"]

        @param_groups.setter
        def param_groups(self, groups: Any) -> None:
            self.__dict__["param_groups"] = groups

    watched, built = start_watch(), None
    models = [nn.Linear(1, 1) for _ in range(3)]
    optimizers = [Busy(model.parameters(), lr=0.1) for model in models]
    built = []
    held = watched.monitor.optimizers.collect_held_ids()
    assert held >= {id(p) for model in models for p in model.parameters()} and len(built) == len(optimizers)


# of one thread, and of all


def test_what_a_hook_excuses_is_not_another_threads() -> None:
    budget = Budget(2.0, 0.0)
    budget.exclude(2.0)
    run_in_thread(lambda: (budget.charge("batch_taken", 0.5), True))
    budget.charge("step_ended", 2.25)
    assert budget.by_part == {"batch_taken": 0.5, "step_ended": 0.25} and budget.own_s == 0.75


def test_passes_of_its_own_may_end_in_any_order(start_watch: Any) -> None:
    monitor = start_watch().monitor
    one, other = monitor.own_pass(), monitor.own_pass()
    one.__enter__()
    run_in_thread(lambda: (other.__enter__(), True))
    one.__exit__(None, None, None)
    assert monitor.rerunning, "the other one still runs"
    run_in_thread(lambda: (other.__exit__(None, None, None), True))
    assert not monitor.rerunning


# a second training beside the one that is watched


def test_of_two_threads_that_train_the_first_is_watched(start_watch: Any) -> None:
    watched = start_watch()
    (model, optimizer, _), (other, others, _) = make_setup(), make_setup(torch.optim.Adam)
    reading = watched.monitor.hooks
    asked: list[bool] = []

    def steps(of: nn.Module, by: Any, count: int) -> bool:
        for _ in range(count):
            by.zero_grad()
            compute_loss(of, torch.ones(2, 4)).backward()
            asked.append(reading.is_elsewhere())
            by.step()
        return True

    steps(model, optimizer, 5)
    assert run_in_thread(lambda: steps(other, others, 7))
    steps(model, optimizer, 5)
    assert asked == [False] * 5 + [True] * 7 + [False] * 5
    assert (watched.monitor.step, watched.monitor.updates) == (10, 10)
    assert "threads" in watched.notes


def test_a_stretch_of_skipped_steps_is_of_one_thread(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread trains meanwhile is not mixed in, however long it goes on, and ends nothing."""
    monkeypatch.setattr("tdbg.runtime.duty_cycle.RARITIES", (Rarity(0.1, SKIPPED_STEPS),))
    watched = start_watch(max_overhead=None)
    monitor = watched.monitor
    monitor.budget.change_share(1e-4, time.perf_counter())
    (model, optimizer, _), (other, others, _) = make_setup(), make_setup(torch.optim.Adam)

    def steps(of: nn.Module, by: Any, count: int, factor: float = 1.0) -> bool:
        for _ in range(count):
            by.zero_grad()
            (compute_loss(of, torch.ones(2, 4)) * factor).backward()
            nn.utils.clip_grad_norm_(of.parameters(), 1.0)
            by.step()
        return True

    end = time.monotonic() + 60
    while monitor.fast_path.steps_left < 3:
        assert time.monotonic() < end
        if monitor.duty.is_away:
            monitor.duty.until = time.perf_counter() + 1e6
        steps(model, optimizer, 1)
    left, step, updates = monitor.fast_path.steps_left, monitor.step, monitor.updates
    assert run_in_thread(lambda: steps(other, others, 150, factor=float("nan")))
    assert (monitor.fast_path.steps_left, monitor.step, monitor.updates) == (left, step, updates)
    steps(model, optimizer, SKIPPED_STEPS)
    assert (monitor.fast_path.steps_left, monitor.step) == (left - SKIPPED_STEPS, step + SKIPPED_STEPS)
    assert watched.bad_values == [] and not watched.failures


def test_who_trains_on_alone_is_watched_in_the_end(start_watch: Any) -> None:
    """The main thread made one update, and waits for the thread that trains."""
    watched = start_watch()
    model, optimizer, _ = make_setup()

    def steps(count: int) -> bool:
        for _ in range(count):
            optimizer.zero_grad()
            compute_loss(model, torch.ones(2, 4)).backward()
            optimizer.step()
        return True

    steps(1)
    assert run_in_thread(lambda: steps(200))
    assert 100 < watched.monitor.step < 200
