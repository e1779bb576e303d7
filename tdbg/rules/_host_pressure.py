"""What was out of the ordinary on a host from some moment on, against the median of the time before.

The samples are those that the supervisor of each host left in ``pressure/``. Silent where nothing stands out.
"""

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tdbg.core.files import iter_json_lines
from tdbg.core.rundir import PRESSURE, RunDir

LEAST_SAMPLES = 2  # of a time that is judged
GROWTH = 1.5
CPU_WAIT = 0.2  # of the time
SHOWN = 2
MOST_SAMPLES = 20_000

Sample = dict[str, Any]


class _Sign(NamedTuple):
    """One figure: from which increase on it counts, how it is told, and the value that counts where nothing was before."""

    name: str
    least: float
    text: str
    alone: float = float("inf")


SIGNS = (
    _Sign("throttled", 0.1, "throttled by its CPU quota ({quota:g} CPUs) {now:.0%} of the time{before:.0%}", 0.2),
    _Sign("memory_stall", 0.1, "processes wait for memory {now:.0%} of the time{before:.0%}", 0.2),
    _Sign("swapped_in_mb", 1.0, "swap-in {now:.3g} MB/s{before:.3g}", 5.0),
    _Sign("others", 0.4, "other processes use {now:.1f} of {cpus:g} CPUs{before:.1f}"),
    _Sign("io_stall", 0.2, "processes wait for the disk {now:.0%} of the time{before:.0%}"),
    _Sign("iowait", 0.4, "I/O wait: {now:.1f} CPUs{before:.1f}"),
    _Sign("steal", 0.2, "CPU steal: {now:.1f} CPUs{before:.1f}"),
    _Sign("runnable", 2.0, "{now:.0f} runnable threads on {cpus:g} CPUs{before:.0f}"),
    _Sign("cpu_stall", 0.3, "processes wait for a CPU {now:.0%} of the time{before:.0%}"),
)


# Figures of all CPUs of the host: they tell nothing of a job that may use some of them alone.
OF_ALL_CPUS = ("others", "iowait", "steal", "runnable", "cpu_stall")


def _sees_all_cpus(samples: Sequence[Sample]) -> bool:
    return all(
        _get_number(row, "cpus") == (_get_number(row, "host_cpus") or _get_number(row, "cpus")) for row in samples
    )


def read_samples(run: RunDir, host: str) -> list[Sample]:
    """The samples of one host, in order of time; torn and foreign lines are passed over."""
    found: list[Sample] = []
    for path in sorted((run.path / PRESSURE).glob("*.jsonl")):
        if path.name.rpartition("-")[0] == host:
            with contextlib.suppress(OSError):
                rows = (row for row in iter_json_lines(path) if _get_number(row, "t") is not None)
                found += [row for _, row in zip(range(MOST_SAMPLES), rows, strict=False)]
    return sorted(found, key=lambda row: float(row["t"]))


def describe_pressure(samples: Sequence[Sample], rank: int, since_t: float, threads_set: str = "") -> list[str]:
    """One line with the one or two figures that stand out since a moment; none where none does.

    threads_set: OMP_NUM_THREADS of the rank.
    """
    before = [row for row in samples if row["t"] < since_t]
    after = [row for row in samples if row["t"] >= since_t]
    if len(after) < LEAST_SAMPLES:
        return []
    signs = [
        *_find_threads(before, after, rank, threads_set),
        *_find_signs(before, after),
        *_find_slow_clock(before, after),
    ]
    if len(signs) > 1 and "wait for a CPU" in signs[-1]:
        del signs[-1]  # the others say why
    signs += _find_cpu_wait(before, after, rank)  # what it comes from stands before it
    return [f"on its host: {', and '.join(signs[:SHOWN])}"] if signs else []


def _find_cpu_wait(before: Sequence[Sample], after: Sequence[Sample], rank: int) -> Iterator[str]:
    """A rank that is ready to run and has no CPU, more than the others and than before: a neighbour, its priority, a quota."""
    now, was = _find_median_of(after, "cpu_waits", str(rank)), _find_median_of(before, "cpu_waits", str(rank))
    names = [name for name in _list_ranks(after) if name != str(rank)]
    others = [wait for name in names if (wait := _find_median_of(after, "cpu_waits", name)) is not None]
    if now is None or not others:
        return
    usual = max(statistics.median(others), was or 0.0)
    if now - usual >= CPU_WAIT and now >= GROWTH * usual:
        yield f"rank {rank} has to wait for a CPU {now:.0%} of the time ({statistics.median(others):.0%} on other ranks)"


def _find_signs(before: Sequence[Sample], after: Sequence[Sample]) -> Iterator[str]:
    about = {name: _find_median(after, name) or 0.0 for name in ("quota", "cpus")}
    for sign in SIGNS:
        now, was = _find_median(after, sign.name), _find_median(before, sign.name)
        if now is None or (sign.name in OF_ALL_CPUS and not _sees_all_cpus(after)):
            continue
        stands_out = now >= sign.alone if was is None else now - was >= sign.least and now >= GROWTH * was
        if stands_out:
            text, _, form = sign.text.partition("{before")
            usual = f" ({format(was, form[1:-1])} before)" if was is not None else ""
            yield text.format(now=now, **about) + usual


def _find_threads(before: Sequence[Sample], after: Sequence[Sample], rank: int, threads_set: str) -> Iterator[str]:
    """More threads than CPUs, and many more than before; where nothing was before, than other ranks have."""
    now, cpus = _find_median_of(after, "threads", str(rank)), _find_median(after, "cpus") or 1.0
    others = [_find_median_of(after, "threads", name) for name in _list_ranks(after) if name != str(rank)]
    was = _find_median_of(before, "threads", str(rank))
    known = [count for count in ([was] if was is not None else others) if count is not None]
    if now is None or not known:
        return
    usual = statistics.median(known)
    if now > cpus and now - usual >= max(cpus, 2) and now >= GROWTH * usual:
        which = "before" if was is not None else "on other ranks"
        setting = f", OMP_NUM_THREADS={threads_set}" if threads_set else ""
        yield f"rank {rank} has {now:.0f} threads on {cpus:g} CPUs ({usual:.0f} {which}{setting})"


def _find_slow_clock(before: Sequence[Sample], after: Sequence[Sample]) -> Iterator[str]:
    now, was = _find_median(after, "ghz"), _find_median(before, "ghz")
    if now is not None and was is not None and 0 < now < 0.75 * was:
        yield f"its CPUs run at {now:.2g} GHz ({was:.2g} before)"


def _list_ranks(samples: Sequence[Sample]) -> set[str]:
    return {str(name) for row in samples if isinstance(row.get("threads"), dict) for name in row["threads"]}


def _find_median_of(samples: Sequence[Sample], name: str, rank: str) -> float | None:
    """The median of a figure that each rank has."""
    return _find_median([row[name] for row in samples if isinstance(row.get(name), dict)], rank)


def _find_median(samples: Sequence[Sample], name: str) -> float | None:
    """The median of a figure; None where too few samples have it."""
    values = [value for row in samples if (value := _get_number(row, name)) is not None]
    return statistics.median(values) if len(values) >= LEAST_SAMPLES else None


def _get_number(row: Sample, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
