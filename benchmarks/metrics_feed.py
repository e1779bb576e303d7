"""What the feed of metrics adds to a step record, measured inside one run, step by step.

    python benchmarks/metrics_feed.py [--steps N]

A small network trains under `tdbg run --max-overhead 100`, so that each step has its record. For each step it is drawn
anew whether the feed is on; "off" is drawn under two names, as an A/A control. Printed are tdbg's own times a step (the
budget's count), medians and quartiles, and what ``SummaryWriter.add_scalar`` takes with its tap and without. Nothing
else in the program differs between the steps, so other people's load falls on all alike.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

INSIDE = "TDBG_BENCH_INSIDE"
KINDS = ("on", "off", "off again (A/A)")


def train_program(steps: int) -> None:
    """The program: trains, and switches the feed."""
    import torch
    from torch import nn
    from torch.utils.tensorboard import SummaryWriter

    from tdbg.inject.agent import get_agent

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 64)
    own: dict[str, list[float]] = {kind: [] for kind in KINDS}
    tapped: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        for step in range(steps + 50):
            me = get_agent()
            kind = random.choice(KINDS)
            me.feed.is_off = kind != "on"
            before = me.monitor.budget.own_s
            loss = (model(x) - x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after = me.monitor.budget.own_s
            begun = time.perf_counter()
            writer.add_scalar("loss", 0.5, step)
            seconds = time.perf_counter() - begun
            if step >= 50:  # warm
                own[kind].append(after - before)
                tapped[kind].append(seconds)
        me.feed.is_off = False
    for what, found in (("tdbg's own time a step", own), ("add_scalar", tapped)):
        for kind in KINDS:
            low, middle, high = (1e6 * value for value in statistics.quantiles(found[kind], n=4))
            print(f"{what:24s} feed {kind:16s} median {middle:7.1f} us  quartiles {low:7.1f} {high:7.1f}")


def main() -> int:
    """Run the program under tdbg, and let it print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    if os.environ.get(INSIDE):
        train_program(args.steps)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "tdbg", "run", "--quiet", "--max-overhead", "100", "--run-dir", f"{folder}/run"]
        words = [*run, "--", sys.executable, os.path.abspath(__file__), "--steps", str(args.steps)]
        env = {**os.environ, INSIDE: "1", "OMP_NUM_THREADS": "1"}
        return subprocess.run(words, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
