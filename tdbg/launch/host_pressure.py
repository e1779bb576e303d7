"""What presses on this host while a run goes on: read seldom, by the supervisor, and kept in the run directory.

Every few seconds, and ever more seldom as the run gets longer, a line of JSON goes into ``pressure/HOST-PID.jsonl``: pressure
stall information, the CPU quota and how long it throttled, other processes' CPU time, memory, swap, I/O wait, frequency, and
of each rank the threads, and for how long its main thread was ready and had no CPU. Nothing is read in a rank. Where the
system has no /proc or /sys (macOS), nothing is written.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.host import host_name
from tdbg.core.rundir import PRESSURE, RunDir

LEAST_S = 2.0
REST = 200  # times the CPU time that a reading took, at least
SHARE = 1 / 60  # of the time since the start: two samples are that far apart
MOST_PROCESSES = 4096
MOST_RANKS = 64
MOST_CPUS = 16  # whose frequency is read
RESOURCES = ("cpu", "memory", "io")


class Reading(NamedTuple):
    """Counters of one moment, and what stands for itself."""

    t: float  # monotonic
    counters: dict[str, float]  # seconds, or MB
    processes: dict[int, tuple[int, float]]  # pid -> its parent, CPU seconds
    gauges: dict[str, float]


class HostSampler:
    """Writes the samples of one agent. root: where the file systems of the system are, for tests."""

    def __init__(self, run: RunDir, root: str = "/", pid: int = 0) -> None:
        self._path = run.path / PRESSURE / f"{host_name()}-{os.getpid()}.jsonl"
        self._system = System(Path(root))
        self._pid = pid or os.getpid()
        self._begun = self._due = time.monotonic()
        self._last: Reading | None = None
        self._cpu_waits_s: dict[int, float] = {}  # rank -> what `System.read_cpu_wait` said last

    def sample_if_due(self, ranks: Mapping[int, int]) -> None:
        """Write a sample if it is time. ranks: the process of each rank of this host."""
        now = time.monotonic()
        if not ranks or now < self._due:
            return
        cpu_s = time.thread_time()
        reading = self._system.read(now)
        self._due = now + max(LEAST_S, SHARE * (now - self._begun), REST * (time.thread_time() - cpu_s))
        last, self._last = self._last, reading
        threads = {rank: self._system.count_threads(pid) for rank, pid in list(ranks.items())[:MOST_RANKS]}
        living = {rank: count for rank, count in threads.items() if count}
        span_s = reading.t - last.t if last is not None else 0.0
        waits = self._read_cpu_waits({rank: ranks[rank] for rank in living}, span_s)
        if last is not None and reading.counters and living:
            rates = _compute_rates(last, reading, {self._pid, *ranks.values()})
            self._write({**rates, "threads": living, **({"cpu_waits": waits} if waits else {})})

    def _read_cpu_waits(self, ranks: Mapping[int, int], span_s: float) -> dict[int, float]:
        """The part of the time since the last sample in which the main thread of each rank waited for a CPU."""
        now = {rank: wait_s for rank, pid in ranks.items() if (wait_s := self._system.read_cpu_wait(pid)) is not None}
        last, self._cpu_waits_s = self._cpu_waits_s, now
        return {
            rank: round(min(max(wait_s - last[rank], 0.0) / span_s, 1.0), 3)
            for rank, wait_s in now.items()
            if rank in last and span_s > 0
        }

    def _write(self, sample: Mapping[str, object]) -> None:
        line = json.dumps({"t": round(time.time(), 3), **sample}, separators=(",", ":")) + "\n"
        with (
            contextlib.suppress(OSError),  # a full disk is told by others
            os.fdopen(run_files.open_append(self._path, makes=True), "ab") as file,
        ):
            file.write(line.encode())


def _compute_rates(last: Reading, now: Reading, own_pids: set[int]) -> dict[str, float]:
    """What the counters did in a second; of seconds, the share of the time."""
    span_s = max(now.t - last.t, 1e-3)
    rates = {
        name: round(max(value - last.counters[name], 0.0) / span_s, 4)
        for name, value in now.counters.items()
        if name in last.counters
    }
    if "throttled" in rates:
        rates["throttled"] = min(rates["throttled"], 1.0)  # the kernel adds it up over CPUs
    busy = rates.pop("busy", None)
    if busy is not None and now.processes:
        own = sum(
            max(cpu_s - last.processes.get(pid, (0, 0.0))[1], 0.0)
            for pid, (_, cpu_s) in now.processes.items()
            if _is_below(pid, own_pids, now.processes)
        )
        rates["others"] = round(max(busy - own / span_s, 0.0), 3)
    return {**rates, **now.gauges}


def _is_below(pid: int, tops: set[int], processes: Mapping[int, tuple[int, float]]) -> bool:
    """True if a process is one of these or a descendant of one."""
    for _ in range(64):
        if pid in tops:
            return True
        if pid not in processes:
            return False
        pid = processes[pid][0]
    return False


class System:
    """Reads /proc and /sys below a root. What is missing, or is not as expected, is left out."""

    def __init__(self, root: Path) -> None:
        self._proc, self._cgroups = root / "proc", root / "sys" / "fs" / "cgroup"
        self._cpus = root / "sys" / "devices" / "system" / "cpu"
        self._tick = float(os.sysconf("SC_CLK_TCK"))

    def read(self, now: float) -> Reading:
        """Everything once; a few milliseconds."""
        counters, gauges = dict(self._iter_stalls()), dict(self._iter_gauges())
        counters |= dict(self._iter_cpu_times()) | dict(self._iter_swapped())
        counters |= {name: value for name, value in self._iter_quota() if name == "throttled"}
        gauges |= {name: value for name, value in self._iter_quota() if name == "quota"}
        return Reading(now, counters, dict(self._iter_processes()), gauges)

    def count_threads(self, pid: int) -> int:
        """The threads of a process; 0 if it is gone."""
        for line in self._read_lines(self._proc / str(pid) / "status"):
            if line.startswith("Threads:"):
                return int(_to_number(line.split()[1]))
        return 0

    def read_cpu_wait(self, pid: int) -> float | None:
        """Seconds in which the main thread of a process was ready to run and had no CPU; None where it is not known."""
        words = "".join(self._read_lines(self._proc / str(pid) / "schedstat")[:1]).split()
        return _to_number(words[1]) / 1e9 if len(words) == 3 else None

    @staticmethod
    def _read_lines(path: Path) -> list[str]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(1 << 16).splitlines()
        except OSError:
            return []

    def _iter_stalls(self) -> Iterator[tuple[str, float]]:
        """Seconds in which some process waited for the CPU, for memory or for I/O."""
        for name in RESOURCES:
            for line in self._read_lines(self._proc / "pressure" / name):
                if line.startswith("some ") and "total=" in line:
                    yield f"{name}_stall", _to_number(line.rpartition("total=")[2]) / 1e6

    def _iter_cpu_times(self) -> Iterator[tuple[str, float]]:
        first = self._read_lines(self._proc / "stat")[:1]
        times = [_to_number(word) / self._tick for line in first for word in line.split()[1:9]]
        if len(times) == 8:
            user, nice, system, _, iowait, irq, soft_irq, steal = times
            yield from (("busy", user + nice + system + irq + soft_irq), ("iowait", iowait), ("steal", steal))

    def _iter_swapped(self) -> Iterator[tuple[str, float]]:
        for line in self._read_lines(self._proc / "vmstat"):
            if line.startswith("pswpin "):
                yield "swapped_in_mb", _to_number(line.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _iter_gauges(self) -> Iterator[tuple[str, float]]:
        names = {"MemTotal:": "memory_mb", "MemAvailable:": "available_mb", "SwapFree:": "swap_free_mb"}
        for line in self._read_lines(self._proc / "meminfo"):
            words = line.split()
            if words and words[0] in names and len(words) > 1:
                yield names[words[0]], round(_to_number(words[1]) / 1e3, 1)
        for words in (line.split() for line in self._read_lines(self._proc / "loadavg")):
            if len(words) > 3:
                yield from (("load", _to_number(words[0])), ("runnable", _to_number(words[3].partition("/")[0])))
        yield from self._iter_frequency()
        if hasattr(os, "sched_getaffinity"):
            yield from (("cpus", float(len(os.sched_getaffinity(0)))), ("host_cpus", float(os.cpu_count() or 1)))

    def _iter_frequency(self) -> Iterator[tuple[str, float]]:
        lines = [
            line
            for number in range(min(os.cpu_count() or 1, MOST_CPUS))
            for line in self._read_lines(self._cpus / f"cpu{number}" / "cpufreq" / "scaling_cur_freq")[:1]
        ]
        if lines:
            yield "ghz", round(sum(map(_to_number, lines)) / len(lines) / 1e6, 3)

    def _iter_quota(self) -> Iterator[tuple[str, float]]:
        """The CPUs that the control group of this process may use, and the seconds for which it was throttled."""
        for folder, is_v2 in self._iter_cgroups():
            stat = dict(line.split(maxsplit=1) for line in self._read_lines(folder / "cpu.stat") if " " in line)
            if is_v2:
                words = [word for line in self._read_lines(folder / "cpu.max")[:1] for word in line.split()]
                throttled_s = _to_number(stat.get("throttled_usec", "0")) / 1e6
            else:
                files = [folder / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
                words = [line for file in files for line in self._read_lines(file)[:1]]
                throttled_s = _to_number(stat.get("throttled_time", "0")) / 1e9
            if len(words) == 2 and _to_number(words[0]) > 0 and _to_number(words[1]) > 0:
                yield from (
                    ("quota", round(_to_number(words[0]) / _to_number(words[1]), 2)),
                    ("throttled", throttled_s),
                )
                return

    def _iter_cgroups(self) -> Iterator[tuple[Path, bool]]:
        """The control groups of this process for the CPU, the innermost first, each with whether it is of version 2."""
        for line in self._read_lines(self._proc / "self" / "cgroup"):
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and "cpu" not in controllers.split(","):
                continue
            base = self._cgroups / controllers if controllers else self._cgroups
            inner = Path(path.lstrip("/"))
            if ".." not in inner.parts:
                yield from ((base / below, not controllers) for below in (inner, *inner.parents))

    def _iter_processes(self) -> Iterator[tuple[int, tuple[int, float]]]:
        """Parent and CPU seconds of each process; none where they are very many."""
        try:
            pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            return
        for pid in pids if len(pids) <= MOST_PROCESSES else ():
            words = "".join(self._read_lines(self._proc / str(pid) / "stat")).rpartition(")")[2].split()
            if len(words) > 14:
                # with the time of children that have ended: loader workers that are started anew are no others
                used = sum(_to_number(word) for word in words[11:15])
                yield pid, (int(_to_number(words[1])), used / self._tick)


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
