"""The planted faults of a training run, on three unlike models: the right step, module and phase, or silence."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from .conftest import Watch

Start = Callable[..., Watch]
STEP = 3


class Plant:
    """Which fault is on, read by the modules below."""

    fault = ""
    step = 0

    def is_active(self, fault: str) -> bool:
        return self.fault == fault and self.step == STEP


class Act(nn.Module):
    """relu, with a NaN that appears in backward only when the fault is on."""

    def __init__(self, plant: Plant, faulty: bool) -> None:
        super().__init__()
        self.plant, self.faulty = plant, faulty

    def forward(self, x: Tensor) -> Tensor:
        if self.faulty and self.plant.is_active("backward-nan"):
            x = x + torch.sqrt((x * 0).abs()) * 0
        if self.faulty and self.plant.is_active("harmless"):
            x = x + torch.where(x > 1e9, torch.sqrt((x.detach() * 0).abs()), torch.zeros_like(x))
        return torch.relu(x)


class Fc(nn.Linear):
    """A linear layer whose output overflows when the fault is on."""

    plant: Plant | None = None

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + math.inf if self.plant is not None and self.plant.is_active("forward-inf") else out


class Block(nn.Module):
    def __init__(self, plant: Plant, index: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = Fc(width, width)
        self.fc.plant = plant if index == 3 else None
        self.act = Act(plant, index == 2)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.proj(self.act(self.fc(self.norm(x))))
        return out


class Residual(nn.Module):
    """Blocks with dropout, over dense rows."""

    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block(plant, index, 16) for index in range(6))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.drop(x))
        return out


class Conv(nn.Module):
    """Convolution and batch normalisation before the blocks: buffers that a second run must not move."""

    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(plant, index, 16) for index in range(6)))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x[:, None, :]).mean(-1)))
        return out


class Recurrent(nn.Module):
    """A GRU before the blocks; returns a dictionary, as many library models do."""

    def __init__(self, plant: Plant) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 16, batch_first=True)
        self.blocks = nn.ModuleList(Block(plant, index, 16) for index in range(6))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        hidden = self.rnn(x[..., None])[0][:, -1] * scale
        for block in self.blocks:
            hidden = block(hidden)
        return {"logits": self.head(hidden), "extra": [hidden]}


class Checkpointed(Residual):
    """Every block under activation checkpointing; the function is imported by name, as programs do."""

    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        out: Tensor = self.head(self.drop(x))
        return out


class Nested(Checkpointed):
    """Blocks in two checkpointed halves, the first of which has a checkpoint of its own."""

    def forward(self, x: Tensor) -> Tensor:
        def run_blocks(begin: int, end: int, x: Tensor) -> Tensor:
            for block in self.blocks[begin:end]:
                x = block(x)
            return x

        def run_first_half(x: Tensor) -> Tensor:
            return run_blocks(2, 3, checkpoint(run_blocks, 0, 2, x, use_reentrant=self.reentrant))

        x = checkpoint(run_first_half, self.stem(x), use_reentrant=self.reentrant)
        x = checkpoint(run_blocks, 3, 6, x, use_reentrant=self.reentrant)
        out: Tensor = self.head(self.drop(x))
        return out


class Reentrant(Checkpointed):
    reentrant = True


class NestedReentrant(Nested):
    reentrant = True


MODELS = {"residual": Residual, "conv": Conv, "recurrent": Recurrent}


CHECKPOINTED = {"blocks": Checkpointed, "reentrant": Reentrant, "nested": Nested, "nested-reentrant": NestedReentrant}


def train_model(seen: Watch, name: str, fault: str, steps: int = 6) -> nn.Module:
    torch.manual_seed(0)
    plant = Plant()
    plant.fault = fault
    model = {**MODELS, **CHECKPOINTED}[name](plant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if fault == "inf-grad":
        blocks: Any = model.blocks
        blocks[4].proj.weight.register_hook(lambda grad: grad + math.inf if plant.step == STEP else None)
    for plant.step in range(1, steps + 1):
        x, y = torch.randn(12, 8), torch.randint(0, 4, (12,))
        if plant.is_active("bad-batch"):
            x[5, 3] = math.nan
        out = model(x)
        loss = cross_entropy(out["logits"] if isinstance(out, dict) else out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", {**MODELS, **CHECKPOINTED})
def test_inf_in_a_forward_pass(start_watch: Start, name: str) -> None:
    seen = start_watch()
    train_model(seen, name, "forward-inf")
    (event,) = seen.bad_values
    assert (event.step, event.module, event.phase, event.kind) == (3, "blocks.3.fc", "forward", "inf")
    assert (event.origin, event.how, event.weights) == ("here", "rerun", "intact")
    assert event.last_good["step"] == 2


@pytest.mark.parametrize("name", {**MODELS, **CHECKPOINTED})
def test_nan_only_in_backward(start_watch: Start, name: str) -> None:
    seen = start_watch()
    train_model(seen, name, "backward-nan")
    (event,) = seen.bad_values
    assert (event.step, event.module, event.phase, event.kind) == (3, "blocks.2.act", "backward", "nan")
    assert event.bad_param_count > 0


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_a_second_run_leaves_checkpointing_as_it_was(start_watch: Start, name: str) -> None:
    before = vars(CheckpointFunction).copy()
    seen = start_watch()
    model = train_model(seen, name, "backward-nan", steps=3)
    assert "could not be run again" not in seen.bad_values[0].note
    assert vars(CheckpointFunction) == before
    model(torch.randn(4, 8, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("name", MODELS)
def test_inf_in_one_weights_gradient(start_watch: Start, name: str) -> None:
    seen = start_watch()
    train_model(seen, name, "inf-grad")
    (event,) = seen.bad_values
    assert (event.step, event.parameter, event.phase, event.kind) == (3, "blocks.4.proj.weight", "gradient", "inf")
    assert event.bad_params == ["blocks.4.proj.weight"]
    assert event.weights == "intact"


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_pixel_in_the_batch(start_watch: Start, name: str) -> None:
    seen = start_watch()
    train_model(seen, name, "bad-batch")
    (event,) = seen.bad_values
    assert (event.step, event.phase, event.kind, event.count) == (3, "input", "nan", 1)
    assert event.module in {"stem", "stem.0", "rnn"}
    ((step, parts),) = seen.saved
    assert step == 3
    (args, _) = parts["inputs"][0]
    assert torch.isnan(args[0]).sum() == 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fault", ["harmless", "none"])
def test_silence_where_nothing_is_wrong(start_watch: Start, name: str, fault: str) -> None:
    seen = start_watch()
    train_model(seen, name, fault)
    assert seen.bad_values == []
    assert len(seen.train_steps) == 6


def test_the_harmless_fault_is_there_for_those_who_look_too_closely() -> None:
    """The plant really makes a NaN inside backward, which never reaches a parameter."""
    plant = Plant()
    plant.fault, plant.step = "harmless", STEP
    x = torch.zeros(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="nan values"), torch.autograd.detect_anomaly():
        inner = torch.sqrt((x * 0).abs())
        torch.relu(x + torch.where(x > 1e9, inner, torch.zeros_like(x))).sum().backward()


def test_a_loss_that_is_bad_outside_the_model(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.log(model(torch.randn(4, 8)).sum() * 0)
    loss.backward()
    optimizer.step()
    (event,) = seen.bad_values
    assert (event.phase, event.module) == ("loss", "")
    assert "outside the model" in event.note


def test_weights_that_were_already_bad_are_blamed_on_the_update(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    cross_entropy(model(torch.randn(4, 8)), torch.zeros(4, dtype=torch.long)).backward()
    optimizer.step()
    (event,) = seen.bad_values
    assert (event.phase, event.parameter) == ("optimizer", "2.weight")


def test_minus_infinity_in_a_mask_is_not_accused(start_watch: Start) -> None:
    seen = start_watch()

    class Mask(nn.Module):
        def forward(self, size: int) -> Tensor:
            return torch.full((size, size), -math.inf).triu(1)

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.value, self.bad = Mask(), nn.Linear(8, 8), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            scores = (x @ x.T + self.mask(len(x))).softmax(-1)
            out: Tensor = self.bad(self.value(scores @ x)) * (math.nan if broken else 1.0)
            return self.bad(out)

    model = Attend()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        broken = step == 2
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
    (event,) = seen.bad_values
    assert event.step == 3
    assert event.module != "mask"


class Late(nn.Module):
    """Its first module does not get the batch."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.time, self.last = nn.Linear(1, 8), last

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.last(self.put_together(x, self.time(t)))
        return out

    def put_together(self, x: Tensor, t: Tensor) -> Tensor:
        return x + t


class Apart(Late):
    def put_together(self, x: Tensor, t: Tensor) -> Tensor:
        return x if self.training else t


@pytest.mark.parametrize(
    ("model", "module"),
    [
        (Apart(nn.Sequential(nn.Linear(8, 4), nn.ReLU())), "last.0"),
        (Apart(nn.Linear(8, 4)), "last"),
        (Late(nn.Sequential(nn.Linear(8, 4), nn.ReLU())), "last.0"),
    ],
)
def test_the_module_that_takes_a_bad_batch_in_is_named(start_watch: Start, model: nn.Module, module: str) -> None:
    seen = start_watch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(6, 8)
        if step == 2:
            x[1, 3] = math.nan
        model(x, torch.ones(6, 1)).square().mean().backward()
        optimizer.step()
    (event,) = seen.bad_values
    assert (event.step, event.phase, event.module, event.tensor) == (3, "input", module, "input 0")


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


@pytest.mark.parametrize("between", [nn.Identity(), nn.Unflatten(1, (1, 8)), nn.Hardtanh(-math.inf, 1e9)])
def test_minus_infinity_that_goes_into_a_layer_is_no_mask(start_watch: Start, between: nn.Module) -> None:
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), Log(), between, nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(3):
        optimizer.zero_grad()
        with torch.no_grad():
            model[0].bias[3] = -1e4 if step == 2 else 0.0
        cross_entropy(model(torch.rand(6, 8)).flatten(1), torch.zeros(6, dtype=torch.long)).backward()
        optimizer.step()
    (event,) = seen.bad_values
    assert (event.step, event.module, event.phase, event.operation) == (3, "2", "forward", "aten.log")


def test_minus_infinity_made_between_modules_is_no_mask(start_watch: Start) -> None:
    seen = start_watch()

    class Mask(nn.Module):
        def forward(self, size: int) -> Tensor:
            return torch.full((size, size), -math.inf).triu(1)

    class Between(nn.Module):
        """Has a mask as well, which is as it should be."""

        def __init__(self) -> None:
            super().__init__()
            self.mask, self.head = Mask(), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.mask(len(x)).softmax(-1) @ x
            out: Tensor = self.head(x.log())
            return out

    model = Between()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        cross_entropy(model(torch.rand(6, 8) * (step < 2)), torch.zeros(6, dtype=torch.long)).backward()
        optimizer.step()
    (event,) = seen.bad_values
    assert (event.step, event.module_class, event.tensor) == (3, "Between", "made before head")


def test_bad_values_in_evaluation_are_named(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval()
    with torch.no_grad():
        model(torch.randn(4, 8))
        x = torch.randn(4, 8)
        x[0, 0] = math.inf
        model(x)
    (event,) = seen.bad_values
    assert (event.step, event.during, event.phase, event.kind) == (2, "eval", "input", "inf")


def test_stop_before_update_leaves_the_weights_intact(start_watch: Start) -> None:
    start_watch(stop_before_update=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    model.weight.register_hook(lambda grad: grad * math.nan)
    loss = model(torch.randn(3, 4)).sum()
    with pytest.raises(SystemExit) as stop:
        loss.backward()
        optimizer.step()
    assert stop.value.code == 1
    assert torch.equal(model.weight, before)


def test_the_second_run_leaves_nothing_behind(start_watch: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """RNG, buffers, gradients, output: with and without the report, the program computes the same."""
    results = []
    for stay in (False, True):
        torch.manual_seed(7)
        seen = start_watch() if stay else None
        calls = []
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1) or print("forward"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for index in range(3):
            optimizer.zero_grad()
            out = model(torch.randn(6, 8))
            loss = out.square().mean() * (math.nan if index == 1 else 1.0)
            loss.backward()
            optimizer.step()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        results.append((state, grads, torch.rand(3), capsys.readouterr().out))
        if seen is not None:
            assert len(seen.bad_values) == 1
            assert len(calls) == 4, "the batch did run a second time"
    (state, grads, noise, text), (state2, grads2, noise2, text2) = results
    torch.testing.assert_close(state2, state, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(grads2, grads, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(noise, noise2)
    assert text == text2 == "forward\n" * 3


def test_a_model_with_collectives_is_not_run_again(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.SyncBatchNorm(8), nn.Linear(8, 4)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.randn(4, 8)).sum() * math.nan).backward()
    optimizer.step()
    (event,) = seen.bad_values
    assert "SyncBatchNorm" in event.note
    assert event.how == "check"


def test_a_second_fault_after_a_recovery_is_reported_too(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 9):
        optimizer.zero_grad()
        (model(torch.randn(4, 8)).square().mean() * (math.nan if step in (2, 3, 6) else 1.0)).backward()
        if step not in (2, 3, 6):  # the program drops a bad update by itself
            optimizer.step()
    assert [event.step for event in seen.bad_values] == [2, 4], (
        "steps are counted by updates: 2 and 4 are the dropped ones"
    )


def test_the_report_does_not_use_up_the_budget(start_watch: Start) -> None:
    seen = start_watch()
    train_model(seen, "residual", "bad-batch", steps=12)
    cost = seen.monitor.build_cost()
    assert cost.report_ms > 0
    assert [record.step for record in seen.train_steps] == list(range(1, 13))
    assert cost.own_ms < cost.wall_ms


def test_a_gradient_nobody_looked_at_is_inferred_from_the_weights(start_watch: Start) -> None:
    """Between samples a fault is seen one step later; its step and parameter are still named, and that it was late."""
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        optimizer.zero_grad()
        seen.monitor.plan.full = step != 3
        model(torch.randn(4, 8)).square().mean().backward()
        if step == 3:
            assert model[2].weight.grad is not None
            model[2].weight.grad[0, 0] = math.inf
            seen.monitor.plan.small = False
        optimizer.step()
        seen.monitor.plan.small = True
    event = seen.bad_values[0]
    assert (event.step, event.phase, event.parameter, event.weights) == (3, "gradient", "2.weight", "updated")
    assert "seen one step late: the gradients were not read" in event.note


@pytest.mark.parametrize("rate", [math.inf, math.nan])
def test_an_update_that_ruins_finite_gradients_is_the_optimizers_fault(start_watch: Start, rate: float) -> None:
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.param_groups[0]["lr"] = rate if step == 2 else 0.1
        optimizer.step()
    event = seen.bad_values[0]
    assert (event.step, event.phase) == (2, "optimizer")
    assert "the update itself" in event.note
    assert event.last_good["step"] == 1, "a step at such a rate is not good"


class Normed(nn.Module):
    """Divides each row by its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x / x.norm(dim=1, keepdim=True))  # type: ignore[no-any-return]


def test_of_a_model_called_in_parts_the_part_that_made_it_is_named(start_watch: Start) -> None:
    """Seen: `in the input of module "Linear"`, `the batch held it`, of what the encoder before it had made."""
    seen = start_watch()
    encoder, head = Normed(), nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=1e-2)
    for step in range(1, STEP + 1):
        x = torch.randn(6, 8)
        if step == STEP:
            x[4] = 0.0
        optimizer.zero_grad()
        cross_entropy(head(encoder(x)), torch.zeros(6, dtype=torch.long)).backward()
        optimizer.step()
    (found,) = seen.bad_values
    assert (found.step, found.phase, found.module_class, found.rows) == (STEP, "forward", "Normed", [4])
    assert found.operation == "aten.div" and "x / x.norm" in found.code


def test_what_a_part_that_is_gone_has_made_is_not_called_the_batch(start_watch: Start) -> None:
    seen = start_watch()
    head = nn.Linear(8, 3)
    scale = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([scale, *head.parameters()], lr=1e-2)
    for step in range(1, STEP + 1):
        factor = float("inf") if step == STEP else 1.0
        optimizer.zero_grad()
        head(torch.randn(6, 8) * scale * factor).square().mean().backward()
        optimizer.step()
    (found,) = seen.bad_values
    assert (found.step, found.phase, found.tensor) == (STEP, "forward", "input 0 of Linear")
    assert "computed before the call" in found.note
