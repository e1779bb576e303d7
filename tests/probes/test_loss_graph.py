"""What the probe `backward` reads in the graph of a loss."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tdbg.probes.backward.loss_graph import read_loss_graph

FLAG = {"flags": {"BACKWARD": True}, "max_overhead": 1e6}
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
N, CLASSES = 8, 5


def train_model(loss: Loss, steps: int = 5, outputs: int = CLASSES) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = torch.randn(N, 4), torch.randint(0, CLASSES, (N,))
        loss(model, x, y).backward()
        optimizer.step()


def make_classifier_loss(change: Callable[[Tensor], Tensor]) -> Loss:
    return lambda model, x, y: functional.cross_entropy(change(model(x)), y)


def make_binary_loss(change: Callable[[Tensor], Tensor]) -> Loss:
    return lambda model, x, y: functional.binary_cross_entropy_with_logits(
        change(model(x)), functional.one_hot(y, CLASSES).float()
    )


def autocast_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return functional.cross_entropy(torch.softmax(model(x), -1), y)


ACTIVATIONS: dict[str, tuple[Loss, str]] = {
    "softmax": (
        make_classifier_loss(lambda z: z.softmax(-1)),
        "softmax before cross_entropy, which applies its own: (8, 5)",
    ),
    "softmax in the model": (make_classifier_loss(nn.Softmax(dim=1)), "softmax before cross_entropy"),
    "softmax and a view": (
        make_classifier_loss(lambda z: z.softmax(-1).view(2, 4, -1).flatten(0, 1)),
        "softmax before cross",
    ),
    "under autocast": (autocast_loss, "softmax before cross_entropy"),
    "smoothed": (
        lambda model, x, y: functional.cross_entropy(model(x).softmax(-1), y, label_smoothing=0.1),
        "softmax before cross_entropy",
    ),
    "soft targets": (
        lambda model, x, y: functional.cross_entropy(model(x).softmax(-1), functional.one_hot(y, CLASSES).float()),
        "softmax before cross_entropy",
    ),
    "one of two terms": (
        lambda model, x, y: functional.cross_entropy(model(x).softmax(-1), y) + model(x).square().mean(),
        "softmax before cross_entropy",
    ),
    "sigmoid": (
        make_binary_loss(torch.sigmoid),
        "sigmoid before binary_cross_entropy_with_logits, which applies its own",
    ),
    "batch": (
        lambda model, x, y: functional.nll_loss(model(x).log_softmax(0), y),
        "log_softmax over the batch dimension before nll_loss: (8, 5)",
    ),
    "batch, and a logarithm": (
        lambda model, x, y: functional.nll_loss(model(x).softmax(0).log(), y),
        "softmax over the batch dimension before nll_loss",
    ),
    "batch, straight": (
        lambda model, x, y: functional.mse_loss(model(x).softmax(-2), functional.one_hot(y, CLASSES).float()),
        "softmax over the batch dimension before mse_loss",
    ),
    "probabilities": (
        lambda model, x, y: functional.nll_loss(model(x).softmax(1), y),
        "nll_loss is given probabilities, without a logarithm",
    ),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_an_activation_in_the_wrong_place(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**FLAG)
    loss, words = ACTIVATIONS[kind]
    train_model(loss)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-C023", "warning", 1)
    assert words in finding.title and finding.evidence[0].startswith("the graph of the loss of step 1: ")


def attention_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Softmax inside the model, over any dimension, is its own business."""
    weights = model(x).softmax(0)
    return functional.cross_entropy(weights.T @ model(x), torch.arange(CLASSES))


def distillation_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(model(x).log_softmax(-1), model(x).softmax(-1), reduction="batchmean")


def pooling_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Attention over the instances of a bag."""
    return (model(x).softmax(0) * model(x)).sum(0).square().mean()


HEALTHY: dict[str, Loss] = {
    "logits": make_classifier_loss(lambda z: z),
    "log-probabilities twice": make_classifier_loss(lambda z: z.log_softmax(-1)),
    "nll": lambda model, x, y: functional.nll_loss(model(x).log_softmax(1), y),
    "segmentation": lambda model, x, y: functional.cross_entropy(model(x.view(2, 4, 4)).transpose(1, 2), y.view(2, 4)),
    "images": lambda model, x, y: functional.cross_entropy(
        model(x.view(2, 2, 2, 4)).permute(0, 3, 1, 2), y.view(2, 2, 2)
    ),
    "gated": lambda model, x, y: functional.cross_entropy(model(x).sigmoid() * 4, y),
    "binary": make_binary_loss(lambda z: z),
    "probabilities and bce": lambda model, x, y: functional.binary_cross_entropy(
        model(x).sigmoid(), functional.one_hot(y, CLASSES).float()
    ),
    "attention": attention_loss,
    "pooling": pooling_loss,
    "distillation": distillation_loss,
    "focal": lambda model, x, y: (
        ((1 - model(x).softmax(1)).pow(2) * -model(x).log_softmax(1) * functional.one_hot(y, CLASSES)).sum(1).mean()
    ),
    "accumulated": lambda model, x, y: functional.cross_entropy(model(x), y) / 4,
    "checkpointed": lambda model, x, y: functional.cross_entropy(checkpoint(model, x, use_reentrant=False), y),
    "expected reward": lambda model, x, y: -(model(x).softmax(1) * torch.randn(N, CLASSES)).sum(1).mean(),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_an_activation_where_it_belongs(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**FLAG)
    train_model(HEALTHY[kind])
    assert judge_codes(watched, tmp_path) == []
    (told,) = list_observations(watched, "backward", "LOSS")
    assert told.values["faults"] == []


# broadcasting

PAIRS: dict[str, tuple[Loss, str]] = {
    "by hand": (lambda model, x, y: ((model(x) - y) ** 2).mean(), "over (8, 8) pairs: predictions of (8, 1)"),
    "the other way": (lambda model, x, y: (y - model(x)).abs().mean(), "predictions of (8, 1)"),
    "squeezed": (
        lambda model, x, y: (model(x).squeeze(1) - y[:, None]).square().mean(),
        "predictions of (8,) broadcast against targets",
    ),
    "log-cosh": (lambda model, x, y: (model(x) - y).cosh().log().mean(), "predictions of (8, 1)"),
    "mse_loss": (lambda model, x, y: functional.mse_loss(model(x), y.float()), "predictions of (8, 1)"),
    "l1_loss": (lambda model, x, y: functional.l1_loss(model(x), y.float()), "predictions of (8, 1)"),
    "smooth_l1_loss": (lambda model, x, y: functional.smooth_l1_loss(model(x), y.float()), "(8, 8) pairs"),
    "huber_loss": (lambda model, x, y: functional.huber_loss(model(x)[:, 0], y[:, None].float()), "of (8,)"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("kind", PAIRS)
def test_a_loss_over_all_pairs(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**FLAG)
    loss, words = PAIRS[kind]
    train_model(loss, outputs=1)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-C024", "warning")
    assert words in finding.title


def ranking_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    scores = model(x)
    return ((scores - scores.T) - 1.0).square().mean()


def contrast_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    scores = model(x).flatten()
    return (scores[:, None] - scores[None, :]).abs().mean()


MEANT: dict[str, Loss] = {
    "same shapes": lambda model, x, y: (model(x) - y[:, None]).square().mean(),
    "squeezed": lambda model, x, y: functional.mse_loss(model(x).squeeze(1), y.float()),
    "ranking": ranking_loss,
    "contrast": contrast_loss,
    "distances": lambda model, x, y: torch.cdist(model(x), torch.randn(N, 1)).mean(),
    "another width": lambda model, x, y: (model(x) - torch.randn(3)).square().mean(),
    "a square of its own": lambda model, x, y: (model(x) @ model(x).T - torch.eye(N)).square().mean(),
    "graph": lambda model, x, y: (torch.eye(N) * model(x)).square().mean(),
    "one sample": lambda model, x, y: (model(x[:1]) - y[:1]).square().mean(),
    "values": lambda model, x, y: (model(x) - model(x).detach()).square().mean(),
}


@pytest.mark.parametrize("kind", MEANT)
def test_differences_that_are_meant(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**FLAG)
    train_model(MEANT[kind], outputs=1)
    assert judge_codes(watched, tmp_path) == []


@pytest.mark.parametrize("shape", [lambda z: z.flatten()[:, None], lambda z: z.view(1, -1).T])
def test_a_column_made_for_the_difference_is_for_information(start_watch: Any, tmp_path: Path, shape: Any) -> None:
    watched = start_watch(**FLAG)
    train_model(lambda model, x, y: (shape(model(x)) - y).square().mean(), outputs=1)
    assert [(one.code, one.severity) for one in judge_watch(watched, tmp_path)] == [("TD-C024", "info")]


# the walk itself


def test_a_mean_cross_entropy_is_known_with_its_classes(start_watch: Any) -> None:
    for kind, classes in (("logits", 5), ("accumulated", 5), ("segmentation", 5), ("focal", None), ("binary", None)):
        watched = start_watch(**FLAG)
        train_model(HEALTHY[kind])
        (told,) = list_observations(watched, "backward", "LOSS")
        assert told.values.get("classes") == classes, kind
        watched.monitor.detach()


@pytest.mark.parametrize(
    ("negate", "negated"),
    [
        (lambda loss: -loss, True),
        (lambda loss: -(0.5 * loss), True),
        (lambda loss: -loss / 2, True),
        (lambda loss: loss.neg().neg(), None),
        (lambda loss: loss, None),
    ],
)
def test_a_mean_cross_entropy_whose_sign_is_turned(
    start_watch: Any, negate: Callable[[Tensor], Tensor], negated: bool | None
) -> None:
    watched = start_watch(**FLAG)
    train_model(lambda model, x, y: negate(functional.cross_entropy(model(x), y)))
    (told,) = list_observations(watched, "backward", "LOSS")
    assert (told.values.get("classes"), told.values.get("negated")) == (5, negated)
    assert ("negative cross-entropy over 5 classes" in told.text) == bool(negated)


def test_only_the_first_steps_are_looked_at_and_nothing_is_held(start_watch: Any) -> None:
    watched = start_watch(**FLAG)
    probe = watched.monitor.find_probe("backward")
    held: list[weakref.ref[Tensor]] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = functional.cross_entropy(model(x), y)
        held.append(weakref.ref(found))
        assert len(probe.patches) == (1 if len(held) <= 4 else 0)
        return found

    gc.disable()
    try:
        train_model(loss, steps=6)
        assert all(one() is None for one in held[:-1])
    finally:
        gc.enable()


def test_saved_tensors_are_not_unpacked() -> None:
    unpacked: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: saved, lambda saved: (unpacked.append(saved), saved)[1]
    ):
        logits = nn.Linear(4, CLASSES)(torch.randn(N, 4))
        loss = functional.cross_entropy(logits.softmax(1), torch.zeros(N, dtype=torch.long), weight=torch.ones(CLASSES))
    assert [fault["kind"] for fault in read_loss_graph(loss).faults] == ["twice"]
    assert not unpacked
    loss.backward()
    assert unpacked


def test_a_long_graph_is_cut_short(start_watch: Any) -> None:
    watched = start_watch(**FLAG)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = model(x)
        for _ in range(3000):
            found = found + 0.0
        return functional.cross_entropy(found, y)

    train_model(loss, steps=1)
    assert watched.monitor.budget.by_part["backward"] < 0.05


def test_every_loss_of_a_step_is_looked_at(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**FLAG)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        model(x).square().mean().backward()
        return functional.cross_entropy(model(x).softmax(-1), y)

    train_model(loss)
    assert judge_codes(watched, tmp_path) == ["TD-C023"]
    assert (
        len(list_observations(watched, "backward", "LOSS"))
        == len(list_observations(watched, "backward", "LOSS_2"))
        == 1
    )
