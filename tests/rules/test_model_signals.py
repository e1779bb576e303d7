"""TD-C021..27, TD-S011..12: what the observations of modes, losses, models and optimizers mean."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tdbg.core.events import End, Event, Finding, Observation, Params, Step


def make_observation(probe: str, part: str, step: int = 20, **values: Any) -> Observation:
    return Observation(probe=probe, part=part, step=step, text="as seen", values=values)


def make_graph(kind: str, loss: str = "LogSoftmax", **values: Any) -> Observation:
    fault = {"kind": kind, "loss": loss, "given": "Softmax", "shape": [8, 5], "certain": True, **values}
    return make_observation("backward", "LOSS", 1, operations=["NllLoss", loss, "Softmax"], faults=[fault])


def make_evaluation(**values: Any) -> Observation:
    found = {"number": 1, "calls": 40, "seen": 12, "root": "Net", "mode": "eval", "compared": 8, "drew": 8}
    return make_observation("validation", "PASS", **{**found, **values})


LEFT = {"root": "Net", "since": 21, "updates": 3, "evaluated": 20, "dropouts": 2, "norms": 0}
EMPTY = {"optimizer": "SGD", "root": "Net", "since": 2, "updates": 4, "held": 6, "graded": 4, "names": ["head.weight"]}
PAIRS = {"given": "Addmm", "shape": [8, 1], "into": [8, 8]}
FAULTS: dict[str, tuple[Observation, str, str, str]] = {
    "left in eval mode": (
        make_observation("validation", "EVAL_MODE_UPDATES", **LEFT),
        "TD-C021",
        "warning",
        "in eval mode since step 21, after evaluation: Net, 2 dropout layers off",
    ),
    "dropout": (
        make_evaluation(drawn_by="dropout", drawn_at="a.py:3"),
        "TD-C022",
        "warning",
        "dropout is active in evaluation: dropout at a.py:3, pass 1 after step 20, Net in eval mode",
    ),
    "sampling": (make_evaluation(), "TD-C022", "info", "evaluation draws random numbers: pass 1"),
    "twice": (make_graph("twice"), "TD-C023", "warning", "softmax before cross_entropy, which applies its own: (8, 5)"),
    "batch": (make_graph("batch", "NllLoss"), "TD-C023", "warning", "softmax over the batch dimension before nll_loss"),
    "probabilities": (make_graph("probabilities", "NllLoss"), "TD-C023", "warning", "nll_loss is given probabilities"),
    "pairs": (make_graph("broadcast", "Sub", **PAIRS), "TD-C024", "warning", "the loss is over (8, 8) pairs"),
    "maybe pairs": (make_graph("broadcast", "Sub", **{**PAIRS, "certain": False}), "TD-C024", "info", "(8, 8) pairs"),
    "statistics": (
        make_observation("model-build", "STATISTICS", layers=["bn1", "bn2"], layer_count=2, momentum=0.0, batches=20),
        "TD-C025",
        "warning",
        "2 batch norm layers keep a running mean of 0: bn1, bn2 (momentum 0)",
    ),
    "average": (
        make_observation("validation", "AVERAGE", averaged="Net"),
        "TD-C025",
        "warning",
        "the average of Net that is evaluated was never updated, after step 20",
    ),
    "autocast": (
        make_observation(
            "forward", "AUTOCAST", device="cuda", dtype="float16", layers=["a", "b"], layer_count=2, layer_device="cpu"
        ),
        "TD-C026",
        "warning",
        "autocast to float16 on cuda does not apply: all 2 linear and convolution layers return float32",
    ),
    "tie": (
        make_observation("model-build", "TIE", embedding="wte.weight", head="head.weight", meant=True),
        "TD-C027",
        "warning",
        "wte.weight and head.weight should share one tensor but are two",
    ),
    "maybe a tie": (
        make_observation("model-build", "TIE", embedding="wte.weight", head="head.weight", meant=False),
        "TD-C027",
        "info",
        "wte.weight and head.weight are two tensors",
    ),
    "frozen": (
        make_observation("optimizer", "EMPTY", **EMPTY, frozen=6, strangers=0),
        "TD-S011",
        "error",
        "SGD has updated nothing since step 2: all 6 parameters that it holds are frozen",
    ),
    "another": (
        make_observation("optimizer", "EMPTY", **EMPTY, frozen=0, strangers=6),
        "TD-S011",
        "error",
        "its 6 parameters are not those of the Net that runs",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_told_once_with_its_step_and_rank(one_rank: Any, name: str) -> None:
    event, code, severity, words = FAULTS[name]
    run, rank = one_rank
    run.emit_events(rank, event, event)
    (finding,) = run.judge_stream().findings
    assert (finding.code, finding.severity) == (code, severity)
    assert words in finding.title and finding.title.endswith(", rank 0")
    assert finding.first_step and finding.evidence and finding.cause and finding.try_next and finding.grade


@pytest.mark.parametrize("name", FAULTS)
def test_a_second_rank_is_added_to_the_evidence_in_any_order(make_stream: Any, name: str) -> None:
    event, code, _, _ = FAULTS[name]
    run = make_stream()
    ranks = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for rank in reversed(ranks):
        run.emit_events(rank, event)
    (finding,) = [finding for finding in run.judge_stream().findings if finding.code == code]
    assert finding.rank == 0 and any(line.startswith("also on rank 1 at step") for line in finding.evidence)


HEALTHY = {
    "nothing drawn": make_evaluation(drew=0),
    "drawn once": make_evaluation(drew=1),
    "not compared": make_evaluation(compared=None, drew=None),
    "a loss": make_observation("backward", "LOSS", 1, operations=["NllLoss"], classes=5, faults=[]),
    "an unknown fault": make_graph("of another version"),
    "fields that are missing": make_observation("backward", "LOSS", 1),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_what_is_well(one_rank: Any, name: str) -> None:
    run, rank = one_rank
    run.emit_events(rank, HEALTHY[name])
    assert run.judge_codes() == []


def test_parameters_that_were_left_out_are_told_by_one_rule(one_rank: Any) -> None:
    run, rank = one_rank
    left_out = make_observation(
        "optimizer", "COVERAGE", 6, forgotten=True, left_out=["a"], left_out_count=1, trainable=4
    )
    run.emit_events(rank, left_out, FAULTS["another"][0])
    assert run.judge_codes() == ["TD-S006"]


# a loss that stays where guessing puts it

GUESSING = math.log(10)
CROSS_ENTROPY = make_observation("backward", "LOSS", 1, operations=["NllLoss"], classes=10, faults=[])
Losses = Callable[[random.Random, int], float]


def iter_steps(
    losses: Losses, count: int = 200, lr: Callable[[int], float] = lambda step: 1e-3, **more: Any
) -> Iterator[Event]:
    noise = random.Random(3)
    for step in range(1, count + 1):
        yield Step(step=step, loss=losses(noise, step), lr=[lr(step)], grad_norm=0.5, finite=True, **more)


def draw_flat(noise: random.Random, step: int) -> float:
    return GUESSING + noise.gauss(0.0, 0.1)


def test_a_loss_of_guessing_is_for_information_at_first(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, CROSS_ENTROPY, *iter_steps(draw_flat))
    run.end_process(rank, 200)
    (finding,) = run.judge_stream().findings
    assert (finding.code, finding.severity, finding.first_step) == ("TD-S012", "info", 150)
    assert finding.title.startswith("the loss is at chance level after 150 steps: 2.")
    assert finding.title.endswith("ln(10 classes) = 2.303, rank 0")
    assert finding.evidence[1:] == ["learning rate 0.001", "gradient norm 0.5 (median)"]


@pytest.mark.parametrize(("epoch", "severity"), [(0, "info"), (2, "warning"), (None, "warning")])
def test_it_is_a_warning_after_a_thousand_steps_and_an_epoch(one_rank: Any, epoch: int | None, severity: str) -> None:
    run, rank = one_rank
    run.emit_events(rank, CROSS_ENTROPY, *iter_steps(draw_flat, 1100, epoch=epoch))
    run.end_process(rank, 1100)
    (finding,) = run.judge_stream().findings
    assert (finding.code, finding.severity) == ("TD-S012", severity)


def test_a_loss_above_guessing_that_stays_at_its_first_value(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, CROSS_ENTROPY, *iter_steps(lambda noise, step: 3.1 + noise.gauss(0.0, 0.02)))
    (finding,) = run.judge_stream().findings
    assert "no better than at first after 150 steps: 3." in finding.title


@pytest.mark.parametrize("maximizes", [False, True])
def test_a_loss_far_above_guessing_is_a_warning(one_rank: Any, maximizes: bool) -> None:
    run, rank = one_rank
    groups = make_observation("optimizer", "GROUPS", 1, groups=[{"lr": 1e-3, "maximize": maximizes}])
    run.emit_events(rank, CROSS_ENTROPY, groups, *iter_steps(lambda noise, step: GUESSING + step + noise.random()))
    (finding,) = run.judge_stream().findings
    assert (finding.code, finding.severity, finding.first_step) == ("TD-S012", "warning", 150)
    assert finding.title.startswith("the loss is far above chance level after 150 steps: 10")
    words = "the optimizer maximizes the loss" if maximizes else "updates that are too large, or that raise the loss"
    assert finding.cause.startswith(words)


NEGATED = make_observation("backward", "LOSS", 1, operations=["Neg", "NllLoss"], classes=10, negated=True)


def test_the_negative_of_a_cross_entropy_is_judged_by_the_cross_entropy(one_rank: Any) -> None:
    run, rank = one_rank
    steps = list(iter_steps(lambda noise, step: -GUESSING - step / 10 - noise.random()))
    losses = [step.loss for step in steps]
    run.emit_events(rank, NEGATED, *steps[:50], End(step=200, recent_losses=losses[100:]))
    (finding,) = run.judge_stream().findings
    assert (finding.code, finding.severity, finding.first_step) == ("TD-S012", "warning", 200)
    words = "the cross-entropy, whose negative is the loss, is far above chance level after 200 steps: 1"
    assert finding.title.startswith(words)
    assert finding.cause == "the loss is the negative of a cross-entropy: training raises it"


@pytest.mark.parametrize("change", ["attack", "two losses", "two models", "falls", "guesses"])
def test_a_negated_cross_entropy_may_be_meant(one_rank: Any, change: str) -> None:
    """An attack trains its inputs, adversaries have two losses or models; and maximize=True turns the sign once more."""
    run, rank = one_rank
    more: dict[str, Event] = {
        "attack": Params(names=["parameter[256x20]"], numel=[5120], optimizers=["Adam"]),
        "two losses": make_observation("backward", "LOSS_2", 1, operations=["NllLoss"], classes=10),
        "two models": Params(names=["a"], numel=[4], optimizers=["Adam", "Adam"]),
    }
    rise = {"falls": lambda step: -2.0 * step / 200, "guesses": lambda step: 0.0}.get(change, lambda step: step)
    steps = iter_steps(lambda noise, step: -GUESSING - rise(step) - noise.random() / 100)
    run.emit_events(rank, NEGATED, *([more[change]] if change in more else []), *steps)
    assert "TD-S012" not in run.judge_codes()


def test_a_loss_that_stays_at_chance_and_then_rises_is_said_to_be_far_above(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, CROSS_ENTROPY, *iter_steps(lambda noise, step: GUESSING + max(0, step - 200), 500))
    (finding,) = [one for one in run.judge_stream().findings if one.code == "TD-S012"]
    assert finding.severity == "warning" and "far above chance level" in finding.title
    run.emit_events(rank, End(step=600, recent_losses=[2.3] * 100))
    (finding,) = [one for one in run.judge_stream().findings if one.code == "TD-S012"]
    assert finding.severity == "info" and finding.evidence[0].startswith("it fell later")


def test_a_multiplier_that_is_maximized_is_no_cause(one_rank: Any) -> None:
    run, rank = one_rank
    groups = [
        make_observation("optimizer", "GROUPS", 1, optimizer=name, groups=[{"lr": 1e-3, "maximize": name == "SGD"}])
        for name in ("Adam", "SGD")
    ]
    run.emit_events(rank, CROSS_ENTROPY, *groups, *iter_steps(draw_flat))
    (finding,) = run.judge_stream().findings
    assert "maximizes" not in finding.cause


def test_where_two_models_play_against_each_other_a_loss_may_rise(one_rank: Any) -> None:
    run, rank = one_rank
    both = Params(names=["a"], numel=[4], optimizers=["Adam", "Adam"])
    run.emit_events(rank, CROSS_ENTROPY, both, *iter_steps(lambda noise, step: GUESSING + step + noise.random()))
    assert run.judge_codes() == []


@pytest.mark.parametrize(
    "losses",
    [
        lambda noise, step: 40.0 / step**0.1 + noise.gauss(0.0, 0.1),  # a bad start from which it falls
        lambda noise, step: 30.0 + noise.random() * 20,  # high from the first step on, as under a wide initialization
        lambda noise, step: 2.3 if step <= 5 else 20.0 - step * 0.06 + noise.random(),  # it jumped, and falls
        lambda noise, step: 3.5 + noise.gauss(0.0, 0.2) if step > 20 else GUESSING,
    ],
)
def test_a_loss_above_guessing_that_was_so_at_first_or_falls_is_not_called_far_above(
    one_rank: Any, losses: Losses
) -> None:
    run, rank = one_rank
    run.emit_events(rank, CROSS_ENTROPY, *iter_steps(losses))
    assert not any("far above" in finding.title for finding in run.judge_stream().findings)


def test_the_last_losses_tell_it_where_few_steps_have_a_record(one_rank: Any) -> None:
    run, rank = one_rank
    events = list(iter_steps(draw_flat))
    losses = [event.loss for event in events]
    run.emit_events(rank, CROSS_ENTROPY, *events[:50], End(step=200, recent_losses=losses[100:]))
    (finding,) = run.judge_stream().findings
    assert finding.code == "TD-S012" and finding.first_step == 200


def test_losses_of_long_ago_say_nothing_of_now(one_rank: Any) -> None:
    """A fast run has the first fifty steps on record, and then few: those were at chance, long before."""
    run, rank = one_rank
    events = [event for event in iter_steps(draw_flat, 1300, epoch=3) if event.step <= 50 or event.step % 400 == 0]
    run.emit_events(rank, CROSS_ENTROPY, *events, End(step=1300, recent_losses=[0.3] * 100))
    assert run.judge_codes() == []


def test_a_slow_start_is_no_warning_at_the_end(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, CROSS_ENTROPY, *iter_steps(draw_flat, 1100, epoch=2))
    assert [finding.severity for finding in run.judge_stream().findings] == ["warning"]
    run.emit_events(rank, End(step=3000, recent_losses=[0.3] * 100))
    (finding,) = run.judge_stream().findings
    assert finding.severity == "info"
    assert finding.evidence[0] == "it fell later: mean of the last losses of the run 0.3"


@pytest.mark.parametrize(("numel", "codes"), [([4, 2], []), ([9, 3], []), ([4, 2, 8], ["TD-S012"])])
def test_models_that_are_trained_one_after_the_other_are_judged_each(
    one_rank: Any, numel: list[int], codes: list[str]
) -> None:
    """The same architecture again, another one, and the same model with a layer that was unfrozen."""
    run, rank = one_rank
    names = ["a", "b", "c"]
    first, second = list(iter_steps(draw_flat, 100)), list(iter_steps(draw_flat, 200))[100:]
    run.emit_events(rank, CROSS_ENTROPY, Params(names=names[:2], numel=[4, 2]), *first)
    run.emit_events(rank, Params(names=names[: len(numel)], numel=numel), *second)
    run.end_process(rank, 200)
    assert run.judge_codes() == codes


def test_the_last_losses_are_those_of_the_steps_they_name(one_rank: Any) -> None:
    """Most steps of a fast run are only counted, so that its last hundred losses reach far back: to the model before."""
    run, rank = one_rank
    first, second = list(iter_steps(draw_flat, 100)), list(iter_steps(draw_flat, 110))[100:]
    run.emit_events(
        rank, CROSS_ENTROPY, Params(names=["a"], numel=[4]), *first, Params(names=["a"], numel=[9]), *second
    )
    run.emit_events(rank, End(step=320, recent_losses=[GUESSING] * 100, recent_steps=range(20, 320, 3)))
    assert run.judge_codes() == []


def draw_falling(noise: random.Random, step: int) -> float:
    return GUESSING - 0.0015 * step + noise.gauss(0.0, 0.05)


def draw_learned(noise: random.Random, step: int) -> float:
    return 0.6 + noise.gauss(0.0, 0.1)


LEARNING: dict[str, list[Event]] = {
    "falls": [CROSS_ENTROPY, *iter_steps(draw_falling)],
    "has learned": [CROSS_ENTROPY, *iter_steps(draw_learned)],
    "warms up": [CROSS_ENTROPY, *iter_steps(draw_flat, 400, lambda step: 1e-6 * step)],
    "was seen in its warm-up alone": [
        CROSS_ENTROPY,
        *iter_steps(draw_flat, 50, lambda step: 1e-6 * step),
        End(step=300, recent_losses=[GUESSING] * 100),
    ],
    "is short": [CROSS_ENTROPY, *iter_steps(draw_flat, 140)],
    "is another loss": [make_observation("backward", "LOSS", 1, operations=["MseLoss"]), *iter_steps(draw_flat)],
    "nothing is known of": [*iter_steps(draw_flat)],
    "has two losses": [
        CROSS_ENTROPY,
        make_observation("backward", "LOSS_2", 1, operations=["Mean"]),
        *iter_steps(draw_flat),
    ],
    "has classes by batch": [
        CROSS_ENTROPY,
        make_observation("backward", "LOSS_2", 2, classes=12),
        *iter_steps(draw_flat),
    ],
    "adds up": [CROSS_ENTROPY, *iter_steps(lambda noise, step: 4 * draw_flat(noise, step) - 0.01 * step, micro=4)],
    "is better than guessing": [
        CROSS_ENTROPY,
        *iter_steps(lambda noise, step: 0.93 * GUESSING + noise.gauss(0.0, 0.01)),
    ],
    "has one class": [make_observation("backward", "LOSS", 1, classes=1), *iter_steps(lambda noise, step: 1e-6)],
}


@pytest.mark.parametrize("name", LEARNING)
def test_a_loss_that_learns_or_may_is_left_alone(one_rank: Any, name: str) -> None:
    run, rank = one_rank
    run.emit_events(rank, *LEARNING[name])
    assert run.judge_codes() == []


@pytest.mark.parametrize("code", ["TD-C023", "TD-S006", "TD-S011", "TD-D002"])
def test_what_explains_it_comes_first(one_rank: Any, code: str) -> None:
    run, rank = one_rank
    causes = {
        "TD-C023": make_graph("twice"),
        "TD-S011": FAULTS["another"][0],
        "TD-S006": make_observation(
            "optimizer", "COVERAGE", 6, forgotten=True, left_out=["a"], left_out_count=1, trainable=4
        ),
        "TD-D002": make_observation("dataloader", "CONSTANT", 9, tensor=0, constant=True, value=0.0, count=6, looked=6),
    }
    seen = causes[code]
    if code == "TD-C023":
        seen.values["classes"] = 10
        run.emit_events(rank, seen, *iter_steps(draw_flat))
    else:
        run.emit_events(rank, CROSS_ENTROPY, seen, *iter_steps(draw_flat))
    verdict = run.judge_stream()
    assert [finding.code for finding in verdict.findings] == [code, "TD-S012"]
    assert isinstance(verdict.findings[0], Finding)
