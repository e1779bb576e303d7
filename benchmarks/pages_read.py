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
from filter_logs import Run, run_command, run_in_child
from startup import bootstrap_interval, build_tdbg_command

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


def get_layer_path(number: int) -> str:
    """The layer of a tensor."""
    return f"layers.{number // 3}.{('attn', 'mlp', 'norm')[number % 3]}:output"


def count_elements(mb: int, dtype: str) -> int:
    """Values of one tensor."""
    return mb * MB // (DATAPOINTS * TENSORS) // (4 if dtype == "float32" else 2)


def make_arrays(key: int, count: int) -> list:
    """The tensors of a datapoint: noise in other places of one table, which is quicker than noise anew."""
    import numpy

    table = numpy.random.default_rng(0).standard_normal(count + TENSORS * 64).astype("f4")
    return [table[64 * number : 64 * number + count] + numpy.float32(key / 100) for number in range(TENSORS)]


def write_ours(folder: Path, mb: int, dtype: str) -> None:
    """A folder of pages."""
    from tdbg.pages.format.page_writer import Item, PageWriter

    count = count_elements(mb, dtype)
    with PageWriter(folder) as writer:
        for key in range(DATAPOINTS):
            items = []
            for number, array in enumerate(make_arrays(key, count)):
                data = array if dtype == "float32" else (array.view("u4") >> 16).astype("u2")
                items.append(Item(get_layer_path(number), dtype, (count,), data.tobytes()))
            writer.add(key, items, step=key, scalars={"loss": key / 10})


def split_into_pages(mb: int) -> list[range]:
    """The datapoints of each page of another format: 100 MB of them."""
    each = max(100 * DATAPOINTS // mb, 1)
    return [range(start, min(start + each, DATAPOINTS)) for start in range(0, DATAPOINTS, each)]


def write_safetensors(folder: Path, mb: int) -> None:
    """Plain safetensors files."""
    from safetensors.numpy import save_file

    folder.mkdir()
    for number, keys in enumerate(split_into_pages(mb)):
        found = {(key, at): a for key in keys for at, a in enumerate(make_arrays(key, count_elements(mb, "float32")))}
        save_file(
            {f"{key}/{get_layer_path(at)}": array for (key, at), array in found.items()}, folder / f"{number:04d}"
        )


def write_joblib(folder: Path, mb: int) -> None:
    """Pages as pickles: a dict of dicts each."""
    import joblib

    folder.mkdir()
    for number, keys in enumerate(split_into_pages(mb)):
        found = {key: make_arrays(key, count_elements(mb, "float32")) for key in keys}
        joblib.dump(
            {key: {get_layer_path(at): a for at, a in enumerate(row)} for key, row in found.items()},
            folder / f"{number:04d}",
        )


def write_h5py(file: Path, mb: int) -> None:
    """One HDF5 file."""
    import h5py

    with h5py.File(file, "w") as found:
        for key in range(DATAPOINTS):
            for number, array in enumerate(make_arrays(key, count_elements(mb, "float32"))):
                found[f"{key}/{get_layer_path(number)}"] = array


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


def build_quick_rows(folder: Path, others: list[str]) -> list[Row]:
    """What a person waits for."""
    ours, path = str(folder / "float32"), get_layer_path(61)

    def build_show_command(key: int) -> list[str]:
        return build_tdbg_command("inspect-pages", "show", ours, f"{key}/{path}")

    def make_other_command(name: str) -> Callable[[int], list[str]]:
        return lambda key: [sys.executable, "-c", f"{ONE[name]}{FIGURES}", str(folder / name), f"{key}/{path}"]

    found = [
        Row("show KEY/PATH", build_show_command, 100, 60),
        Row("show KEY/PATH, A/A", build_show_command),
        Row("show KEY/PATH --slice 0:64", lambda key: [*build_show_command(key), "--slice", "0:64"], 100, 60),
        Row("show KEY (120 tensors)", lambda key: build_tdbg_command("inspect-pages", "show", ours, str(key))),
        Row("ls", lambda key: build_tdbg_command("inspect-pages", "ls", ours), 150, 60),
        Row("ls --datapoints", lambda key: build_tdbg_command("inspect-pages", "ls", ours, "--datapoints"), 150, 60),
        Row(
            "find, scalars alone",
            lambda key: build_tdbg_command("inspect-pages", "find", ours, f"scalar.loss > {key / 10}"),
        ),
    ]
    return found + [Row(f"one tensor by {name}", make_other_command(name)) for name in others]


def build_stream_rows(folder: Path, others: list[str]) -> list[Row]:
    """What goes over all bytes."""

    def make_own_command(*words: str, dtype: str = "float32") -> Callable[[int], list[str]]:
        return lambda key: build_tdbg_command("inspect-pages", words[0], str(folder / dtype), *words[1:])

    def make_other_command(name: str) -> Callable[[int], list[str]]:
        code = ALL[name].replace("FIGURES", FIGURES)
        return lambda key: [sys.executable, "-c", code, str(folder / name)]

    found = [
        Row("stats, float32", make_own_command("stats"), None, 250, 0.5),
        Row("stats, float32, A/A", make_own_command("stats")),
        Row("stats, bfloat16", make_own_command("stats", dtype="bfloat16"), None, 250, 0.5),
        Row("stats --group-by loss, float32", make_own_command("stats", "--group-by", "loss")),
        Row("find 'absmax > 0', float32", make_own_command("find", "absmax > 0")),
    ]
    return found + [Row(f"four figures by numpy and {name}", make_other_command(name)) for name in others]


def measure_rows(rows: list[Row], rounds: int, out: Path) -> list[float]:
    """All rows round by round; the first round warms the page cache and is left out. The times of the bare Python."""
    bare: list[float] = []
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for number in range(rounds + 1):
        key = random.randrange(1, DATAPOINTS - 1)
        order: list[Row | None] = [None, *rows]
        for row in random.sample(order, len(order)):
            took = run_command(row.command(key) if row else BARE, out, one_thread)
            if number and row:
                row.runs.append(took)
            elif number:
                bare.append(took.wall)
    return bare


def print_report(rows: list[Row], bare: list[float], nbytes: int) -> bool:
    """Print a table; False if a target is missed."""
    good = True
    for row in rows:
        ratios = [took.wall / one for took, one in zip(row.runs, bare, strict=True)]
        low, high = bootstrap_interval(ratios)
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
            run_in_child(lambda dtype=dtype: write_ours(folder / dtype, options.mb, dtype))
        for name in others:
            run_in_child(lambda name=name: WRITERS[name](folder / name, options.mb))
        quick, streams = build_quick_rows(folder, others), build_stream_rows(folder, others)
        first = measure_rows(quick, options.rounds, out)
        second = measure_rows(streams, options.stream_rounds, out)
    absent = ", ".join(sorted(WRITERS.keys() - set(others)))
    print(
        f"# Python {platform.python_version()}, {os.cpu_count()} CPUs, {options.mb} MB in {DATAPOINTS * TENSORS} tensors, "
        f"{options.rounds} and {options.stream_rounds} rounds{f'; not installed: {absent}' if absent else ''}"
    )
    print(f"# python -c pass: {statistics.median(first) * 1000:.0f} ms")
    print("row\tms\tby python -c pass\t95 %\tRSS MB\tGB/s\ttarget\tmet")
    good = print_report(quick, first, 0)
    good &= print_report(streams, second, count_elements(options.mb, "float32") * 4 * DATAPOINTS * TENSORS)
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
