"""Healthy runs, as noisy as real ones: no rule may say a word."""

import math
import random

import pytest
from streams import Stream

from tdbg.core.events import Params, Plan, Step

STEPS = 1500
SEEDS = range(4)


def compute_decay(step: int, start: float = 10.0, floor: float = 2.0, pace: float = 150.0) -> float:
    return floor + (start - floor) * math.exp(-step / pace)


def noisy_language_model(noise: random.Random):
    """Warm-up and cosine to zero, heavy-tailed gradients, the odd spike."""
    for step in range(1, STEPS + 1):
        lr = 3e-4 * min(step / 100, 1.0) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        spike = 8.0 if noise.random() < 0.004 else 1.0
        loss = compute_decay(step) * noise.lognormvariate(0, 0.15)
        yield {
            "loss": loss,
            "lr": [lr],
            "grad_norm": spike * noise.lognormvariate(0, 0.5) * (1 + 5 * math.exp(-step / 30)),
        }


def warm_restarts(noise: random.Random):
    """SGDR: the rate returns from 1e-6 to 1e-1 every 300 steps, and the loss rises a little each time."""
    for step in range(1, STEPS + 1):
        part = (step % 300) / 300
        lr = 1e-6 + 0.05 * (1 + math.cos(math.pi * part))
        loss = compute_decay(step, 2.3, 0.4) * (1 + 0.5 * (1 - part)) * noise.lognormvariate(0, 0.25)
        yield {"loss": loss, "lr": [lr], "grad_norm": noise.lognormvariate(0, 0.7)}


def gan(noise: random.Random):
    """The generator's loss rises as the discriminator wins, and comes down again."""
    for step in range(1, STEPS + 1):
        wave = 1.0 + 4.0 * max(math.sin(step / 60), 0.0) ** 2
        other = [abs(noise.gauss(0.7, 0.3)) / wave]
        yield {
            "loss": wave * noise.lognormvariate(0, 0.3),
            "lr": [2e-4],
            "other_losses": other,
            "grad_norm": wave * noise.lognormvariate(0, 1.0),
        }


def lbfgs(noise: random.Random):
    """Few steps, many closure calls each, a loss that falls by ten orders of magnitude."""
    for step in range(1, 120):
        yield {
            "loss": 100.0 * math.exp(-step / 5) + 1e-9 * noise.random(),
            "lr": [1.0],
            "micro": noise.randint(1, 25),
            "grad_norm": math.exp(-step / 6),
        }


def accumulation(noise: random.Random):
    """Eight backward calls a step, three in the last step of each epoch."""
    for step in range(1, STEPS + 1):
        micro = 3 if step % 50 == 0 else 8
        loss = sum(compute_decay(step, 3.0, 1.0) * noise.lognormvariate(0, 0.3) / 8 for _ in range(micro))
        yield {"loss": loss, "lr": [1e-3], "micro": micro, "grad_norm": noise.lognormvariate(0, 0.4)}


def mixed_precision(noise: random.Random):
    """The scale comes down at the start, then a skip at every attempt to double it."""
    scale = 65536.0
    for step in range(1, STEPS + 1):
        skipped = step <= 7 or step % 200 == 0
        scale = scale / 2 if skipped else scale * (2 if step % 200 == 199 else 1)
        yield {
            "loss": compute_decay(step) * noise.lognormvariate(0, 0.2),
            "lr": [1e-3],
            "scale": scale,
            "skipped": skipped,
            "finite": not skipped,
            "grad_norm": "inf" if skipped else scale * noise.lognormvariate(0, 0.4),
        }


def reinforcement(noise: random.Random):
    """Losses around zero, gradients with long tails."""
    for _ in range(1, STEPS + 1):
        yield {"loss": noise.gauss(0, 1.0) ** 3, "lr": [3e-4], "grad_norm": noise.lognormvariate(0, 1.0)}


def memorized(noise: random.Random):
    """A loss that went to almost nothing, where relative noise is large."""
    for step in range(1, STEPS + 1):
        yield {
            "loss": compute_decay(step, 5.0, 1e-6, 40.0) * noise.lognormvariate(0, 0.8),
            "lr": [1e-3],
            "grad_norm": 1e-3 * noise.lognormvariate(0, 1.0),
        }


def unfrozen(noise: random.Random):
    """A head trained alone, then the backbone thawed with its own rate; step decay."""
    for step in range(1, STEPS + 1):
        lr = [1e-2 * 0.1 ** (step // 500), 0.0 if step < 300 else 1e-4]
        yield {
            "loss": compute_decay(step, 7.0, 1.5) * noise.lognormvariate(0, 0.2),
            "lr": lr,
            "grad_norm": (1 if step < 300 else 6) * noise.lognormvariate(0, 0.4),
        }


def few_samples(noise: random.Random):
    """Batch size 1: neighbouring losses differ by a factor of ten."""
    for step in range(1, STEPS + 1):
        yield {
            "loss": compute_decay(step, 4.0, 1.0) * noise.lognormvariate(0, 1.0),
            "lr": [1e-4],
            "grad_norm": 3 * noise.lognormvariate(0, 1.0),
        }


def two_sources(noise: random.Random):
    """Batches of two data sets in blocks, one three times as hard as the other."""
    for step in range(1, STEPS + 1):
        hard = 1.8 if step // 40 % 2 else 1.0
        yield {
            "loss": hard * compute_decay(step, 4.0, 1.0) * noise.lognormvariate(0, 0.3),
            "lr": [1e-3],
            "grad_norm": hard * noise.lognormvariate(0, 0.5),
        }


CURVES = [
    noisy_language_model,
    warm_restarts,
    gan,
    lbfgs,
    accumulation,
    mixed_precision,
    reinforcement,
    memorized,
    unfrozen,
    few_samples,
    two_sources,
]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy(one_rank, curve, seed):
    run, rank = one_rank
    records = list(curve(random.Random(seed)))
    run.emit_events(rank, Plan(steps=len(records), source="Trainer"))
    if curve is gan:
        run.emit_events(rank, Params(names=["w"], numel=[4], optimizers=["Adam", "Adam"]))
    for step, record in enumerate(records, 1):
        run.emit_events(rank, Step(step=step, **{"finite": True, **record}))
    run.end_process(rank, len(records))
    assert run.judge_codes() == []


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.__name__)
def test_healthy_with_most_records_left_out(one_rank, curve):
    """The budget thins out records: what is left must not look like jumps."""
    run, rank = one_rank
    noise = random.Random(9)
    if curve is gan:
        run.emit_events(rank, Params(names=["w"], numel=[4], optimizers=["Adam", "Adam"]))
    for step, record in enumerate(curve(random.Random(8)), 1):
        if step <= 8 or noise.random() < 0.15:
            run.emit_events(rank, Step(step=step, **{"finite": True, **record}))
    run.end_process(rank, STEPS)
    assert run.judge_codes() == []


def test_healthy_ranks(make_stream):
    run: Stream = make_stream()
    folders = [run.begin_rank(rank, world=4) for rank in range(4)]
    noise = random.Random(5)
    for step, record in enumerate(noisy_language_model(noise), 1):
        for folder in folders:
            run.emit_events(folder, Step(step=step, **record))
    for folder in folders:
        run.end_process(folder, STEPS)
    assert run.judge_codes() == []


def test_healthy_evaluation_only(one_rank):
    run, rank = one_rank
    for call in range(1, 400):
        run.emit_events(rank, Step(step=call, call=call, phase="eval"))
    run.end_process(rank, 0)
    verdict = run.judge_stream()
    assert verdict.findings == [] and "399 evaluation calls" in verdict.format_headline()
