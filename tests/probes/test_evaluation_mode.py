"""What the probe `validation` sees of modes: updates in eval mode, and random numbers drawn in evaluation."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tdbg.probes.validation import eval_mode_updates

FLAG = {"flags": {"VALIDATION": True}, "max_overhead": 1e6}


class Net(nn.Module):
    """Layers that act otherwise in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Dropping(Net):
    """Drops by one of torch's functions, whatever the mode is."""

    def __init__(self, drop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x)))


def make_batches(count: int, seed: int = 0) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(4 * count, 4, generator=generator)), batch_size=4)


def train_model(model: nn.Module, optimizer: Any = None, steps: int = 5) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in make_batches(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return optimizer


@torch.no_grad()
def evaluate_model(model: nn.Module, count: int = 4) -> None:
    model.eval()
    for (x,) in make_batches(count, seed=1):
        model(x)


# updates in eval mode


def test_training_goes_on_in_eval_mode(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = Net()
    optimizer = train_model(model.train())
    evaluate_model(model)
    train_model(model, optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C021" and finding.severity == "warning" and finding.first_step == 6
    assert finding.title == (
        "training has run in eval mode since step 6, after evaluation: Net, 1 dropout layer and 1 batch norm layer off,"
        " rank 0"
    )
    assert finding.grade == "located"


def a_part_in_train_mode(model: Net) -> None:
    optimizer = train_model(model.train())
    for _ in range(2):
        evaluate_model(model)
        model.head.train()
        train_model(model, optimizer)


def never_in_train_mode_for_a_few_updates(model: Net) -> None:
    optimizer = train_model(model.eval())
    evaluate_model(model)
    train_model(model, optimizer, steps=4)


def norms_alone_in_eval_mode(model: Net) -> None:
    """Fine-tuned with the statistics of the data before."""
    model.body[3] = nn.Dropout(0.0)
    train_model(model.eval(), steps=20)


def plain_layers_in_eval_mode(model: Net) -> None:
    train_model(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).eval(), steps=20)


def a_part_in_eval_mode_from_the_start(model: Net) -> None:
    model.body.eval()
    train_model(model, steps=20)


def a_new_head_on_a_body_in_eval_mode(model: Net) -> None:
    model.eval()
    model.head = nn.Linear(8, 2)
    train_model(model, steps=20)


def a_teacher_in_eval_mode(model: Net) -> None:
    """Called with gradients on, and never updated."""
    student = Net()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    model.eval().requires_grad_(False)
    for (x,) in make_batches(20):
        optimizer.zero_grad()
        (student(x) - model(x)).square().mean().backward()
        optimizer.step()


def in_eval_mode_late(model: Net) -> None:
    optimizer = train_model(model.train())
    train_model(model.eval(), optimizer, steps=20)


def frozen_normalisation(model: Net) -> None:
    optimizer = None
    for _ in range(2):
        model.train()
        model.body[1].eval()
        optimizer = train_model(model, optimizer)
        evaluate_model(model)


def switched_back(model: Net) -> None:
    optimizer = None
    for _ in range(3):
        optimizer = train_model(model.train(), optimizer)
        evaluate_model(model)


def a_second_stage_in_eval_mode(model: Net) -> None:
    """Without evaluation in between: the mode is chosen."""
    optimizer = train_model(model.train())
    train_model(model.eval(), optimizer)


def an_average_is_evaluated(model: Net) -> None:
    optimizer = train_model(model.train())
    average = copy.deepcopy(model)
    evaluate_model(average)
    train_model(model, optimizer)


def layers_without_modes(model: Net) -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = train_model(plain.train())
    evaluate_model(plain)
    train_model(plain, optimizer)


def one_update_too_late(model: Net) -> None:
    optimizer = train_model(model.train())
    evaluate_model(model)
    train_model(model, optimizer, steps=2)
    train_model(model.train(), optimizer)


def a_generator_rests(model: Net) -> None:
    """The generator is left in eval mode while the other model is updated."""
    other = Net()
    optimizer, second = train_model(model.train()), train_model(other)
    evaluate_model(model)
    train_model(other, second)
    train_model(model.train(), optimizer)


HEALTHY_MODES = [
    a_part_in_train_mode,
    never_in_train_mode_for_a_few_updates,
    norms_alone_in_eval_mode,
    plain_layers_in_eval_mode,
    a_part_in_eval_mode_from_the_start,
    a_new_head_on_a_body_in_eval_mode,
    a_teacher_in_eval_mode,
    in_eval_mode_late,
    frozen_normalisation,
    switched_back,
    a_second_stage_in_eval_mode,
    an_average_is_evaluated,
    layers_without_modes,
    one_update_too_late,
    a_generator_rests,
]


@pytest.mark.parametrize("run", HEALTHY_MODES, ids=lambda one: one.__name__)
def test_a_mode_that_is_chosen_is_no_fault(start_watch: Any, tmp_path: Path, run: Callable[[Net], None]) -> None:
    watched = start_watch(**FLAG)
    run(Net())
    assert judge_codes(watched, tmp_path) == []


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_model_in_eval_mode_from_the_start_is_a_note(
    start_watch: Any, tmp_path: Path, optimizers: int, evaluates: bool
) -> None:
    """As transformers' `from_pretrained` returns it."""
    watched = start_watch(**FLAG)
    model = Net().eval()
    if evaluates:
        evaluate_model(model)
    parts = [model.body, model.head] if optimizers == 2 else [model]
    steps = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
    for number, (x,) in enumerate(make_batches(30)):
        model.zero_grad()
        model(x).square().mean().backward()
        for optimizer in steps:
            optimizer.step()
        if evaluates and number % 6 == 5:
            evaluate_model(model)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-C021", "info", 1)
    assert finding.title == "trained in eval mode from the start: Net, 1 dropout layer off, rank 0"


@pytest.mark.parametrize("student_first", [False, True])
def test_a_student_in_eval_mode_is_noted_beside_its_teacher_which_is_soon_left_alone(
    start_watch: Any, tmp_path: Path, student_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher in eval mode whose calls do not switch gradients off."""
    checked: list[nn.Module] = []
    original = eval_mode_updates._has_graded_parameters

    def check(optimizer: Any, root: nn.Module) -> bool:
        checked.append(root)
        return original(optimizer, root)

    monkeypatch.setattr(eval_mode_updates, "_has_graded_parameters", check)
    watched = start_watch(**FLAG)
    student, teacher, other = Net().eval(), Net().eval(), nn.Linear(4, 2)
    teacher.requires_grad_(False)
    steps = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (other, student)]
    for (x,) in make_batches(30):
        student.zero_grad()
        first, second = (student, teacher) if student_first else (teacher, student)
        ((first(x) - second(x)).square().mean() + other(x).mean()).backward()
        for optimizer in steps:
            optimizer.step()
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-C021", "info", 1)
    (told,) = list_observations(watched, "validation", "EVAL_MODE_UPDATES")
    assert told.text == "Net trains in eval mode since step 1: 1 dropout layer and 1 batch norm layer off"
    assert 1 <= checked.count(teacher) <= 3


def test_the_train_mode_of_earlier_steps_is_remembered(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    model = Net()
    optimizer = train_model(model.train())
    watched.monitor.activate_probes([])
    watched.monitor.activate_probes(watched.monitor.catalog.load_probes("validation"))
    evaluate_model(model)
    train_model(model, optimizer)
    (told,) = list_observations(watched, "validation", "EVAL_MODE_UPDATES")
    assert told.values["since"] == 6 and told.values["evaluated"] == 5


# random numbers


def attend_with_dropout(x: Tensor) -> Tensor:
    heads = x.view(-1, 1, 2, 4)
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3).flatten(1)


DROPS = {
    "dropout": lambda x: functional.dropout(x, 0.5),
    "dropout in place": lambda x: functional.dropout(x.clone(), 0.5, inplace=True),
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.5, training=True),
    "feature_dropout": lambda x: functional.dropout1d(x.view(-1, 8, 1)).view(-1, 8),
    "scaled_dot_product_attention": attend_with_dropout,
}


@pytest.mark.parametrize("kind", DROPS)
def test_a_dropout_function_at_work_in_evaluation(start_watch: Any, tmp_path: Path, kind: str) -> None:
    held = torch._VF.dropout, functional.scaled_dot_product_attention
    watched = start_watch(**FLAG)
    model = Dropping(DROPS[kind])
    optimizer = train_model(model.train())
    evaluate_model(model)
    train_model(model.train(), optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-C022" and finding.severity == "warning" and finding.first_step == 5
    assert f"evaluation: {kind.partition(' ')[0]} at " in finding.title and "test_evaluation_mode.py:" in finding.title
    assert finding.evidence == ["4 of 4 calls left the random generators in another state"]
    assert (torch._VF.dropout, functional.scaled_dot_product_attention) == held
    assert "dropout" not in vars(torch._VF)


def in_train_mode_alone(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.dropout(x, 0.5, training=model.training)


def no_share(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.dropout(x, 0.0)


def a_generator_of_its_own(model: nn.Module) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(3)
    return lambda x: x + torch.randn(x.shape, generator=generator)


def attention_without(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]


@pytest.mark.parametrize("make", [in_train_mode_alone, no_share, a_generator_of_its_own, attention_without])
def test_nothing_is_drawn(start_watch: Any, tmp_path: Path, make: Any) -> None:
    watched = start_watch(**FLAG)
    model = Dropping(lambda x: x)
    model.drop = make(model)
    optimizer = train_model(model.train())
    evaluate_model(model)
    train_model(model.train(), optimizer)
    assert judge_codes(watched, tmp_path) == []
    (told,) = list_observations(watched, "validation", "PASS")
    assert told.values["compared"] == 4 and told.values["drew"] == 0


@pytest.mark.parametrize("sample", [lambda x: x + torch.randn_like(x), lambda x: torch.normal(x, 1.0)])
def test_sampling_on_purpose_is_for_information(start_watch: Any, tmp_path: Path, sample: Any) -> None:
    watched = start_watch(**FLAG)
    model = Dropping(sample)
    optimizer = train_model(model.train())
    evaluate_model(model)
    train_model(model.train(), optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-C022", "info")
    assert finding.title == "evaluation draws random numbers: pass 1 after step 5, Dropping in eval mode, rank 0"


@torch.no_grad()
def monte_carlo_layers(model: Net) -> None:
    model.eval()
    for layer in model.modules():
        layer.train(isinstance(layer, nn.Dropout))
    for (x,) in make_batches(4, seed=1):
        model(x)


@torch.no_grad()
def the_same_input_again(model: Net) -> None:
    model.eval()
    x = torch.randn(4, 4)
    for _ in range(4):
        model(x)


@torch.no_grad()
def one_call(model: Net) -> None:
    model.eval()
    model(torch.randn(4, 4))


@pytest.mark.parametrize("run", [monte_carlo_layers, the_same_input_again, one_call], ids=lambda one: one.__name__)
def test_what_draws_on_purpose_or_once_is_left_alone(start_watch: Any, tmp_path: Path, run: Any) -> None:
    watched = start_watch(**FLAG)
    model = Dropping(DROPS["dropout"])
    optimizer = train_model(model.train())
    run(model)
    train_model(model.train(), optimizer)
    assert judge_codes(watched, tmp_path) == []


def test_a_teacher_beside_every_step_is_no_evaluation(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model, teacher = Net(), Dropping(DROPS["dropout"]).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in make_batches(10):
        with torch.no_grad():
            for _ in range(3):
                teacher(x.clone())
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert judge_codes(watched, tmp_path) == []
    assert len(list_observations(watched, "validation", "PASS")) == 1, "the calls before the first step may be one"


def test_a_call_that_raises_leaves_nothing_behind(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    model = Dropping(DROPS["dropout"])
    optimizer = train_model(model.train())
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 4))
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 5))
    train_model(model.train(), optimizer)
    assert "dropout" not in vars(torch._VF)
    assert not watched.failures


def in_another_thread(x: Tensor) -> Tensor:
    """As where another model trains meanwhile."""
    thread = threading.Thread(target=functional.dropout, args=(torch.ones(4),))
    thread.start()
    thread.join()
    return x


def test_a_dropout_of_another_thread_is_no_fault_of_this_model(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)
    model = Dropping(in_another_thread)
    optimizer = train_model(model.train())
    evaluate_model(model)
    train_model(model.train(), optimizer)
    assert [(one.code, one.severity) for one in judge_watch(watched, tmp_path)] == [("TD-C022", "info")]


def test_random_numbers_are_those_without_tdbg(start_watch: Any) -> None:
    def outputs() -> Tensor:
        torch.manual_seed(0)
        model = Dropping(DROPS["dropout"]).eval()
        with torch.no_grad():
            return torch.stack([model(x) for (x,) in make_batches(6)])

    plain = outputs()
    start_watch(**FLAG)
    assert torch.equal(outputs(), plain)
