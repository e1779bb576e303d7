"""`--to wandb` where the program has a run of its own: what tdbg records goes along with what the program logs.

W&B counts the calls of ``log`` as the steps of a run, so tdbg makes no call of its own: its newest record rides on the row
that the program logs anyway, under ``tdbg/...``, over ``tdbg/step``. The program's rows, their number, their steps and their
values stay. Alerts, tags, files and the summary make no rows. All of it happens in the thread that logs, on rank 0 alone.
"""

import atexit
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tdbg.core import run_files, sink_files
from tdbg.core.rundir import FINDINGS
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


class OwnRun:
    """Adds to the program's run. What fails is switched off, said once and counted, as any part of tdbg."""

    def __init__(self, feed: "RowFeed") -> None:
        self._feed = feed
        self._guard = feed.me.guard("W&B run")
        self._values: dict[str, float | str] = {}  # what no row has carried yet
        self._step = 0
        self._known: dict[str, set[tuple[object, ...]]] = {}  # id of a run -> findings that it has
        self._open: dict[str, Any] = {}  # id -> run, until it is finished
        self._left: list[Mapping[str, Any]] = []  # findings that the supervisor has left so far
        self._read_bytes = 0
        self._looked_at = 0.0
        self._sent_steps = 0
        feed.own_run = self

    def attach(self, run_class: type, log: str, patches: "Patches") -> None:
        """Stand in front of ``log`` and of the end of each run."""
        patches.wrap(run_class, log, self._wrap_log)
        patches.wrap(run_class, "_finish" if hasattr(run_class, "_finish") else "finish", self._wrap_finish)

    def add_row(self, row: Row) -> None:
        """Keep what a row of tdbg's says until the program logs."""
        for key, value in row.values.items():
            self._values[PREFIX + key] = value
        self._step = max(row.step, self._step)

    # standing in front

    def _wrap_log(self, original: Callable[..., object]) -> Callable[..., object]:
        import torch

        from tdbg.runtime.compiler import hide, unseen

        is_compiling, guard = torch.compiler.is_compiling, self._guard

        def log(*args: Any, **kwargs: Any) -> object:
            extended = None if is_compiling() else unseen(guard.call, self._extend, args, kwargs)
            if extended is None:
                return original(*args, **kwargs)
            (args, kwargs), share = extended
            begun = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._book((time.perf_counter() - begun) * share)

        return hide(log)

    def _wrap_finish(self, original: Callable[..., object]) -> Callable[..., object]:
        from tdbg.runtime.compiler import hide, unseen

        guard = self._guard

        def finish(*args: Any, **kwargs: Any) -> object:
            unseen(guard.call, self._complete, args[0])
            return original(*args, **kwargs)

        return hide(finish)

    # while the run goes on

    def _extend(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, float] | None:
        """The arguments of ``log`` with what is new, and what share of the values that is; None to leave them."""
        begun = time.perf_counter()
        run, data = args[0], args[1] if len(args) > 1 else kwargs.get("data")
        if not (self._feed.hears and type(data) is dict and self._belongs(run)):
            return None
        if begun - self._looked_at > LOOK_EVERY_S:
            self._looked_at = begun
            self._send_findings(run, self._read_findings())
        values, step = self._values, self._step
        if not values or not self._is_affordable(begun):
            return None
        self._values = {}
        added = {key: value for key, value in ({**values, STEP_KEY: step}).items() if key not in data}
        merged = {**data, **added}
        self._sent_steps += 1
        self._book(time.perf_counter() - begun)
        if len(args) > 1:
            return ((run, merged, *args[2:]), kwargs), len(added) / len(merged)
        return (args, {**kwargs, "data": merged}), len(added) / len(merged)

    def _belongs(self, run: Any) -> bool:
        """True for a run of rank 0's that goes somewhere; one that is new is announced."""
        me = self._feed.me
        if me.rank != 0 or self._is_disabled(run):
            return False
        if run.id not in self._known:
            if not self._known:
                # W&B ends its runs at exit without finishing them. It has registered that when this run began, so this
                # comes before.
                atexit.register(self._guard.call, self._complete_all)
            self._known[run.id] = set()
            self._open[run.id] = run
            about = {"id": run.id, "project": run.project, "entity": run.entity, "folder": run.dir}
            sink_files.announce(me.run_dir, sink_files.WANDB, about, len(self._known))
            run.define_metric(STEP_KEY, hidden=True)
            run.define_metric(f"{PREFIX}*", step_metric=STEP_KEY)
        return True

    @staticmethod
    def _is_disabled(run: Any) -> bool:
        return getattr(getattr(run, "_settings", None), "mode", "") == "disabled" or getattr(run, "_is_finished", False)

    def _is_affordable(self, now: float) -> bool:
        budget = self._feed.monitor.budget
        return budget.spent_on(PART) + budget.likely_s(PART) <= budget.earned_s(now)

    def _book(self, seconds: float) -> None:
        budget = self._feed.monitor.budget
        budget.learn(PART, seconds)
        budget.spend(PART, seconds)

    def _read_findings(self) -> list[Mapping[str, Any]]:
        """What the supervisor has found so far: all of it, read as far as it is new."""
        path = self._feed.me.run_dir / FINDINGS
        try:
            if path.stat().st_size <= self._read_bytes:
                return self._left
            with run_files.open_read(path) as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return self._left
        self._read_bytes += len(whole) + 1 if whole else 0
        for line in whole.split(b"\n"):
            found = json.loads(line) if line else None
            if isinstance(found, dict):
                self._left.append(found)
        return self._left

    def _send_findings(self, run: Any, findings: list[Mapping[str, Any]]) -> None:
        sent = self._known[run.id]
        for finding in findings:
            key = tuple(str(finding.get(name)) for name in ("code", "first_step", "rank", "phase", "module"))
            if key not in sent and len(sent) < MAX_FINDINGS:
                sent.add(key)
                send_finding(run, finding)

    # at its end

    def _complete_all(self) -> None:
        """The process ends with runs that the program has left to W&B to end."""
        for run in list(self._open.values()):
            self._complete(run)

    def _complete(self, run: Any) -> None:
        """The program is about to finish the run: add all that is known by now."""
        if not (self._feed.hears and self._belongs(run)):
            return
        self._open.pop(run.id, None)
        error = getattr(sys, "last_value", None)
        if isinstance(error, Exception):  # the report is to say what ended the program
            tracebacks.record(self._feed.me, error, how="uncaught")
        values, self._values = self._values, {}
        run.summary.update({**values, STEP_KEY: self._step})  # a row would move the run's step
        run_dir = self._feed.me.run_dir
        report = sink_files.request_report(run_dir, REPORT_PATIENCE_S)
        self._send_findings(run, report.get("findings") or self._read_findings())
        trouble = ""
        if report:
            send_report(run, str(report.get("headline")), str(report.get("markdown")))
        else:
            trouble = f"no report was made within {REPORT_PATIENCE_S:g} s of the end of the run"
        where = (
            f"{self._sent_steps} step records and {len(self._known[run.id])} findings in the program's own run {run.id}"
        )
        sink_files.note_outcome(run_dir, sink_files.WANDB, where, error=trouble, is_own=True)
