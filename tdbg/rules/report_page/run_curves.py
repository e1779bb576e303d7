"""The curves of a run, from its step records: loss, learning rates, norms, time by phase, memory.

Of many processes a few have lines of their own: those with findings or a bad end first. The others are in a band.
"""

from collections.abc import Iterable, Sequence
from typing import TypedDict

from tdbg.core.curve_points import BandData, CurveData, CurvePoints, ValueBand, merge_equal
from tdbg.core.events import MAX_STEP, Event, Params, Step
from tdbg.core.heat_grid import HeatData, HeatGrid
from tdbg.core.rundir import ProcessDir
from tdbg.core.step_clock import StepClock
from tdbg.core.tables import format_count, format_short, join_limited
from tdbg.core.time_lanes import LATEST_T
from tdbg.rules.report_page.processes import name_process, sort_by_interest
from tdbg.rules.text import format_ranks
from tdbg.rules.verdict import Verdict

MAX_LINES = 8  # processes with lines of their own
MAX_GROUPS = 16  # parameter groups of a process
MAX_GRIDS = 3  # of gradient norms: one for each set of parameters
MAX_NAMES = 4  # of processes whose curve is the same
NAME_LETTERS = 80
BUCKETS = 1000  # of a curve; of many processes fewer
BUCKETS_OF_MANY = 300
BAND = "all ranks"

# Chart, curve, field of a step record.
FIELDS = (
    ("loss", "", "loss"),
    ("grad_norm", "", "grad_norm"),
    ("scale", "", "scale"),
    ("step_ms", "", "step_ms"),
    ("phases", "loader", "loader_ms"),
    ("phases", "forward", "forward_ms"),
    ("phases", "backward", "backward_ms"),
    ("phases", "optimizer", "optimizer_ms"),
    ("phases", "whole step", "step_ms"),
    ("memory", "host", "host_mb"),
    ("memory", "device", "device_mb"),
    ("memory", "device, peak", "device_peak_mb"),
)
BANDED = ("loss", "grad_norm", "step_ms")


class Choice(TypedDict):
    """The curves of one process, where a chart shows one at a time."""

    name: str
    curves: list[CurveData]


class Chart(TypedDict):
    """A chart for ``drawCurves``."""

    id: str
    title: str
    unit: str
    x: str
    marked: bool  # the steps of findings are drawn on it
    note: str
    curves: list[CurveData]
    bands: list[BandData]
    choices: list[Choice]


# Id, title, unit, x axis.
CHARTS = (
    ("loss", "Loss", "", "step"),
    ("lr", "Learning rate", "", "step"),
    ("grad_norm", "Gradient norm (before clipping)", "", "step"),
    ("phases", "Time of a step by phase", "ms", "step"),
    ("step_ms", "Time of a step by rank", "ms", "step"),
    ("memory", "Memory", "MB", "step"),
    ("scale", "Loss scale", "", "step"),
    ("eval", "Evaluation: time in the model", "ms", "call"),
)


class Clock(TypedDict):
    """When the steps of a process were done, or its calls in evaluation: in seconds of the run."""

    rank: int | None
    x: str
    steps: list[int]
    seconds: list[float]


class ProcessCurves:
    """The curves of one process."""

    def __init__(self, name: str, marked: Sequence[int], buckets: int, rank: int | None = None) -> None:
        self.name, self.rank = name, rank
        self.clocks = {"step": StepClock(), "call": StepClock()}
        self.curves: dict[tuple[str, str], CurvePoints] = {}
        self._marked, self._buckets = marked, buckets

    def add_step(self, event: Step) -> None:
        """Take what a step record holds."""
        self._add_time(event)
        if event.phase == "eval":
            self._get_curve("eval", "").add_point(event.call or event.step, event.forward_ms)
            return
        for chart, name, field in FIELDS:
            value = getattr(event, field)
            if value is not None:
                self._get_curve(chart, name).add_point(event.step, value)
        for group, rate in enumerate(event.lr[:MAX_GROUPS]):
            self._get_curve("lr", f"group {group}" if len(event.lr) > 1 else "").add_point(event.step, rate)
        if event.other_losses:
            self._get_curve("loss", "other optimizer").add_point(event.step, event.other_losses[-1])

    def _add_time(self, event: Step) -> None:
        x, number = ("call", event.call or event.step) if event.phase == "eval" else ("step", event.step)
        if 0 < event.t < LATEST_T and abs(number) < MAX_STEP:
            self.clocks[x].add_record(number, event.t)

    def _get_curve(self, chart: str, name: str) -> CurvePoints:
        key = (chart, name)
        if key not in self.curves:
            self.curves[key] = CurvePoints(() if chart == "eval" else self._marked, self._buckets)
        return self.curves[key]


class HeatChart(HeatData):
    """A grid with its title. clock: by its number that which tells when each step was."""

    clock: int
    title: str
    note: str


class GradientNorms:
    """The gradient norms of the parameters of one process; a change of the set of parameters begins another grid."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.grids: list[HeatGrid] = []

    def add_event(self, event: Params | Step) -> None:
        """Take the names, or a record that has the norms."""
        if isinstance(event, Params):
            if len(self.grids) < MAX_GRIDS and event.names:
                self.grids.append(HeatGrid([format_short(name, NAME_LETTERS) for name in event.names]))
        elif event.grad_norms and self.grids:
            self.grids[-1].add_record(event.step, event.grad_norms)

    def as_data(self, clock: int) -> Iterable[HeatChart]:
        """Each grid that has a value."""
        for grid in self.grids:
            data = grid.as_data()
            if data["x"]:
                left_out = (
                    f" {format_count(grid.omitted_rows, 'parameter')} left out, evenly." if grid.omitted_rows else ""
                )
                note = f"Of {self.name} alone. A cell is the largest norm of its steps.{left_out}"
                yield {**data, "clock": clock, "title": "Gradient norm by parameter", "note": note}


class RunCurves:
    """Collects the curves of a run from its events, in constant memory."""

    def __init__(self, verdict: Verdict, processes: Sequence[ProcessDir]) -> None:
        marked = [finding.first_step for finding in verdict.findings if finding.first_step is not None]
        candidates = sort_by_interest(verdict, processes)
        chosen = candidates[:MAX_LINES]
        buckets = BUCKETS if len(chosen) <= 2 else BUCKETS_OF_MANY
        labels = {process.label for process in chosen}
        self._lines = {
            process.label: ProcessCurves(name_process(process), marked, buckets, process.rank)
            for process in processes
            if process.label in labels
        }
        self._norms = {process.label: GradientNorms(name_process(process)) for process in chosen[:1]}
        self._stepped: set[str] = set()
        last_step = max((row["steps"] for row in (*verdict.ranks, *verdict.others)), default=0)
        has_more = len(candidates) > len(chosen)
        self._bands = {chart: ValueBand(last_step) for chart in BANDED} if has_more else {}

    def add_event(self, process: ProcessDir, event: Event) -> None:
        """Take an event; only step records and names of parameters count."""
        if process.label in self._norms and isinstance(event, Params | Step):
            self._norms[process.label].add_event(event)
        if not isinstance(event, Step):
            return
        self._stepped.add(process.label)
        if process.label in self._lines:
            self._lines[process.label].add_step(event)
        if event.phase != "eval":
            for chart, band in self._bands.items():
                band.add_point(event.step, getattr(event, chart))

    def build_charts(self) -> list[Chart]:
        """The charts that have something to show."""
        found = [self._build_chart(*about) for about in CHARTS]
        return [chart for chart in found if chart["curves"] or chart["choices"]]

    def build_clocks(self, start_t: float) -> list[Clock]:
        """Two for each process with lines of its own: of its steps and of its calls, in that order."""
        found: list[Clock] = []
        for process in self._lines.values():
            for x, clock in process.clocks.items():
                steps, seconds = clock.list_points(start_t)
                found.append({"rank": process.rank, "x": x, "steps": steps, "seconds": seconds})
        return found

    def build_heat_charts(self) -> list[HeatChart]:
        """The gradient norms of the parameters of the process that comes first."""
        numbers = {label: 2 * number for number, label in enumerate(self._lines)}
        return [heat for label, norms in self._norms.items() for heat in norms.as_data(numbers[label])]

    def _build_chart(self, chart: str, title: str, unit: str, x: str) -> Chart:
        lines = [
            (process, curves, 2 * number + (x == "call"))
            for number, process in enumerate(self._lines.values())
            if (curves := self._list_curves(process, chart))
        ]
        made: Chart = {
            "id": chart,
            "title": title,
            "unit": unit,
            "x": x,
            "marked": chart != "eval",
            "note": "",
            "curves": [],
            "bands": [],
            "choices": [],
        }
        if chart == "phases":
            made["choices"] = [
                {"name": process.name, "curves": [_build_curve(curve, name, clock) for name, curve in curves]}
                for process, curves, clock in lines
            ]
            return made
        if chart == "step_ms" and len(self._stepped) < 2:
            return made
        is_alone = len(self._stepped) == 1
        named = [
            (process.name, name, _build_curve(curve, "", clock))
            for process, curves, clock in lines
            for name, curve in curves
        ]
        made["curves"] = _merge_processes(named, title.lower(), is_alone=is_alone)
        made["note"] = _describe_points(curve for _, curves, _ in lines for _, curve in curves)
        if self._bands and chart in self._bands:
            band = self._bands[chart].as_data(f"{BAND}, least to most")
            made["bands"] = [band] if band["x"] else []
            made["note"] = (
                f"Lines of {format_count(len(lines), 'process')} of {len(self._stepped):,}; the band holds all."
            )
        return made

    @staticmethod
    def _list_curves(process: ProcessCurves, chart: str) -> list[tuple[str, CurvePoints]]:
        return [(name, curve) for (of, name), curve in process.curves.items() if of == chart and not curve.is_empty()]


def _build_curve(curve: CurvePoints, name: str, clock: int) -> CurveData:
    return {**curve.as_data(name), "clock": clock}


def _merge_processes(named: Sequence[tuple[str, str, CurveData]], title: str, *, is_alone: bool) -> list[CurveData]:
    """Name the curves after their processes; where several have the same one, once for all of them.

    As one is a record ahead of the others, these part and join: by the first process a curve is known all the while.
    """
    merged: list[CurveData] = []
    for what in dict.fromkeys(name for _, name, _ in named):
        for names, curve in merge_equal([(who, curve) for who, name, curve in named if name == what]):
            who = "" if is_alone else _join_names(names)
            name = format_short(", ".join(filter(None, (who, what))) or title, NAME_LETTERS)
            merged.append({**curve, "name": name, "uid": f"{names[0]}, {what}"})
    return merged


def _join_names(names: Sequence[str]) -> str:
    """``ranks 0-3, 7``; several other processes by their names."""
    numbers = [name.removeprefix("rank ") for name in names]
    return format_ranks(map(int, numbers)) if all(map(str.isdecimal, numbers)) else join_limited(names, MAX_NAMES)


def _describe_points(curves: Iterable[CurvePoints]) -> str:
    """What is to be said where curves are thinned."""
    most = max((curve.count for curve in curves), default=0)
    return f"{format_count(most, 'value')} a curve, thinned: extremes are kept." if most > BUCKETS_OF_MANY * 2 else ""
