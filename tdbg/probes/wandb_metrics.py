"""WANDB_METRICS: what the program sends to Weights & Biases, and what never arrives there."""

import logging
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from tdbg.core.observations.wandb_metrics import (
    ChartlessKey,
    WandbCallFailed,
    WandbDroppedCall,
    WandbFinished,
    WandbLogged,
    WandbLogin,
    WandbMessage,
    WandbStarted,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.distributed.collectives import find_argument
from tdbg.probes.forward import round_number
from tdbg.runtime.tensors import on_host

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

MAX_NAMES = 8
MAX_KEYS = 2000  # of one run that are followed
MAX_RUNS = 8
MAX_REPORTED = 32
MAX_TEXT = 40
CHARTLESS_TIMES = 3
STYLE = re.compile(r"\x1b\[[0-9;]*m")
DIGITS = re.compile(r"\d+")
PLAIN = (Tensor, nn.Parameter)


@dataclass(slots=True)
class _Key:
    """One name in the history of a run."""

    kind: str = ""
    times: int = 0
    bad: int = 0  # not finite
    texts: int = 0  # in a row, each of which is a number written as text
    last: str = ""
    varied: bool = False
    is_reported: bool = False


@dataclass(slots=True)
class _Line:
    """What was sent in one step."""

    step: int
    calls: int = 0
    uncommitted: int = 0
    sent_as: int | None = None  # the last ``step=`` given
    keys: set[str] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)  # of the first few keys
    new: dict[str, str] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """What one run of the tracker was sent."""

    keys: dict[str, _Key] = field(default_factory=dict)
    calls: int = 0
    dropped: int = 0
    line: _Line | None = None


@PROBES.add
class WandbMetrics(Probe):
    """What is sent to Weights & Biases: keys, types, steps, what it drops, and what fails.

    Reads:  ``wandb.init``, ``login``, ``Run.log`` and the end of a run, and what wandb itself says as a warning or
            an error, also where it is told to be silent. It asks the tracker for nothing.
    Emits:  INIT, LOGIN; LOG, a line a sampled step, with new keys always; DROPPED when a call gives a step that
            has passed; CHART for a key whose values make no chart; SAYS, FAILED; FINISH, with keys sent only once.
    Cost:   0.6 us a key and 8 us a call; wandb.log itself takes 70 us and more.
    Limits: tensors on an accelerator are named, not read. Runs of mode "disabled" send nothing and show nothing.
            Uploads run in a process of wandb's own: of their failure only what it tells this one is seen.
    """

    name = "wandb-metrics"
    levels = ("extreme",)
    observations = (
        WandbStarted,
        WandbLogin,
        WandbLogged,
        WandbDroppedCall,
        ChartlessKey,
        WandbMessage,
        WandbCallFailed,
        WandbFinished,
    )

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._reported: set[str] = set()

    # attaching

    def attach(self) -> None:
        self.when_imported("wandb", self._patch_wandb)

    def _patch_wandb(self, wandb: object) -> None:
        """The program has imported wandb."""
        run = getattr(wandb, "Run", None)
        if run is None:  # a folder of that name, in a program whose environment has no wandb
            return
        self.patch(
            run,
            "_log" if hasattr(run, "_log") else "log",
            before=self._handle_log_call,
            raised=self._build_failure_hook("log"),
        )
        self.patch(
            run,
            "_on_finish",
            before=self._handle_finish_begin,
            after=self._handle_finish_end,
            raised=self._build_failure_hook("finish"),
        )
        for name, after in (("init", self._init_ended), ("login", self._login_ended)):
            self.patch(wandb, name, after=after, raised=self._build_failure_hook(name))
        terminal = sys.modules.get("wandb.errors.term")
        if terminal is not None:
            self.patch(terminal, "_log", before=self._handle_printed_line)

    def detach(self) -> None:
        for run in self._runs.values():
            run.line = None
        super().detach()

    def forked(self) -> None:
        self._reset_state()

    # beginning and end

    def _init_ended(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], run: object) -> None:
        settings = _read_settings(run)
        mode = str(getattr(settings, "mode", "") or "online")
        project, start = str(getattr(settings, "project", "") or ""), _read_local_step(run)
        started = WandbStarted(
            run=_read_run_id(run), mode=mode, project=project, seconds=round(seconds, 3), starting_step=start
        )
        self.emit(started)
        if mode == "disabled":
            self.unavailable("wandb is disabled: it sends nothing")

    def _login_ended(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        self.emit(WandbLogin(ok=bool(result)))

    def _handle_finish_begin(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        run = self._runs.get(_read_run_id(args[0]))
        if run is not None:
            self._report_line(_read_run_id(args[0]), run)

    def _handle_finish_end(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        name = _read_run_id(args[0])
        run = self._runs.pop(name, None) or _Run()
        if getattr(args[0], "_finish_timed_out", False):
            self._emit_call_failed("finish", "it timed out before all was done", seconds)
        keys = run.keys
        for key, known in keys.items():
            if (
                known.bad == known.times >= CHARTLESS_TIMES
            ):  # at the end: many keys are NaN until they are first computed
                self._emit_chartless_key(name, key, "non-finite", known.last)
        often = max((key.times for key in keys.values()), default=0) > 1
        once = [key for key, known in keys.items() if known.times == 1] if often else []
        bad = {key: known.bad for key, known in keys.items() if known.bad}
        finished = WandbFinished(
            run=name,
            calls=run.calls,
            key_count=len(keys),
            dropped=run.dropped,
            once=once[:MAX_NAMES],
            once_count=len(once),
            bad=dict(list(bad.items())[:MAX_NAMES]),
            seconds=round(seconds, 3),
        )
        self.emit(finished)

    # log

    def _handle_log_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """``Run.log(data, step=None, commit=None)`` is about to run."""
        data, step = find_argument(args, kwargs, 1, "data"), find_argument(args, kwargs, 2, "step")
        if not isinstance(data, Mapping):
            return  # wandb will say so
        name = _read_run_id(args[0])
        run = self._get_or_create_run(name)
        run.calls += 1
        current = _read_local_step(args[0])
        if isinstance(step, int) and step < current and not _is_shared(args[0]):
            self._record_dropped_call(name, run, data, step, current)
            return
        line = self._get_current_line(name, run)
        line.calls += 1
        line.uncommitted += find_argument(args, kwargs, 3, "commit") is False
        line.sent_as = step if isinstance(step, int) else line.sent_as
        for key, value in list(data.items())[:MAX_KEYS]:
            self._record_value(name, run, line, str(key), value)

    def _get_or_create_run(self, name: str) -> _Run:
        if name not in self._runs and len(self._runs) >= MAX_RUNS:
            self._runs.pop(next(iter(self._runs)))
        return self._runs.setdefault(name, _Run())

    def _get_current_line(self, name: str, run: _Run) -> _Line:
        """The line of the running step; that of the step before is told."""
        if run.line is None or run.line.step != self.monitor.step:
            self._report_line(name, run)
            run.line = _Line(self.monitor.step)
        return run.line

    def _record_value(self, name: str, run: _Run, line: _Line, key: str, value: Any) -> None:
        known = run.keys.get(key)
        if known is None:
            if len(run.keys) >= MAX_KEYS:
                return
            known = run.keys[key] = _Key()
        known.times += 1
        line.keys.add(key)
        figure = number_of(value)
        kind = "number" if figure is not None else _describe_kind(value)
        if not known.kind:
            line.new[key] = kind
        known.kind = kind
        if figure is not None and not math.isfinite(figure):
            known.bad += 1
            known.last = str(figure)
            line.bad.append(key)
        if len(line.values) < MAX_NAMES or key in line.values:
            line.values[key] = value if type(value) is int else round_number(figure)
        if kind == "text":
            self._judge_text_value(name, known, key, value)

    def _judge_text_value(self, name: str, known: _Key, key: str, value: str) -> None:
        """Say once that a key's values are numbers written as text."""
        counts = len(value) <= MAX_TEXT and _is_numeric(value)
        known.texts = known.texts + 1 if counts else 0
        known.varied = known.varied or known.last not in ("", value)
        known.last = value[:MAX_TEXT]
        if known.texts >= CHARTLESS_TIMES and known.varied and not known.is_reported:
            known.is_reported = True
            self._emit_chartless_key(name, key, "text", repr(known.last))

    def _emit_chartless_key(self, name: str, key: str, why: str, example: str) -> None:
        self.emit(ChartlessKey(run=name, key=key, why=why, example=example), step=self.monitor.step)

    def _record_dropped_call(
        self, name: str, run: _Run, data: Mapping[object, object], step: int, current: int
    ) -> None:
        """wandb throws away what is logged for a step that has passed; told at 1, 2, 4, 8, ... such calls."""
        run.dropped += 1
        if run.dropped & (run.dropped - 1):
            return
        dropped = WandbDroppedCall(
            run=name,
            wandb_step=step,
            current_step=current,
            keys=[str(key) for key in data][:MAX_NAMES],
            dropped=run.dropped,
        )
        self.emit(dropped, step=self.monitor.step)

    def _report_line(self, name: str, run: _Run) -> None:
        """The line of a step that is over: where a key is new, else as far as it is affordable."""
        line, run.line = run.line, None
        if line is None or not (line.new or self.should_sample()):
            return
        with self.work():
            self._write_line(name, line)

    def _write_line(self, name: str, line: _Line) -> None:
        logged = WandbLogged(
            run=name,
            calls=line.calls,
            keys=list(line.values),
            key_count=len(line.keys),
            wandb_step=line.sent_as,
            values={key: value for key, value in line.values.items() if value is not None},
            uncommitted=line.uncommitted,
            new=dict(list(line.new.items())[:MAX_NAMES]) or None,
            bad=line.bad[:MAX_NAMES] or None,
        )
        self.emit(logged, step=line.step)

    # what goes wrong

    def _handle_printed_line(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """wandb prints a line, or would if it were not told to be silent."""
        level = find_argument(args, kwargs, 5, "level") or logging.INFO
        message = STYLE.sub("", str(find_argument(args, kwargs, 0, "string") or "")).strip()[:300]
        kind = DIGITS.sub("", message)  # the same words of another step are no news
        if level < logging.WARNING or kind in self._reported or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(kind)
        severity = "error" if level >= logging.ERROR else "warning"
        self.emit(WandbMessage(severity=severity, message=message))

    def _build_failure_hook(self, what: str) -> Any:
        def emit_failure(seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception) -> None:
            self._emit_call_failed(what, f"{type(error).__name__}: {error}"[:300], seconds)

        return emit_failure

    def _emit_call_failed(self, what: str, error: str, seconds: float) -> None:
        self.emit(WandbCallFailed(what=what, error=error, seconds=round(seconds, 3)))


def number_of(value: Any) -> float | None:
    """A number as wandb would chart it, if it can be had without waiting for a device; None for all else."""
    found: Any = None
    if isinstance(value, float | int):  # bool and numpy's float64 too
        found = value
    elif type(value) in PLAIN:  # reading a DTensor might ask the other ranks
        found = value.item() if value.numel() == 1 and on_host(value) and not value.is_complex() else None
    elif type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        dtype = getattr(value, "dtype", None)
        found = value.item() if dtype is not None and dtype.kind in "fiub" else None
    try:
        return None if found is None else float(found)
    except OverflowError:  # an integer of more than 300 digits
        return None


def _describe_kind(value: object) -> str:
    """What a value is that is no number: text, tensor, dict, or the name of its class."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, Tensor):
        return "tensor"
    return type(value).__name__


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_run_id(run: object) -> str:
    return str(getattr(_read_settings(run), "run_id", "") or "")


def _read_settings(run: object) -> object:
    """What a run was made with. Its public properties would attach a forked process to the tracker first."""
    return getattr(run, "_settings", None)


def _read_local_step(run: object) -> int:
    """The step a run is at, as this process counts it: ``run.step`` asks wandb's service, and waits."""
    step = getattr(run, "_local_step", None)
    step = getattr(run, "_step", 0) if step is None else step  # its name before wandb 0.20
    return step if isinstance(step, int) else 0


def _is_shared(run: object) -> bool:
    """True where several processes write one run: there wandb heeds no steps."""
    return bool(getattr(_read_settings(run), "_shared", False))
