"""The flag VALIDATION: passes of evaluation, their mode, size and memory."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from tdbg.probes.validation import active_layers

FLAG = {"flags": {"VALIDATION": True}, "max_overhead": 1e6}
Program = Callable[[], Any]


class Net(nn.Sequential):
    """Layers that act otherwise in train mode."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def make_batches(count: int, seed: int = 0) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(4 * count, 4, generator=generator)), batch_size=4)


def train_model(model: nn.Module, loader: DataLoader, optimizer: Any = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return optimizer


def evaluate_model(model: nn.Module, loader: DataLoader) -> None:
    for (x,) in loader:
        model(x).square().mean().item()


def run_program(evaluation: Callable[[nn.Module], None], epochs: int = 2, model: nn.Module | None = None) -> Any:
    model = model or Net()
    loader, optimizer = make_batches(5), None
    for _ in range(epochs):
        model.train()
        optimizer = train_model(model, loader, optimizer)
        evaluation(model)
    return train_model(model.train(), loader, optimizer)


def list_passes(watched: Any) -> list[Any]:
    return list_observations(watched, "validation", "PASS")


# what is wrong


def in_train_mode(model: nn.Module) -> None:
    with torch.no_grad():
        evaluate_model(model, make_batches(4, seed=1))


def with_gradients(model: nn.Module) -> None:
    model.eval()
    evaluate_model(model, make_batches(4, seed=1))


def with_both_forgotten(model: nn.Module) -> None:
    evaluate_model(model, make_batches(4, seed=1))


def test_evaluation_in_train_mode(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_program(in_train_mode)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C012" and finding.severity == "error"
    assert finding.title == (
        "evaluation runs in train mode: pass 1 after step 5, Net, 1 dropout layer and 1 batch norm layer active, rank 0"
    )
    first, second = list_passes(watched)
    assert first.values["mode"] == "train" and first.values["gradients"] == "off"
    assert second.step == 10


@pytest.mark.parametrize("part", ["first", "second"])
def test_a_model_that_is_called_in_parts(start_watch: Any, tmp_path: Path, part: str) -> None:
    watched = start_watch(**FLAG)
    plain, layered = nn.Sequential(nn.Linear(4, 4)), Net()
    parts = (layered, nn.Sequential(nn.Linear(2, 2))) if part == "first" else (plain, layered)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in parts]
    loader, other = make_batches(5), make_batches(4, seed=1)
    for _ in range(3):
        for (x,) in loader:
            parts[1](parts[0](x)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for (x,) in other:
                parts[1](parts[0](x)).square().mean().item()
    found = [finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-C012"]
    assert [finding.title.partition(": ")[2] for finding in found] == [
        "pass 1 after step 5, Net, 1 dropout layer and 1 batch norm layer active, rank 0"
    ]


def test_evaluation_with_gradients(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_program(with_gradients)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-P003"
    assert finding.title == "evaluation builds graphs nobody uses: pass 1 after step 5, 4 calls, rank 0"
    assert "4 of 4 calls checked returned an output with a graph" in finding.evidence


def test_both_forgotten(start_watch: Any, tmp_path: Path) -> None:
    """The batches come from other data than training's, and no gradient comes back."""
    watched = start_watch(**FLAG)
    run_program(with_both_forgotten)
    assert sorted(judge_codes(watched, tmp_path)) == ["TD-C012", "TD-P003"]


def test_a_program_that_only_evaluates(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    in_train_mode(Net())
    assert not list_passes(watched), "4 calls: more may come"
    in_train_mode(Net())
    (told,) = list_passes(watched)
    assert told.values["faults"] == ["train_mode"] and told.values["calls"] == 8
    assert judge_codes(watched, tmp_path) == ["TD-C012"]


def test_a_program_that_only_evaluates_is_told_before_its_pass_ends(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    with torch.no_grad():
        evaluate_model(Net().eval(), make_batches(10))
    (told,) = list_passes(watched)
    assert told.values["calls"] == told.values["seen"] == 8 and ": 8 calls so far, " in told.text


def test_the_last_pass_is_told_when_the_process_leaves(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    model = Net()
    train_model(model, make_batches(5))
    in_train_mode(model)
    assert not list_passes(watched)
    watched.monitor.finish_run()
    assert [event.values["faults"] for event in list_passes(watched)] == [["train_mode"]]


def test_the_number_of_calls_can_be_set(start_watch: Any) -> None:
    watched = start_watch(**FLAG, thresholds={"VALIDATION.calls": 5})
    run_program(in_train_mode)
    assert [event.values["faults"] for event in list_passes(watched)] == [[], []]


# what is right


def healthy(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        evaluate_model(model, make_batches(4, seed=1))


def inference(model: nn.Module) -> None:
    model.eval()
    with torch.inference_mode():
        evaluate_model(model, make_batches(4, seed=1))


def monte_carlo(model: nn.Module) -> None:
    """Dropout on purpose: many calls on one batch."""
    with torch.no_grad():
        for (x,) in make_batches(1, seed=1):
            torch.stack([model(x) for _ in range(10)]).std(0)


def monte_carlo_over_a_loader(model: nn.Module) -> None:
    with torch.no_grad():
        for (x,) in make_batches(4, seed=1):
            torch.stack([model(x) for _ in range(10)]).std(0)


def recalibrated(model: nn.Module) -> None:
    update_bn(make_batches(6, seed=1), model)


def a_sample_for_the_log(model: nn.Module) -> None:
    """As a GAN shows what it can do, in train mode, from the same noise."""
    with torch.no_grad():
        model(torch.ones(2, 4))


def rollouts(model: nn.Module) -> None:
    """Reinforcement learning: many calls in train mode on what the world answers, no loader."""
    with torch.no_grad():
        x = torch.ones(4, 4)
        for _ in range(20):
            x = model(x).repeat(1, 2)


def of_the_training_data(model: nn.Module) -> None:
    pass


def saliency(model: nn.Module) -> None:
    model.eval()
    for (x,) in make_batches(4, seed=1):
        x.requires_grad_()
        torch.autograd.grad(model(x).sum(), x)


RIGHT = (healthy, inference, monte_carlo, recalibrated, a_sample_for_the_log, rollouts, saliency)


@pytest.mark.parametrize("evaluation", RIGHT, ids=lambda one: one.__name__)
def test_what_is_right_is_left_alone(start_watch: Any, tmp_path: Path, evaluation: Callable[[nn.Module], None]) -> None:
    watched = start_watch(**FLAG)
    run_program(evaluation)
    assert judge_codes(watched, tmp_path) == []
    assert all(event.values["faults"] == [] for event in list_passes(watched))


def statistics_from_the_training_data() -> None:
    """Batch normalisation is recalibrated by hand, over the data of training."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    loader = make_batches(5)
    optimizer = train_model(model, loader)
    with torch.no_grad():
        evaluate_model(model, loader)
    train_model(model, loader, optimizer)


def frozen_normalisation() -> None:
    """Fine-tuning in eval mode, with accumulation; the output that comes first is not used by the loss."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.aside = Net(), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.aside(x), self.body(x)

    model = Two().eval()
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.01)
    for number, (x,) in enumerate(make_batches(40), start=1):
        model(x)[1].square().mean().backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def a_teacher() -> None:
    """Calls without gradients beside every step, several of them, in train mode."""
    model, teacher = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    other = iter(make_batches(40, seed=1))
    for (x,) in make_batches(10):
        with torch.no_grad():
            for _ in range(4):
                teacher(next(other)[0])
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def cached_gradients() -> None:
    """GradCache: a batch goes through in pieces without gradients before it does with them."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in make_batches(10):
        pieces = x.repeat(4, 1).split(4)
        with torch.no_grad():
            for piece in pieces:
                model(piece)
        optimizer.zero_grad()
        for piece in pieces:
            model(piece).square().mean().backward()
        optimizer.step()


def two_tasks() -> None:
    """Two loaders take turns, with windows of four batches each."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loaders = [iter(make_batches(24, seed=seed)) for seed in (1, 2)]
    for step in range(12):
        optimizer.zero_grad()
        losses = [model(next(loaders[step % 2])[0]).square().mean() for _ in range(4)]
        torch.stack(losses).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "run",
    [statistics_from_the_training_data, frozen_normalisation, a_teacher, cached_gradients, two_tasks],
    ids=lambda one: one.__name__,
)
def test_training_is_not_taken_for_evaluation(start_watch: Any, tmp_path: Path, run: Program) -> None:
    watched = start_watch(**FLAG)
    run()
    found = [(one.code, one.severity) for one in judge_watch(watched, tmp_path)]
    assert found == ([("TD-C021", "info")] if run is frozen_normalisation else []), (
        "a mode that may be chosen is a note"
    )
    assert not [event for event in list_passes(watched) if event.values["faults"]]
    if run in (frozen_normalisation, two_tasks):
        assert not list_passes(watched)


def test_monte_carlo_over_a_loader_is_left_alone(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    run_program(monte_carlo_over_a_loader)
    assert judge_codes(watched, tmp_path) == []


# batches that the program cuts itself


class Loss(Net):
    """Returns a loss where it is given targets."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:  # type: ignore[override]
        out = super().forward(x)
        return out if y is None else (out, nn.functional.cross_entropy(out, y))


def cut_batch(size: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4), torch.randint(2, (size,))


def train_by_hand(
    model: nn.Module,
    evaluation: Callable[[nn.Module], object],
    steps: int = 12,
    every: int = 4,
    returns_loss: bool = True,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        if step % every == 0:
            with torch.no_grad():
                evaluation(model)
        x, y = cut_batch()
        optimizer.zero_grad()
        (model(x, y)[1] if returns_loss else nn.functional.cross_entropy(model(x), y)).backward()
        optimizer.step()


def loss_of_the_model(model: nn.Module) -> None:
    torch.stack([model(*cut_batch())[1] for _ in range(5)]).mean()


def loss_of_a_function(model: nn.Module) -> None:
    for _ in range(5):
        x, y = cut_batch()
        nn.functional.cross_entropy(model(x), y).item()


def loss_of_a_criterion(model: nn.Module) -> None:
    x, y = cut_batch(40)
    for begin in range(0, 40, 8):
        nn.MSELoss()(model(x[begin : begin + 8])[:, 0].sigmoid(), y[begin : begin + 8].float())


@pytest.mark.parametrize(
    ("evaluation", "make", "returns_loss"),
    [
        (loss_of_the_model, Loss, True),
        (loss_of_a_function, Loss, True),
        (loss_of_a_function, Net, False),
        (loss_of_a_criterion, Net, False),
    ],
)
@pytest.mark.parametrize("every", [2, 4])
def test_evaluation_in_train_mode_of_batches_cut_by_hand(
    start_watch: Any, tmp_path: Path, evaluation: Any, make: Any, returns_loss: bool, every: int
) -> None:
    watched = start_watch(**FLAG)
    originals = torch._C._nn.cross_entropy_loss
    train_by_hand(make(), evaluation, every=every, returns_loss=returns_loss)
    assert torch._C._nn.cross_entropy_loss is originals
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C012" and finding.severity == "error" and finding.first_step == every


def test_the_last_evaluation_of_a_run_is_told_at_once_on_an_accelerator(
    start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step comes after it, with which what waits would be read."""
    monkeypatch.setattr("tdbg.probes.validation.on_host", lambda tensor: False)
    watched = start_watch(**FLAG)
    model = Loss()
    train_by_hand(model, nn.Module.train, steps=6)
    with torch.no_grad():
        loss_of_the_model(model)
    watched.monitor.finish_run()
    assert judge_codes(watched, tmp_path) == ["TD-C012"]


HELD_OUT = torch.randn(16, 4), torch.randint(2, (16,))


def loss_of_all_at_once(model: nn.Module) -> None:
    nn.functional.cross_entropy(model(HELD_OUT[0]), HELD_OUT[1]).item()


def loss_of_two_batches(model: nn.Module) -> None:
    for half in range(2):
        x, y = (one[8 * half : 8 * half + 8] for one in HELD_OUT)
        nn.functional.cross_entropy(model(x), y).item()


@pytest.mark.parametrize("evaluation", [loss_of_all_at_once, loss_of_two_batches])
def test_evaluation_of_few_calls_is_named_once_it_has_come_again(
    start_watch: Any, tmp_path: Path, evaluation: Any
) -> None:
    watched = start_watch(**FLAG)
    train_by_hand(Net(), evaluation, steps=18, returns_loss=False)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.first_step) == ("TD-C012", 12)


def test_evaluation_of_one_batch_of_a_loader(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model, held_out = Net(), DataLoader(TensorDataset(*HELD_OUT), batch_size=16)
    optimizer = None
    for _ in range(5):
        optimizer = train_model(model, make_batches(5), optimizer)
        with torch.no_grad():
            for x, y in held_out:
                nn.functional.cross_entropy(model(x), y).item()
    assert judge_codes(watched, tmp_path) == ["TD-C012"]


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("loss", [True, False])
def test_a_look_at_the_batch_that_was_trained_on_or_at_a_sample_is_left_alone(
    start_watch: Any, tmp_path: Path, loss: bool, whole: bool, view: bool
) -> None:
    watched = start_watch(**FLAG)
    model, (x, y) = Net(), HELD_OUT
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(24):
        if not whole:
            x, y = cut_batch(16)
        if view:
            x = x.clone()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 4 == 3:
            with torch.no_grad():
                if loss:
                    nn.functional.cross_entropy(model(x), y).item()
                else:
                    model(torch.randn(1, 4).expand(4, 4)).softmax(1)
    assert judge_codes(watched, tmp_path) == []


def loss_in_eval_mode(model: nn.Module) -> None:
    loss_of_the_model(model.eval())
    model.train()


def loss_of_one_batch_again(model: nn.Module) -> None:
    """Monte Carlo dropout, each time on a new view."""
    x, y = cut_batch(8)
    for _ in range(10):
        model(x[:4], y[:4])


def loss_of_some_batches_again(model: nn.Module) -> None:
    for _ in range(3):
        x, y = cut_batch(8)
        for _ in range(3):
            model(x.clone(), y)


def sampled(model: nn.Module) -> None:
    """As a GAN's generator is sampled in train mode: new noise each time."""
    torch.stack([model(torch.randn(4, 4)) for _ in range(10)]).std(0)


def generated(model: nn.Module) -> None:
    x = torch.randn(2, 4)
    for _ in range(10):
        x = torch.cat([x, model(x).repeat(1, 2)])


def targets_of_a_copy(model: nn.Module) -> None:
    """A target network or a teacher in train mode, now and then, with its loss."""
    loss_of_the_model(copy.deepcopy(model))


def losses_of_each_sample(model: nn.Module) -> None:
    """Which samples are hard: no mean is taken."""
    for _ in range(5):
        x, y = cut_batch()
        nn.functional.cross_entropy(model(x), y, reduction="none")


def values_of_rollouts(model: nn.Module) -> None:
    """Reinforcement learning: one row of the world at a time, an action and a number of it."""
    for _ in range(20):
        out = model(torch.randn(2, 4))
        torch.distributions.Categorical(logits=out).log_prob(out.argmax(-1)).sum()


def two_batches(model: nn.Module) -> None:
    model(*cut_batch()), model(*cut_batch())


@pytest.mark.parametrize(
    "evaluation",
    [
        *(loss_in_eval_mode, loss_of_one_batch_again, loss_of_some_batches_again, sampled, generated),
        *(targets_of_a_copy, losses_of_each_sample, values_of_rollouts, two_batches),
    ],
)
@pytest.mark.parametrize("make", [Loss, nn.Sequential])
def test_what_computes_no_loss_of_new_batches_is_no_evaluation(
    start_watch: Any, tmp_path: Path, evaluation: Any, make: Any
) -> None:
    if make is nn.Sequential and evaluation in (sampled, losses_of_each_sample, values_of_rollouts, generated):
        model, returns_loss = Net(), False
    else:
        model, returns_loss = Loss(), True
    watched = start_watch(**FLAG)
    train_by_hand(model, evaluation, returns_loss=returns_loss)
    assert judge_codes(watched, tmp_path) == []


class Several(Net):
    """Returns more than its answer, whether a loss is wanted or not: a part of one, a temperature, a value."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        out = super().forward(x)
        if self.kind == "experts":
            return out, out.softmax(-1).mean(0).square().sum()
        if self.kind == "autoencoder":
            return (out - x[:, :2]).square().mean(), out.square().mean() * self.scale.exp()
        if self.kind == "two towers":
            return out, out.flip(0), self.scale.exp()
        return out.log_softmax(-1), out.mean()


def train_several(model: Several, evaluation: Callable[[nn.Module], object]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        if step % 4 == 0:
            with torch.no_grad():
                evaluation(model)
        x, y = cut_batch()
        optimizer.zero_grad()
        out = model(x)
        if model.kind == "autoencoder":
            loss = out[0] + 0.1 * out[1]
        elif model.kind == "two towers":
            loss = nn.functional.cross_entropy(out[0] @ out[1].T * out[2], torch.arange(4))
        else:
            loss = nn.functional.cross_entropy(out[0], y) + 0.01 * out[1].square()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["experts", "autoencoder", "two towers", "actor and critic"])
def test_numbers_that_are_no_loss_make_no_evaluation(start_watch: Any, tmp_path: Path, kind: str) -> None:
    """New batches are sampled or embedded in train mode."""
    watched = start_watch(**FLAG)
    train_several(Several(kind), sampled_whole)
    watched.monitor.finish_run()
    assert judge_codes(watched, tmp_path) == []


def sampled_whole(model: nn.Module) -> None:
    for _ in range(10):
        model(torch.randn(4, 4))


@pytest.mark.parametrize("scaler", [None, 1024.0])
def test_a_loss_that_is_divided_before_backward_is_known(
    start_watch: Any, tmp_path: Path, scaler: float | None
) -> None:
    """As gradients are accumulated, with a GradScaler or without one."""
    watched = start_watch(**FLAG)
    model = Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        if step % 4 == 0:
            with torch.no_grad():
                loss_of_the_model(model)
        optimizer.zero_grad()
        for _ in range(2):
            _, loss = model(*cut_batch())
            scaled = loss / 2
            (scaled * torch.tensor(scaler) if scaler else scaled).backward()
        optimizer.step()
    assert judge_codes(watched, tmp_path) == ["TD-C012"]


def test_the_loss_of_a_batch_beside_every_step_is_no_evaluation(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    train_by_hand(Loss(), loss_of_the_model, every=1)
    assert judge_codes(watched, tmp_path) == []


def test_layers_that_act_alike_in_both_modes_need_no_eval(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = Loss()
    model[1], model[3] = nn.LayerNorm(8), nn.Dropout(0.0)
    train_by_hand(model, loss_of_the_model)
    assert judge_codes(watched, tmp_path) == []


# what is told


def test_what_is_told_of_a_pass(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    run_program(healthy)
    first, second = list_passes(watched)
    assert first.step == 5 and second.step == 10
    values = first.values
    assert (values["number"], values["calls"], values["seen"], values["samples"], values["batches"]) == (1, 4, 4, 16, 4)
    assert (values["mode"], values["gradients"], values["inference_mode"]) == ("eval", "off", False)
    assert values["root"] == "Net" and values["pass_s"] > 0 and values["host_mb"] > 10
    assert "pass 1 after step 5: 4 calls, 16 samples" in first.text and "Net in eval mode, gradients off" in first.text


def test_inference_mode_is_told(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    run_program(inference)
    assert [event.values["inference_mode"] for event in list_passes(watched)] == [True, True]


def test_calls_beyond_the_budget_are_counted(start_watch: Any) -> None:
    watched = start_watch(flags={"VALIDATION": True}, max_overhead=1e-9)
    run_program(healthy, epochs=5)
    told = list_passes(watched)
    assert [event.values["calls"] for event in told] == [4] * 5
    assert [event.values["seen"] for event in told][:2] == [4, 4]
    assert told[-1].values["seen"] == 0 and "none inspected" in told[-1].text


def test_a_teacher_is_named_once(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    a_teacher()
    (told,) = list_observations(watched, "validation", "EACH_STEP")
    assert told.values["root"] == "Net"
    assert len(list_passes(watched)) == 1, "the calls before the first step may be one"


def test_no_evaluation_is_told(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    run_program(of_the_training_data, epochs=5)
    (told,) = list_observations(watched, "validation", "NONE")
    assert told.values["epochs"] == 3
    watched = start_watch(**FLAG)
    run_program(healthy, epochs=5)
    assert not list_observations(watched, "validation", "NONE")


def test_layers_that_are_active() -> None:
    assert active_layers(Net()) == (1, 1)
    assert active_layers(Net().eval()) == (0, 0)
    assert active_layers(nn.Sequential(nn.Dropout(0.0), nn.BatchNorm1d(2, track_running_stats=False))) == (0, 0)
    assert active_layers(nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(2, momentum=None))) == (0, 0)


def test_calls_before_the_first_affordable_one_count(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = start_watch(**FLAG)
    budget = watched.monitor.budget

    def half(model: nn.Module) -> None:
        monkeypatch.setattr(budget, "allows", lambda *args, **more: False)
        healthy(model)
        monkeypatch.undo()
        with torch.no_grad():
            model(torch.ones(2, 4))

    run_program(healthy, epochs=2)
    run_program(half, epochs=1)
    last = list_passes(watched)[-1]
    assert (last.values["calls"], last.values["seen"]) == (5, 1)
    assert "5 calls, 2 samples in 1" in last.text
