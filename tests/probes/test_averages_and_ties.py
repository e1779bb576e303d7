"""Running statistics and averages that nothing updates, and weights that were to be one."""

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

BUILD = {"flags": {"MODEL_BUILD": True}, "max_overhead": 1e6}
VALIDATION = {"flags": {"VALIDATION": True}, "max_overhead": 1e6}


def train_model(model: nn.Module, steps: int = 30, after: Callable[[], None] = lambda: None) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        after()


def make_normed_model(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Linear(6, 2))


# running statistics


def test_a_momentum_of_zero(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**BUILD)
    train_model(make_normed_model(momentum=0.0))
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-C025", "warning", 20)
    assert finding.title == "1 batch norm layer keeps a running mean of 0: 1 (momentum 0), rank 0"


def test_the_first_step_that_has_time_for_the_look_has_it(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**BUILD)
    probe, refused = watched.monitor.find_probe("model-build"), []
    affords = probe.should_sample

    def refuse_a_while(kind: str = "") -> bool:
        if 20 <= watched.monitor.step < 27:
            refused.append(watched.monitor.step)
            return False
        return affords(kind)

    probe.should_sample = refuse_a_while
    train_model(make_normed_model(momentum=0.0), steps=40)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.first_step) == ("TD-C025", 27)
    assert set(refused) == set(range(20, 27))


@pytest.mark.parametrize(
    "keeps", ["train mode", "eval mode", "trainable", "no weights", "trainable bias", "momentum 0", "not called"]
)
def test_a_frozen_layer_in_train_mode_is_a_note(start_watch: Any, tmp_path: Path, keeps: str) -> None:
    watched = start_watch(**BUILD)
    options = {"affine": keeps != "no weights"} | ({"momentum": 0.0} if keeps == "momentum 0" else {})
    model = make_normed_model(**options)
    body = [model[0], model[1]]
    for part in body:
        part.requires_grad_(keeps == "trainable")
    if keeps == "eval mode":
        model[1].eval()
    if keeps == "trainable bias":
        model[1].bias.requires_grad_()
    if keeps == "not called":
        model[0].side, model[1] = model[1], nn.Identity()
    train_model(model, steps=30)
    found = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-C025" and "frozen" in one.title]
    assert [one.severity for one in found] == (["info"] if keeps == "train mode" else [])
    if found:
        assert found[0].title == "1 frozen batch norm layer still updates its running statistics: 1, rank 0"


def test_inputs_of_zero_are_another_cause(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**BUILD)
    model = make_normed_model()
    nn.init.zeros_(model[0].weight).requires_grad_(False)
    nn.init.zeros_(model[0].bias).requires_grad_(False)
    train_model(model)
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-C025"]
    assert "(after 21 batches)" in finding.title and "zero on average" in finding.cause


def make_unused_model() -> nn.Module:
    model = make_normed_model()
    model.add_module("aside", nn.Identity())
    model.aside.norm = nn.BatchNorm1d(6)
    return model


def make_frozen_model() -> nn.Module:
    model = make_normed_model(momentum=0.0)
    model[1].eval()
    return model


def make_double_model() -> nn.Module:
    """Half of the batches are kept out of the statistics."""

    class Twice(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            self[1].momentum = 0.0
            found = found + super().forward(x)
            self[1].momentum = 0.1
            return found

    return Twice(*make_normed_model())


HEALTHY_NORMS: dict[str, Callable[[], nn.Module]] = {
    "usual": make_normed_model,
    "cumulative": lambda: make_normed_model(momentum=None),
    "slow": lambda: make_normed_model(momentum=1e-4),
    "without statistics": lambda: make_normed_model(track_running_stats=False),
    "frozen": make_frozen_model,
    "unused": make_unused_model,
    "fed twice": make_double_model,
    "no norm": lambda: nn.Linear(4, 2),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)),
    "pretrained": lambda: (model := make_normed_model(momentum=0.0), model[1].running_mean.fill_(0.5))[0],
}


@pytest.mark.parametrize("kind", HEALTHY_NORMS)
def test_statistics_that_move_or_are_not_used(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**BUILD)
    train_model(HEALTHY_NORMS[kind]())
    assert "TD-C025" not in judge_codes(watched, tmp_path)
    assert not list_observations(watched, "model-build", "STATISTICS")


def test_a_run_of_few_steps_is_not_judged(start_watch: Any) -> None:
    watched = start_watch(**BUILD)
    train_model(make_normed_model(momentum=0.0), steps=19)
    assert not list_observations(watched, "model-build", "STATISTICS")


# averages of models


@torch.no_grad()
def evaluate_model(model: nn.Module) -> None:
    model.eval()
    for (x,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4):
        model(x)


def make_average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))


def test_an_average_that_is_never_updated(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**VALIDATION)
    model = make_normed_model()
    average = make_average(model)
    train_model(model)
    evaluate_model(average)
    train_model(model)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-C025", "warning")
    assert finding.title == ("the average of Sequential that is evaluated was never updated, after step 30, rank 0")


def train_with_average(model: nn.Module, average: AveragedModel) -> None:
    train_model(model, after=lambda: average.update_parameters(model))
    evaluate_model(average)


def updated_once(model: nn.Module, average: AveragedModel) -> None:
    train_model(model)
    average.update_parameters(model)
    evaluate_model(average)


def at_the_beginning(model: nn.Module, average: AveragedModel) -> None:
    evaluate_model(average)
    train_model(model, steps=5)
    evaluate_model(average)


def not_evaluated(model: nn.Module, average: AveragedModel) -> None:
    train_model(model)
    evaluate_model(model)


def average_by_hand(model: nn.Module, average: AveragedModel) -> None:
    """An average of the program's own has no counter."""
    own = copy.deepcopy(model)
    train_model(model)
    evaluate_model(own)


@pytest.mark.parametrize(
    "run",
    [train_with_average, updated_once, at_the_beginning, not_evaluated, average_by_hand],
    ids=lambda one: one.__name__,
)
def test_an_average_that_is_used_as_it_should(start_watch: Any, tmp_path: Path, run: Any) -> None:
    watched = start_watch(**VALIDATION)
    model = make_normed_model()
    run(model, make_average(model))
    train_model(model.train(), steps=4)
    assert judge_codes(watched, tmp_path) == []


# weights that were to be one


class Language(nn.Module):
    """Tokens in, scores of tokens out."""

    def __init__(self, words: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 8)
        self.position = nn.Embedding(8, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x > 0).long().sum(1)
        return self.head(self.body(self.embedding(tokens) + self.position(tokens)))


def copy_weight(model: Language) -> nn.Module:
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    return model


@pytest.mark.parametrize(("configured", "severity"), [(True, "warning"), (False, "info"), (None, "info")])
def test_a_tie_that_broke(start_watch: Any, tmp_path: Path, configured: bool | None, severity: str) -> None:
    watched = start_watch(**BUILD)
    model = copy_weight(Language())
    if configured is not None:
        model.config = types.SimpleNamespace(tie_word_embeddings=configured)
    train_model(model)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-C027", severity, 1)
    what = "should share one tensor but are two" if configured else "are two tensors"
    assert finding.title == f"embedding.weight and head.weight {what}, equal before the first update, rank 0"


class Table(nn.Module):
    """An output layer of the program's own."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class Unembed(Table):
    """The same by another name."""


class TokenEmbedding(Table):
    """An embedding of the program's own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight[x]


class Named(Language):
    """Names its two layers as models of Hugging Face do."""

    def __init__(self, *, tied: bool | None) -> None:
        super().__init__()
        self.config = types.SimpleNamespace() if tied is None else types.SimpleNamespace(tie_word_embeddings=tied)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        return self.head


class Wrapped(nn.Module):
    """Holds a model, as Lightning's modules and models for images and text do."""

    def __init__(self, model: Named, *, tied: bool | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = types.SimpleNamespace() if tied is None else types.SimpleNamespace(tie_word_embeddings=tied)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        return self.model.head

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def with_own_layers(embedding: type[Table] | None, head: type[Table] | None) -> nn.Module:
    model = Language()
    weight = model.embedding.weight.detach()
    model.embedding = embedding(weight.clone()) if embedding else model.embedding  # type: ignore[assignment]
    model.head = head(weight.clone()) if head else model.head  # type: ignore[assignment]
    return copy_weight(model)


@pytest.mark.parametrize(
    ("embedding", "head"), [(TokenEmbedding, Table), (TokenEmbedding, None), (None, Table), (None, Unembed)]
)
def test_layers_of_the_program_itself(
    start_watch: Any, tmp_path: Path, embedding: type[Table] | None, head: type[Table] | None
) -> None:
    watched = start_watch(**BUILD)
    train_model(with_own_layers(embedding, head))
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-C027", "info")


@pytest.mark.parametrize("wrap", [lambda model: model, Wrapped], ids=["alone", "wrapped"])
def test_a_tie_that_the_model_declares_and_lacks(start_watch: Any, tmp_path: Path, wrap: Any) -> None:
    watched = start_watch(**BUILD)
    train_model(wrap(Named(tied=True)))
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-C027", "info")
    assert "should share one tensor but are two, different before the first update" in finding.title


def test_a_declared_tie_of_a_wrapped_model_that_broke(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**BUILD)
    train_model(Wrapped(copy_weight(Named(tied=True))))  # type: ignore[arg-type]
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-C027", "warning")
    assert finding.title.startswith(
        "model.embedding.weight and model.head.weight should share one tensor but are two, eq"
    )


def raise_error() -> nn.Module:
    raise RuntimeError("no such layer")


def with_broken_methods() -> nn.Module:
    model = Named(tied=True)
    model.get_output_embeddings = raise_error  # type: ignore[method-assign]
    return model


def with_copied_layers() -> nn.Module:
    """Layers of one kind that begin alike, and codes with an average of them."""
    model = Language()
    model.body = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))  # type: ignore[assignment]
    model.body[1].load_state_dict(model.body[0].state_dict())
    model.codes = nn.Embedding(12, 8)
    model.codes.load_state_dict(model.embedding.state_dict())
    model.average = nn.Parameter(model.embedding.weight.detach().clone())
    return model


def tie_weight(model: Language) -> nn.Module:
    model.head.weight = model.embedding.weight
    return model


def fill_constant(model: Language) -> nn.Module:
    for layer in (model.embedding, model.head):
        nn.init.constant_(layer.weight, 0.02)
    return model


def copy_nearly(model: Language) -> nn.Module:
    copy_weight(model).head.weight.data[0, 0] += 1e-6
    return model


class Distilled(nn.Module):
    """A copy of a tied model beside it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.student, self.teacher = model, copy.deepcopy(model).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x) - self.teacher(x).detach()


class Cloned(nn.Module):
    """Layers that are copies of one, as those of `nn.TransformerEncoder`."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x[:, None]).flatten(1)


class Configured(Language):
    """A configuration whose default says so, and an output layer of the same shape that is another thing."""

    config = types.SimpleNamespace(tie_word_embeddings=True)


TIES: dict[str, Callable[[], nn.Module]] = {
    "untied": Language,
    "tied": lambda: tie_weight(Language()),
    "constant": lambda: fill_constant(Language()),
    "nearly": lambda: copy_nearly(Language()),
    "teacher": lambda: Distilled(tie_weight(Language())),
    "untied teacher": lambda: Distilled(Language()),
    "cloned layers": Cloned,
    "configured": Configured,
    "declared and tied": lambda: tie_weight(Named(tied=True)),
    "declared apart": lambda: Named(tied=False),
    "nothing declared": lambda: Named(tied=None),
    "declared by the outer model alone": lambda: Wrapped(Named(tied=False), tied=True),
    "methods that raise": with_broken_methods,
    "copied layers": with_copied_layers,
    "tiny": lambda: copy_weight(Language(words=7)),
}


@pytest.mark.parametrize("kind", TIES)
def test_weights_that_are_one_or_were_never_meant_to_be(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**BUILD)
    train_model(TIES[kind]())
    assert "TD-C027" not in judge_codes(watched, tmp_path)
    assert not list_observations(watched, "model-build", "TIE")
