"""Figures of a summary for people: medians, shares, operators by name. Standard library alone."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from tdbg.core.tables import format_count
from tdbg.traces.parse import event_names
from tdbg.traces.summary import Device, Operator, Step, Summary, Work

MAIN = "the program's thread"
BORDER = 3.0  # a step this many times the median is told apart: the end of an epoch, a checkpoint


def format_ms(ns: float) -> str:
    """Nanoseconds as milliseconds that a person reads."""
    value = ns / 1e6
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def median_or_zero(values: Sequence[float]) -> float:
    """The median; 0 without any values."""
    return median(values) if values else 0.0


def typical_length(found: Summary) -> float:
    """The median length of a step, in nanoseconds; 0 without any."""
    return median(step.length for step in found.steps) if found.steps else 0.0


def select_steady_steps(found: Summary) -> list[Step]:
    """The steps without those that are `BORDER` times as long as the median or longer."""
    limit = BORDER * typical_length(found)
    return [step for step in found.steps if step.length < limit] or found.steps


def select_border_steps(found: Summary) -> list[Step]:
    """Those others."""
    kept = {id(step) for step in select_steady_steps(found)}
    return [step for step in found.steps if id(step) not in kept]


def compute_part_shares(steps: Sequence[Step]) -> dict[str, float]:
    """The share that each part of the bar has in the time of these steps; they add up to 1."""
    whole = sum(step.length for step in steps)
    sums: defaultdict[str, int] = defaultdict(int)
    for step in steps:
        for name, time in step.bar.items():
            sums[name] += time
    return {name: sums[name] / whole for name in event_names.BAR if name in sums} if whole else {}


def compute_time_share(steps: Sequence[Step], *names: str) -> float | None:
    """The share of the time of these steps that was spent on a thing (the largest of them); None if nobody knows."""
    whole = sum(step.length for step in steps)
    known = [name for name in names if any(name in step.spent for step in steps)]
    if not whole or not known:
        return None
    return max(sum(step.spent.get(name, 0) for step in steps) / whole for name in known)


def by_name(operators: Iterable[Operator]) -> list[Operator]:
    """Operators of all shapes as one, most own time first."""
    found: dict[str, Operator] = {}
    for one in operators:
        into = found.setdefault(one.name, Operator(one.name))
        into.calls += one.calls
        into.total += one.total
        into.own += one.own
        into.flops += one.flops
        for frame, calls in one.frames.items():
            into.frames[frame] = into.frames.get(frame, 0) + calls
    return sorted(found.values(), key=lambda one: -one.own)


def called_from(one: Operator) -> str:
    """The line of the program that most calls come from; empty if nobody knows."""
    return max(one.frames, key=lambda frame: one.frames[frame]) if one.frames else ""


def asked_from(read: Summary, names: Iterable[str]) -> list[str]:
    """The line of the program that calls operators of these names most, as evidence; nothing where stacks are not."""
    wanted = set(names)
    every = by_name(replace(one, name="") for one in read.operators if one.name in wanted)
    line = called_from(every[0]) if every else ""
    return [f"called most often from {line}"] if line else []


def busiest_line(read: Summary) -> list[str]:
    """The function of the program that most time of its thread is in, without those it calls; nothing without stacks."""
    flame = next((one for one in read.flames if one.kind == "python"), None)
    if flame is None:
        return []
    names = [flame.names[which] for which in flame.which]
    own, inside = list(flame.totals), [False] * len(names)
    for at, parent in enumerate(flame.parents):  # a node stands behind the one that called it
        inside[at] = names[at] == MAIN if flame.kinds[at] == "t" else parent >= 0 and inside[parent]
        if flame.kinds[at] in "fm" and parent >= 0:
            own[parent] -= flame.totals[at]
    sums: defaultdict[str, int] = defaultdict(int)
    for at, name in enumerate(names):
        if flame.kinds[at] == "f" and inside[at]:
            sums[name] += own[at]
    if not sums:
        return []
    name = max(sums, key=lambda one: sums[one])
    return [f"most of the program's own time is in {name}, {format_ms(sums[name] / max(len(read.steps), 1))} ms a step"]


def format_launch_delays(device: Device) -> list[str]:
    """How long kernels wait after their launch, and the accelerator for the next one; nothing where nobody knows."""
    if not device.launched:
        return []
    delays = f"{device.delay / 1000:,.3g} us after their launch (median), {device.delay_p90 / 1000:,.3g} us (p90)"
    share = device.unlaunched / max(device.end - device.start, 1)
    return [
        f"kernels start {delays}",
        f"launch-bound: {share:.1%} of the time the device is idle and the next kernel is not launched yet",
    ]


def each_busy(device: Device) -> list[str]:
    """How busy each of several accelerators is, of the time from the first work of any to the last."""
    span = max(device.end - device.start, 1)
    return [f"device {name}: busy {busy / span:.1%}" for name, busy in device.busy_of.items()]


def of_a_step(one: Work | Operator, steps: int) -> str:
    """``20 calls and 0.31 ms a step``, means."""
    steps = max(steps, 1)
    calls = f"{one.calls / steps:,.4g} call{'' if one.calls == steps else 's'}"
    return f"{calls} and {one.total / steps / 1e6:.3g} ms a step"


def sum_kernel_families(kernels: Iterable[Work]) -> dict[str, int]:
    """Nanoseconds of kernels by what they do."""
    found: defaultdict[str, int] = defaultdict(int)
    for one in kernels:
        found[one.kind] += one.total
    return dict(found)


def format_verdict(found: Summary) -> str:
    """One line: where most of a step goes."""
    shares = compute_part_shares(select_steady_steps(found))
    if not shares or not (found.operators or found.kernels or found.copies):
        return (
            f"none of its {format_count(found.events, 'event')} is of a kind that tdbg reads"
            if found.events
            else "it holds no events"
        )
    name = max(shares, key=lambda one: shares[one])
    meaning = {
        event_names.INPUT: "waiting for input",
        event_names.H2D: "copies to the device that overlap with nothing",
        event_names.COMMUNICATION: "communication that overlaps with nothing",
        event_names.IDLE: "an idle accelerator",
        event_names.OTHER: "Python or idle time outside any operator",
        event_names.COPY: "copies from and on the device",
    }
    return f"most of a step is {meaning.get(name, name)}: {shares[name]:.0%}"


def compute_step_flops(found: Summary) -> float:
    """Floating-point operations of a step, a mean, as far as shapes tell; 0 where they do not."""
    return sum(one.flops for one in found.operators) / max(len(found.steps), 1)


def counted_flops(number: float) -> str:
    """``1.23 GFLOP``."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} PFLOP"
