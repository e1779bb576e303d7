"""Step records against what the loop itself computed."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from tdbg.core.config import Settings
from tdbg.probes.catalog import CATALOG
from tdbg.runtime.monitor import Monitor

from .conftest import Watch

Start = Callable[..., Watch]


def compute_total_norm(model: nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters() if p.grad is not None))


def make_batch(count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 8), torch.randint(0, 4, (count,))


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_a_plain_loop_is_recorded_as_it_ran(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    told = []
    for _ in range(5):
        x, y = make_batch()
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        told.append((loss.item(), compute_total_norm(model)))
        optimizer.step()
    assert [record.step for record in seen.train_steps] == [1, 2, 3, 4, 5]
    for record, (loss_value, norm) in zip(seen.train_steps, told, strict=True):
        assert record.loss == pytest.approx(loss_value)
        assert record.grad_norm == pytest.approx(norm, rel=1e-5)
        assert record.finite is True
        assert record.checked == "all"
        assert record.lr == [0.1]
        assert record.samples == 16
        assert record.grad_norms is not None and len(record.grad_norms) == 4
    assert seen.claims == 1


updates_on_meta = pytest.mark.skipif(
    torch.__version__.startswith(("2.6.", "2.9.")), reason="AdamW there reads its step count, which is on meta"
)


def run_dry(kind: str) -> None:
    """A dry run: shapes alone."""
    with FakeTensorMode() if kind == "fake" else torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.ones(2, 8))


@pytest.mark.parametrize(
    "settings",
    [{"max_overhead": 1e5}, {"level": "extreme", "max_overhead": 1e5}, {"max_overhead": 0.01}],
    ids=["plain", "extreme", "deaf"],
)
@pytest.mark.parametrize("kind", [pytest.param("meta", marks=updates_on_meta), "fake"])
def test_a_dry_run_is_no_step_and_what_comes_after_it_is_seen(start_watch: Start, kind: str, settings: Any) -> None:
    seen = start_watch(**settings)
    run_dry(kind)
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(30):
        if number == 10:
            run_dry(kind)
        optimizer.zero_grad()
        cross_entropy(model(make_batch()[0]), make_batch()[1]).backward()
        optimizer.step()
    seen.monitor.finish_run()
    assert seen.monitor.step == 30 and "meta-steps" in seen.notes
    assert seen.train_steps and all(isinstance(record.loss, float) for record in seen.train_steps)
    assert settings.get("max_overhead") == 0.01 or [record.step for record in seen.train_steps] == list(range(1, 31))


def test_the_norm_before_clipping_is_the_one_recorded(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x, y = make_batch()
        optimizer.zero_grad()
        (100 * cross_entropy(model(x), y)).backward()
        told = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        assert seen.train_steps[-1].grad_norm == pytest.approx(float(told), rel=1e-5)
        assert float(told) > 0.5


def test_accumulation_sums_the_losses_sent_backward(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        x, y = make_batch()
        loss = cross_entropy(model(x), y) / 4
        loss.backward()
        losses.append(loss.item())
    norm = compute_total_norm(model)
    optimizer.step()
    (record,) = seen.train_steps
    assert record.micro == 4
    assert record.loss == pytest.approx(sum(losses))
    assert record.grad_norm == pytest.approx(norm, rel=1e-5)
    assert record.samples == 64


def test_two_optimizers_count_as_one_stepper(start_watch: Start) -> None:
    seen = start_watch()
    first, second = make_network(), make_network()
    one, two = torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.2)
    told = []
    for _ in range(4):
        for model, optimizer in ((first, one), (second, two)):
            x, y = make_batch()
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            told.append(loss.item())
    assert [record.loss for record in seen.train_steps] == pytest.approx(told[::2])
    assert [record.other_losses for record in seen.train_steps[1:]] == [
        pytest.approx([value]) for value in told[1:-1:2]
    ]
    assert all(record.lr == [0.1] for record in seen.train_steps)


def test_a_closure_counts_its_first_evaluation(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = make_batch()
    evaluations: list[tuple[float, float]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        evaluations.append((loss.item(), compute_total_norm(model)))
        return loss

    optimizer.step(closure)
    (record,) = seen.train_steps
    assert record.micro == len(evaluations) > 1
    assert record.loss == pytest.approx(evaluations[0][0])
    assert record.grad_norm == pytest.approx(evaluations[0][1], rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_update_is_a_step_that_says_so(start_watch: Start, fused: bool) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    told: list[float] = []
    norms: list[float] = []
    for index in range(4):
        x, y = make_batch()
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        norms.append(compute_total_norm(model) / 2.0)
        if index == 2:
            first = next(model.parameters())
            assert first.grad is not None
            first.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        told.append(loss.item())
    assert [record.skipped for record in seen.train_steps] == [False, False, True, False]
    assert [record.loss for record in seen.train_steps] == pytest.approx(told)
    assert [record.scale for record in seen.train_steps] == [2.0, 2.0, 2.0, 1.0]
    assert [record.grad_norm for record in seen.train_steps[:2]] == pytest.approx(norms[:2], rel=1e-5)
    assert not seen.bad_values, "an Inf that GradScaler skips is no fault"


def test_epoch_and_batch_come_from_the_loader_that_feeds_training(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = make_batch(32)
    training = DataLoader(TensorDataset(x, y), batch_size=8)
    validation = DataLoader(TensorDataset(x[:8], y[:8]), batch_size=8)
    for _ in range(2):
        for xb, yb in training:
            optimizer.zero_grad()
            cross_entropy(model(xb), yb).backward()
            optimizer.step()
        with torch.no_grad():
            for xb, _ in validation:
                model(xb)
    assert [record.epoch for record in seen.train_steps] == [0] * 4 + [1] * 4
    assert [record.batch for record in seen.train_steps] == [1, 2, 3, 4] * 2
    assert {record.batches for record in seen.train_steps} == {4}
    assert all(record.loader_ms is not None for record in seen.train_steps)
    assert [record.call for record in seen.eval_steps] == [1, 2]
    assert [record.step for record in seen.eval_steps] == [4, 8]


def test_evaluation_alone_counts_calls(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network().eval()
    with torch.no_grad():
        for _ in range(3):
            model(make_batch()[0])
    assert [(record.step, record.samples) for record in seen.eval_steps] == [(1, 16), (2, 16), (3, 16)]
    assert seen.claims == 1


def test_level_off_has_no_probes() -> None:
    assert CATALOG.select_probes("off", {}) == []
    assert {probe.name for probe in CATALOG.select_probes("basic", {})} == {
        "first-bad",
        "gradient-norms",
        "hang",
        "native-crash",
        "stack-signal",
        "loader-wait",
        "loss-scaler",
        "regions",
        "triggers",
        "compilation",
    }


def test_a_probe_that_raises_is_switched_off_and_training_goes_on(start_watch: Start) -> None:
    seen = start_watch()
    gradients = seen.monitor.find_probe("gradient-norms")

    def broken(*args: Any) -> None:
        raise ZeroDivisionError("planted")

    gradients._check_gradients = broken
    seen.monitor.dispatcher.rebuild_subscribers()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x, y = make_batch()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert [name for name, _ in seen.failures] == ["gradient-norms"]
    assert len(seen.train_steps) == 3
    assert seen.train_steps[-1].loss is not None and seen.train_steps[-1].grad_norm is None
    seen.failures.clear()


def test_a_root_called_through_its_children_is_found(start_watch: Start) -> None:
    seen = start_watch()

    class Holder(nn.Module):
        """As in Lightning: the root is never called, its child is."""

        def __init__(self) -> None:
            super().__init__()
            self.model = make_network()

        def training_step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return cross_entropy(self.model(x), y)

    holder = Holder()
    optimizer = torch.optim.SGD(holder.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        holder.training_step(*make_batch()).backward()
        optimizer.step()
    assert [bool(record.samples) for record in seen.train_steps] == [False, True, True, True]
    assert "forward-unseen" not in seen.notes


def test_the_modules_of_a_list_are_found_where_forward_is_called_itself(start_watch: Start) -> None:
    """Seen in a public program: `self.forward(x)`, and layers in an `nn.ModuleList`."""
    seen = start_watch()

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 4)])})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.parts["layers"]:  # type: ignore[union-attr]
                x = layer(x)
            return x

    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        x = torch.randn(6, 8)
        optimizer.zero_grad()
        model.forward(x).square().mean().backward()
        optimizer.step()
    assert [bool(record.samples) for record in seen.train_steps] == [False] + [True] * 5
    assert "forward-unseen" not in seen.notes


def test_a_model_called_through_forward_is_reported(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        x, _ = make_batch()
        optimizer.zero_grad()
        model[2].forward(model[1].forward(model[0].forward(x))).sum().backward()
        optimizer.step()
    assert seen.notes == ["forward-unseen"]


def test_a_model_of_plain_tensors_is_told_apart(start_watch: Start) -> None:
    seen = start_watch()
    make_network()  # a module that nothing trains
    weight = torch.zeros(4, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        (torch.ones(3, 4) @ weight).square().sum().backward()
        optimizer.step()
    assert seen.notes == ["forward-of-tensors"]


def test_detach_leaves_torch_as_it_was() -> None:
    before = (torch.autograd.backward, torch.optim.Optimizer.__init__, nn.utils.clip_grad_norm_, nn.Module.compile)
    seen = Watch(Settings())
    model = make_network()
    assert seen.monitor.hook_count() > 0
    assert len(model._forward_hooks) == 1
    seen.monitor.detach()
    after = (torch.autograd.backward, torch.optim.Optimizer.__init__, nn.utils.clip_grad_norm_, nn.Module.compile)
    assert before == after
    assert len(model._forward_hooks) == 0
    assert isinstance(seen.monitor, Monitor) and seen.monitor.hook_count() == 0


def test_a_forward_that_raises_does_not_hide_the_calls_after_it(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network().eval()
    with torch.no_grad():
        for shape in ((3, 8), (3, 5), (3, 8)):
            try:
                model(torch.ones(shape))
            except RuntimeError:
                continue
    assert [record.call for record in seen.eval_steps] == [1, 2]


def test_an_optimizer_that_wraps_another_steps_once(start_watch: Start) -> None:
    seen = start_watch()
    model = make_network()

    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()
            self.inner.step()

    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        x, y = make_batch()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert [record.step for record in seen.train_steps] == [1, 2, 3]


@pytest.mark.parametrize("idle", [False, True])
def test_a_jump_of_the_learning_rate_is_on_record_at_its_step(start_watch: Start, idle: bool) -> None:
    seen = start_watch(max_overhead=1e6)  # whatever the load, no step goes unrecorded
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 13):
        optimizer.param_groups[0]["lr"] = 0.01 if step < 10 else 1.0
        if step == 10:
            seen.monitor.plan.record = seen.monitor.plan.full = seen.monitor.plan.small = False
            seen.monitor.plan.watch = not idle
        x, y = make_batch()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    (at,) = [record for record in seen.train_steps if record.step == 10]
    assert at.lr == [1.0]
    assert [record.step for record in seen.train_steps[-2:]] == [11, 12]
