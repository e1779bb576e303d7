"""TD-C021..27, TD-S011..12: what the observations of modes, losses, models and optimizers mean."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tdbg.core.events import End, Event, Finding, Observation, Step


def look(probe: str, part: str, step: int = 20, **values: Any) -> Observation:
    return Observation(probe=probe, part=part, step=step, text="as seen", values=values)


def graph(kind: str, loss: str = "LogSoftmax", **values: Any) -> Observation:
    fault = {"kind": kind, "loss": loss, "given": "Softmax", "shape": [8, 5], "certain": True, **values}
    return look("backward", "LOSS", 1, operations=["NllLoss", loss, "Softmax"], faults=[fault])


def evaluation(**values: Any) -> Observation:
    found = {"number": 1, "calls": 40, "seen": 12, "root": "Net", "mode": "eval", "compared": 8, "drew": 8}
    return look("validation", "PASS", **{**found, **values})


LEFT = {"root": "Net", "since": 21, "updates": 3, "evaluated": 20, "dropouts": 2, "norms": 0}
EMPTY = {"optimizer": "SGD", "root": "Net", "since": 2, "updates": 4, "held": 6, "graded": 4, "names": ["head.weight"]}
PAIRS = {"given": "Addmm", "shape": [8, 1], "into": [8, 8]}
FAULTS: dict[str, tuple[Observation, str, str, str]] = {
    "left in eval mode": (
        look("validation", "EVAL_MODE_UPDATES", **LEFT),
        "TD-C021",
        "warning",
        "in eval mode since step 21, after evaluation: Net, 2 dropout layers off",
    ),
    "dropout": (
        evaluation(drawn_by="dropout", drawn_at="a.py:3"),
        "TD-C022",
        "warning",
        "dropout is active in evaluation: dropout at a.py:3, pass 1 after step 20, Net in eval mode",
    ),
    "sampling": (evaluation(), "TD-C022", "info", "evaluation draws random numbers: pass 1"),
    "twice": (graph("twice"), "TD-C023", "warning", "softmax before cross_entropy, which applies its own: (8, 5)"),
    "batch": (graph("batch", "NllLoss"), "TD-C023", "warning", "softmax over the batch dimension before nll_loss"),
    "probabilities": (graph("probabilities", "NllLoss"), "TD-C023", "warning", "nll_loss is given probabilities"),
    "pairs": (graph("broadcast", "Sub", **PAIRS), "TD-C024", "warning", "the loss is over (8, 8) pairs"),
    "maybe pairs": (graph("broadcast", "Sub", **{**PAIRS, "certain": False}), "TD-C024", "info", "(8, 8) pairs"),
    "statistics": (
        look("model-build", "STATISTICS", layers=["bn1", "bn2"], layer_count=2, momentum=0.0, batches=20),
        "TD-C025",
        "warning",
        "2 batch norm layers keep a running mean of 0: bn1, bn2 (momentum 0)",
    ),
    "average": (
        look("validation", "AVERAGE", averaged="Net"),
        "TD-C025",
        "warning",
        "the average of Net that is evaluated was never updated, after step 20",
    ),
    "autocast": (
        look(
            "forward", "AUTOCAST", device="cuda", dtype="float16", layers=["a", "b"], layer_count=2, layer_device="cpu"
        ),
        "TD-C026",
        "warning",
        "autocast to float16 on cuda does not apply: all 2 linear and convolution layers put out float32",
    ),
    "tie": (
        look("model-build", "TIE", embedding="wte.weight", head="head.weight", meant=True),
        "TD-C027",
        "warning",
        "wte.weight and head.weight were to be one and are two tensors",
    ),
    "maybe a tie": (
        look("model-build", "TIE", embedding="wte.weight", head="head.weight", meant=False),
        "TD-C027",
        "info",
        "wte.weight and head.weight are two tensors",
    ),
    "frozen": (
        look("optimizer", "EMPTY", **EMPTY, frozen=6, strangers=0),
        "TD-S011",
        "error",
        "SGD has updated nothing since step 2: all 6 parameters that it holds are frozen",
    ),
    "another": (
        look("optimizer", "EMPTY", **EMPTY, frozen=0, strangers=6),
        "TD-S011",
        "error",
        "its 6 parameters are not those of the Net that runs",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_told_once_with_its_step_and_rank(one: Any, name: str) -> None:
    event, code, severity, words = FAULTS[name]
    run, rank = one
    run.emit(rank, event, event)
    (finding,) = run.judge().findings
    assert (finding.code, finding.severity) == (code, severity)
    assert words in finding.title and finding.title.endswith(", rank 0")
    assert finding.first_step and finding.evidence and finding.cause and finding.try_next and finding.grade


@pytest.mark.parametrize("name", FAULTS)
def test_a_second_rank_is_added_to_the_evidence_in_any_order(stream: Any, name: str) -> None:
    event, code, _, _ = FAULTS[name]
    run = stream()
    ranks = [run.rank(rank, world=2) for rank in (0, 1)]
    for rank in reversed(ranks):
        run.emit(rank, event)
    (finding,) = [finding for finding in run.judge().findings if finding.code == code]
    assert finding.rank == 0 and any(line.startswith("also on rank 1 at step") for line in finding.evidence)


HEALTHY = {
    "nothing drawn": evaluation(drew=0),
    "drawn once": evaluation(drew=1),
    "not compared": evaluation(compared=None, drew=None),
    "a loss": look("backward", "LOSS", 1, operations=["NllLoss"], classes=5, faults=[]),
    "an unknown fault": graph("of another version"),
    "fields that are missing": look("backward", "LOSS", 1),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_what_is_well(one: Any, name: str) -> None:
    run, rank = one
    run.emit(rank, HEALTHY[name])
    assert run.codes() == []


def test_parameters_that_were_left_out_are_told_by_one_rule(one: Any) -> None:
    run, rank = one
    left_out = look("optimizer", "COVERAGE", 6, forgotten=True, left_out=["a"], left_out_count=1, trainable=4)
    run.emit(rank, left_out, FAULTS["another"][0])
    assert run.codes() == ["TD-S006"]


# a loss that stays where guessing puts it

GUESSING = math.log(10)
CROSS_ENTROPY = look("backward", "LOSS", 1, operations=["NllLoss"], classes=10, faults=[])
Losses = Callable[[random.Random, int], float]


def steps(
    losses: Losses, count: int = 200, lr: Callable[[int], float] = lambda step: 1e-3, **more: Any
) -> Iterator[Event]:
    noise = random.Random(3)
    for step in range(1, count + 1):
        yield Step(step=step, loss=losses(noise, step), lr=[lr(step)], grad_norm=0.5, finite=True, **more)


def flat(noise: random.Random, step: int) -> float:
    return GUESSING + noise.gauss(0.0, 0.1)


def test_a_loss_of_guessing_is_for_information_at_first(one: Any) -> None:
    run, rank = one
    run.emit(rank, CROSS_ENTROPY, *steps(flat))
    run.end(rank, 200)
    (finding,) = run.judge().findings
    assert (finding.code, finding.severity, finding.first_step) == ("TD-S012", "info", 150)
    assert finding.title.startswith("the loss is that of guessing after 150 steps: 2.")
    assert finding.title.endswith("ln(10 classes) = 2.303, rank 0")
    assert finding.evidence[1:] == ["learning rate 0.001", "gradient norm 0.5 (median)"]


@pytest.mark.parametrize(("epoch", "severity"), [(0, "info"), (2, "warning"), (None, "warning")])
def test_it_is_a_warning_after_a_thousand_steps_and_an_epoch(one: Any, epoch: int | None, severity: str) -> None:
    run, rank = one
    run.emit(rank, CROSS_ENTROPY, *steps(flat, 1100, epoch=epoch))
    run.end(rank, 1100)
    (finding,) = run.judge().findings
    assert (finding.code, finding.severity) == ("TD-S012", severity)


def test_a_loss_above_guessing_that_stays_at_its_first_value(one: Any) -> None:
    run, rank = one
    run.emit(rank, CROSS_ENTROPY, *steps(lambda noise, step: 3.1 + noise.gauss(0.0, 0.02)))
    (finding,) = run.judge().findings
    assert "no better than at first after 150 steps: 3." in finding.title


def test_the_last_losses_tell_it_where_few_steps_have_a_record(one: Any) -> None:
    run, rank = one
    events = list(steps(flat))
    losses = [event.loss for event in events]
    run.emit(rank, CROSS_ENTROPY, *events[:50], End(step=200, recent_losses=losses[100:]))
    (finding,) = run.judge().findings
    assert finding.code == "TD-S012" and finding.first_step == 200


def falling(noise: random.Random, step: int) -> float:
    return GUESSING - 0.0015 * step + noise.gauss(0.0, 0.05)


def learned(noise: random.Random, step: int) -> float:
    return 0.6 + noise.gauss(0.0, 0.1)


LEARNING: dict[str, list[Event]] = {
    "falls": [CROSS_ENTROPY, *steps(falling)],
    "has learned": [CROSS_ENTROPY, *steps(learned)],
    "warms up": [CROSS_ENTROPY, *steps(flat, 400, lambda step: 1e-6 * step)],
    "was seen in its warm-up alone": [
        CROSS_ENTROPY,
        *steps(flat, 50, lambda step: 1e-6 * step),
        End(step=300, recent_losses=[GUESSING] * 100),
    ],
    "is short": [CROSS_ENTROPY, *steps(flat, 140)],
    "is another loss": [look("backward", "LOSS", 1, operations=["MseLoss"]), *steps(flat)],
    "nothing is known of": [*steps(flat)],
    "has two losses": [CROSS_ENTROPY, look("backward", "LOSS_2", 1, operations=["Mean"]), *steps(flat)],
    "has classes by batch": [CROSS_ENTROPY, look("backward", "LOSS_2", 2, classes=12), *steps(flat)],
    "adds up": [CROSS_ENTROPY, *steps(lambda noise, step: 4 * flat(noise, step) - 0.01 * step, micro=4)],
    "is better than guessing": [CROSS_ENTROPY, *steps(lambda noise, step: 0.93 * GUESSING + noise.gauss(0.0, 0.01))],
    "has one class": [look("backward", "LOSS", 1, classes=1), *steps(lambda noise, step: 1e-6)],
}


@pytest.mark.parametrize("name", LEARNING)
def test_a_loss_that_learns_or_may_is_left_alone(one: Any, name: str) -> None:
    run, rank = one
    run.emit(rank, *LEARNING[name])
    assert run.codes() == []


@pytest.mark.parametrize("code", ["TD-C023", "TD-S006", "TD-S011", "TD-D002"])
def test_what_explains_it_comes_first(one: Any, code: str) -> None:
    run, rank = one
    causes = {
        "TD-C023": graph("twice"),
        "TD-S011": FAULTS["another"][0],
        "TD-S006": look("optimizer", "COVERAGE", 6, forgotten=True, left_out=["a"], left_out_count=1, trainable=4),
        "TD-D002": look("dataloader", "CONSTANT", 9, tensor=0, constant=True, value=0.0, count=6, looked=6),
    }
    seen = causes[code]
    if code == "TD-C023":
        seen.values["classes"] = 10
        run.emit(rank, seen, *steps(flat))
    else:
        run.emit(rank, CROSS_ENTROPY, seen, *steps(flat))
    verdict = run.judge()
    assert [finding.code for finding in verdict.findings] == [code, "TD-S012"]
    assert isinstance(verdict.findings[0], Finding)
