"""What a step's metrics cost, beside wandb.log and SummaryWriter; and how fast, in what memory, they are read.

    python benchmarks/metrics.py [--rounds 30] [--rows 1000000] [--many 10000000] [--no-write | --no-read]

Writing: one process trains a small network on the CPU with one thread; after each step five scalars are logged, and only
that is timed. The arms take turns in chunks of steps, in an order that is shuffled each round; "nothing" stands there
twice, so that the difference of the two is what this machine cannot tell. wandb is offline and real, as is TensorBoard's
writer by torch. The figure is the median over the rounds of the mean cost of a step, with the middle half of the rounds.

Reading: whole processes, in turn and shuffled: `tdbg metrics show` of a file of many rows, a plain loop over the same
file with `json`, and Python alone; then the peak memory of `show` with many more rows.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CHUNK = 100  # steps of an arm at a time
WARM = 3  # rounds that are not counted
READS = 7
PLAIN = """
import json, sys
least, last = {}, {}
for line in open(sys.argv[1]):
    row = json.loads(line)
    for key, value in row.get("values", {}).items():
        last[key] = value
        if value < least.get(key, 1e308): least[key] = value
print(least, last)
"""

Log = Callable[[int, Any, Any], object]


def values_of(step: int, loss: Any) -> dict[str, Any]:
    """Five scalars of a step; the loss is a tensor, as a program has it."""
    return {"loss": loss, "acc1": 0.5, "grad_norm": 1.0 + step % 7, "data_ms": 2.5, "step_ms": 10.0 + step % 3}


def arms(folder: Path, optimizer: Any) -> dict[str, Log]:
    """Every way to log, ready to be called with step, loss and rates."""
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    from tdbg.metrics.logger import StepMetricsLogger
    from tdbg.metrics.schedule import OpsSchedule
    from tdbg.metrics.sinks.wandb_ import WandbSink
    from tdbg.metrics.tracker import MetricsTracker

    def logger(name: str, every: int, *sinks: Any) -> StepMetricsLogger:
        schedule = OpsSchedule(total_steps=1_000_000, wandb=every, console=0, lr=every)
        return StepMetricsLogger(MetricsTracker(), schedule, sinks=sinks, folder=folder / name, rank=0)

    each, tenth = logger("each", 1), logger("tenth", 10)
    full = logger("full", 10)
    run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(silent=True))
    ours = logger("wandb", 1, WandbSink(mode="offline", dir=str(folder), reinit="create_new"))
    writer = SummaryWriter(str(folder / "tensorboard"))

    def whole_path(step: int, loss: Any, rates: Any) -> None:
        full.tracker.update_train_batch(values_of(step, loss), 8, epoch=0, step=step)
        full.log_step_metrics(values_of(step, loss), step=step, epoch=0, samples=8, lr=rates)

    def tensorboard(step: int, loss: Any, rates: Any) -> None:
        for name, value in values_of(step, loss).items():
            writer.add_scalar(f"train/{name}", value, step)

    def takes(log: StepMetricsLogger) -> Log:
        return lambda step, loss, rates: log.log_step_metrics(
            values_of(step, loss), step=step, epoch=0, samples=8, lr=rates
        )

    return {
        "nothing": lambda step, loss, rates: None,
        "nothing again": lambda step, loss, rates: None,
        "StepMetricsLogger, file each step": takes(each),
        "StepMetricsLogger, file each 10th step": takes(tenth),
        "tracker and StepMetricsLogger, each 10th step": whole_path,
        "StepMetricsLogger, file and W&B each step": takes(ours),
        "wandb.log": lambda step, loss, rates: run.log(values_of(step, loss)),
        "SummaryWriter.add_scalar": tensorboard,
    }


def write(rounds: int) -> None:
    """The table of writing."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 64), torch.randint(0, 10, (8,))
    chance = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="tdbg-metrics-", ignore_cleanup_errors=True) as name:
        those = arms(Path(name), optimizer)
        costs: dict[str, list[float]] = {arm: [] for arm in those}
        steps = dict.fromkeys(those, 0)
        for number in range(rounds + WARM):
            order = list(those)
            chance.shuffle(order)
            for arm in order:
                log, total = those[arm], 0.0
                for _ in range(CHUNK):
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    steps[arm] += 1
                    begun = time.perf_counter()
                    log(steps[arm], loss, optimizer)
                    total += time.perf_counter() - begun
                if number >= WARM:
                    costs[arm].append(total / CHUNK * 1e6)
        print(
            f"cost of a step's 5 scalars, us: median of {rounds} rounds of {CHUNK} steps (middle half), beyond nothing"
        )
        bare = statistics.median(costs["nothing"])
        for arm, found in costs.items():
            low, middle, high = (value - bare for value in statistics.quantiles(found, n=4))
            print(f"{arm:48}{middle:10.1f}   ({low:.1f} to {high:.1f})", flush=True)


def fill(path: Path, rows: int) -> None:
    """A file as a StepMetricsLogger writes it: three values a row."""
    from tdbg.metrics import wire
    from tdbg.metrics.rows import Header, Row

    with path.open("wb") as file:
        file.write(wire.encode_header(Header(run="bench", t=1e9, pid=1)))
        for step in range(1, rows + 1):
            values: Mapping[str, float] = {
                "train/loss": 2 / step**0.5 + 0.01 * (step * 7919 % 13),
                "lr/group0": 1e-3 * (1 - step / rows),
                "train/grad_norm": 1 + (step * 104729 % 17) / 17,
            }
            file.write(wire.encode(Row(1e9 + step / 10, step, step // 1000, "train", 0, dict(values))))


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds and peak memory in MB of a process."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} ended with {child.returncode}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1000


def read(rows: int, many: int) -> None:
    """The table of reading."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="tdbg-metrics-") as name:
        path = Path(name, "metrics.jsonl")
        fill(path, rows)
        show = [sys.executable, "-m", "tdbg", "metrics", "show", str(path)]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "tdbg metrics show": show,
            "tdbg metrics show, again": show,
            "a loop with json.loads": [sys.executable, "-c", PLAIN, str(path)],
        }
        found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in commands}
        for _ in range(READS):
            order = list(commands)
            chance.shuffle(order)
            for arm in order:
                found[arm].append(timed(commands[arm]))
        print(f"\n{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB: whole process, median of {READS} (least to most)")
        for arm, times in found.items():
            took = sorted(seconds for seconds, _ in times)
            peak = max(mb for _, mb in times)
            print(f"{arm:48}{took[len(took) // 2]:8.2f} s   ({took[0]:.2f} to {took[-1]:.2f}), peak {peak:.0f} MB")
        if many:
            path.unlink()
            fill(path, many)
            seconds, peak = timed(show)
            print(f"{f'tdbg metrics show of {many:,} rows':48}{seconds:8.2f} s, peak {peak:.0f} MB")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--many", type=int, default=10_000_000)
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--no-read", action="store_true")
    asked = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", WANDB_SILENT="true")
    if not asked.no_write:
        write(asked.rounds)
    if not asked.no_read:
        read(asked.rows, asked.many)


if __name__ == "__main__":
    main()
