"""A baseline: the steps, operators and kernels of one side of a comparison, and the file that stores them."""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.files import open_regular
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.summary import Summary

KIND, VERSION = "trace-baseline", 1
LARGE = 16 << 20  # bytes; larger files are not read
FOREVER = 1 << 62  # nanoseconds
MOST = 1_000  # operators, and kernels, that are stored: those with the most time


@dataclass(slots=True)
class StepStats:
    """One step of the job, in nanoseconds: its length on the slowest rank; ``bar``: its parts, means over the ranks."""

    length: int
    bar: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class OpStats:
    """An operator or kernel: mean nanoseconds and calls per step and rank."""

    name: str
    time: float
    calls: float


@dataclass(slots=True)
class Baseline:
    """One side of a comparison. ``left_out``: how many steps took three times the median or longer.

    steps: empty if the traces mark none. medians: the median step length of each run; several show how runs vary.
    """

    name: str
    steps: list[StepStats] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    left_out: int = 0
    traces: int = 0
    ranks: list[int] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    operators: list[OpStats] = field(default_factory=list)
    kernels: list[OpStats] = field(default_factory=list)

    @property
    def lengths(self) -> list[int]:
        """The length of each step, in nanoseconds."""
        return [step.length for step in self.steps]


def make_baseline(name: str, every: Sequence[tuple[TraceFile, Summary]]) -> Baseline:
    """Build a side from the summaries of its traces; the traces of several ranks are the same steps."""
    found = Baseline(name, traces=len(every))
    kept: defaultdict[tuple[object, ...], list[StepStats]] = defaultdict(list)
    left: set[tuple[object, ...]] = set()
    nth: Counter[int] = Counter()  # traces whose rank stands in the trace alone
    for one, read in every:
        steady = {id(step) for step in summary_figures.select_steady_steps(read)}
        place: tuple[object, ...] = (one.attempt, one.window)
        if one.rank is None:
            place = (one.path,) if read.rank is None else (one.attempt, nth[read.rank])
            nth.update([] if read.rank is None else [read.rank])
        for step in read.steps:
            if step.number is None:
                continue
            key = (*place, step.number)
            kept[key].append(StepStats(step.length, dict(step.bar)))
            if id(step) not in steady:
                left.add(key)
    found.steps = [_merge_ranks(strides) for key, strides in kept.items() if key not in left]
    found.medians = [float(median(found.lengths))] if found.steps else []
    found.left_out = len(left)
    summaries = [read for _, read in every]
    found.ranks = sorted({rank for one, read in every if (rank := _get_rank(one, read)) is not None})
    found.devices = sorted({name for read in summaries for name in (read.devices or _device_names(read))})
    found.recorded = sorted({name for read in summaries for name in read.recorded})
    count = sum(max(len(read.steps), 1) for read in summaries)
    found.operators = _sum_ops(((one.name, one.own, one.calls) for read in summaries for one in read.operators), count)
    found.kernels = _sum_ops(((one.name, one.total, one.calls) for read in summaries for one in read.kernels), count)
    return found


def merge_baselines(every: Sequence[Baseline]) -> Baseline:
    """Merge several runs into one side."""
    if len(every) == 1:
        return every[0]
    weights = [max(len(one.steps), 1) for one in every]
    return Baseline(
        ", ".join(one.name for one in every),
        [step for one in every for step in one.steps],
        [value for one in every for value in one.medians],
        sum(one.left_out for one in every),
        sum(one.traces for one in every),
        sorted({rank for one in every for rank in one.ranks}),
        sorted({name for one in every for name in one.devices}),
        sorted({name for one in every for name in one.recorded}),
        _merge_ops([one.operators for one in every], weights),
        _merge_ops([one.kernels for one in every], weights),
    )


def _merge_ops(every: Sequence[Sequence[OpStats]], weights: Sequence[int]) -> list[OpStats]:
    works = (
        (one.name, one.time * weight, one.calls * weight)
        for shares, weight in zip(every, weights, strict=True)
        for one in shares
    )
    return _sum_ops(works, sum(weights))


def _merge_ranks(strides: Sequence[StepStats]) -> StepStats:
    names = {name for stride in strides for name in stride.bar}
    bar = {name: sum(stride.bar.get(name, 0) for stride in strides) / len(strides) for name in names}
    return StepStats(max(stride.length for stride in strides), bar)


def _get_rank(one: TraceFile, read: Summary) -> int | None:
    return one.rank if one.rank is not None else read.rank


def _device_names(read: Summary) -> list[str]:
    return ["accelerator"] if read.device else ["cpu"]


def _sum_ops(works: Any, count: int) -> list[OpStats]:
    sums: dict[str, OpStats] = {}
    for name, time, calls in works:
        into = sums.setdefault(name, OpStats(name, 0.0, 0.0))
        into.time += time / count
        into.calls += calls / count
    return sorted(sums.values(), key=lambda one: -one.time)[:MOST]


# the file


def save_baseline(kept: Baseline, path: Path) -> None:
    """Write a baseline. Raises TdbgError where it cannot be written, and where the file is something else."""
    from tdbg.core.rundir import write_json
    from tdbg.core.tables import to_json_value
    from tdbg.version import __version__

    if path.exists() and not _is_baseline_file(path):
        raise TdbgError(f"{path} already exists and is not a baseline", "name another file with --save")
    try:
        write_json(path, {"kind": KIND, "version": VERSION, "tdbg": __version__, "data": to_json_value(asdict(kept))})
    except OSError as error:
        raise TdbgError(f"cannot write {path}: {error.strerror or error}", "name another file with --save") from None


def load_baseline(where: str) -> Baseline | None:
    """Load a baseline file; None for a file of any other kind. Raises TdbgError for a damaged one."""
    import msgspec

    path = Path(where)
    if not path.is_file() or not _is_baseline_file(path):
        return None
    again = "make it again: `tdbg trace compare RUN --save FILE`"
    if os.path.getsize(path) > LARGE:
        raise TdbgError(f"{path} is too large for a baseline", again)
    try:
        envelope = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        version = bytes(envelope.get("version", b"none")).decode()
        if version != str(VERSION):
            raise TdbgError(f"{path} is a baseline of version {version}; this tdbg reads {VERSION}", again)
        found = msgspec.json.decode(envelope.get("data", b""), type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TdbgError(f"{path} is a damaged baseline: {error}", again) from None
    except OSError as error:
        raise TdbgError(f"{path}: {error.strerror or error}", "name a baseline that can be read") from None
    if not _is_valid(found):
        raise TdbgError(f"{path} is a damaged baseline: its times make no sense", again)
    return found


def _is_valid(found: Baseline) -> bool:
    shares = [*found.operators, *found.kernels]
    times = [*found.medians, *(time for step in found.steps for time in step.bar.values())]
    times += [value for one in shares for value in (one.time, one.calls)]
    lengths = all(0 < length < FOREVER for length in found.lengths)
    return lengths and bool(found.steps) == bool(found.medians) and all(abs(time) < FOREVER for time in times)


def _is_baseline_file(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            begin = b"".join(file.read(200).split())
    except OSError:
        return False
    return begin.startswith(f'{{"kind":"{KIND}"'.encode())
