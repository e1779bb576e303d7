"""What a diagnostic of `tdbg.probes.loss` costs while its flag is off: against the same loop without the call.

    python benchmarks/loss.py [--rounds 60] [--calls 20000] [--json]

Three loops do the same work, a training step of a small model, or nothing but the loop: ``none`` has no call, ``again``
is the same code once more (A/A: what the method itself tells apart), ``off`` calls the diagnostic with its flag off.
Each round runs all three in a random order; the figure is the median over the rounds of the difference to ``none`` in
the same round, with the 95 % interval of the median (by order statistics). Time is that of the thread, so that others
on the machine count for little. ``on`` is told as well, in microseconds a call.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from math import comb
from typing import Any

import torch
from torch import nn

from tdbg.probes import loss
from tdbg.runtime import run_context as host

torch.set_num_threads(1)
TARGETS = {"family": torch.randint(0, 4, (64,)), "species": torch.randint(0, 9, (64,))}
MASKED = {task: target == 0 for task, target in TARGETS.items()}
ONES, NORMS = [1.0, 1.0], [0.5, 0.7]
EACH = torch.rand(64)


def do_nothing() -> None:
    """What stands in the place of the call."""


def call_null_masking() -> None:
    loss.null_masking(TARGETS, MASKED, probability=1.0)


def call_gradnorm_metrics() -> None:
    loss.gradnorm_metrics(ONES, ONES, NORMS, ONES)


def call_class_losses() -> None:
    loss.class_losses(EACH, TARGETS["family"])


def call_gradnorm_memory() -> None:
    with loss.gradnorm_memory() as memory:
        memory.mark("part")


CALLS: dict[str, tuple[str, Callable[[], None]]] = {
    "null_masking": ("LOSS.NULL_MASKING", call_null_masking),
    "gradnorm_metrics": ("LOSS.GRADNORM_METRICS", call_gradnorm_metrics),
    "class_losses": ("LOSS.CLASS_WEIGHTING", call_class_losses),
    "gradnorm_memory": ("LOSS.GRADNORM_MEMORY", call_gradnorm_memory),
}


def time_bare_loop(call: Callable[[], None], calls: int) -> float:
    """Microseconds of the thread a turn of an empty loop with the call in it."""
    begun = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - begun) / 1e3 / calls


class Training:
    """A step of a small model: some hundred microseconds."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 9))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x_BF = torch.randn(64, 64)

    def __call__(self, call: Callable[[], None], calls: int) -> float:
        begun = time.thread_time_ns()
        for _ in range(calls):
            self.optimizer.zero_grad()
            found = nn.functional.cross_entropy(self.model(self.x_BF), TARGETS["species"])
            call()
            found.backward()
            self.optimizer.step()
        return (time.thread_time_ns() - begun) / 1e3 / calls


def measure_paired(
    run: Callable[[Callable[[], None], int], float], call: Callable[[], None], rounds: int, calls: int
) -> Any:
    """Differences to ``none`` in microseconds a turn: median and its 95 % interval, for off and for A/A."""
    variants = {"none": do_nothing, "again": do_nothing, "off": call}
    rows: dict[str, list[float]] = {"again": [], "off": []}
    base: list[float] = []
    for _ in range(rounds):
        order = list(variants)
        random.shuffle(order)
        took = {name: run(variants[name], calls) for name in order}
        base.append(took["none"])
        for name, differences in rows.items():
            differences.append(took[name] - took["none"])
    return {"none_us": statistics.median(base), **{name: compute_interval(values) for name, values in rows.items()}}


def compute_interval(values: list[float]) -> dict[str, float]:
    """The median, and the order statistics that hold it with 95 %."""
    ordered, count = sorted(values), len(values)
    rank, tail = 0, 0.0
    while tail + comb(count, rank) / 2**count <= 0.025:
        tail += comb(count, rank) / 2**count
        rank += 1
    low = max(rank - 1, 0)
    return {"median_us": statistics.median(values), "low_us": ordered[low], "high_us": ordered[count - 1 - low]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for others in ({}, {"MEMORY": True, "LR": True, "GRADIENTS": True}):
        flags: dict[str, Any] = dict(others)
        host.install_context(host.NullContext(flags))
        words = f"{len(others)} other flags on"
        for name, (_, call) in CALLS.items():
            found[f"{name}, loop, {words}"] = measure_paired(time_bare_loop, call, args.rounds, args.calls)
        training = Training()
        training(do_nothing, 50)
        found[f"null_masking, training, {words}"] = measure_paired(
            training, call_null_masking, args.rounds, args.calls // 100
        )
    for name, (flag, call) in CALLS.items():
        host.install_context(host.NullContext({flag: True}))
        found[f"{name}, on"] = {"none_us": statistics.median(time_bare_loop(call, 50) for _ in range(9))}
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, row in found.items():
        text = f"{name:45} {row['none_us']:9.3f} us"
        for kind in ("again", "off"):
            if kind in row:
                low, high = row[kind]["low_us"], row[kind]["high_us"]
                text += f"   {kind} {row[kind]['median_us']:+7.3f} us [{low:+.3f}, {high:+.3f}]"
        print(text)


if __name__ == "__main__":
    main()
