"""What it costs a program that the numbers it prints and logs are read: the extra time of a line, in us.

    python benchmarks/printed.py [--rounds N] [--lines N] [--kinds print,loss,bar,logging] [--check]

One program under ``tdbg run``, a rank with its steps behind it, writes lines in blocks of four arms, in an order
shuffled anew each round: the streams and loggers as Python has them (twice, as an A/A control), with tdbg that keeps
records and reads no numbers, and with tdbg as it is by default. ``reading`` is the last less the one before, the median
over the rounds of process CPU time; beside it the interval that holds the middle 95 % of the medians of resampled rounds, the
difference of the fastest blocks (what is left of a machine's noise there is least), and what the control differs by. ``records`` is the third arm less the first: what it costs that a line is kept
(docs/records.md), which is no part of the promise. Lines are parsed at most every 0.2 s, and so seldom that it takes
less than a 500th of the time; ``alone`` is a line that comes after such a pause, and is parsed at once.
``--check`` exits 1 where reading takes more than 2 us a line and the noise of the control, by the median and the fastest.

Kinds: ``print`` lines without a number of interest, ``loss`` lines with ``loss=0.43``, ``bar`` a progress bar on stderr
that is redrawn with ``\\r``, ``logging`` records of a logger with a file.
"""

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from intervals import bootstrap_interval

LIMIT_US = 2.0
KINDS = ("print", "loss", "bar", "logging")
ARMS = ("bare", "again", "records", "reading")
PAUSED_LINES = 10


def build_writers(folder: Path) -> dict[str, Callable[[int], object]]:
    """What writes the line of a number, by kind."""
    log = logging.getLogger("printed")
    log.addHandler(logging.FileHandler(folder / "program.log"))
    log.propagate = False

    def redraw_bar(number: int) -> None:
        sys.stderr.write(f"\repoch 3:  41%|####      | {number}/9000 [00:41<00:59, 98.2it/s, loss=0.{number}]")

    return {
        "print": lambda number: print(f"loading shard {number} of the training set"),
        "loss": lambda number: print(f"step {number} loss=0.{number} val_acc: 0.{number} lr 1e-3"),
        "bar": redraw_bar,
        "logging": lambda number: log.warning("epoch %d: train_loss %.4f", number, number / 7),
    }


def build_switches() -> dict[str, Callable[[], None]]:
    """What puts the streams and loggers into the state of an arm."""
    from tdbg.inject import log_recorder

    records = log_recorder._records
    assert records is not None and records.text_reader is not None, "tdbg keeps no records here"
    reader, ours = records.text_reader, logging.Logger.callHandlers
    writes = {stream: stream.write for stream in (sys.stdout, sys.stderr)}

    def switch_off() -> None:
        for stream in writes:
            vars(stream).pop("write", None)
        logging.Logger.callHandlers = ours.__wrapped__  # type: ignore[attr-defined, method-assign]

    def switch_on(numbers: bool) -> None:
        for stream, write in writes.items():
            stream.write = write  # type: ignore[method-assign]
        logging.Logger.callHandlers = ours  # type: ignore[method-assign]
        records.text_reader = reader if numbers else None

    return {
        "bare": switch_off,
        "again": switch_off,
        "records": lambda: switch_on(False),
        "reading": lambda: switch_on(True),
    }


def time_lines(write: Callable[[int], object], lines: int) -> float:
    """CPU time of a line, in us."""
    begun = time.process_time()
    for number in range(1000, 1000 + lines):
        write(number)
    return (time.process_time() - begun) / lines * 1e6


def time_paused_lines(write: Callable[[int], object]) -> float:
    """CPU time of a line, in us, that comes after a pause; the median."""
    found = []
    for number in range(PAUSED_LINES):
        time.sleep(0.25)
        begun = time.thread_time()
        write(number)
        found.append((time.thread_time() - begun) * 1e6)
    return statistics.median(found)


def run_program(kinds: list[str], rounds: int, lines: int, seed: int, report: Path) -> None:
    """The program: a few steps of training, then the lines. Writes the times of each kind, arm and round."""
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    random.seed(seed)
    writers, switches = build_writers(report.parent), build_switches()
    times: dict[str, dict[str, list[float]]] = {kind: {arm: [] for arm in (*ARMS, "alone")} for kind in kinds}
    for number in range(rounds + 1):  # the first is a warm-up
        for kind in random.sample(kinds, len(kinds)):
            for arm in random.sample(ARMS, len(ARMS)):
                switches[arm]()
                took_us = time_lines(writers[kind], lines)
                if number:
                    times[kind][arm].append(took_us)
    for kind in kinds:
        for arm, sign in (("reading", 1), ("records", -1)):
            switches[arm]()
            times[kind]["alone"].append(sign * time_paused_lines(writers[kind]))
    switches["reading"]()
    report.write_text(json.dumps(times), encoding="utf-8")


def measure_lines(words: list[str]) -> dict[str, dict[str, list[float]]]:
    """Run the program under tdbg, its output in files."""
    with tempfile.TemporaryDirectory(prefix="tdbg-printed-") as name:
        report = Path(name, "times.json")
        run = ["-m", "tdbg", "run", "--quiet", "--run-dir", f"{name}/run", "--disk-budget", "20GB", "--"]
        program = [sys.executable, __file__, "--program", str(report), *words]
        env = {key: value for key, value in os.environ.items() if not key.startswith("TDBG_")}
        env.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
        with open(Path(name, "out.txt"), "w") as out, open(Path(name, "err.txt"), "w") as err:
            subprocess.run([sys.executable, *run, *program], check=True, env=env, stdout=out, stderr=err)
        times: dict[str, dict[str, list[float]]] = json.loads(report.read_text(encoding="utf-8"))
        return times


def list_differences(times: dict[str, list[float]], arm: str, other: str) -> list[float]:
    """By how much a line of one arm takes longer than one of the other, in each round."""
    return [one - two for one, two in zip(times[arm], times[other], strict=True)]


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--lines", type=int, default=10_000, help="of a block")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="of the order and the resampling")
    parser.add_argument("--check", action="store_true", help="exit 1 if reading takes more than 2 us a line")
    parser.add_argument("--program", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        run_program(options.kinds.split(","), options.rounds, options.lines, options.seed, options.program)
        return 0
    words = ["--rounds", str(options.rounds), "--lines", str(options.lines), "--kinds", options.kinds]
    found = measure_lines([*words, "--seed", str(options.seed)])
    random.seed(options.seed)
    broken = []
    print(f"{options.rounds} rounds of {options.lines:,} lines, process CPU time in us a line")
    print("kind       bare  records  reading  95 %            fastest  A/A             alone")
    for kind, times in found.items():
        reading = list_differences(times, "reading", "records")
        control = bootstrap_interval(list_differences(times, "again", "bare"))
        (low, high), middle, noise = bootstrap_interval(reading), statistics.median(reading), max(map(abs, control))
        records = statistics.median(list_differences(times, "records", "bare"))
        fastest = min(times["reading"]) - min(times["records"])
        print(
            f"{kind:<8} {statistics.median(times['bare']):6.2f}  {records:7.2f}  {middle:7.2f}  {low:5.2f} to {high:5.2f}"
            f"  {fastest:6.2f}  {control[0]:+5.2f} to {control[1]:+5.2f}  {sum(times['alone']):5.0f}"
        )
        if min(middle, fastest) > LIMIT_US + noise:
            broken.append(
                f"{kind}: {min(middle, fastest):.2f} us a line, allowed {LIMIT_US:g} and the noise {noise:.2f}"
            )
    print("\n".join(f"not kept: {line}" for line in broken) or "the promise is kept")
    return 1 if options.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
