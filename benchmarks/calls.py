"""What tdbg costs programs of short calls, and what it says it costs: whole programs with and without it.

    python benchmarks/calls.py [--rounds N] [--seconds S] [--shapes train-0.05,infer-0.05,mixed] [--allowance S] [--check]

Each round runs every program three times, without tdbg (twice, as an A/A control) and under ``tdbg run`` with its
default options, in an order shuffled anew, with one thread. What counts is the process's CPU time inside the loop.
The opening inspection has an allowance in seconds, whatever the length of a run; so the share is measured without it
(``--allowance 0``), and with another allowance the ratio holds for loops of that length alone. A virtual machine's core may run at half its speed for seconds, so the time of each 10 ms
is divided by that of 1 ms of plain operations beside it, which tdbg has no part in. A ratio is that of the same round; printed are the median over the rounds, the
interval that holds the middle 95 % of the medians of resampled rounds, the ratio of the fastest runs (what is left of
a machine's noise there is least), and beside it the share that tdbg printed.

Shapes: ``train-MS`` updates after every call of the model, which takes some MS milliseconds; ``infer-MS`` only calls
it, without gradients; ``mixed`` is 512 calls without gradients, then 80 updates, over and over.
Measured is what tdbg took in the loop as a share of the time since torch was imported, which is what the printed share
is of: the loop alone is the shorter the fewer the seconds.
``--check`` exits 1 where the ratio is above 1.02 (and the noise of the control), or where the printed share is
neither within 0.5 percentage points nor within a factor of 1.3 of the measured one (and that noise).
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from intervals import bootstrap_interval

LIMIT = 1.02
CHUNK_S = 0.01  # CPU time from one reference to the next
CLOSE_PCT, CLOSE_FACTOR = 0.5, 1.3
SHAPES = ("train-0.05", "train-0.5", "train-5", "infer-0.05", "infer-0.5", "infer-5", "mixed")
# glibc gives a freed block of 128 KiB or more back to the system until a larger one was freed once, which makes its pages
# anew at each call: whether a run has had such a one, with tdbg or without, is worth up to 17 % where activations are
# of 1 MB. Here it keeps them all.
KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
# Width and rows of a model that takes so many milliseconds on one slow core; the loop measures the rest.
SIZES = {"0.05": (64, 1), "0.5": (256, 64), "5": (512, 512)}


def run_program(shape: str, repeats: int) -> dict[str, float]:
    """The program itself, which knows nothing of tdbg: CPU seconds of its loop, and how many references that is."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    kind, _, length = shape.partition("-")
    width, rows = SIZES[length or "0.05"]
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)

    def infer_batches(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                model(torch.randn(rows, 4))

    def train_steps(count: int, rows: int) -> None:
        for _ in range(count):
            loss = (model(torch.randn(rows, 4)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    held, weights = torch.ones(8, 64), torch.full((64, 64), 0.01)

    def time_reference() -> float:
        begun = time.thread_time()  # of this thread alone: a tool's threads may be at work
        for _ in range(100):
            torch.addmm(held, held, weights).tanh().sum()
        return time.thread_time() - begun

    time_reference()
    cpu_s = relative = 0.0
    before_s = time_reference()
    begun = time.process_time()
    for _ in range(repeats):
        took_s = time.process_time() - begun
        if took_s > CHUNK_S:
            after_s = time_reference()
            cpu_s += took_s
            relative += took_s / ((before_s + after_s) / 2)
            before_s = after_s
            begun = time.process_time()
        if kind == "mixed":
            infer_batches(512)
            train_steps(80, 64)
        elif kind == "infer":
            infer_batches(16)
        else:
            train_steps(16, rows)
    took_s = time.process_time() - begun
    return {"cpu_s": cpu_s + took_s, "relative": relative + took_s / ((before_s + time_reference()) / 2)}


class Run(NamedTuple):
    """One run: CPU time of its loop in references and in seconds; what tdbg printed as its share, of which wall time."""

    relative: float
    cpu_s: float
    printed_pct: float = 0.0
    wall_s: float = 0.0


def measure_run(shape: str, repeats: int, *, watched: bool, options: list[str]) -> Run:
    """Run the program once, with or without tdbg."""
    with tempfile.TemporaryDirectory(prefix="tdbg-calls-") as folder:
        words = [sys.executable, __file__, "--program", shape, "--repeats", str(repeats)]
        if watched:
            words = [
                sys.executable,
                "-m",
                "tdbg",
                "run",
                "--quiet",
                "--run-dir",
                f"{folder}/run",
                *options,
                "--",
                *words,
            ]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TDBG_")}
        env.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", **KEPT_MEMORY)
        done = subprocess.run(words, check=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        found = json.loads(done.stdout)
        if not watched:
            return Run(found["relative"], found["cpu_s"])
        cost = json.loads(Path(folder, "run", "report.json").read_text(encoding="utf-8"))["cost"]
        own_ms, wall_ms = cost["worst"]["own_ms"], cost["worst"]["wall_ms"]
        printed_pct = 100 * own_ms / wall_ms  # with the opening inspection, which the share of the report leaves out
        return Run(found["relative"], found["cpu_s"], printed_pct, wall_ms / 1000.0)


def is_honest(measured_pct: float, printed_pct: float, noise_pct: float) -> bool:
    """True if the printed share fits the measured one, as far as the control's noise lets anybody tell."""
    if abs(measured_pct - printed_pct) <= CLOSE_PCT + noise_pct:
        return True
    return measured_pct > 0 and 1 / CLOSE_FACTOR <= printed_pct / measured_pct <= CLOSE_FACTOR


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0, help="CPU time of a loop without tdbg")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--allowance", default="0", help="seconds that the opening inspection may take")
    parser.add_argument("--options", default="", help="options of tdbg run, separated by spaces")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the resampling")
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise is not kept")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        print(json.dumps(run_program(options.program, options.repeats)))
        return 0
    random.seed(options.seed)
    shapes, more = options.shapes.split(","), ["--allowance", options.allowance, *options.options.split()]
    repeats: dict[str, int] = {}
    found: dict[str, dict[str, list[float]]] = {}
    for shape in shapes:
        first = measure_run(shape, 10, watched=False, options=more)
        repeats[shape] = max(int(10 * options.seconds / first.cpu_s), 1)
        found[shape] = {"control": [], "ratio": [], "printed": [], "measured": [], "bare": [], "tdbg": []}
    for number in range(options.rounds):
        for shape in shapes:
            runs = {}
            for name in random.sample(["bare", "again", "tdbg"], 3):
                runs[name] = measure_run(shape, repeats[shape], watched=name == "tdbg", options=more)
            took = {name: run.relative for name, run in runs.items()}
            bare = (took["bare"] + took["again"]) / 2
            tdbg = runs["tdbg"]
            found[shape]["printed"].append(tdbg.printed_pct)
            found[shape]["measured"].append(100 * tdbg.cpu_s * (1 - bare / took["tdbg"]) / tdbg.wall_s)
            found[shape]["control"].append(took["again"] / took["bare"])
            found[shape]["ratio"].append(took["tdbg"] / bare)
            found[shape]["bare"] += took["bare"], took["again"]
            found[shape]["tdbg"].append(took["tdbg"])
            last = {name: values[-1] for name, values in found[shape].items()}
            print(f"round {number + 1} of {options.rounds}: {shape}: {json.dumps(last)}", file=sys.stderr, flush=True)
    lines, broken = [], []
    for shape in shapes:
        ratio, printed, measured_pct = (
            statistics.median(found[shape][name]) for name in ("ratio", "printed", "measured")
        )
        (low, high), (control_low, control_high) = (
            bootstrap_interval(found[shape]["ratio"]),
            bootstrap_interval(found[shape]["control"]),
        )
        noise = max(abs(control_low - 1.0), abs(control_high - 1.0)) / 2  # the ratio's base is the mean of the two
        fastest = min(found[shape]["tdbg"]) / min(found[shape]["bare"])
        lines.append(
            f"{shape:<11} {ratio:6.3f}  {low:.3f}-{high:.3f}    {fastest:.3f}  {control_low:.3f}-{control_high:.3f}"
            f"  {measured_pct:7.2f} %  {printed:6.2f} %  {printed - measured_pct:+6.2f}"
        )
        if ratio > LIMIT + noise:
            broken.append(f"{shape}: ratio {ratio:.3f}, allowed {LIMIT} and the noise {noise:.3f}")
        if not is_honest(measured_pct, printed, 100 * noise):
            broken.append(f"{shape}: printed {printed:.2f} %, measured {measured_pct:.2f} %")
    print(
        f"{options.rounds} rounds of some {options.seconds:g} s, process CPU time of the loop by that of plain operations"
    )
    print("shape        ratio  95 %         fastest  A/A          measured   printed  difference")
    print("\n".join(lines))
    print("\n".join(f"not kept: {line}" for line in broken) or "every promise is kept")
    return 1 if options.check and broken else 0


if __name__ == "__main__":
    sys.exit(main())
