"""What `--capture` and the profiler recorded, in a line each."""

from collections.abc import Sequence

from tdbg.core.events import Observation
from tdbg.core.observations.capture import CaptureDone, CaptureFailed, CaptureOver, LayersChosen
from tdbg.core.observations.profiler import ProfilingDone, TraceLost, TraceWritten
from tdbg.core.tables import format_count

CUT_OFF = "captured until it ended"  # it ended before it could tell
Recorded = tuple[str, Observation]  # who says it, and the last observation of its profiler


def describe_capture(event: Observation) -> tuple[str, bool] | None:
    """The line of the last observation of a capture, and whether pages are there; None where it tells of neither."""
    done = CaptureDone.from_event(event)
    if done is not None:
        return event.text, done.why is None
    if any(kind.from_event(event) is not None for kind in (LayersChosen, CaptureOver, CaptureFailed)):
        return CUT_OFF, True
    return None


def merge_profiles(recorded: Sequence[Recorded]) -> str:
    """The last lines of several processes as one: what all recorded, the step's time on the first, what is missing."""
    read = [(who, _read_summary(event)) for who, event in recorded]
    done = [(who, summary) for who, summary in read if summary is not None and summary.bytes]
    if len(recorded) < 2 or not done:
        return recorded[0][1].text if recorded else ""
    steps = sorted({summary.steps for _, summary in done})
    what = format_count(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {format_count(steps[-1], 'step')}"
    traces = sum(summary.windows for _, summary in done)
    size_mb = sum(summary.bytes for _, summary in done) / 1e6
    first, summary = done[0]
    on = f"each of {format_count(len(done), 'rank')}" if len(done) > 1 else first
    text = f"profiled {what} on {on}, in {format_count(traces, 'trace')}, {size_mb:.1f} MB"
    if summary.inside_ms and summary.outside_ms:
        text += f"; on {first} a step took {summary.inside_ms:.4g} ms in it and {summary.outside_ms:.4g} ms outside"
    missing = [f"{who}: {one.missing}" for who, one in read if one is not None and one.missing]
    return f"{text}; {missing[0]}" if missing else text


def has_profile(event: Observation) -> bool | None:
    """True if it tells of something recorded, False if of nothing; None if it tells of neither."""
    summary = _read_summary(event)
    return bool(summary.windows) if summary is not None and TraceLost.from_event(event) is None else None


def _read_summary(event: Observation) -> ProfilingDone | None:
    """The end of profiling; of a process that could not tell its end, its last trace."""
    lost, written = TraceLost.from_event(event), TraceWritten.from_event(event)
    if lost is not None:
        return ProfilingDone(missing=lost.missing)
    if written is not None:
        return ProfilingDone(windows=1, steps=written.steps, bytes=written.bytes)
    return ProfilingDone.from_event(event)
