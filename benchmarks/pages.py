"""What capturing tensors costs a training loop, and how fast pages are written; paired, shuffled, drain counted.

    python benchmarks/pages.py [--rounds N] [--steps N] [--dir DIR] [--check]

Loop: 120 layers put out 16 KB each, steps of some milliseconds, one thread. Each round runs blocks of steps in an order
shuffled anew: bare, bare again (A/A), hooks that do nothing beside a thread that writes as many bytes (what nothing
that hooks and writes goes below), tdbg's hooks, memory and writer, and the common design (joblib.dump of cloned outputs
in a thread). Passes are captured as often as gives the data rate asked for. A block's time includes waiting for
the disk at its end. A ratio is a block's time by the bare block's of the same round; p99 is that of its steps.

Write: the same bytes by the page writer and by a plain ``writev``; reported is the writer's rate by the plain one's.

Memory: how far the process grows while every pass is captured as fast as it can, twice the ring in all.

Printed are medians over the rounds and the interval that holds the middle 95 % of the medians of resampled rounds; a
ratio within the control's interval means nothing. ``--check`` exits 1 if a target is missed.
"""

import argparse
import os
import platform
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from intervals import bootstrap_interval

from tdbg.debuggers.pool import RING_BYTES, Pool
from tdbg.debuggers.recording_thread import Pass, Recording
from tdbg.debuggers.tap import Tap, Target
from tdbg.pages.format.layout import Spec
from tdbg.pages.format.page_writer import Item, PageWriter

LAYERS, WIDTH, BATCH = 120, 64, 64  # an output of BATCH x WIDTH float32 has 16 KB
MB = 1_000_000
LOOP, P99, WRITE, ABOVE_RING_MB = 1.05, 1.5, 0.8, 50


class Loop:
    """The training loop, and who looks at it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-4)
        self.x_BF = torch.randn(BATCH, WIDTH)
        self.pass_bytes = LAYERS * BATCH * WIDTH * 4

    def step(self, forward_ended: Callable[[], None] | None = None) -> None:
        """One step."""
        self.optimizer.zero_grad()
        output_BF = self.net(self.x_BF)
        if forward_ended is not None:
            forward_ended()
        output_BF.square().mean().backward()
        self.optimizer.step()


class Bare:
    """Nobody looks."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self.loop = loop

    def step(self, number: int, wanted: bool) -> None:
        """One step; ``wanted``: it is one to capture."""
        self.loop.step()

    def close(self) -> None:
        """Wait for all that was captured to be written."""


class Ours(Bare):
    """tdbg."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        super().__init__(loop, folder)
        self.pool = Pool()
        self.tap = Tap(self.pool, self._raise_failure)
        self.recording = Recording(lambda: PageWriter(folder), self.pool)
        self.number = 0
        self.targets = [Target(str(i), weakref.ref(layer), ("output",)) for i, layer in enumerate(loop.net)]

    def _raise_failure(self, error: Exception) -> None:
        raise error

    def step(self, number: int, wanted: bool) -> None:
        if not wanted:
            self.loop.step()
            return
        self.tap.begin_pass(self.targets)
        self.number = number
        self.loop.step(self._on_forward_end)

    def _on_forward_end(self) -> None:
        """As `Capture` does, where no gradients are to come."""
        copied = self.tap.end_pass()
        assert copied is not None
        self.recording.submit_job(Pass(copied, self.pool, self.number, {"step": self.number}))

    def close(self) -> None:
        self.recording.close()


class Common(Bare):
    """Clones at the hook, and joblib in a thread."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        import joblib

        super().__init__(loop, folder)
        self.folder, self.dump = folder, joblib.dump
        self.kept: dict[str, Tensor] = {}
        self.jobs: queue.Queue[tuple[int, dict[str, Tensor]] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._dump_jobs)
        self.thread.start()

    def _dump_jobs(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.dump({job[0]: job[1]}, self.folder / f"page_{job[0]}.pkl")

    def step(self, number: int, wanted: bool) -> None:
        if not wanted:
            self.loop.step()
            return
        handles = [layer.register_forward_hook(self._make_hook(str(i))) for i, layer in enumerate(self.loop.net)]
        self.loop.step()
        for handle in handles:
            handle.remove()
        self.jobs.put((number, self.kept))
        self.kept = {}

    def _make_hook(self, name: str) -> Callable[..., None]:
        def keep_output(module: nn.Module, args: Any, output: Tensor) -> None:
            self.kept[name] = output.detach().clone()

        return keep_output

    def close(self) -> None:
        self.jobs.put(None)
        self.thread.join()


class Least(Bare):
    """The least that hooks and a file cost: hooks that do nothing, and as many bytes by a plain thread, never copied."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        super().__init__(loop, folder)
        self.data = os.urandom(loop.pass_bytes)
        self.file = (folder / "plain").open("wb", buffering=0)
        self.jobs: queue.Queue[bool] = queue.Queue()
        self.thread = threading.Thread(target=self._write_jobs)
        self.thread.start()

    def _write_jobs(self) -> None:
        while self.jobs.get():
            self.file.write(self.data)

    def step(self, number: int, wanted: bool) -> None:
        if not wanted:
            self.loop.step()
            return
        handles = [layer.register_forward_hook(self._do_nothing) for layer in self.loop.net]
        self.loop.step(lambda: self.jobs.put(True))
        for handle in handles:
            handle.remove()

    @staticmethod
    def _do_nothing(module: nn.Module, args: Any, output: Tensor) -> None:
        return None

    def close(self) -> None:
        self.jobs.put(False)
        self.thread.join()
        self.file.close()


KINDS: dict[str, type[Bare]] = {
    "bare": Bare,
    "bare again (A/A)": Bare,
    "empty hooks, plain thread": Least,
    "tdbg": Ours,
    "joblib in a thread": Common,
}


def measure_block(kind: type[Bare], loop: Loop, steps: int, share: float, place: Path) -> tuple[float, float]:
    """Seconds a step, the wait for the disk included, and the 99th percentile of the steps; a share of them captured."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        watcher = kind(loop, Path(folder))
        took = []
        begun = time.perf_counter()
        for number in range(steps):
            at = time.perf_counter()
            watcher.step(number, int((number + 1) * share) > int(number * share))
            took.append(time.perf_counter() - at)
        watcher.close()
        whole = time.perf_counter() - begun
    return whole / steps, statistics.quantiles(took, n=100)[98]


def measure_loops(rounds: int, steps: int, rate_mb: float, place: Path) -> bool:
    """The table of the loop; False if a target is missed."""
    loop = Loop()
    for _ in range(30):
        loop.step()
    usual, _ = measure_block(Bare, loop, steps, 1, place)
    share = min(rate_mb * usual / (loop.pass_bytes / MB), 1.0)
    print(
        f"# a step {usual * 1e3:.2f} ms; {share:.0%} of the passes, of {loop.pass_bytes / MB:.2f} MB, captured:"
        f" {share * loop.pass_bytes / MB / usual:.0f} MB/s"
    )
    means: dict[str, list[float]] = {name: [] for name in KINDS}
    tails: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(rounds):
        found = {
            name: measure_block(KINDS[name], loop, steps, share, place)
            for name in random.sample(list(KINDS), len(KINDS))
        }
        for name, (mean, tail) in found.items():
            means[name].append(mean / found["bare"][0])
            tails[name].append(tail / found["bare"][1])
    print("loop\tstep ratio\t95 %\tp99 ratio\t95 %\ttarget\tmet")
    good = True
    for name in KINDS:
        mean, tail = statistics.median(means[name]), statistics.median(tails[name])
        met = name != "tdbg" or (mean <= LOOP and tail <= P99)
        good &= met
        (low, high), (low_tail, high_tail) = bootstrap_interval(means[name]), bootstrap_interval(tails[name])
        goal = f"<= {LOOP}, p99 <= {P99}\t{'yes' if met else 'NO'}" if name == "tdbg" else "-\t-"
        print(f"{name}\t{mean:.3f}\t{low:.3f}-{high:.3f}\t{tail:.2f}\t{low_tail:.2f}-{high_tail:.2f}\t{goal}")
    return good


def write_flat(folder: Path, data: bytearray, items: int, times: int) -> None:
    """Datapoints that lie in one buffer as the page will have them: as the hooks hand them over."""
    size = len(data) // items
    with PageWriter(folder) as writer:
        layout = writer.plan_layout([Spec(str(i), "uint8", (size,)) for i in range(items)])
        for number in range(times):
            writer.add_flat(number, layout, data)


def write_ours(folder: Path, data: bytearray, items: int, times: int) -> None:
    """Datapoints of ``items`` tensors out of one buffer."""
    size = len(data) // items
    with PageWriter(folder) as writer:
        view = memoryview(data)
        found = [Item(str(i), "uint8", (size,), view[i * size : (i + 1) * size]) for i in range(items)]
        for number in range(times):
            writer.add(number, found)


def write_plain(folder: Path, data: bytearray, items: int, times: int) -> None:
    """The same bytes."""
    size = len(data) // items
    view = memoryview(data)
    pieces = [view[i * size : (i + 1) * size] for i in range(items)]
    handle = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT)
    for _ in range(times):
        left = len(data) - os.writev(handle, pieces)
        assert left == 0
    os.close(handle)


def measure_writes(rounds: int, place: Path) -> bool:
    """The table of writing; False if the target is missed."""
    data, items, times = bytearray(os.urandom(120 * 16384)), 120, 160
    kinds = {
        "plain": write_plain,
        "plain again (A/A)": write_plain,
        "tdbg": write_flat,
        "tdbg, tensor by tensor": write_ours,
    }
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        took = {}
        for name in random.sample(list(kinds), len(kinds)):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                begun = time.perf_counter()
                kinds[name](Path(folder), data, items, times)
                took[name] = time.perf_counter() - begun
        for name in kinds:
            ratios[name].append(took["plain"] / took[name])
    print(f"# {len(data) * times / MB:.0f} MB in datapoints of {items} tensors of 16 KB")
    print("write\trate by plain writev\t95 %\ttarget\tmet")
    good = min(statistics.median(ratios[name]) for name in kinds if name.startswith("tdbg")) >= WRITE
    for name in kinds:
        low, high = bootstrap_interval(ratios[name])
        met = "yes" if statistics.median(ratios[name]) >= WRITE else "NO"
        goal = f">= {WRITE}\t{met}" if name.startswith("tdbg") else "-\t-"
        print(f"{name}\t{statistics.median(ratios[name]):.2f}\t{low:.2f}-{high:.2f}\t{goal}")
    return good


def measure_memory(place: Path) -> bool:
    """How far the process grows while every pass is captured, twice the ring's bytes in all; False if too far."""
    status = Path("/proc/self/status")
    if not status.exists():
        print("# memory is not measured here")
        return True
    loop = Loop()
    loop.step()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        watcher = Ours(loop, Path(folder))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
        before = _read_status_kb(status, "VmRSS")
        for number in range(2 * RING_BYTES // loop.pass_bytes):
            watcher.step(number, True)
        watcher.close()
        grown_mb = (_read_status_kb(status, "VmHWM") - before) * 1024 / MB
    limit_mb = RING_BYTES / MB + ABOVE_RING_MB
    met = grown_mb <= limit_mb
    print(f"memory\t+{grown_mb:.0f} MB\ttarget <= {limit_mb:.0f} MB\t{'yes' if met else 'NO'}")
    return met


def _read_status_kb(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=100.0, help="MB of tensors captured a second")
    parser.add_argument("--dir", help="where to write; what is written is deleted")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"# Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} CPUs, {options.rounds} rounds"
    )
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        good = measure_loops(options.rounds, options.steps, options.rate, Path(place))
        good &= measure_writes(options.rounds, Path(place))
        good &= measure_memory(Path(place))
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
