"""How long `tdbg trace` takes on a large trace, and what memory: whole processes, started cold.

    python benchmarks/traces.py [--mb N] [--rounds N] [--trace FILE] [--dir DIR] [--check]

The trace is one that torch.profiler writes here of a small transformer (``--trace``: any other one, packed or not),
again and again, each time later, as torch lays it out, until the file has so many MB. It is in the page cache.

Each row is a command; every round runs all of them once, in an order shuffled anew. A first look finds no index
beside the trace, the others do. The first row runs a second time as an A/A control. orjson reads the whole file into
dicts and adds up one figure: the least that any reader of that kind does. Printed are medians over the rounds and the
interval that holds the middle 95 % of the medians of resampled rounds. RSS is the largest of a process. ``--check``
exits 1 if a target is missed.
"""

import argparse
import gzip
import importlib.util
import os
import platform
import random
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from filter_logs import Run, run_command, run_in_child
from startup import bootstrap_interval, build_tdbg_command

from tdbg.traces.analyze.summary_cache import get_index_path

MB = 1_000_000
SECOND_LOOK_S = 0.3
MOST_MB = 500  # that orjson is given: it takes nine times as much memory
TIME = re.compile(rb'"ts": ?([0-9.]+)')
LAST = re.compile(rb"\}\s*\]")
STEP = re.compile(rb"ProfilerStep#\d+")
ORJSON = """
import collections, orjson, sys
sums = collections.Counter()
for event in orjson.loads(open(sys.argv[1], 'rb').read())['traceEvents']:
    sums[event.get('name')] += event.get('dur', 0)
print(len(sums))
"""


@dataclass
class Row:
    """One command; what is wanted of it, and what came out. first: it finds no index."""

    name: str
    command: list[str]
    first: bool = False
    goal_s: float | None = None
    goal_rss_mb: float | None = None
    runs: list[Run] = field(default_factory=list)


def record_trace(path: Path) -> None:
    """A trace of three steps of a small transformer, with shapes."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(net.parameters())
    x_BLF = torch.randn(4, 16, 32)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(5):
            optimizer.zero_grad()
            net(x_BLF).square().mean().backward()
            optimizer.step()
            profiler.step()


def enlarge_trace(source: Path, path: Path, size: int) -> None:
    """Write the events of a trace again and again, each time later, until the file has ``size`` bytes."""
    data = source.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    begin = re.search(rb'"traceEvents":\s*\[', data)
    assert begin is not None, "no trace"
    end = max(found.start() for found in LAST.finditer(data)) + 1
    events = data[begin.end() : end]
    times = [float(one) for one in TIME.findall(events)]
    usual = statistics.median(times)
    times = [one for one in times if one > usual / 2]  # metadata stands at 0
    span = max(times) - min(times) + 100_000
    with path.open("wb") as file:
        file.write(data[: begin.end()])
        turn = 0
        while file.tell() < size:
            late = TIME.sub(lambda found: b'"ts": %.3f' % (float(found[1]) + turn * span), events)  # noqa: B023
            number = iter(range(1 << 30))
            late = STEP.sub(lambda _: b"ProfilerStep#%d" % (turn * 1000 + next(number) // 2), late)  # noqa: B023
            file.write(b"," + late if turn else late)
            turn += 1
        file.write(data[end:])


def build_rows(path: Path, size_mb: int) -> list[Row]:
    """What is run."""
    goal_s = size_mb / 100
    goal_rss_mb = 150.0 if size_mb <= 200 else 200.0
    show, advise = build_tdbg_command("trace", "show", str(path)), build_tdbg_command("trace", "advise", str(path))
    found = [
        Row("show, first look", show, True, goal_s, goal_rss_mb),
        Row("show, first look, A/A", show, True),
        Row("advise, first look", advise, True, goal_s, goal_rss_mb),
        Row("show, from the index", show, False, SECOND_LOOK_S, goal_rss_mb),
        Row("advise, from the index", advise, False, SECOND_LOOK_S, goal_rss_mb),
    ]
    if importlib.util.find_spec("orjson") is not None and size_mb <= MOST_MB:
        found.append(Row("orjson, dicts, one sum", [sys.executable, "-c", ORJSON, str(path)]))
    return found


def print_row(row: Row) -> bool:
    """Print a row; False if a target is missed."""
    walls, cpus = [one.wall for one in row.runs], [one.cpu for one in row.runs]
    wall, rss_mb = statistics.median(walls), max(one.rss_mb for one in row.runs)
    low, high = bootstrap_interval(walls)
    missed = (row.goal_s is not None and wall > row.goal_s) or (
        row.goal_rss_mb is not None and rss_mb > row.goal_rss_mb
    )
    goal = f"<= {row.goal_s:g} s, <= {row.goal_rss_mb:.0f} MB\t{'NO' if missed else 'yes'}" if row.goal_s else "-\t-"
    print(f"{row.name}\t{wall:.2f}\t{low:.2f}-{high:.2f}\t{statistics.median(cpus):.2f}\t{rss_mb:.0f}\t{goal}")
    return not missed


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="of the trace, unpacked")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trace", type=Path, help="what is repeated; as a default a trace is recorded here")
    parser.add_argument("--dir", help="where the trace is written; it is deleted")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        source, path = options.trace or Path(folder, "one.json"), Path(folder, "large.pt.trace.json")
        if options.trace is None:
            run_in_child(lambda: record_trace(source))
        run_in_child(lambda: enlarge_trace(source, path, options.mb * MB))
        print(
            f"# Python {platform.python_version()}, {os.cpu_count()} CPUs, {path.stat().st_size / MB:.0f} MB of"
            f" {options.trace.name if options.trace else 'a trace that was recorded here'}, {options.rounds} rounds"
        )
        found = build_rows(path, options.mb)
        kept = Path(folder, "index")
        run_command(found[0].command, Path(folder, "out"))
        get_index_path(path).rename(kept)
        for _ in range(options.rounds):
            for row in random.sample(found, len(found)):
                get_index_path(path).unlink(missing_ok=True)
                if not row.first:
                    get_index_path(path).write_bytes(kept.read_bytes())
                row.runs.append(run_command(row.command, Path(folder, "out")))
    print("row\ts\t95 %\tCPU s\tRSS MB\ttarget\tmet")
    met = [print_row(row) for row in found]
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
