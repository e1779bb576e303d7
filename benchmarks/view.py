"""Time what `tdbg view` answers about a large run, and how much memory the server takes.

python benchmarks/view.py [--steps N] [--ranks N] [--log-mb N] [--pages-mb N] [--metric-rows N] [--trace-mb N] [--rounds N] [--tensorboard] [--check]
python benchmarks/view.py --live [--rounds N]

The run is made up: so many step records and rows of metrics over all ranks, so much log, so many captured tensors, a saved batch and a trace
of so many MB on rank 0; a small run stands beside it, for the comparison. The trace is asked for first, and again until it is read,
in turns with the overview; then each address is asked in turn, in shuffled order. ``--check`` exits with 1 if 95 % of the answers take more than 200 ms, one more than 1 s (the overview, whose
text is the first paint), or the server more than 200 MB.

``--live`` trains with the same seeds, in turns with a viewer that asks as fast as it is answered and without one, prints the
CPU seconds of each training, and exits with 1 if the final weights differ in a bit.
"""

import argparse
import contextlib
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil

from tdbg.core import events
from tdbg.core.events import End, Start, Step
from tdbg.core.rundir import RunDir, rank_folder
from tdbg.pages.format.page_writer import Item, PageWriter

LIMIT_MS, SLOWEST_MS, LIMIT_MB = 200.0, 1_000.0, 200.0
POINT_KEY, SHAPE, LAYERS = 7, (64, 128, 128), 4
TENSOR_MB = math.prod(SHAPE) * 4 / 1e6
BATCH_FILE = "rank0000/batch_step00000777.safetensors"
ADDRESS_WIDTH = 76
TRACE_STEPS, SMALL_STEPS = 5, 1_000
METRIC_KEYS = [f"train/metric{number}" for number in range(6)]
TENSORBOARD_TAGS = ("loss", "lr", "grad_norm")
PATIENCE_S = 600.0
ADDRESSES = (
    "/runs",
    "/runs/big/status",
    "/runs/big/overview",
    "/runs/big/report",
    "/runs/big/logs",
    "/runs/big/logs?text=step%20777",
    "/runs/big/logs?level=ERROR",
    "/runs/big/pages",
    "/runs/big/pages?datapoints=true",
    f"/runs/big/pages/datapoint?key={POINT_KEY}",
    f"/runs/big/pages/picture?key={POINT_KEY}&path=layers.0:output",
    "/runs/big/pages/datapoints",
    "/runs/big/pages/datapoints?sort=loss&descending=true",
    "/runs/big/pages/datapoints?module=layers.3&steps=5:",
    f"/runs/big/pages/series?key={POINT_KEY}",
    f"/runs/big/pages/difference?key={POINT_KEY}&path=layers.0:output&other_key={POINT_KEY - 1}",
    "/runs/big/batches",
    f"/runs/big/pages/datapoint?batch={BATCH_FILE}",
    f"/runs/big/pages/picture?batch={BATCH_FILE}&path=batch.0",
    "/runs/big/traces",
    "/runs/big/traces/page",
    "/runs/big/traces/flame?by=operator",
    "/runs/big/traces/spans?rank=0",
    "/runs/big/traces/spans?rank=0&from_ms=100&to_ms=400",
    "/runs/big/traces/spans?rank=0&from_ms=300&to_ms=302",
    "/compare?first=big&second=small",
    "/runs/big/steps",
    "/runs/big/steps?from=7000&to=7300&ranks=0&points=300",
    "/runs/big/ranks",
    "/runs/big/findings",
    "/runs/big/flags",
    "/runs/big/logs/counts",
    "/runs/big/metrics",
    f"/runs/big/metrics/curves?keys={quote(json.dumps(METRIC_KEYS))}",
)


def make_run(folder: Path, steps: int, ranks: int, log_mb: int, name: str = "big") -> Path:
    """A run of so many step records in all, each rank with its part; it ended well."""
    run, _ = RunDir.create(folder / name, {"command": ["python", "train.py"], "start": time.time()})
    each = steps // ranks
    for rank in range(ranks):
        path = rank_folder(run.path, rank)
        path.mkdir()
        begun = time.time() - each
        template = events.encode(
            Step(
                t=begun, step=7, loss=2.5, micro=1, lr=[0.001], grad_norm=1.5, finite=True, step_ms=12.0, forward_ms=3.0
            )
        ).decode()
        with open(path / "events.jsonl", "w", encoding="utf-8") as file:
            file.write(events.encode(Start(t=begun, host="h", pid=1, world_size=ranks)).decode())
            for step in range(1, each + 1):
                loss = 2.5 / (1 + step / each) + 0.01 * (step % 13)
                line = template.replace('"step":7', f'"step":{step}').replace('"loss":2.5', f'"loss":{loss:.5f}')
                file.write(line.replace(f'"t":{begun}', f'"t":{begun + step:.3f}'))
            file.write(events.encode(End(t=begun + each + 1, step=each, reason="exit")).decode())
    with open(rank_folder(run.path, 0) / "debug_log_rank0.txt", "w", encoding="utf-8") as file:
        block = "".join(
            f"2026-11-20T03:06:40.{number:06d} {'E' if number == 999 else 'D'} r0000 s{number:08d} [DEBUG_FORWARD] step {number} {'x' * 80}\n"
            for number in range(1_000)
        )
        for _ in range(log_mb * 1_000_000 // len(block)):
            file.write(block)
    run.update_info(end=time.time(), exit={"code": 0, "signal": None})
    return run.path.parent


def write_metrics(run: Path, rows: int, ranks: int) -> None:
    """Rows of six keys, spread over the ranks."""
    for rank in range(ranks):
        with open(rank_folder(run, rank) / "metrics.jsonl", "w", encoding="utf-8") as file:
            for step in range(1, rows // ranks + 1):
                values = {key: round(place + step % 7 / 10, 3) for place, key in enumerate(METRIC_KEYS)}
                row = {"t": 1.7e9 + step, "step": step, "rank": rank, "source": "train", "values": values}
                file.write(json.dumps(row) + "\n")


def write_pages(folder: Path, pages_mb: int) -> None:
    """Datapoints of four feature maps each, so many bytes in all."""
    layers = [
        Item(f"layers.{number}:output", "float32", SHAPE, bytes(math.prod(SHAPE) * 4)) for number in range(LAYERS)
    ]
    with PageWriter(folder) as writer:
        for key in range(max(int(pages_mb / LAYERS / TENSOR_MB), POINT_KEY + 1)):
            writer.add(key, layers, step=key, scalars={"loss": key / 10})


def write_batch(run: Path) -> None:
    """A batch as a rank saves it at a finding."""
    import torch
    from safetensors.torch import save_file

    save_file({"batch.0": torch.randn(256, 3, 64, 64), "batch.1": torch.arange(256)}, str(run / BATCH_FILE))


def write_trace(run: Path, trace_mb: int) -> None:
    """A trace of a few steps with as many operators as make so many MB."""
    folder = run / "rank0000" / "traces"
    folder.mkdir()
    template = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {"External id": 1}}
    each_us, count = 20.0, max(int(trace_mb * 1e6 / TRACE_STEPS / 130), 10)
    with open(folder / "rank0.1700000000000.pt.trace.json", "w", encoding="utf-8") as file:
        file.write('{"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [\n')
        for step in range(TRACE_STEPS):
            start = step * count * each_us
            spans = [("user_annotation", f"ProfilerStep#{step}", start, count * each_us - 1)]
            spans += [("cpu_op", f"aten::op{at % 40}", start + at * each_us, each_us - 2) for at in range(count)]
            for kind, name, ts, dur in spans:
                file.write(json.dumps({**template, "cat": kind, "name": name, "ts": ts, "dur": dur}) + ",\n")
        file.write('{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}\n]}\n')


class TensorBoard:
    """TensorBoard on the same scalars, a folder for each rank."""

    def __init__(self, folder: Path, steps: int, ranks: int) -> None:
        self.last_step, self.ranks = steps // ranks, ranks
        write_scalars(folder, self.last_step, ranks)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars"

    def ask_curve(self, rank: int) -> tuple[float, list[Any]]:
        """Milliseconds, and the points of the loss of a rank: none as long as it does not answer."""
        begun = time.perf_counter()
        try:
            points = json.loads(urlopen(f"{self.base}?tag=loss&run=rank{rank:04d}").read())
        except OSError:
            points = []
        return (time.perf_counter() - begun) * 1e3, points

    def wait_until_loaded(self) -> float:
        """Seconds until the last rank's curve reaches its last step."""
        while time.perf_counter() - self.begun < PATIENCE_S:
            _, points = self.ask_curve(self.ranks - 1)
            if points and points[-1][1] >= self.last_step:
                break
            time.sleep(0.1)
        return time.perf_counter() - self.begun

    def measure_mb(self) -> float:
        """Resident memory of it and of the server of data that it starts."""
        parent = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (parent, *parent.children(recursive=True))) / 1e6


def write_scalars(folder: Path, steps: int, ranks: int) -> None:
    """Loss, learning rate and norm of every step, as a training with a SummaryWriter leaves them."""
    from torch.utils.tensorboard import SummaryWriter

    for rank in range(ranks):
        with SummaryWriter(str(folder / f"rank{rank:04d}")) as writer:
            for step in range(1, steps + 1):
                for tag in TENSORBOARD_TAGS:
                    writer.add_scalar(tag, 2.5 / (1 + step / steps), step)


def measure_tensorboard(folder: Path, steps: int, ranks: int, rounds: int) -> str:
    """What stands beside tdbg's own figures."""
    board = TensorBoard(folder, steps, ranks)
    try:
        loaded_s = board.wait_until_loaded()
        times = [board.ask_curve(rank % ranks)[0] for rank in range(rounds)]
        used_mb = board.measure_mb()
    finally:
        board.process.terminate()
        board.process.wait()
    return f"TensorBoard on the same scalars: all loaded after {loaded_s:.1f} s; a curve {statistics.median(times):.1f} ms; {used_mb:.0f} MB"


class Server:
    """`tdbg view` over a folder, and a session with it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tdbg", "view", str(folder)]
        environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}  # no trace was read before
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
        )
        assert self.process.stdout is not None
        address, _, token = self.process.stdout.readline().strip().partition("#token=")
        self.base = f"{address.partition('/runs')[0]}/api/v1"
        body = json.dumps({"token": token}).encode()
        self.session = json.load(urlopen(Request(f"{self.base}/session", body)))["session"]

    def ask(self, path: str) -> tuple[float, Any]:
        """Milliseconds, and the answer."""
        begun = time.perf_counter()
        try:
            answer = urlopen(Request(self.base + path, headers={"Authorization": f"Bearer {self.session}"})).read()
        except HTTPError as error:
            raise SystemExit(f"{path}: {error.code} {error.read().decode()}") from None
        return (time.perf_counter() - begun) * 1e3, json.loads(answer)

    def wait_for_trace(self) -> tuple[float, list[float], float]:
        """Seconds until a trace is read that nobody has read before, milliseconds of the answers meanwhile, and MB of who reads."""
        begun, times, used_mb = time.perf_counter(), [], 0.0
        while True:
            took_ms, page = self.ask("/runs/big/traces/page")
            times.append(took_ms)
            if not page.get("reading"):
                return time.perf_counter() - begun, times, used_mb
            times.append(self.ask("/runs/big/overview")[0])
            for one in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if any("trace_indexes" in word for word in one.cmdline()):
                        used_mb = max(used_mb, one.memory_info().rss / 1e6)
            time.sleep(0.1)

    def measure_mb(self) -> float:
        """Resident memory of the server itself."""
        return psutil.Process(self.process.pid).memory_info().rss / 1e6


TRAINING = """
import hashlib, json, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
begun = time.process_time()
for _ in range(2000):
    loss = (model(torch.randn(256, 64)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
used = time.process_time() - begun
weights = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
print(json.dumps([hashlib.sha256(weights).hexdigest(), used]))
"""
WATCHED = ("overview", "status", "report", "logs", "metrics", "pages", "flags")


def train_once(folder: Path, *, is_viewed: bool) -> tuple[str, float, int]:
    """The digest of the final weights, the CPU seconds of the training, and the answers of the viewer meanwhile."""
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    command = [sys.executable, "-m", "tdbg", "run", "--run-dir", "run", "--", sys.executable, "train.py"]
    training = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    asked = 0
    if is_viewed:
        while not (folder / "run/rank0000/events.jsonl").exists() and training.poll() is None:
            time.sleep(0.05)
        server = Server(folder)
        while training.poll() is None:
            server.ask(f"/runs/run/{WATCHED[asked % len(WATCHED)]}")
            asked += 1
        server.process.terminate()
        server.process.wait()
    digest, used = json.loads(training.communicate()[0])
    return digest, used, asked


def compare_trainings(rounds: int) -> int:
    """Train in turns, viewed and not."""
    digests = set()
    for _ in range(rounds):
        for is_viewed in (False, True):
            with tempfile.TemporaryDirectory(prefix="tdbg-view-") as folder:
                digest, used, asked = train_once(Path(folder), is_viewed=is_viewed)
            digests.add(digest)
            print(
                f"{'viewed' if is_viewed else 'alone':<8} {used:6.2f} s of CPU, {asked} answers, weights {digest[:12]}"
            )
    print("the final weights are the same bit for bit" if len(digests) == 1 else "THE FINAL WEIGHTS DIFFER")
    return int(len(digests) > 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/view.py")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--log-mb", type=int, default=10_000)
    parser.add_argument("--pages-mb", type=int, default=2_000)
    parser.add_argument("--metric-rows", type=int, default=100_000)
    parser.add_argument("--trace-mb", type=int, default=100)
    parser.add_argument("--tensorboard", action="store_true", help="also time TensorBoard on the same scalars")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--live", action="store_true")
    args = parser.parse_args()
    if args.live:
        return compare_trainings(min(args.rounds, 3))
    drawn = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="tdbg-view-") as folder:
        runs = make_run(Path(folder), args.steps, args.ranks, args.log_mb)
        write_pages(rank_folder(runs / "big", 0) / "pages", args.pages_mb)
        write_metrics(runs / "big", args.metric_rows, args.ranks)
        write_batch(runs / "big")
        write_trace(runs / "big", args.trace_mb)
        make_run(Path(folder), SMALL_STEPS, 1, 0, "small")
        server = Server(runs)
        try:
            first_ms, _ = server.ask("/runs/big/overview")
            read_s, early, reader_mb = server.wait_for_trace()
            times: dict[str, list[float]] = {path: [] for path in ADDRESSES}
            for _ in range(args.rounds):
                for path in drawn.sample(ADDRESSES, len(ADDRESSES)):
                    times[path].append(server.ask(path)[0])
            used_mb = server.measure_mb()
        finally:
            server.process.terminate()
            server.process.wait()
    every = sorted([*early, *(value for values in times.values() for value in values)])
    late = every[int(0.95 * (len(every) - 1))]
    print(
        f"{args.steps:,} step records of {args.ranks} ranks, {args.log_mb:,} MB of log, {args.pages_mb:,} MB of pages, {args.metric_rows:,} rows of metrics, {args.trace_mb:,} MB of trace;"
        f" {args.rounds} rounds"
    )
    print(f"{'address':<{ADDRESS_WIDTH}} {'median ms':>10} {'most ms':>10}")
    for path, values in times.items():
        print(f"{path:<{ADDRESS_WIDTH}} {statistics.median(values):>10.1f} {max(values):>10.1f}")
    print(
        f"first overview {first_ms:.0f} ms; 95 % of {len(every)} answers within {late:.0f} ms; server {used_mb:.0f} MB"
    )
    print(
        f"trace read after {read_s:.1f} s, in {reader_mb:.0f} MB beside the server; {len(early)} answers meanwhile,"
        f" median {statistics.median(early):.0f} ms, most {max(early):.0f} ms"
    )
    if args.tensorboard:
        with tempfile.TemporaryDirectory(prefix="tdbg-view-") as folder:
            print(measure_tensorboard(Path(folder), args.steps, args.ranks, args.rounds))
    return int(args.check and (late > LIMIT_MS or first_ms > SLOWEST_MS or used_mb > LIMIT_MB))


if __name__ == "__main__":
    sys.exit(main())
