"""How long `tdbg filter-logs` takes, in units of ripgrep at the same moment; what memory it needs; that its bytes agree.

    python benchmarks/filter_logs.py [--mb N | --small] [--rounds N] [--large GB] [--dir DIR] [--check]

Needs `pip install 'tdbg[bench]'` for ripgrep's binary (any `rg` on PATH will do, too). A directory of 8 ranks in rotated
parts is generated: tdbg's own header, one record in 64 with further lines (a tensor or a traceback), tags that make up
0.1, 1, 10 and 50 % of the records. Pieces of it repeat, and all of it is in the page cache.

A row runs tdbg, `rg -F -j2` and `rg` once more as an A/A control, each round in an order shuffled anew; the output goes
to a file in memory. A ratio is the median, over the rounds, of tdbg's wall time by rg's of the same round, start-up of
both included; its interval holds the middle 95 % of the medians of resampled rounds. rg prints lines, where tdbg prints
records, so that it does less in the rows named so. RSS is the largest of any one process. ``--check`` exits 1 if a target
is missed or any output differs.
"""

import argparse
import contextlib
import gzip
import hashlib
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from startup import bootstrap_interval, build_tdbg_command

RANKS, PART_BYTES, PIECE_BYTES = 8, 32 << 20, 4 << 20
MB = 1_000_000
FLAG_OF = {0.1: "NULL_MASKING", 1: "GRADIENTS", 10: "OPTIMIZER", 50: "FORWARD"}  # hit rate in % -> flag
REST = ("SCHEDULING", "MEMORY", "DATALOADER")
GOAL_RSS_MB = 32


@dataclass
class Row:
    """One comparison: what it is, both command lines, and what came out."""

    name: str
    ours: list[str]
    theirs: list[str]
    goal: float | None = None  # of the ratio
    floor: float | None = None
    env: dict[str, str] = field(default_factory=dict)
    runs: dict[str, list["Run"]] = field(default_factory=lambda: {"ours": [], "theirs": [], "again": []})

    def compute_ratios(self, one: str, kind: str) -> list[float]:
        """Of one command to rg, by rounds."""
        return [
            getattr(a, kind) / max(getattr(b, kind), 1e-6)
            for a, b in zip(self.runs[one], self.runs["theirs"], strict=True)
        ]


@dataclass(frozen=True)
class Run:
    """What one run of a command took."""

    wall: float
    cpu: float
    rss_mb: float


def make_record(number: int, rank: int, style: str, long: bool) -> str:
    """One record of a training log."""
    share = random.random() * 100
    below = 0.0
    name = random.choice(REST)
    for rate, flag in FLAG_OF.items():
        below += rate
        if share < below:
            name = flag
            break
    text = (
        f"layer {number % 48}: loss {random.random():.6f}, lr {random.random():.3e}, norm {random.random() * 9:.4f},"
        f" {random.randrange(1024)} of 1024 samples in {random.random() * 90:.2f} ms"
    )
    if long:
        body = ["Traceback (most recent call last):", '  File "train.py", line 12, in step', "    loss.backward()"]
        if random.random() < 0.5:
            body = ["tensor([[0.1250, -1.0312, nan],", "        [2.5000, 0.0000, 1.0000]], device='cuda:0')"]
        text += "".join(f"\n    {line}" for line in body)
    second = f"{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
    level = "WARNING" if number % 50 == 0 else "DEBUG"
    if style == "logging":
        return f"2026-11-20 {second},{number % 1000:03d} - train.model - {level} - [DEBUG_{name}] {text}\n"
    return f"2026-11-20T{second}.{number % 1000000:06d} {level[0]} r{rank:04d} s{number // 100:08d} [DEBUG_{name}] {text}\n"


def make_piece(rank: int, style: str, multi: bool) -> bytes:
    """Some megabytes of records."""
    random.seed(f"{rank} {style} {multi}")
    made: list[str] = []
    size = 0
    while size < PIECE_BYTES:
        made.append(make_record(len(made), rank, style, multi and len(made) % 64 == 63))
        size += len(made[-1])
    return "".join(made).encode()


def write_corpus(folder: Path, size: int, style: str = "tdbg", *, multi: bool = True) -> list[Path]:
    """The files of 8 ranks in rotated parts, in the order tdbg reads them."""
    run_in_child(lambda: _write_parts(folder, size, style, multi=multi))
    return sorted(
        folder.iterdir(), key=lambda path: (path.name.partition(".")[0], -int("0" + path.suffix[1:].strip("tx")))
    )


def _write_parts(folder: Path, size: int, style: str, *, multi: bool) -> None:
    folder.mkdir(parents=True)
    for rank in range(RANKS):
        data = make_piece(rank, style, multi)
        of_part = max(min(PART_BYTES, size // RANKS) // len(data), 1)
        parts = max(size // RANKS // (of_part * len(data)), 1)
        for part in reversed(range(parts)):
            path = folder / f"debug_log_rank{rank}.txt{f'.{part}' if part else ''}"
            with path.open("wb") as file:
                for _ in range(of_part):
                    file.write(data)


def run_in_child(work: Callable[[], object]) -> None:
    """Do it in a child: a program that is started from a large process counts its memory as its own."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the files could not be made")


def pack_files(files: list[Path], folder: Path) -> None:
    """The same files as .gz, as logrotate packs them."""
    folder.mkdir()
    for file in files:
        with file.open("rb") as source, gzip.open(folder / f"{file.name}.gz", "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)


def run_command(command: list[str], out: Path, env: dict[str, str] | None = None, stdin: Path | None = None) -> Run:
    """Run a command once; its output goes to a file."""
    with out.open("wb") as target, (stdin or Path(os.devnull)).open("rb") as source:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=source, stdout=target, stderr=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        assert child.stderr is not None
        said = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)[:300]}\nexit {child.returncode}: {said.decode()}")
    unit = 1024 if sys.platform == "linux" else 1
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * unit / MB)


def hash_file(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:12]


def build_rows(rg: str, lines: Path, records: Path, plain: Path, packed: Path, without: Path) -> list[Row]:
    """What is compared."""

    def build_row(name: str, folder: Path, rate: float, goal: float | None, floor: float | None, *more: str) -> Row:
        theirs = [rg, "-F", "-j2", "-I", "-N", "--no-config", *more, f"[DEBUG_{FLAG_OF[rate]}]", str(folder)]
        return Row(
            f"{name} {rate:g} %",
            build_tdbg_command("filter-logs", str(folder), "-f", FLAG_OF[rate]),
            theirs,
            goal,
            floor,
        )

    found = [build_row("lines", lines, rate, 2, 3) for rate in (0.1, 1)]
    found += [build_row("records", records, rate, 3, 4.5) for rate in FLAG_OF]
    found += [build_row("records of `logging`", plain, rate, None, None) for rate in (1, 50)]
    if shutil.which("gzip") is None:
        print("# no gzip program: ripgrep reads no .gz without it, so those rows are left out", file=sys.stderr)
        return found
    fast = build_row(".gz with isal", packed, 1, 1 / 5, 1 / 3, "-z")
    slow = build_row(".gz without isal", packed, 1, 1 / 2, 1 / 2, "-z")
    slow.env = {"PYTHONPATH": str(without)}
    with contextlib.suppress(ImportError):
        import isal  # noqa: F401 - only whether it is there

        found.append(fast)
    return [*found, slow]


def measure_rows(found: list[Row], rounds: int, out: Path) -> None:
    """All rows, round by round; the first round warms the page cache and is left out."""
    for number in range(rounds + 1):
        for row in random.sample(found, len(found)):
            lines = {"ours": row.ours, "theirs": row.theirs, "again": row.theirs}
            for one in random.sample(list(lines), len(lines)):
                took = run_command(lines[one], out, row.env)
                if number:
                    row.runs[one].append(took)


def compare_outputs(
    rg: str, lines: list[Path], packed: Path, unpacked: list[Path], out: Path
) -> Iterator[tuple[str, bool]]:
    """Whether the same records are the same bytes, however they are read; line by line, the same as ripgrep's."""
    flag = FLAG_OF[1]
    folder = str(lines[0].parent)
    run_command([rg, "-F", "-j1", "-I", "-N", "--no-config", f"[DEBUG_{flag}]", *map(str, lines)], out)
    expected = hash_file(out)
    for jobs in ("1", "2", "5"):
        run_command(build_tdbg_command("filter-logs", folder, "-f", flag, "--jobs", jobs), out)
        yield f"lines, --jobs {jobs}, and ripgrep", hash_file(out) == expected
    run_command(build_tdbg_command("filter-logs", str(unpacked[0].parent), "-f", flag), out)
    expected = hash_file(out)
    run_command(build_tdbg_command("filter-logs", str(packed), "-f", flag), out)
    yield "plain and .gz", hash_file(out) == expected
    whole = out.with_suffix(".whole")
    with whole.open("wb") as joined:
        for file in unpacked:
            with file.open("rb") as source:
                shutil.copyfileobj(source, joined)
    run_command(build_tdbg_command("filter-logs", "-", "-f", flag), out, stdin=whole)
    yield "plain and stdin", hash_file(out) == expected
    whole.unlink()


def measure_large_file(folder: Path, gigabytes: int, out: Path) -> float:
    """Peak memory in MB of any process that filters one large file."""
    path = folder / "large" / "debug_log_rank0.txt"
    path.parent.mkdir()
    size = gigabytes * 1000 * MB
    if shutil.disk_usage(folder).free < size * 1.2:
        raise SystemExit(f"{folder} has no room for {gigabytes} GB; name another place with --dir")

    def write_large_file() -> None:
        data = make_piece(0, "tdbg", True)
        with path.open("wb") as file:
            for _ in range(size // len(data)):
                file.write(data)

    try:
        run_in_child(write_large_file)
        return max(
            run_command(build_tdbg_command("filter-logs", str(path), "-f", FLAG_OF[rate]), out).rss_mb
            for rate in (1, 50)
        )
    finally:
        shutil.rmtree(path.parent)


def print_report(found: list[Row]) -> bool:
    """Print the table; False if a target is missed."""
    print("row\ttdbg s\trg s\twall tdbg/rg\t95 %\tA/A 95 %\tCPU tdbg/rg\ttdbg RSS MB\ttarget\tmet")
    good = True
    for row in found:
        ratio, (low, high) = (
            statistics.median(row.compute_ratios("ours", "wall")),
            bootstrap_interval(row.compute_ratios("ours", "wall")),
        )
        same = bootstrap_interval(row.compute_ratios("again", "wall"))
        cpu = statistics.median(row.compute_ratios("ours", "cpu"))
        rss = max(took.rss_mb for took in row.runs["ours"])
        ours, theirs = (statistics.median(took.wall for took in row.runs[one]) for one in ("ours", "theirs"))
        met = (row.goal is None or ratio <= row.goal) and rss <= GOAL_RSS_MB
        good &= met
        goal = "-" if row.goal is None else f"<= {row.goal:.3g}"
        word = "yes" if met else "floor" if row.floor and ratio <= row.floor and rss <= 2 * GOAL_RSS_MB else "NO"
        print(
            f"{row.name}\t{ours:.3f}\t{theirs:.3f}\t{ratio:.2f}\t{low:.2f}-{high:.2f}\t{same[0]:.2f}-{same[1]:.2f}"
            f"\t{cpu:.2f}\t{rss:.0f}\t{goal}\t{word}"
        )
    return good


def main() -> int:
    """Generate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000, help="size of a corpus")
    parser.add_argument("--small", action="store_true", help="128 MB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large", type=int, default=0, metavar="GB", help="also the memory on one file of this size")
    parser.add_argument("--dir", help="where to put the files; they are deleted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    beside = Path(sys.executable).with_name("rg")
    rg = str(beside) if beside.exists() else shutil.which("rg")
    if rg is None:
        print("ripgrep is not here: pip install 'tdbg[bench]', or have rg on PATH", file=sys.stderr)
        return 2
    size = (128 if options.small else options.mb) * MB
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=options.dir) as place, tempfile.TemporaryDirectory(dir=memory) as light:
        folder, out = Path(place), Path(light) / "out"
        lines = write_corpus(folder / "lines", size, multi=False)
        whole = write_corpus(folder / "records", size)
        write_corpus(folder / "logging", size, "logging")
        run_in_child(lambda: pack_files(whole, folder / "packed"))
        hidden = folder / "hidden" / "isal"
        hidden.mkdir(parents=True)
        (hidden / "__init__.py").write_text("raise ImportError('hidden by the benchmark')\n")
        found = build_rows(
            rg, folder / "lines", folder / "records", folder / "logging", folder / "packed", hidden.parent
        )
        random.seed(options.seed)
        same = list(compare_outputs(rg, lines, folder / "packed", whole, out))
        measure_rows(found, options.rounds, out)
        peak = measure_large_file(folder, options.large, out) if options.large else 0.0
    version = subprocess.run([rg, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    print(
        f"# Python {platform.python_version()}, {version}, {os.cpu_count()} CPUs, {size // MB} MB, {options.rounds} rounds"
    )
    good = print_report(found)
    for name, equal in same:
        print(f"{name}\t{'identical' if equal else 'DIFFERENT'}")
        good &= equal
    if options.large:
        print(
            f"peak RSS on {options.large} GB\t{peak:.0f} MB\t<= {GOAL_RSS_MB}\t{'yes' if peak <= GOAL_RSS_MB else 'NO'}"
        )
        good &= peak <= GOAL_RSS_MB
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
