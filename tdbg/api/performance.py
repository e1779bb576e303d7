"""`profile_model_performance`: the capture of `tdbg profile` and the reader of `tdbg trace` around a few batches."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdbg.api.flop_count import FlopCount
from tdbg.api.session import current_session
from tdbg.core.errors import TdbgError
from tdbg.core.events import Trace
from tdbg.core.profiling import KINDS, MAX_STEPS, Span
from tdbg.probes.profiler.foreign_profiler import ForeignProfiler
from tdbg.probes.profiler.kineto import Press, Session, somebody_records

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.traces.summary import Summary

TOP = 10  # lines of each table that is given back


def profile_model_performance(
    model_or_step: nn.Module | Callable[[Any], object],
    dataloader: Iterable[object],
    num_batches: int = 10,
    *,
    kind: str = "light",
) -> dict[str, Any]:
    """Record some batches with torch.profiler, and tell where their time and memory went.

    model_or_step: a model is called as in evaluation, without gradients, on the device of its parameters: with a
    mapping as keywords, with the first part of a list or tuple, with anything else as it is; its mode is put back.
    Any other callable gets each batch, and does with it what a step does. dataloader: what gives the batches; the
    first one warms up and is not recorded, but for its floating-point operations (``flops``). kind: as ``tdbg profile --kind``.

    The trace is written into the run this process belongs to; outside of one into a new temporary folder, which stays.
    Returns the figures that `tdbg trace show` and `advise` tell of it: docs/api.md has the keys. Raises TdbgError
    where nothing can be recorded. Cost: torch's profiler over the batches, then 2 us an event to read them.
    """
    _validate_arguments(num_batches, kind)
    monitor = _find_monitor()
    folder = _choose_folder(monitor)
    call = _build_caller(model_or_step)
    with _suspend_run_profiler(monitor) as guest, _silence_kineto():
        session = Session(Span(1, num_batches), kind)
        begun = time.perf_counter()
        rank, world_size = _resolve_rank(monitor)
        about = {"first_step": 1, "wanted": num_batches, "phase": "batches", "kind": kind}
        whole, count = False, FlopCount()
        try:
            whole = _record_batches(session, call, iter(dataloader), count)
        finally:
            session.stop_session({**about, "rank": rank, "world_size": world_size}, whole=whole)
        if not session.steps_ms:
            raise TdbgError("the dataloader gave only the warm-up batch", "give it two batches or more")
        press = Press()
        path, size = session.export_trace(folder, f"rank{rank:04d}", press)
        press.wait_for_threads()
        if monitor is not None:
            _emit_trace(monitor, guest, session, path, size, begun)
    packed = path.with_name(f"{path.name}.gz")
    return _with_flops(_summarize_trace(packed if packed.exists() else path, session), count)


def _validate_arguments(num_batches: int, kind: str) -> None:
    if kind not in KINDS:
        raise TdbgError(f"no kind is named {kind!r}", f"choose from: {', '.join(KINDS)}")
    if not 1 <= num_batches <= MAX_STEPS:
        raise TdbgError(
            f"num_batches cannot be {num_batches}", f"choose 1 to {MAX_STEPS}: larger traces cannot be opened"
        )


def _find_monitor() -> "Monitor | None":
    found = current_session()
    return found.monitor if found is not None else None


def _choose_folder(monitor: "Monitor | None") -> Path:
    """Where the trace goes: the run's folder of this rank, else a new one."""
    if monitor is not None:
        monitor.become_rank_now()
        folder = monitor.folder()
        if folder is not None:
            return folder / "traces"
    return Path(tempfile.mkdtemp(prefix="tdbg-trace-"))


def _resolve_rank(monitor: "Monitor | None") -> tuple[int, int]:
    if monitor is not None:
        return monitor.rank, monitor.world_size
    from tdbg.inject.on.torch_ import get_rank_and_world_size

    return get_rank_and_world_size()


@contextlib.contextmanager
def _suspend_run_profiler(monitor: "Monitor | None") -> Iterator[ForeignProfiler | None]:
    """The run's own profiler makes way meanwhile, and its other probes rest: the trace shows the program alone."""
    probe: Any = monitor.find_probe("profiler") if monitor is not None else None
    guest: ForeignProfiler | None = probe.guest if probe is not None else None
    visitor = object()
    if guest is not None:
        guest.on_start(visitor)
    try:
        if somebody_records():
            raise TdbgError(
                "another profiler records in this thread, and torch runs one at a time",
                "call profile_model_performance outside of it",
            )
        if monitor is not None:
            monitor.suspend_probes(True)
        yield guest
    finally:
        if monitor is not None:
            monitor.suspend_probes(False)
        if guest is not None:
            guest.on_stop(visitor)


@contextlib.contextmanager
def _silence_kineto() -> Iterator[None]:
    """torch's recorder reads the level of its own lines when it is first used."""
    from tdbg.launch.boot import SILENT

    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = SILENT
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def _build_caller(model_or_step: nn.Module | Callable[[Any], object]) -> Callable[[Any], object]:
    return _build_evaluation_step(model_or_step) if isinstance(model_or_step, nn.Module) else model_or_step


def _build_evaluation_step(model: nn.Module) -> Callable[[Any], object]:
    """Calls the model with a batch as in evaluation; the modes of its modules are put back after each call."""
    first = next(model.parameters(), None)
    device = first.device if first is not None else torch.device("cpu")

    def evaluate_batch(batch: object) -> None:
        trained = [module for module in model.modules() if module.training]
        for module in trained:
            module.training = False
        try:
            with torch.no_grad():
                if isinstance(batch, Mapping):
                    model(**{name: _move_to_device(value, device) for name, value in batch.items()})
                else:
                    model(_move_to_device(batch[0] if isinstance(batch, (list, tuple)) else batch, device))
        finally:
            for module in trained:
                module.training = True

    return evaluate_batch


def _move_to_device(value: object, device: torch.device) -> object:
    return value.to(device) if isinstance(value, Tensor) else value


def _with_flops(found: dict[str, Any], count: FlopCount) -> dict[str, object]:
    """The operations of a batch; None where none was seen, as of a compiled model."""
    flops = count.total_flops or None
    seconds = found["median_ms"] / 1e3
    return {
        **found,
        "flops": flops,
        "flops_per_s": flops / seconds if flops and seconds else None,
        "flops_by_operator": dict(count.by_operator.most_common(TOP)),
    }


def _record_batches(
    session: Session, call: Callable[[Any], object], batches: Iterator[object], count: FlopCount
) -> bool:
    """One batch that warms up, then those of the window; False if there were fewer. A step holds the wait, too."""
    for number in range(session.span.last + 1):
        session.begin_step(number)
        try:
            batch = next(batches)
        except StopIteration:
            return False
        with contextlib.nullcontext() if number or torch.compiler.is_compiling() else count:
            call(batch)
    return True


def _emit_trace(
    monitor: "Monitor", guest: ForeignProfiler | None, session: Session, path: Path, size: int, begun: float
) -> None:
    """The run knows of the trace as of one that the program made itself."""
    seconds = time.perf_counter() - begun
    monitor.budget.exclude(seconds)
    event = Trace(
        t=time.time(),
        file=f"traces/{path.name}",
        bytes=size,
        phase="batches",
        first_step=1,
        steps=len(session.steps_ms),
        wanted=session.span.step_count,
        kind=session.kind,
        why="program",
        steps_ms=session.steps_ms,
        pause_ms=round(seconds * 1e3, 3),
    )
    if guest is not None:
        guest.probe.took_over(event)
    else:
        monitor.when_rank(lambda: monitor.emit(event))


def _summarize_trace(path: Path, session: Session) -> dict[str, object]:
    try:
        from tdbg.traces.analyze.summary_cache import load_summary

        figures = _format_summary(load_summary(path))
    except ImportError as error:  # the program's environment is not tdbg's own, and has no msgspec or numpy
        raise TdbgError(f"the trace cannot be read here: {error}", f"`tdbg trace show {path}`") from None
    return {"trace": str(path), "kind": session.kind, **figures}


def _format_summary(read: "Summary") -> dict[str, object]:
    """Plain data of a summary; docs/api.md explains each key."""
    from dataclasses import asdict

    from tdbg.core.tables import to_json_value
    from tdbg.traces.analyze import summary_figures
    from tdbg.traces.rules import RULES, evaluate_traces

    RULES.load_third_party()  # one that cannot be loaded is told by `tdbg trace advise`
    kept = summary_figures.select_steady_steps(read)
    median = summary_figures.typical_length(read)
    advice, _ = evaluate_traces([("", read)], {})
    figures = {
        "batches": len(read.steps),
        "median_ms": median / 1e6,
        "fastest_ms": min(step.length for step in read.steps) / 1e6,
        "slowest_ms": max(step.length for step in read.steps) / 1e6,
        "batches_per_s": 1e9 / median if median else 0.0,
        "verdict": summary_figures.format_verdict(read),
        "parts": summary_figures.compute_part_shares(kept),
        "busy_share": summary_figures.compute_time_share(kept, "busy"),
        "devices": read.devices,
        "operators": [_format_row(one) for one in summary_figures.by_name(read.operators)[:TOP]],
        "kernels": [_format_row(one) for one in read.kernels[:TOP]],
        "peak_bytes": {one.device: one.peak for one in read.memory},
        "advice": [asdict(one) for one in advice],
        "problems": read.problems,
    }
    found: dict[str, object] = to_json_value(figures)
    return found


def _format_row(one: Any) -> dict[str, object]:
    row = {"name": one.name, "calls": one.calls, "total_ms": one.total / 1e6}
    return {**row, "own_ms": one.own / 1e6} if hasattr(one, "own") else row
