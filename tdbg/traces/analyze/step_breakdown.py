"""The breakdown of each step: parts that add up to its wall-clock time, and unions that overlap."""

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg.core.tables import format_count
from tdbg.traces.analyze.time_spans import Spans, union_sets, union_spans
from tdbg.traces.parse import event_names
from tdbg.traces.summary import Device, Step, Summary, Work

if TYPE_CHECKING:
    from tdbg.traces.analyze.cpu_timeline import Thread, Threads
    from tdbg.traces.analyze.device_timeline import Devices
    from tdbg.traces.parse.event_stream import Number


def break_down_steps(found: Summary, threads: "Threads", devices: "Devices") -> None:
    """Fill in the steps, the waits and the device of a summary."""
    found.steps = [Step(number, start, end) for number, start, end, _ in threads.steps] or [
        Step(None, found.start, found.end)
    ]
    main = threads.steps[0][3] if threads.steps else _find_busiest_thread(threads)
    found.waits, waiting = _collect_waits(found, devices, main)
    host = _collect_host_spans(threads, main)
    bar, spent = _on_host(host), dict(host)
    if main is not None:
        spent["wait"] = waiting
        spent["ask"] = union_spans(main.asks)
        spent["save"] = union_spans(main.saves)
        spent["zeroing"] = union_spans(main.zeroing) & host[event_names.OPTIMIZER]
    if devices.kernels or devices.copies:
        bar, more = _on_device(found, host, devices)
        spent |= more
    _fill_steps(found.steps, bar, spent, event_names.IDLE if found.device else event_names.OTHER)


def _fill_steps(steps: list[Step], bar: dict[str, Spans], spent: dict[str, Spans], rest: str) -> None:
    begins, ends = ([getattr(step, name) for step in steps] for name in ("start", "end"))
    parts, things = (
        {name: (spans.measure_before(ends) - spans.measure_before(begins)).tolist() for name, spans in of.items()}
        for of in (bar, spent)
    )
    for at, step in enumerate(steps):
        times = {name: every[at] for name, every in parts.items()}
        times[rest] = step.length - sum(times.values())
        step.bar = {name: times[name] for name in event_names.BAR if name in times}
        step.spent = {name: every[at] for name, every in things.items()}


def _find_busiest_thread(threads: "Threads") -> "Thread | None":
    """The thread with the most time in operators, where no step tells which one is the program's."""
    parts = (event_names.FORWARD, event_names.BACKWARD)
    totals = {key: sum(threads.get_part_spans(one, part).total_ns for part in parts) for key, one in threads.of.items()}
    return threads.of[max(totals, key=totals.__getitem__)] if totals else None


def _collect_host_spans(threads: "Threads", main: "Thread | None") -> dict[str, Spans]:
    """Unions of what the program did; they overlap where it does several things, or one inside the other."""
    if main is None:
        return {}
    every = threads.of.values()
    return {
        event_names.INPUT: union_spans(main.loader),
        event_names.OPTIMIZER: union_sets(union_spans(thread.optimizer) for thread in every),
        event_names.BACKWARD: union_sets(threads.get_part_spans(thread, event_names.BACKWARD) for thread in every),
        event_names.FORWARD: threads.get_part_spans(main, event_names.FORWARD),
        event_names.COMMUNICATION: union_sets(
            threads.get_part_spans(thread, event_names.COMMUNICATION) for thread in every
        ),
    }


def _on_host(host: dict[str, Spans]) -> dict[str, Spans]:
    """The same without overlap: what comes first has the time. Communication is what nothing hides.

    An optimizer that shards its work exchanges it inside of its span: that is communication, but where it computes.
    """
    if host:
        exposed = host[event_names.COMMUNICATION] - host[event_names.FORWARD] - host[event_names.BACKWARD]
        host = {**host, event_names.OPTIMIZER: host[event_names.OPTIMIZER] - exposed}
    taken, found = union_spans([]), {}
    for name, spans in host.items():
        found[name] = spans - taken
        taken = taken | spans
    return found


def _on_device(found: Summary, host: dict[str, Spans], devices: "Devices") -> tuple[dict[str, Spans], dict[str, Spans]]:
    """Where there is an accelerator, its time counts: the host's only while nothing runs there."""
    kernels = union_spans(devices.computed)
    fills = union_spans(devices.filled)
    compute, collective = kernels | fills, union_spans(devices.collective)
    copies = {name: union_spans(times) for name, times in devices.copied.items()}
    towards = copies.get("HtoD", union_spans([]))
    others = union_sets(spans for name, spans in copies.items() if name != "HtoD")
    overlap = collective & compute
    bar = _split_kernels_by_phase(host, devices, compute)
    bar[event_names.COMMUNICATION] = collective - compute
    taken = compute | collective
    bar[event_names.H2D] = towards - taken
    taken = taken | towards
    bar[event_names.COPY] = others - taken
    busy = taken | others
    bar[event_names.INPUT] = host.get(event_names.INPUT, union_spans([])) - busy
    found.device = Device(
        start=int(busy.starts[0]) if len(busy) else 0,
        end=int(busy.ends[-1]) if len(busy) else 0,
        busy=busy.total_ns,
        compute=compute.total_ns,
        communication=collective.total_ns,
        overlap=overlap.total_ns,
        count=max(len(devices.ids), 1),
        busy_of={str(one): union_spans(devices.apart[one]).total_ns for one in sorted(devices.apart, key=_by_number)},
        launches=devices.launches,
    )
    _measure_launch_delays(found.device, busy, devices)
    if found.device.count > 1:
        found.problems.append(
            f"{format_count(found.device.count, 'accelerator')} ran its kernels, shown as one: busy while any is, idle while all are"
        )
    more = {
        "busy": busy,
        "compute": compute,
        "overlap": overlap,
        "exposed": bar[event_names.COMMUNICATION],
        "collective": collective,
        event_names.H2D: towards,
        "pageable": union_spans(devices.pageable),
        **{kind: union_spans(times) for kind, times in devices.products.items()},
    }
    return bar, more


def _by_number(device: "Number") -> tuple[bool, float, str]:
    return (False, device, "") if isinstance(device, int | float) else (True, 0.0, str(device))


def _measure_launch_delays(device: Device, busy: Spans, devices: "Devices") -> None:
    """How long kernels wait after their launch, and how long the accelerator waits for one.

    The second is the part of each gap between two busy times that had passed when the call ended that launched what
    ends the gap; of several that begin together the one that was launched first.
    """
    kernels, copies = (np.array(flat, np.int64).reshape(-1, 2) for flat in (devices.called, devices.moved))
    device.launched = len(kernels)
    if len(kernels):
        delays = np.maximum(kernels[:, 0] - kernels[:, 1], 0)
        device.delay, device.delay_p90 = np.rint(np.quantile(delays, (0.5, 0.9))).astype(np.int64).tolist()
    every = np.concatenate((kernels, copies))
    every = every[np.lexsort((every[:, 1], every[:, 0]))]
    begins, ends = busy.starts[1:], busy.ends[:-1]
    at = np.searchsorted(every[:, 0], begins)
    known = at < len(every)
    known[known] = every[at[known], 0] == begins[known]
    called = every[at[known], 1]
    device.unlaunched = int((np.clip(called, ends[known], begins[known]) - ends[known]).sum())


def _split_kernels_by_phase(host: dict[str, Spans], devices: "Devices", compute: Spans) -> dict[str, Spans]:
    """Time of kernels by what the program did when it launched them; what nobody knows is other."""
    launched = np.frombuffer(devices.launched, np.int64) if devices.launched else np.zeros(0, np.int64)
    flat = np.frombuffer(devices.computed, np.int64) if devices.computed else np.zeros(0, np.int64)
    pairs = flat.reshape(-1, 2)
    left = np.ones(len(launched), bool)
    taken, found = union_spans([]), {}
    for name in (event_names.OPTIMIZER, event_names.BACKWARD, event_names.FORWARD):
        mask = left & host.get(name, union_spans([])).contains_times(launched)
        left &= ~mask
        spans = union_spans(pairs[mask].reshape(-1)) - taken
        found[name] = spans
        taken = taken | spans
    found[event_names.OTHER] = compute - taken
    return found


def _collect_waits(found: Summary, devices: "Devices", main: "Thread | None") -> tuple[list[Work], Spans]:
    """Calls in which the program's thread waits for the accelerator, without the profiler's own at its end.

    Other threads (one that pins memory, a collective's) may wait as long as they like: that holds nothing up.
    """
    closing, at = devices.find_closing_wait(
        max((step.end for step in found.steps if step.number is not None), default=-1)
    )
    works, every = [], []
    for wait, times in devices.waits.items():
        kept: Any = times
        key, name = wait
        if wait == closing:
            found.closing_wait = times[at + 1] - times[at]
            kept = array("q", [*times[:at], *times[at + 2 :]])
        if kept and main is not None and key == main.key:
            work = Work(name, calls=len(kept) // 2, total=sum(kept[1::2]) - sum(kept[0::2]))
            works.append(work)
            every.append(union_spans(kept))
    return sorted(works, key=lambda work: -work.total), union_sets(every)
