"""Lanes of ranks: what each did over time, when its findings were made, and how it ended."""

import statistics
from collections import deque
from collections.abc import Sequence
from typing import TypedDict

from tdbg.core.events import MAX_STEP, Cost, End, Event, Finding, Observation, Start, Step, Traceback
from tdbg.core.observations.validation import EvaluationPass
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, format_short
from tdbg.core.time_lanes import LATEST_T, LaneBar, TimeLane
from tdbg.rules.report_page.processes import GOOD_ENDS, name_process, rows_by_folder, sort_by_interest
from tdbg.rules.verdict import Verdict

TRAINED, DATA, EVALUATED, WAITED, NOT_RECORDED = range(5)
KINDS = ("trained", "waited for data", "evaluated", "waited, or did something else", "steps not on record")
NOT_RECORDED_NOTE = (
    "Steps not on record were only counted, so that what took their time is unknown. An evaluation without a call on"
    " record is drawn as long as the steps around it leave time for it."
)
MAX_LANES = 256
MAX_BINS = 400  # of a lane
ALL_BINS = 8_000
PAUSE_MS = 1000.0  # of a step outside of all phases, from which on it counts as waiting ...
PAUSE_RATIO = 2.0  # ... and so many times the phases
UNEXPLAINED_S = 1.0  # between records of successive steps, from which on the time is left open
RECENT = 5  # times of a step, of records and of stretches between them, of which the median is the usual one
MAX_STEP_MS = 1e8
LEAST_EVALUATION = 2.0  # usual steps: what is left over for an evaluation without a call on record ...
LEAST_SHARE = 0.2  # ... and so much of the time, where calls were only counted: every step may make one
LETTERS = 120


class Mark(TypedDict):
    """Findings on a lane: their numbers, the worst first."""

    t: float
    step: int | None
    findings: list[int]


class Ending(TypedDict):
    """The end of a process on a lane."""

    t: float
    text: str
    bad: bool


class Lane(TypedDict):
    """A row for ``drawLanes``; bars: kind, start, end, low, high, first step, last step. Times in seconds of the run."""

    name: str
    bars: list[tuple[int, float, float, float, float, int | None, int | None]]
    marks: list[Mark]
    ends: list[Ending]


class ProcessLane:
    """Follows one process through its events."""

    def __init__(self, process: ProcessDir, wanted: Sequence[int], bins: int) -> None:
        self.process = process
        self.lane = TimeLane(len(KINDS), bins, unknown=NOT_RECORDED, known=(TRAINED, DATA))
        self.times_by_step: dict[int, float] = {}  # of the steps at which something was found
        self.last_t = 0.0
        self.crash = self.reason = ""
        self._wanted = sorted(set(wanted))
        self._before: Step | None = None
        self._drawn_until = 0.0  # 0: nothing is drawn yet
        self._step = 0  # the last one that is drawn
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._counted = (0, 0.0)  # the last step that a cost event counts, and its time
        self._calls = self._calls_of_passes = 0  # of evaluation: that are drawn, and that are in passes that ended
        self._unseen_until = 0.0  # calls before this time are not drawn; 0: there are none
        self._least_share = 0.0  # of the time for these

    def add_event(self, event: Event) -> None:
        """Take an event."""
        if not 0 < event.t < LATEST_T or abs(getattr(event, "step", 0) or 0) > MAX_STEP:
            return
        if isinstance(event, Step):
            self._add_step(event)
        elif isinstance(event, Cost):
            self._add_cost(event)
        elif isinstance(event, Observation):
            self._add_pass(event)
        elif isinstance(event, Traceback) and event.how == "uncaught":
            self.crash = event.exception or "exception"
        elif isinstance(event, End):
            self.reason = event.reason
        if not isinstance(event, Start):
            self.last_t = max(self.last_t, event.t)

    def build_bars(self) -> list[LaneBar]:
        """The rectangles, up to the last step that was counted."""
        step, t = self._counted
        if self._drawn_until and (step > self._step or self._unseen_until):
            self._draw_not_recorded(t, step - self._step)
            self._drawn_until, self._step = max(t, self._drawn_until), max(step, self._step)
        return self.lane.build_bars()

    def _add_step(self, event: Step) -> None:
        before, self._before = self._before, event
        while self._wanted and self._wanted[0] <= event.step:
            self.times_by_step[self._wanted.pop(0)] = event.t
        if event.phase == "eval":
            self._add_evaluation(event, before)
        else:
            self._add_training(event, before)
        self._drawn_until, self._step = max(event.t, self._drawn_until), event.step

    def _add_cost(self, event: Cost) -> None:
        self._counted = (event.step, event.t)
        if event.evals > self._calls:
            self._calls, self._unseen_until, self._least_share = event.evals, event.t, LEAST_SHARE

    def _add_pass(self, event: Observation) -> None:
        """Take the end of an evaluation pass: one without a call on record ended a step ago at most."""
        ended = EvaluationPass.from_event(event)
        if ended is None:
            return
        self._calls = self._calls_of_passes = max(self._calls, self._calls_of_passes + ended.calls)
        self._unseen_until = 0.0
        if not ended.seen and self._drawn_until and event.step >= self._step:
            self._unseen_until, self._least_share = event.t, 0.0
            self._draw_not_recorded(event.t, event.step - self._step)
            self._drawn_until, self._step = max(event.t, self._drawn_until), event.step

    def _add_evaluation(self, event: Step, before: Step | None) -> None:
        length_s = (event.forward_ms or 0.0) / 1000
        start = event.t - length_s
        self._calls, calls = max(self._calls, event.call or 0), (event.call or 0) - self._calls
        if before is not None:
            goes_on = before.phase == "eval" and event.t - before.t < UNEXPLAINED_S + 20 * length_s
            if event.step > self._step or (calls > 1 and not goes_on):
                self._draw_not_recorded(start, event.step - self._step)
            start = self._drawn_until if goes_on else max(start, self._drawn_until)
        self.lane.add_activity(EVALUATED, start, event.t, event.step)

    def _add_training(self, event: Step, before: Step | None) -> None:
        phases_ms = sum(
            value or 0.0 for value in (event.loader_ms, event.forward_ms, event.backward_ms, event.optimizer_ms)
        )
        step_ms = event.step_ms if event.step_ms and event.step_ms > 0 else phases_ms
        start = event.t - step_ms / 1000
        follows_step = before is not None and before.phase != "eval"
        if 0 < step_ms < MAX_STEP_MS:
            self._recent_s.append(step_ms / 1000)
        if before is not None:
            missing = event.step - self._step - 1
            if missing > 0:
                self._draw_not_recorded(start, missing)
            goes_on = missing <= 0 and event.t - self._drawn_until <= UNEXPLAINED_S + 2 * step_ms / 1000
            start = self._drawn_until if goes_on and follows_step else max(start, self._drawn_until)
        shown_ms = max(min(step_ms, (event.t - start) * 1000), phases_ms)  # without an evaluation that is drawn already
        rest_ms = shown_ms - phases_ms
        data = min(max(0.0, (event.loader_ms or 0.0) / shown_ms), 1.0) if shown_ms else 0.0
        waited = 0.0
        if follows_step and rest_ms > max(PAUSE_MS, PAUSE_RATIO * phases_ms):
            waited = min(rest_ms / shown_ms, 1.0 - data)
        after_wait = start + waited * (event.t - start)
        if after_wait > start:
            self.lane.add_activity(WAITED, start, after_wait)
        of_rest = data / (1.0 - waited) if waited < 1.0 else 0.0
        self.lane.add_shares({DATA: of_rest, TRAINED: 1.0 - of_rest}, after_wait, event.t, event.step)

    def _draw_not_recorded(self, until: float, steps: int) -> None:
        """So many steps up to a time were only counted; calls that are not on record had what the steps left over."""
        start, unseen_until = self._drawn_until, min(self._unseen_until, until)
        self._unseen_until = 0.0
        if unseen_until <= start < until and steps > 0:
            self._recent_s.append((until - start) / steps)
        if unseen_until > start and self._recent_s:
            usual_s = statistics.median(self._recent_s)
            left_s = min(until - start - max(steps, 0) * usual_s, unseen_until - start)
            if left_s > max(LEAST_EVALUATION * usual_s, self._least_share * (until - start)):
                self.lane.add_activity(NOT_RECORDED, start, unseen_until - left_s)
                self.lane.add_activity(EVALUATED, unseen_until - left_s, unseen_until)
                start = unseen_until
        if steps > 0 or start == self._drawn_until:
            self.lane.add_activity(NOT_RECORDED, start, until)


class RunLanes:
    """Collects the lanes of a run from its events, in constant memory. findings: in the order of the page."""

    def __init__(self, verdict: Verdict, processes: Sequence[ProcessDir], findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._rows = rows_by_folder(verdict)
        chosen = sort_by_interest(verdict, processes)
        self._left_out = max(len(chosen) - MAX_LANES, 0)
        labels = {process.label for process in chosen[:MAX_LANES]}
        shown = [process for process in processes if process.label in labels]
        bins = min(max(ALL_BINS // max(len(shown), 1), 30), MAX_BINS)
        steps: dict[int | None, list[int]] = {}
        for finding in findings:
            if finding.first_step is not None:
                steps.setdefault(finding.rank, []).append(finding.first_step)
        self._lanes = {process.label: ProcessLane(process, steps.get(process.rank, ()), bins) for process in shown}

        self._lanes_by_rank: dict[int | None, list[ProcessLane]] = {}
        for lane in self._lanes.values():
            if lane.process.rank is not None:
                self._lanes_by_rank.setdefault(lane.process.rank, []).append(lane)

    def add_event(self, process: ProcessDir, event: Event) -> None:
        """Take an event of any process."""
        found = self._lanes.get(process.label)
        if found is not None:
            found.add_event(event)

    def build_lanes(self, start_t: float) -> list[Lane]:
        """A row for each rank, with its attempts behind each other, and one for each process beside the ranks."""
        rows: dict[str, Lane] = {}
        for found in self._lanes.values():
            bars = found.build_bars()
            if not bars:
                continue
            process = found.process
            name = f"{process.display_name}" if process.is_rank else name_process(process)
            lane = rows.setdefault(name, {"name": name, "bars": [], "marks": [], "ends": []})
            lane["bars"] += [
                (
                    bar["kind"],
                    _to_run_seconds(bar["start"], start_t),
                    _to_run_seconds(bar["end"], start_t),
                    bar["low"],
                    bar["high"],
                    bar["first_step"],
                    bar["last_step"],
                )
                for bar in bars
            ]
            lane["ends"].append(self._build_ending(found, start_t))
            lane["marks"] += self._build_marks(found, start_t)
        return list(rows.values())

    def find_first_t(self) -> float | None:
        """When the first bar begins; None without any."""
        starts = [bars[0]["start"] for found in self._lanes.values() if (bars := found.build_bars())]
        return min(starts, default=None)

    def describe_left_out(self) -> str:
        """What is left out, and what is not on record."""
        notes = [f"{format_count(self._left_out, 'process')} without a finding left out."] if self._left_out else []
        bars = (bar for found in self._lanes.values() for bar in found.build_bars())
        return " ".join([*notes, *([NOT_RECORDED_NOTE] if any(bar["kind"] == NOT_RECORDED for bar in bars) else [])])

    def _build_ending(self, found: ProcessLane, start_t: float) -> Ending:
        row = self._rows.get(found.process.label)
        if row is not None:
            text = row["ended"]
        else:
            text = found.crash or {"": "cut off", "exit": "ended"}.get(found.reason, found.reason)
        return {
            "t": _to_run_seconds(found.last_t, start_t),
            "text": format_short(text, LETTERS),
            "bad": text not in GOOD_ENDS,
        }

    def _build_marks(self, found: ProcessLane, start_t: float) -> list[Mark]:
        """The findings of the process; one whose step has no record stands at its end."""
        marks: dict[int | None, Mark] = {}
        for number, finding in enumerate(self._findings):
            if self._find_owner(finding) is not found:
                continue
            step = finding.first_step
            t = found.times_by_step.get(step, found.last_t) if step is not None else found.last_t
            mark: Mark = {"t": _to_run_seconds(t, start_t), "step": step, "findings": []}
            marks.setdefault(step, mark)["findings"].append(number)
        return list(marks.values())

    def _find_owner(self, finding: Finding) -> ProcessLane | None:
        """Of the processes of its rank the first that came as far, which a restart does once more; else the last attempt."""
        of_rank = self._lanes_by_rank.get(finding.rank, [])
        reached = (lane for lane in of_rank if finding.first_step in lane.times_by_step)
        last = (lane for lane in reversed(of_rank) if lane.process.is_rank)
        return next(reached, None) or next(last, None)


def _to_run_seconds(t: float, start_t: float) -> float:
    return round(t - start_t, 4)
