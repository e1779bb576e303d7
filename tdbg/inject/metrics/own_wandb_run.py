"""`--to wandb` where the program has a run of its own: what tdbg records goes along with what the program logs.

W&B counts the calls of ``log`` as the steps of a run, so tdbg makes no call of its own: its newest record rides on the row
that the program logs anyway, under ``tdbg/...``, over ``tdbg/step``. The program's rows, their number, their steps and their
values stay. Alerts, tags, files and the summary make no rows. All of it happens in the thread that logs, on rank 0 alone, and
goes into W&B's own queue: nothing here waits for a network. The first `log` of a run writes a small file in the run
directory, and once a second a `log` reads the findings that are new; the time counts against the budget. The end of a run
waits for the report (`OwnRun._complete_run`).
"""

import atexit
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tdbg.core import run_files, sink_files
from tdbg.core.rundir import FINDINGS
from tdbg.core.tables import format_count
from tdbg.inject import tracebacks
from tdbg.metrics.rows.row import Row
from tdbg.metrics.sinks.wandb_ import PREFIX, send_finding, send_report

if TYPE_CHECKING:
    from tdbg.inject.metrics import RowFeed
    from tdbg.runtime.patches import Patches

PART = "wandb-run"  # its name in the budget
STEP_KEY = f"{PREFIX}step"
LOOK_EVERY_S = 1.0  # for findings that the supervisor has left
MAX_FINDINGS = 50  # alerts of one run
REPORT_PATIENCE_S = 10.0  # for the supervisor's report, when a run is finished

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class RunState:
    """What one run of the program's has got, and what it has not."""

    run: Any  # None once it is finished
    values: dict[str, float | str] = field(default_factory=dict)  # what no row of it has carried yet
    sent_steps: int = 0
    findings: set[tuple[object, ...]] = field(default_factory=set)


class OwnRun:
    """Adds to the program's run. What fails is switched off, said once and counted, as any part of tdbg."""

    def __init__(self, feed: "RowFeed") -> None:
        self._feed = feed
        self._guard = feed.me.get_guard("W&B run")
        self._values: dict[str, float | str] = {}  # the newest ones, for a run that begins
        self._step = 0
        self._has_news = True  # a row came since `log` was last called
        self._runs: dict[str, RunState] = {}  # by id
        self._open: dict[str, RunState] = {}  # those that are not finished
        self._found: list[Mapping[str, Any]] = []  # findings that the supervisor has left so far
        self._read_bytes = 0
        self._looked_at = 0.0
        self._patience_s = REPORT_PATIENCE_S
        feed.own_run = self

    def patch_run_class(self, run_class: type, log: str, patches: "Patches") -> None:
        """Stand in front of ``log`` and of the end of each run."""
        patches.wrap_attribute(run_class, log, self._wrap_log)
        patches.wrap_attribute(run_class, "_finish" if hasattr(run_class, "_finish") else "finish", self._wrap_finish)

    def add_row(self, row: Row) -> None:
        """Keep what a row of tdbg's says until the program logs."""
        values = {PREFIX + key: value for key, value in row.values.items()}
        if not self._open:
            self._values |= values
        for state in self._open.values():
            state.values |= values
        self._step = max(row.step, self._step)
        self._has_news = True

    # standing in front

    def _wrap_log(self, original: Callable[..., object]) -> Callable[..., object]:
        import torch

        from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler

        is_compiling, guard = torch.compiler.is_compiling, self._guard

        def log(*args: Any, **kwargs: Any) -> object:
            if is_compiling() or not (self._has_news or time.perf_counter() - self._looked_at > LOOK_EVERY_S):
                return original(*args, **kwargs)
            extended = call_outside_compiler(guard.call_guarded, self._extend_arguments, args, kwargs)
            if extended is None:
                return original(*args, **kwargs)
            (more_args, more_kwargs), share = extended
            before, begun = read_step(args[0]), time.perf_counter()
            try:
                return original(*more_args, **more_kwargs)
            except Exception as error:
                if before is None or read_step(args[0]) != before:
                    raise
                refused = error
            finally:
                self._record_cost((time.perf_counter() - begun) * share)
            # The row is not written, perhaps for what was added to it: once more as the program wrote it.
            result = original(*args, **kwargs)
            guard.handle_failure(refused)
            return result

        return hide_from_compiler(log)

    def _wrap_finish(self, original: Callable[..., object]) -> Callable[..., object]:
        from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler

        guard = self._guard

        def finish(*args: Any, **kwargs: Any) -> object:
            call_outside_compiler(guard.call_guarded, self._complete_run, args[0])
            return original(*args, **kwargs)

        return hide_from_compiler(finish)

    # while the run goes on

    def _extend_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, float] | None:
        """The arguments of ``log`` with what is new, and what share of the values that is; None to leave them."""
        begun = time.perf_counter()
        run, data = args[0], args[1] if len(args) > 1 else kwargs.get("data")
        if not (self._feed.is_listening and type(data) is dict):
            return None
        try:
            state = self._find_state(run)
            if state is None:
                return None
            if begun - self._looked_at > LOOK_EVERY_S:
                self._looked_at = begun
                self._send_findings(state, self._read_findings())
            if not state.values or not self._is_affordable(begun):
                self._has_news = False  # until there are newer values
                return None
            added = {key: value for key, value in ({**state.values, STEP_KEY: self._step}).items() if key not in data}
            state.values = {}
            state.sent_steps += 1
            self._has_news = any(other.values for other in self._open.values())
            merged, share = {**data, **added}, len(added) / (len(data) + len(added))
            if len(args) > 1:
                return ((run, merged, *args[2:]), kwargs), share
            return (args, {**kwargs, "data": merged}), share
        finally:
            self._record_cost(time.perf_counter() - begun)

    def _find_state(self, run: Any) -> RunState | None:
        """What a run of rank 0's that goes somewhere has got; one that is new is announced."""
        me = self._feed.me
        if me.rank != 0 or is_disabled(run) or getattr(run, "_is_finished", False):
            return None
        if run.id not in self._runs:
            # W&B ends its runs at exit without finishing them. It has registered that when this run began, so this
            # comes before.
            atexit.register(self._guard.call_guarded, self._complete_open)
            state = self._runs[run.id] = self._open[run.id] = RunState(run, self._values)
            self._values = {}
            about = {"id": run.id, "project": run.project, "entity": run.entity, "folder": run.dir}
            sink_files.announce_own_run(me.run_dir, sink_files.WANDB, about, len(self._runs))
            run.define_metric(STEP_KEY, hidden=True)
            run.define_metric(f"{PREFIX}*", step_metric=STEP_KEY)
            return state
        return self._open.get(run.id)

    def _is_affordable(self, now: float) -> bool:
        budget = self._feed.monitor.budget
        return budget.spent_on(PART) + budget.likely_s(PART) <= budget.earned_s(now)

    def _record_cost(self, seconds: float) -> None:
        budget = self._feed.monitor.budget
        budget.record_cost(PART, seconds)
        budget.charge(PART, seconds)

    def _read_findings(self) -> list[Mapping[str, Any]]:
        """What the supervisor has found so far: all of it, read as far as it is new."""
        path = self._feed.me.run_dir / FINDINGS
        try:
            if path.stat().st_size <= self._read_bytes:
                return self._found
            with run_files.open_read(path) as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return self._found
        self._read_bytes += len(whole) + 1 if whole else 0
        for line in whole.split(b"\n"):
            found = json.loads(line) if line else None
            if isinstance(found, dict):
                self._found.append(found)
        return self._found

    def _send_findings(self, state: RunState, findings: list[Mapping[str, Any]]) -> None:
        for finding in findings:
            key = tuple(str(finding.get(name)) for name in ("code", "first_step", "rank", "phase", "module"))
            if key not in state.findings and len(state.findings) < MAX_FINDINGS:
                state.findings.add(key)
                send_finding(state.run, finding)

    # at its end

    def _complete_open(self) -> None:
        """The process ends with runs that the program has left to W&B to end."""
        for state in list(self._open.values()):
            self._complete_run(state.run)

    def _complete_run(self, run: Any) -> None:
        """The program is about to finish the run: add all that is known by now."""
        state = self._find_state(run) if self._feed.is_listening else None
        if state is None:
            return
        self._open.pop(run.id)
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception):  # the report is to say what ended the program
            tracebacks.record_exception(self._feed.me, error, how="uncaught")
        run.summary.update({**state.values, STEP_KEY: self._step})  # a row would move the run's step
        run_dir = self._feed.me.run_dir
        begun = time.perf_counter()
        report = sink_files.request_report(run_dir, self._patience_s)
        waited_s = round(time.perf_counter() - begun, 3)
        self._send_findings(state, report.get("findings") or self._read_findings())
        trouble = ""
        if report:
            send_report(run, str(report.get("headline")), str(report.get("markdown")))
        else:
            trouble = f"the report was not ready {self._patience_s:g} s after the end of the run"
            self._patience_s = 0.0  # further runs of this process do not wait for it again
        where = (
            f"added {format_count(state.sent_steps, 'step record')} and {format_count(len(state.findings), 'finding')} to the "
            f"program's own run {run.id}"
        )
        ended_at = self._feed.monitor.step
        sink_files.record_outcome(
            run_dir,
            sink_files.WANDB,
            where,
            error=trouble,
            own_run=str(run.id),
            ended_at=ended_at,
            waited_s=waited_s,
        )
        state.run = None
        state.values = {}


def is_disabled(run: object) -> bool:
    """True for a run that goes nowhere."""
    return getattr(getattr(run, "_settings", None), "mode", "") == "disabled"


def read_step(run: object) -> int | None:
    """The step a run is at, as this process counts it: ``run.step`` asks wandb's service, and waits."""
    step = getattr(run, "_local_step", None)
    step = getattr(run, "_step", None) if step is None else step  # its name before wandb 0.20
    return step if isinstance(step, int) else None
