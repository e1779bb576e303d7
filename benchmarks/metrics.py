"""What a step's metrics cost, beside wandb.log and SummaryWriter; and how fast, in what memory, they are read.

    python benchmarks/metrics.py [--rounds 30] [--rows 1000000] [--many 10000000] [--no-write | --no-read]

Writing: each arm is a process that trains a small network on the CPU with one thread; after each step five scalars are
logged, and only that is timed. The arms take turns in chunks of steps, in an order that is shuffled each round, so that
threads of one do not take the interpreter from another; "nothing" stands there twice, so that the difference of the two is what this machine cannot tell. wandb is offline and real, as is TensorBoard's
writer by torch. The figure is the median over the rounds of the mean cost of a step, with the middle half of the rounds:
wall time, and the processor time of the calling thread, which a busy machine blurs less (what other threads and wandb's
own process do is not in it).

Reading: whole processes, in turn and shuffled: `tdbg metrics show` of a file of many rows, a plain loop over the same
file with `json`, and Python alone; then the peak memory of `show` with many more rows.
"""

import argparse
import multiprocessing
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

ARMS = (
    "nothing",
    "nothing again",
    "StepMetricsLogger, file each step",
    "StepMetricsLogger, file each 10th step",
    "tracker and StepMetricsLogger, each 10th step",
    "StepMetricsLogger, file and W&B each step",
    "wandb.log",
    "SummaryWriter.add_scalar",
)

Log = Callable[[int, Any, Any], object]


def make_values(step: int, loss: Any) -> dict[str, Any]:
    """Five scalars of a step; the loss is a tensor, as a program has it."""
    return {"loss": loss, "acc1": 0.5, "grad_norm": 1.0 + step % 7, "data_ms": 2.5, "step_ms": 10.0 + step % 3}


def make_log_function(name: str, folder: Path) -> Log:
    """One way to log, ready to be called with step, loss and rates."""
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    from tdbg.metrics.sinks.wandb_ import WandbSink
    from tdbg.metrics.step_logger.ops_schedule import OpsSchedule
    from tdbg.metrics.step_logger.step_metrics_logger import StepMetricsLogger
    from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

    if name.startswith("nothing"):
        return lambda step, loss, rates: None
    if name == "wandb.log":
        run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(silent=True))
        return lambda step, loss, rates: run.log(make_values(step, loss))
    if name == "SummaryWriter.add_scalar":
        writer = SummaryWriter(str(folder))
        return lambda step, loss, rates: [
            writer.add_scalar(f"train/{key}", value, step) for key, value in make_values(step, loss).items()
        ]
    every = 10 if "10th" in name else 1
    schedule = OpsSchedule(total_steps=1_000_000, wandb=every, console=0, lr=every)
    sinks = [WandbSink(mode="offline", dir=str(folder))] if "W&B" in name else []
    logger = StepMetricsLogger(MetricsTracker(), schedule, sinks=sinks, folder=folder, rank=0)

    def log_step(step: int, loss: Any, rates: Any) -> None:
        if "tracker" in name:
            logger.tracker.update_train_batch(make_values(step, loss), 8, epoch=0, step=step)
        logger.log_step_metrics(make_values(step, loss), step=step, epoch=0, samples=8, lr=rates)

    return log_step


def run_arm(name: str, folder: Path, turns: Any) -> None:
    """The process of an arm: at each turn a chunk of steps; tells wall time and thread time of a step, in us."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 64), torch.randint(0, 10, (8,))
    log, step = make_log_function(name, folder), 0
    turns.send(None)
    while turns.recv():
        wall = worked = 0.0
        for _ in range(CHUNK):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            begun, before = time.perf_counter(), time.thread_time()
            log(step, loss, optimizer)
            worked += time.thread_time() - before
            wall += time.perf_counter() - begun
        turns.send((wall / CHUNK * 1e6, worked / CHUNK * 1e6))


def measure_writing(rounds: int) -> None:
    """The table of writing."""
    context = multiprocessing.get_context("spawn")
    chance = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="tdbg-metrics-", ignore_cleanup_errors=True) as folder:
        turns, children = {}, []
        for number, name in enumerate(ARMS):
            place = Path(folder, str(number))
            place.mkdir()
            turns[name], other = context.Pipe()
            children.append(context.Process(target=run_arm, args=(name, place, other), daemon=True))
            children[-1].start()
            turns[name].recv()
        walls: dict[str, list[float]] = {name: [] for name in ARMS}
        works: dict[str, list[float]] = {name: [] for name in ARMS}
        for number in range(rounds + WARM):
            for name in chance.sample(ARMS, len(ARMS)):
                turns[name].send(True)
                wall, worked = turns[name].recv()
                if number >= WARM:
                    walls[name].append(wall)
                    works[name].append(worked)
        for name, child in zip(ARMS, children, strict=True):
            turns[name].send(False)
            child.join(60)
        print(
            f"cost of a step's 5 scalars, us: median of {rounds} rounds of {CHUNK} steps (middle half), beyond nothing"
        )
        print(f"{'':48}{'wall':>10}{'':24}{'thread':>10}")
        for name in ARMS:
            print(
                f"{name:48}{_format_difference(walls[name], walls['nothing'])}{_format_difference(works[name], works['nothing'])}",
                flush=True,
            )


def _format_difference(found: list[float], nothing: list[float]) -> str:
    bare = statistics.median(nothing)
    low, middle, high = (value - bare for value in statistics.quantiles(found, n=4))
    return f"{middle:10.1f}   {f'({low:.1f} to {high:.1f})':21}"


def write_metrics_file(path: Path, rows: int) -> None:
    """A file as a StepMetricsLogger writes it: three values a row."""
    from tdbg.metrics.rows import row_codec
    from tdbg.metrics.rows.row import Header, Row

    with path.open("wb") as file:
        file.write(row_codec.encode_header(Header(run="bench", t=1e9, pid=1)))
        for step in range(1, rows + 1):
            values: Mapping[str, float] = {
                "train/loss": 2 / step**0.5 + 0.01 * (step * 7919 % 13),
                "lr/group0": 1e-3 * (1 - step / rows),
                "train/grad_norm": 1 + (step * 104729 % 17) / 17,
            }
            file.write(row_codec.encode_row(Row(1e9 + step / 10, step, step // 1000, "train", 0, dict(values))))


def time_command(command: list[str]) -> tuple[float, float]:
    """Seconds and peak memory in MB of a process."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} ended with {child.returncode}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1000


def measure_reading(rows: int, many: int) -> None:
    """The table of reading."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="tdbg-metrics-") as folder:
        path = Path(folder, "metrics.jsonl")
        write_metrics_file(path, rows)
        show = [sys.executable, "-m", "tdbg", "metrics", "show", str(path)]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "tdbg metrics show": show,
            "tdbg metrics show, again": show,
            "a loop with json.loads": [sys.executable, "-c", PLAIN, str(path)],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(READS):
            order = list(commands)
            chance.shuffle(order)
            for name in order:
                found[name].append(time_command(commands[name]))
        print(f"\n{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB: whole process, median of {READS} (least to most)")
        for name, times in found.items():
            took = sorted(seconds for seconds, _ in times)
            peak = max(mb for _, mb in times)
            print(f"{name:48}{took[len(took) // 2]:8.2f} s   ({took[0]:.2f} to {took[-1]:.2f}), peak {peak:.0f} MB")
        if many:
            path.unlink()
            write_metrics_file(path, many)
            seconds, peak = time_command(show)
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
        measure_writing(asked.rounds)
    if not asked.no_read:
        measure_reading(asked.rows, asked.many)


if __name__ == "__main__":
    main()
