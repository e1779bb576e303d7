"""Steps on the fast path: what is seen in them all the same, and what leaves it."""

import gc
import itertools
import math
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tdbg.core.events import Trigger
from tdbg.core.step_anomalies import WARM_RECORDS
from tdbg.probes.loader import CLOCK_BATCHES
from tdbg.runtime.duty_cycle import SKIPPED_STEPS, Rarity
from tdbg.runtime.fast_path import SPARE_PASSES
from tdbg.runtime.training_hooks import OTHER_THREAD_TAKES_OVER
from tdbg.runtime.update_counter import CLOCK_STEPS
from tests.probes.conftest import Watch

Start = Callable[..., Watch]
CHECK_EVERY = 32  # steps that are skipped have the loss of one in so many checked
FAR_AWAY_S = 1e6


class Program:
    """A small training whose every step is the test's."""

    def __init__(self, seen: Watch, optimizer: Callable[[Any], Any] | None = None) -> None:
        self.seen, self.monitor = seen, seen.monitor
        self.model = nn.Linear(4, 1)
        build = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1e-3))
        self.optimizer = build(self.model.parameters())

    def run_step(self, factor: float = 1.0) -> float:
        """One step; returns its loss."""
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(2, 4)).square().mean() * 0.0 + factor
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def enter_fast_path(self, left: int = 5, *, warm: bool = True) -> None:
        """Train until this many steps may be skipped."""
        end = time.monotonic() + 60
        while not (
            self.monitor.fast_path.steps_left >= left
            and (not warm or len(self.get_spike_trigger().window) >= WARM_RECORDS)
        ):
            assert time.monotonic() < end
            self.postpone_return()
            self.run_step()
        self.postpone_return()

    def postpone_return(self) -> None:
        """No skipped step takes too long, however busy the machine is."""
        if self.monitor.duty.is_away:
            self.monitor.duty.until = time.perf_counter() + FAR_AWAY_S
            self.monitor.fast_path._until = self.monitor.duty.until

    def get_spike_trigger(self) -> Any:
        return self.monitor.find_probe("triggers")._spike


def start_dear_watch(
    start_watch: Start, monkeypatch: pytest.MonkeyPatch, *, keeping_share: float = 0.0, **settings: Any
) -> Watch:
    """A watch that finds every glance too dear."""
    monkeypatch.setattr("tdbg.runtime.duty_cycle.KEEPING_SHARE", keeping_share)
    monkeypatch.setattr("tdbg.runtime.duty_cycle.EACH_LOSS", Rarity(0.0, 1))
    monkeypatch.setattr("tdbg.runtime.duty_cycle.RARITIES", (Rarity(0.0, CHECK_EVERY),))
    started = start_watch(max_overhead=None, **settings)
    started.monitor.budget.change_share(1e-4, time.perf_counter())
    started.monitor.budget.allowance_s = math.inf  # which pays for the check of each loss
    return started


@pytest.fixture(params=[0.0, 1e9], ids=["away", "keep"])
def fast_watch(request: pytest.FixtureRequest, start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch that finds every glance too dear, and keeping a call too, or never."""
    return start_dear_watch(start_watch, monkeypatch, keeping_share=request.param)


def test_every_step_is_counted_and_its_loss_known(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path(left=SKIPPED_STEPS)
    monitor = program.monitor
    done, updates, booked = monitor.step, monitor.updates, monitor.budget.own_s
    for number in range(1, SKIPPED_STEPS + 1):
        loss = program.run_step(1.0 - number / 1000)
        assert monitor.step == monitor.losses.last.step == done + number
        assert monitor.losses.last.read_loss() == pytest.approx(loss)
        assert monitor.fast_path.steps_left == SKIPPED_STEPS - number, "none was looked at"
    assert monitor.budget.own_s == booked
    program.run_step()
    assert monitor.fast_path.steps_left == SKIPPED_STEPS and monitor.updates == updates + SKIPPED_STEPS + 1
    assert monitor.budget.own_s > booked, "the next pays for all"
    assert not monitor.calls and not monitor.fast_path.has_calls


@pytest.mark.parametrize("has_spikes", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_loss_is_found_in_its_own_step(fast_watch: Watch, bad: float, has_spikes: bool) -> None:
    program = Program(fast_watch)
    program.get_spike_trigger().silent = not has_spikes  # a loss that may be negative has none, and no bound
    program.enter_fast_path(warm=has_spikes)
    done = program.monitor.step
    program.run_step()
    program.run_step(bad)
    (found,) = fast_watch.bad_values
    assert (found.step, found.weights) == (done + 2, "intact")
    assert program.monitor.fast_path.steps_left == 0


@pytest.mark.parametrize("fast_watch", [1e9], ids=["keep"], indirect=True)
def test_of_several_calls_of_a_step_each_is_kept(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    assert program.monitor.duty.keeps_calls
    for _ in range(3):  # whole steps, one after the other
        program.monitor.fast_path.stop_skipping()
        program.model(torch.ones(2, 4))
        program.model(torch.ones(2, 4)).sum().backward()
        assert len(program.monitor.calls) == 2
        program.optimizer.step()


def test_a_step_that_takes_long_ends_the_fast_path(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    program.monitor.fast_path._until = program.monitor.duty.until = time.perf_counter() - 1.0
    program.run_step()
    assert program.monitor.fast_path.steps_left == 0 and not program.monitor.duty.is_away


def test_probes_that_come_in_between_see_the_next_step(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    program.monitor.activate_probes([type(probe) for probe in program.monitor.dispatcher.probes])
    assert program.monitor.fast_path.steps_left == 0 and not program.monitor.duty.is_away


def test_steps_without_a_loss_are_not_attended(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    attended = program.monitor.attended
    for parameter in program.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    program.optimizer.step()
    assert program.monitor.attended == attended


def test_a_loss_that_stands_out_gets_a_record(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    program.run_step(50.0)
    assert fast_watch.train_steps[-1].step == program.monitor.step
    assert [event.condition for event in fast_watch.events if isinstance(event, Trigger)] == ["loss spike"]


def test_a_loss_twice_as_high_is_looked_at_and_no_more(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    window = program.get_spike_trigger().window
    for number in range(window.size):
        window.push(1.0 + number / window.size)
    program.monitor.fast_path.steps_left = 1
    for _ in range(2):  # what is usual is asked for anew
        program.run_step()
    recorded = len(fast_watch.train_steps)
    program.run_step(3.2)  # above twice the median, and below 8 deviations
    assert (
        program.monitor.fast_path.steps_left > 0
        and len(fast_watch.train_steps) == recorded
        and window.highest == pytest.approx(3.2)
    )


def test_a_jump_of_the_learning_rate_gets_a_record(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    program.optimizer.param_groups[0]["lr"] = 2e-3
    program.run_step()
    recorded = len(fast_watch.train_steps)
    assert program.monitor.fast_path.steps_left > 0, "not a jump"
    program.optimizer.param_groups[0]["lr"] = 2e-2
    program.run_step()
    assert len(fast_watch.train_steps) == recorded + 1 and fast_watch.train_steps[-1].lr == [2e-2]


def test_a_bad_norm_while_clipping_is_reported(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    done = program.monitor.step
    program.model(torch.ones(2, 4)).sum().backward()
    assert program.model.weight.grad is not None
    program.model.weight.grad[0, 0] = float("nan")
    nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
    (found,) = fast_watch.bad_values
    assert found.step == done + 1 and "weight" in found.bad_params


def test_another_optimizer_does_not_count(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    program.enter_fast_path()
    done, updates = program.monitor.step, program.monitor.updates
    other.step()
    assert (program.monitor.step, program.monitor.updates) == (done, updates + 1)
    program.run_step()
    assert program.monitor.step == done + 1


def test_a_rehearsal_on_meta_tensors_loses_no_later_step(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    rehearsal = torch.optim.SGD(nn.Linear(2, 2, device="meta").parameters(), lr=0.1)
    program.enter_fast_path()
    done = program.monitor.step
    rehearsal.step()
    for _ in range(3):
        program.run_step()
    assert program.monitor.step == done + 3


def test_an_optimizer_within_an_optimizer_counts_once(fast_watch: Watch) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            self.inner = torch.optim.SGD(list(parameters), lr=1e-3)
            super().__init__(self.inner.param_groups[0]["params"], {"lr": 1e-3})

        def step(self, closure: Any = None) -> Any:
            self.inner.step()

    program = Program(fast_watch, Wrapper)
    program.enter_fast_path()
    done = program.monitor.step
    for _ in range(3):
        program.run_step()
    assert program.monitor.step == done + 3


def test_a_closure_is_one_step_with_one_loss(fast_watch: Watch) -> None:
    program = Program(fast_watch, lambda parameters: torch.optim.LBFGS(parameters, lr=1e-3, max_iter=3))
    evaluated = []

    def closure() -> torch.Tensor:
        program.optimizer.zero_grad()
        loss = program.model(torch.ones(2, 4)).square().mean()
        loss.backward()
        evaluated.append(loss.item())
        return cast(torch.Tensor, loss)

    end = time.monotonic() + 60
    while program.monitor.fast_path.steps_left < 2 and time.monotonic() < end:
        program.optimizer.step(closure)
        if program.monitor.duty.is_away:
            program.monitor.duty.until = time.perf_counter() + FAR_AWAY_S
    done = program.monitor.step
    evaluated.clear()
    program.optimizer.step(closure)
    assert program.monitor.step == done + 1
    assert program.monitor.losses.last.read_loss() == pytest.approx(evaluated[0])


def test_parameter_groups_of_another_kind_are_left_to_the_usual_way(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    path, groups = program.monitor.fast_path, program.optimizer.param_groups
    path.hook_before_update(program.optimizer, (), {})
    program.optimizer.param_groups = []
    whole: list[Any] = []
    path._after_update = whole.append
    path.hook_after_update(program.optimizer, (), {})
    assert whole == [program.optimizer] and not path.steps_left
    program.optimizer.param_groups = groups
    program.monitor.in_update = None


def test_switching_off_in_the_middle_of_a_step(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    monitor = program.monitor
    done = monitor.step
    loss = program.model(torch.ones(2, 4)).sum()
    monitor.set_active(False)
    assert monitor.fast_path.steps_left == 0
    loss.backward()
    program.optimizer.step()
    assert monitor.step == done + 1 and not fast_watch.failures
    monitor.set_active(True)
    program.run_step()
    assert monitor.step == done + 2


def test_an_epoch_begun_on_the_fast_path_is_known(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    end = time.monotonic() + 60
    epochs = 0
    while program.monitor.fast_path.steps_left < 10 and time.monotonic() < end:
        for _ in loader:
            program.run_step()
            if program.monitor.duty.is_away:
                program.monitor.duty.until = time.perf_counter() + FAR_AWAY_S
        epochs += 1
    for number, _ in enumerate(loader, 1):
        program.run_step(float("nan") if number == 2 else 1.0)
    last = fast_watch.train_steps[-1]
    assert (last.step, last.epoch, last.batch, last.batches) == (program.monitor.step, epochs, 3, 3)


class RootOfNothing(nn.Module):
    """Finite forward, NaN backward: the derivative of the square root at 0."""

    ill = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.0 * torch.sqrt(0.0 * x) if self.ill else x


def test_a_backward_that_makes_nan_is_located_or_left_open(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    middle = RootOfNothing()
    program.model = nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 1))
    program.optimizer = torch.optim.SGD(program.model.parameters(), lr=1e-3)

    def step() -> None:
        program.optimizer.zero_grad()
        program.model(torch.rand(2, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
        program.optimizer.step()

    program.run_step = step  # type: ignore[method-assign,assignment]
    program.enter_fast_path()
    done, keeps = program.monitor.step, program.monitor.duty.keeps_calls
    middle.ill = True
    step()
    (found,) = fast_watch.bad_values
    assert found.step == done + 1
    if keeps:
        assert (found.phase, found.how, found.module, found.operation) == ("backward", "rerun", "1", "SqrtBackward0")
    else:
        assert (found.phase, found.how, found.module, found.parameter) == ("gradient", "check", "", "")
        assert "clipping by a NaN norm" in found.note


class ClippedProgram(Program):
    """A training whose bad loss makes the weights bad, as most do."""

    def run_step(self, factor: float = 1.0) -> float:
        """One step; returns its loss."""
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(2, 4)).square().mean() * factor
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def enter_unchecked_steps(self) -> None:
        """Train until the next steps are on the fast path, of which the first of 32 is checked."""
        self.monitor.budget.allowance_s = 0.0
        self.enter_fast_path(left=SKIPPED_STEPS, warm=False)
        assert self.monitor.fast_path.steps_left == SKIPPED_STEPS and not SKIPPED_STEPS % CHECK_EVERY


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_without_an_allowance_one_loss_of_32_is_checked(fast_watch: Watch) -> None:
    program = ClippedProgram(fast_watch)
    program.enter_unchecked_steps()
    monitor, done = program.monitor, program.monitor.step
    before = monitor.build_cost().unchecked_losses
    for number in range(SKIPPED_STEPS):
        program.run_step()
        assert monitor.step == done + number + 1
        assert monitor.attended == done + number // CHECK_EVERY * CHECK_EVERY + 1
    program.run_step()
    assert monitor.build_cost().unchecked_losses - before == SKIPPED_STEPS * (CHECK_EVERY - 1) // CHECK_EVERY
    assert not fast_watch.bad_values and not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize("at", range(CHECK_EVERY + 1))
def test_a_bad_loss_is_named_with_the_steps_that_were_not_checked(fast_watch: Watch, at: int) -> None:
    program = ClippedProgram(fast_watch)
    program.enter_unchecked_steps()
    done = program.monitor.step
    for number in range(CHECK_EVERY + 2):
        program.run_step(math.nan if number == at else 1.0)
    (found,) = fast_watch.bad_values
    if at % CHECK_EVERY == 0:
        assert (found.step, found.until, found.weights) == (done + at + 1, 0, "intact")
    else:  # whether the loss or the update after it was bad in the first of them is not known
        assert (found.step, found.until, found.weights) == (done + 2, done + CHECK_EVERY, "updated")
        assert "only counted these steps" in found.note


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize("is_bad", [False, True])
def test_a_run_that_ends_in_unchecked_steps_has_its_weights_checked(fast_watch: Watch, is_bad: bool) -> None:
    program = ClippedProgram(fast_watch)
    program.enter_unchecked_steps()
    done = program.monitor.step
    for number in range(4):
        program.run_step(math.nan if is_bad and number == 2 else 1.0)
    program.monitor.finish_run()
    seen = [(found.kind, found.step, found.until) for found in fast_watch.bad_values]
    assert seen == [("nan", done + 2, done + 4)] * is_bad
    assert program.monitor.build_cost().unchecked_losses >= 3, "also of the steps since the last whole one"


def enter_counted_steps(seen: Watch) -> ClippedProgram:
    """Train up to a step before which two were only counted."""
    program = ClippedProgram(seen)
    program.enter_unchecked_steps()
    for _ in range(3):
        program.run_step()
    assert seen.monitor.fast_path.is_counting
    return program


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_references_to_patched_functions_can_be_saved_while_steps_are_counted(fast_watch: Watch) -> None:
    before = torch.autograd.backward, nn.utils.clip_grad.clip_grad_norm_, nn.utils.clip_grad_norm_
    enter_counted_steps(fast_watch)
    during = torch.autograd.backward, nn.utils.clip_grad.clip_grad_norm_, nn.utils.clip_grad_norm_
    assert before == during
    assert all(pickle.loads(pickle.dumps(function)) is function for function in during)


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_a_program_that_slows_down_is_not_counted_on(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    path = program.monitor.fast_path
    path.stop_skipping()
    program.enter_unchecked_steps()
    program.run_step()
    assert path.is_counting
    time.sleep(0.1)
    path._until = program.monitor.duty.until = time.perf_counter()  # a stretch is over
    path.counter._expect(program.optimizer, 20, path._until)
    path.counter._steps = 20
    step, updates, was_left = program.monitor.step, program.monitor.updates, False
    for number in range(CLOCK_STEPS + 1):
        program.run_step()
        assert (program.monitor.step, program.monitor.updates) == (step + number + 1, updates + number + 1)
        was_left = was_left or not path.is_counting
    assert was_left and not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_backward_passes_without_updates_end_the_counting(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    passes = SPARE_PASSES * 2 * (CHECK_EVERY + 1)
    for _ in range(passes):
        program.model(torch.ones(2, 4)).sum().backward()
    assert not program.monitor.fast_path.is_counting
    (program.model(torch.ones(2, 4)).sum() * math.nan).backward()
    assert len(fast_watch.bad_values) == 1


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_a_scaler_that_begins_while_steps_are_counted(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    step, updates = program.monitor.step, program.monitor.updates
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for _ in range(3):
        program.optimizer.zero_grad()
        scaler.scale(program.model(torch.ones(2, 4)).square().mean()).backward()
        scaler.step(program.optimizer)
        scaler.update()
    assert (program.monitor.step, program.monitor.updates) == (step + 3, updates + 3)
    assert not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_weights_are_checked_at_the_end_also_where_no_loss_was_seen(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    program.optimizer.zero_grad()
    for _ in range(4):
        program.optimizer.step()
    assert program.monitor.fast_path.is_counting
    with torch.no_grad():
        program.model.weight.fill_(math.nan)
    program.optimizer.step()
    program.monitor.finish_run()
    assert len(fast_watch.bad_values) == 1


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_without_a_loss_each_norm_is_checked(fast_watch: Watch) -> None:
    """Gradients of `torch.autograd.grad`: no backward pass shows their loss."""
    program = ClippedProgram(fast_watch)
    parameters = list(program.model.parameters())

    def run_step(factor: float = 1.0) -> None:
        loss = program.model(torch.ones(2, 4)).square().mean() * factor
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        nn.utils.clip_grad_norm_(parameters, 1.0)
        program.optimizer.step()

    path = program.monitor.fast_path
    while path.steps_left < CHECK_EVERY:
        run_step()
    for _ in range(3):
        run_step()
        assert path.steps_left and not path.is_counting
    step = program.monitor.step
    run_step(math.nan)
    (bad,) = fast_watch.bad_values
    assert bad.step == step + 1


@pytest.mark.parametrize("is_interrupted", [True, False], ids=["ctrl-c", "failure"])
@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_an_interrupted_start_leaves_the_usual_hooks(
    fast_watch: Watch, is_interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ClippedProgram(fast_watch)
    program.enter_unchecked_steps()
    counter = program.monitor.fast_path.counter
    expect: Any = counter._expect

    def start_and_fail(optimizer: object, steps: int, until: float) -> int:
        left = int(expect(optimizer, steps, until))
        if steps:
            monkeypatch.undo()
            [signal.raise_signal(signal.SIGINT)] if is_interrupted else [][0]
        return left

    monkeypatch.setattr(counter, "_expect", start_and_fail)
    if is_interrupted:
        with pytest.raises(KeyboardInterrupt):
            program.run_step()
    else:
        program.run_step()
        assert len(fast_watch.failures) == 1
    assert not program.monitor.fast_path.is_counting and not counter._expect(None, 0, 0.0)
    fast_watch.failures.clear()


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_another_optimizer_ends_the_counting(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    monitor, step, path = program.monitor, program.monitor.step, program.monitor.fast_path
    before = monitor.updates
    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    other.step()
    assert not path.is_counting and path.steps_left == 0
    assert (monitor.step, monitor.updates) == (step, before + 1)
    program.run_step()
    assert (monitor.step, monitor.updates) == (step + 1, before + 2)
    assert not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize("is_same", [False, True], ids=["another optimizer", "the same optimizer"])
def test_another_thread_is_not_counted(fast_watch: Watch, is_same: bool) -> None:
    program = enter_counted_steps(fast_watch)
    monitor, step = program.monitor, program.monitor.step
    optimizer = program.optimizer if is_same else torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
    assert monitor.fast_path.is_counting and monitor.step == step
    program.run_step()
    assert monitor.step == step + 1 and not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_what_stands_in_torchs_tables_stays_while_steps_are_counted(fast_watch: Watch) -> None:
    """Compiled code asks whether it is the same."""
    tables = optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks
    program = ClippedProgram(fast_watch)
    program.enter_unchecked_steps()
    before = [dict(table) for table in tables]
    program.run_step()
    assert program.monitor.fast_path.is_counting and all(before)
    assert [dict(table) for table in tables] == before


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize(("factor", "jumps"), [(1.05, 0), (1.0, 1)], ids=["schedule", "jump"])
def test_a_rate_that_rises_step_by_step_is_no_jump(fast_watch: Watch, factor: float, jumps: int) -> None:
    program = ClippedProgram(fast_watch)
    (group,) = program.optimizer.param_groups
    group["lr"] = 1e-12
    program.enter_unchecked_steps()
    attention = program.monitor.fast_path._attention
    before = attention._jump_seen
    for _ in range(3 * SKIPPED_STEPS):
        group["lr"] *= factor
        program.run_step()
    assert attention._jump_seen == before
    if jumps:
        group["lr"] *= 10.0
        for _ in range(SKIPPED_STEPS):
            program.run_step()
        assert attention._jump_seen > before
    assert not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_taken_away_while_steps_are_counted(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    monitor, step = program.monitor, program.monitor.step
    monitor.hooks.detach()
    for function in (torch.autograd.backward, nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_norm_):
        assert not hasattr(function, "__wrapped__") or "tdbg" not in function.__code__.co_filename
    program.run_step()
    assert monitor.step == step and not fast_watch.failures


class Wrapping(torch.optim.Optimizer):
    """An optimizer whose step is that of another."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_steps_inside_others_are_not_counted_alone(fast_watch: Watch) -> None:
    program = ClippedProgram(fast_watch)
    program.optimizer = Wrapping(program.optimizer)
    program.enter_unchecked_steps()
    step, updates = program.monitor.step, program.monitor.updates
    for _ in range(SKIPPED_STEPS):
        program.run_step()
        assert not program.monitor.fast_path.is_counting
    assert (program.monitor.step, program.monitor.updates) == (step + SKIPPED_STEPS, updates + 2 * SKIPPED_STEPS)
    assert not fast_watch.failures


def test_stop_before_update_has_each_loss_checked(start_watch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = start_dear_watch(start_watch, monkeypatch, stop_before_update=True)
    program = ClippedProgram(seen)
    program.enter_unchecked_steps()
    done = program.monitor.step
    for number in range(CHECK_EVERY):
        program.run_step()
        assert program.monitor.attended == done + number + 1


class _Rows(Program):
    """A training whose batches use one row of an embedding."""

    def __init__(self, seen: Watch) -> None:
        super().__init__(seen)
        self.model = nn.Embedding(10, 1)  # type: ignore[assignment]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def run_step(self, factor: float = 1.0, row: int = 0) -> float:
        self.optimizer.zero_grad()
        loss = self.model(torch.tensor([row])).square().mean() * factor + 1.0
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize("more", [1, 6])
def test_weights_that_later_losses_do_not_show_are_reported_at_the_end(fast_watch: Watch, more: int) -> None:
    """A counted step makes one row bad, which the batches of the checked steps do not use."""
    program = _Rows(fast_watch)
    fast_watch.monitor.budget.allowance_s = 0.0
    program.enter_fast_path(left=CHECK_EVERY, warm=False)
    for number in range(CHECK_EVERY + more):
        is_bad = number == 5
        program.run_step(math.nan if is_bad else 1.0, row=7 if is_bad else 0)
    program.monitor.finish_run()
    (found,) = fast_watch.bad_values
    assert "may be an earlier one" in found.note and max(found.step, found.until) == program.monitor.step
    assert (found.phase, found.parameter) == ("", ""), "no write and no update is blamed"


def raise_error(*args: object) -> None:
    raise MemoryError("planted")


@pytest.mark.parametrize("is_fast", [False, True])
def test_an_update_that_raised_does_not_hide_those_of_another_optimizer(fast_watch: Watch, is_fast: bool) -> None:
    """An update runs out of memory, and the program tries again with another model, without a DataLoader."""
    program, monitor = Program(fast_watch), fast_watch.monitor
    if is_fast:
        program.enter_fast_path()
    program.optimizer.register_step_pre_hook(raise_error)
    with pytest.raises(MemoryError):
        program.run_step()
    before, first = monitor.step, weakref.ref(program.optimizer)
    program = Program(fast_watch)
    gc.collect()
    assert first() is None, "nothing of ours keeps what the program has given up"
    for _ in range(40):
        program.run_step()
    assert monitor.step - before >= 20  # the second takes over in between
    assert not fast_watch.failures


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_counting_keeps_no_model_alive(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    optimizer, weight = weakref.ref(program.optimizer), weakref.ref(program.model.weight)
    del program
    gc.collect()
    assert (optimizer(), weight()) == (None, None)


@pytest.mark.parametrize("way", ["whole", "skipped", "counted"])
@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_torch_warns_of_a_generator_of_parameters_that_is_used_up(fast_watch: Watch, way: str) -> None:
    program = Program(fast_watch) if way == "whole" else ClippedProgram(fast_watch)
    if isinstance(program, ClippedProgram):
        program.enter_unchecked_steps()
    if way == "counted":
        program.run_step()
        assert fast_watch.monitor.fast_path.is_counting
    with pytest.warns(UserWarning, match="empty generator"):
        torch.nn.utils.clip_grad_norm_((one for one in ()), 1.0)


@pytest.mark.parametrize("way", ["whole", "skipped", "counted"])
@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_clipping_that_raises_has_its_bad_gradients_named(fast_watch: Watch, way: str) -> None:
    """Each time: the program leaves the batch out, so that no weight is touched."""
    program = ClippedProgram(fast_watch)
    if way == "whole":
        program.run_step()
    else:
        program.enter_unchecked_steps()
    if way == "counted":
        program.run_step()
        assert fast_watch.monitor.fast_path.is_counting
    for number in range(1, 3):
        program.optimizer.zero_grad()
        program.model(torch.ones(2, 4)).sum().backward()
        assert program.model.weight.grad is not None
        program.model.weight.grad[0, 0] = math.nan
        with pytest.raises(RuntimeError, match="non-finite"):
            torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0, error_if_nonfinite=True)
        assert len(fast_watch.bad_values) == number
        found = fast_watch.bad_values[-1]
        assert (found.step, found.kind, found.parameter) == (program.monitor.step + 1, "nan", "weight")
        program.run_step()


def test_another_error_while_clipping_says_nothing_of_the_norm(fast_watch: Watch) -> None:
    program = Program(fast_watch)
    program.enter_fast_path()
    program.model.weight.grad = torch.ones(1, 4).to_sparse()
    with pytest.raises(RuntimeError):
        torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
    assert not fast_watch.failures and not fast_watch.bad_values


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_training_that_moves_to_another_thread_is_counted_on(fast_watch: Watch) -> None:
    """As with `asyncio.to_thread`: the first thread stays alive, and trains no more."""
    program = enter_counted_steps(fast_watch)
    program.postpone_return()
    before = program.monitor.step
    thread = threading.Thread(target=lambda: [program.run_step() for _ in range(3 * OTHER_THREAD_TAKES_OVER)])
    thread.start()
    thread.join()
    assert program.monitor.step - before >= 2 * OTHER_THREAD_TAKES_OVER


class _Counts(IterableDataset[int]):
    """Numbers, whose loader knows no length."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.most))


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize("workers", [0, 1], ids=["in the process", "workers that stay"])
def test_batches_taken_while_steps_are_counted_are_known(fast_watch: Watch, workers: int) -> None:
    """Of each the position and the epoch, and the batch itself, which a report of bad values keeps."""
    program = enter_counted_steps(fast_watch)
    probe = fast_watch.monitor.find_probe("loader-wait")
    loader = DataLoader(_Counts(8), batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(2):
        for number, batch in enumerate(loader, 1):
            assert (probe._taken, probe.epoch) == (number, epoch)
            assert probe.batch is batch
            program.postpone_return()
            program.run_step()
    assert fast_watch.monitor.fast_path.is_counting, "or nothing was tried"


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_another_loader_while_steps_are_counted_is_another_pass(fast_watch: Watch) -> None:
    program = enter_counted_steps(fast_watch)
    probe = fast_watch.monitor.find_probe("loader-wait")
    train, other = iter(DataLoader(_Counts(40))), iter(DataLoader(_Counts(40)))
    for number in range(1, 5):
        next(train)
        assert (probe._taken, probe.epoch) == (number, 0)
        next(other)
        assert probe._taken == number
        program.postpone_return()
        program.run_step()
    assert probe._passes.keys() == {id(one._dataset) for one in (train, other)}


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("is_trained", [False, True])
def test_weights_that_no_update_has_made_bad_are_not_reported_at_the_end(
    fast_watch: Watch, value: float, is_trained: bool
) -> None:
    """A mask for softmax, a bound, a part that is not used yet."""
    program = ClippedProgram(fast_watch)
    unused = nn.Parameter(torch.full((3,), value), requires_grad=is_trained)
    program.model.register_parameter("unused", unused)
    program.optimizer.add_param_group({"params": [unused]})
    program.enter_unchecked_steps()
    for _ in range(4):
        program.run_step()
    program.monitor.finish_run()
    assert program.monitor.duty.counted_steps > 0 and not fast_watch.bad_values


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_a_part_that_later_losses_do_not_use_may_have_been_bad_for_long(fast_watch: Watch) -> None:
    """The whole of a head that was trained for a while."""
    program = enter_counted_steps(fast_watch)
    head = nn.Linear(4, 1)
    program.model.head = head
    program.optimizer.add_param_group({"params": list(head.parameters())})
    for number in range(2 * CHECK_EVERY):
        program.run_step()
        if number == 3:
            head.weight.grad, head.weight.data = torch.full((1, 4), math.nan), torch.full((1, 4), math.nan)
            program.model.weight.grad = None
    head.weight.grad = torch.zeros(1, 4)  # as zero_grad(set_to_none=False) leaves it
    program.monitor.finish_run()
    (found,) = fast_watch.bad_values
    assert "may be an earlier one" in found.note and found.bad_param_count == 1


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_loaders_that_are_read_in_turn_cost_what_they_cost(fast_watch: Watch) -> None:
    """Of two at different places, one is read the short way and the other is not: their places are not compared."""
    program = enter_counted_steps(fast_watch)
    budget = fast_watch.monitor.budget
    long, short = iter(DataLoader(_Counts(800))), iter(())
    spent_s = [budget.own_s]
    for _ in range(150):
        next(long)
        if next(short, None) is None:
            short = iter(DataLoader(_Counts(7)))
            next(short)
        program.postpone_return()
        program.run_step()
        spent_s.append(budget.own_s)
    extra_s = [after - before for before, after in itertools.pairwise(spent_s)]
    assert min(extra_s) >= 0.0 and budget.by_part["counted_batch"] <= 300 * budget.entry_s("counted_batch")


@pytest.mark.parametrize("fast_watch", [0.0], ids=["away"], indirect=True)
def test_a_pass_without_updates_ends_the_stretch_in_time(fast_watch: Watch) -> None:
    """As an evaluation does, of which nothing is to be lost beyond the end of the stretch."""
    enter_counted_steps(fast_watch)
    monitor = fast_watch.monitor
    batches = iter(DataLoader(_Counts(40)))
    for _ in range(2):
        next(batches)
    assert monitor.duty.is_away
    monitor.duty.until = 0.0  # which is over now
    for _ in range(CLOCK_BATCHES):
        next(batches)
    assert not monitor.duty.is_away


def test_a_thread_that_takes_over_from_an_update_that_raised(fast_watch: Watch) -> None:
    """Trials of a search, each in a thread of its own; the exception of the first keeps its optimizer alive."""
    kept: list[BaseException] = []

    def train(fails: bool) -> None:
        program = Program(fast_watch)
        if fails:
            program.optimizer.register_step_pre_hook(raise_error)
        try:
            for _ in range(40):
                program.run_step()
        except MemoryError as error:
            kept.append(error)

    for fails in (True, False):
        thread = threading.Thread(target=train, args=[fails])
        thread.start()
        thread.join()
    assert kept and fast_watch.monitor.step >= 20 and not fast_watch.failures
