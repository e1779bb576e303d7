"""How long it takes to look at captured tensors, and what memory: whole processes, started cold.

    python benchmarks/pages_read.py [--mb N] [--rounds N] [--dir DIR] [--check]

A set of 12,000 tensors in 100 datapoints is written once by tdbg's own writer; the same tensors as plain safetensors
files of a page each, and as pickles by joblib and as HDF5 where these are installed. Everything is in the page cache.

The process rows run each command once a round, in an order shuffled anew, on a datapoint drawn anew; ``python -c pass``
runs beside them, and the first row runs a second time as an A/A control. A ratio is the median, over the rounds, of a
command's wall time by the bare interpreter's of the same round; its interval holds the middle 95 % of the medians of
resampled rounds. The other formats are read by the least script that prints the figures of one tensor: safetensors is
told no page and opens one after the other, as its files have no index over all; joblib likewise loads page after page.

The rows of `stats` stream all bytes in one process on one thread; GB/s is that of the whole process. Their lines of the
other formats do the least: mean, standard deviation, minimum and maximum by numpy. RSS is the largest of a process,
without the page cache. ``--check`` exits 1 if a target is missed.
"""

import argparse
import importlib.util
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from filter_logs import Run, apart, run
from startup import interval, tdbg

MB = 1_000_000
DATAPOINTS, TENSORS = 100, 120
BARE = [sys.executable, "-c", "pass"]
FIGURES = "a = a.astype('f8'); print(a.mean(), a.std(), a.min(), a.max())"


@dataclass
class Row:
    """One command line, made for a datapoint; what is wanted of it, and what came out."""

    name: str
    command: Callable[[int], list[str]]
    goal_ms: float | None = None
    goal_rss_mb: float | None = None
    goal_gb_s: float | None = None
    runs: list[Run] = field(default_factory=list)


def path_of(number: int) -> str:
    """The layer of a tensor."""
    return f"layers.{number // 3}.{('attn', 'mlp', 'norm')[number % 3]}:output"


def elements(mb: int, dtype: str) -> int:
    """Values of one tensor."""
    return mb * MB // (DATAPOINTS * TENSORS) // (4 if dtype == "float32" else 2)


def arrays(key: int, count: int) -> list:
    """The tensors of a datapoint: noise in other places of one table, which is quicker than noise anew."""
    import numpy

    table = numpy.random.default_rng(0).standard_normal(count + TENSORS * 64).astype("f4")
    return [table[64 * number : 64 * number + count] + numpy.float32(key / 100) for number in range(TENSORS)]


def write_ours(folder: Path, mb: int, dtype: str) -> None:
    """A folder of pages."""
    from tdbg.pages.format.page_writer import Item, PageWriter

    count = elements(mb, dtype)
    with PageWriter(folder) as writer:
        for key in range(DATAPOINTS):
            items = []
            for number, array in enumerate(arrays(key, count)):
                data = array if dtype == "float32" else (array.view("u4") >> 16).astype("u2")
                items.append(Item(path_of(number), dtype, (count,), data.tobytes()))
            writer.add(key, items, step=key, scalars={"loss": key / 10})


def pages(mb: int) -> list[range]:
    """The datapoints of each page of another format: 100 MB of them."""
    each = max(100 * DATAPOINTS // mb, 1)
    return [range(start, min(start + each, DATAPOINTS)) for start in range(0, DATAPOINTS, each)]


def write_safetensors(folder: Path, mb: int) -> None:
    """Plain safetensors files."""
    from safetensors.numpy import save_file

    folder.mkdir()
    for number, keys in enumerate(pages(mb)):
        found = {(key, at): a for key in keys for at, a in enumerate(arrays(key, elements(mb, "float32")))}
        save_file({f"{key}/{path_of(at)}": array for (key, at), array in found.items()}, folder / f"{number:04d}")


def write_joblib(folder: Path, mb: int) -> None:
    """Pages as pickles: a dict of dicts each."""
    import joblib

    folder.mkdir()
    for number, keys in enumerate(pages(mb)):
        found = {key: arrays(key, elements(mb, "float32")) for key in keys}
        joblib.dump(
            {key: {path_of(at): a for at, a in enumerate(row)} for key, row in found.items()}, folder / f"{number:04d}"
        )


def write_h5py(file: Path, mb: int) -> None:
    """One HDF5 file."""
    import h5py

    with h5py.File(file, "w") as found:
        for key in range(DATAPOINTS):
            for number, array in enumerate(arrays(key, elements(mb, "float32"))):
                found[f"{key}/{path_of(number)}"] = array


ONE = {
    "safetensors": """
import os, sys
from safetensors import safe_open
for name in sorted(os.listdir(sys.argv[1])):
    with safe_open(os.path.join(sys.argv[1], name), "np") as page:
        if sys.argv[2] in page.keys():
            a = page.get_tensor(sys.argv[2])
""",
    "joblib": """
import os, sys, joblib
key, _, path = sys.argv[2].partition("/")
for name in sorted(os.listdir(sys.argv[1])):
    page = joblib.load(os.path.join(sys.argv[1], name))
    if int(key) in page:
        a = page[int(key)][path]
""",
    "h5py": """
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    a = file[sys.argv[2]][:]
""",
}
ALL = {
    "safetensors": """
import os, sys
from safetensors import safe_open
for name in sorted(os.listdir(sys.argv[1])):
    with safe_open(os.path.join(sys.argv[1], name), "np") as page:
        for key in page.keys():
            a = page.get_tensor(key)
            FIGURES
""",
    "joblib": """
import os, sys, joblib
for name in sorted(os.listdir(sys.argv[1])):
    for row in joblib.load(os.path.join(sys.argv[1], name)).values():
        for a in row.values():
            FIGURES
""",
    "h5py": """
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    for row in file.values():
        for one in row.values():
            a = one[:]
            FIGURES
""",
}
WRITERS = {"safetensors": write_safetensors, "joblib": write_joblib, "h5py": write_h5py}


def quick_rows(folder: Path, others: list[str]) -> list[Row]:
    """What a person waits for."""
    ours, path = str(folder / "float32"), path_of(61)

    def show(key: int) -> list[str]:
        return tdbg("inspect-pages", "show", ours, f"{key}/{path}")

    def other(name: str) -> Callable[[int], list[str]]:
        return lambda key: [sys.executable, "-c", f"{ONE[name]}{FIGURES}", str(folder / name), f"{key}/{path}"]

    found = [
        Row("show KEY/PATH", show, 100, 60),
        Row("show KEY/PATH, A/A", show),
        Row("show KEY/PATH --slice 0:64", lambda key: [*show(key), "--slice", "0:64"], 100, 60),
        Row("show KEY (120 tensors)", lambda key: tdbg("inspect-pages", "show", ours, str(key))),
        Row("ls", lambda key: tdbg("inspect-pages", "ls", ours), 150, 60),
        Row("ls --datapoints", lambda key: tdbg("inspect-pages", "ls", ours, "--datapoints"), 150, 60),
        Row("find, scalars alone", lambda key: tdbg("inspect-pages", "find", ours, f"scalar.loss > {key / 10}")),
    ]
    return found + [Row(f"one tensor by {name}", other(name)) for name in others]


def stream_rows(folder: Path, others: list[str]) -> list[Row]:
    """What goes over all bytes."""

    def ours(*words: str, dtype: str = "float32") -> Callable[[int], list[str]]:
        return lambda key: tdbg("inspect-pages", words[0], str(folder / dtype), *words[1:])

    def other(name: str) -> Callable[[int], list[str]]:
        code = ALL[name].replace("FIGURES", FIGURES)
        return lambda key: [sys.executable, "-c", code, str(folder / name)]

    found = [
        Row("stats, float32", ours("stats"), None, 250, 0.5),
        Row("stats, float32, A/A", ours("stats")),
        Row("stats, bfloat16", ours("stats", dtype="bfloat16"), None, 250, 0.5),
        Row("stats --group-by loss, float32", ours("stats", "--group-by", "loss")),
        Row("find 'absmax > 0', float32", ours("find", "absmax > 0")),
    ]
    return found + [Row(f"four figures by numpy and {name}", other(name)) for name in others]


def measure(rows: list[Row], rounds: int, out: Path) -> list[float]:
    """All rows round by round; the first round warms the page cache and is left out. The times of the bare Python."""
    bare: list[float] = []
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for number in range(rounds + 1):
        key = random.randrange(1, DATAPOINTS - 1)
        order: list[Row | None] = [None, *rows]
        for row in random.sample(order, len(order)):
            took = run(row.command(key) if row else BARE, out, one_thread)
            if number and row:
                row.runs.append(took)
            elif number:
                bare.append(took.wall)
    return bare


def report(rows: list[Row], bare: list[float], nbytes: int) -> bool:
    """Print a table; False if a target is missed."""
    good = True
    for row in rows:
        ratios = [took.wall / one for took, one in zip(row.runs, bare, strict=True)]
        low, high = interval(ratios)
        wall, rss = statistics.median(took.wall for took in row.runs), max(took.rss_mb for took in row.runs)
        rate = nbytes / wall / 1e9
        goals = [(row.goal_ms, wall * 1000, "ms"), (row.goal_rss_mb, rss, "MB")]
        missed = [unit for goal, value, unit in goals if goal is not None and value > goal]
        missed += ["GB/s"] if row.goal_gb_s is not None and rate < row.goal_gb_s else []
        words = [f"<= {goal:g} {unit}" for goal, _, unit in goals if goal is not None]
        words += [f">= {row.goal_gb_s:g} GB/s"] if row.goal_gb_s is not None else []
        met = f"NO: {', '.join(missed)}" if missed else "yes" if words else "-"
        good &= not missed
        speed = f"{rate:.2f}" if nbytes else "-"
        print(
            f"{row.name}\t{wall * 1000:.0f}\t{statistics.median(ratios):.2f}\t{low:.2f}-{high:.2f}"
            f"\t{rss:.0f}\t{speed}\t{', '.join(words) or '-'}\t{met}"
        )
    return good


def main() -> int:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=2000, help="size of a set")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--stream-rounds", type=int, default=3)
    parser.add_argument("--dir", help="where to put the sets; they are deleted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    random.seed(options.seed)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    others = [name for name in WRITERS if importlib.util.find_spec(name)]
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        folder, out = Path(place), Path(place) / "out"
        for dtype in ("float32", "bfloat16"):
            apart(lambda dtype=dtype: write_ours(folder / dtype, options.mb, dtype))
        for name in others:
            apart(lambda name=name: WRITERS[name](folder / name, options.mb))
        quick, streams = quick_rows(folder, others), stream_rows(folder, others)
        first = measure(quick, options.rounds, out)
        second = measure(streams, options.stream_rounds, out)
    absent = ", ".join(sorted(WRITERS.keys() - set(others)))
    print(
        f"# Python {platform.python_version()}, {os.cpu_count()} CPUs, {options.mb} MB in {DATAPOINTS * TENSORS} tensors, "
        f"{options.rounds} and {options.stream_rounds} rounds{f'; not installed: {absent}' if absent else ''}"
    )
    print(f"# python -c pass: {statistics.median(first) * 1000:.0f} ms")
    print("row\tms\tby python -c pass\t95 %\tRSS MB\tGB/s\ttarget\tmet")
    good = report(quick, first, 0)
    good &= report(streams, second, elements(options.mb, "float32") * 4 * DATAPOINTS * TENSORS)
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
