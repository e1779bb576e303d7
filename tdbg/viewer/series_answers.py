"""What the addresses of metrics and of profiler traces answer, as types."""

from typing import Any, NotRequired, TypedDict

import msgspec

from tdbg.core.events import Number
from tdbg.traces.spans import Span
from tdbg.traces.summary import Device, Memory, Operator, Step, Work
from tdbg.viewer.trace_indexes import Reading


class MetricPoint(TypedDict):
    """A value and when it was."""

    value: Number
    step: int
    epoch: float | None


class MetricSeries(TypedDict):
    """A key of one rank. course: some of its values, in order."""

    key: str
    rank: int
    source: str
    phase: str
    unit: str | None
    latest: MetricPoint | None
    best: MetricPoint | None
    least: MetricPoint | None
    most: MetricPoint | None
    count: int
    not_finite: int
    course: list[Number]


class LeftOutRows(TypedDict):
    """Rows that a rank did not write, and why."""

    rank: int
    why: str
    rows: int
    from_step: int


class RecordedSteps(TypedDict):
    """How many of the steps of a rank are on record."""

    rank: int
    steps: int
    recorded: int


class LastRow(TypedDict):
    """Where a rank stands. t: seconds since 1970."""

    step: int
    epoch: float | None
    t: Number


class MetricText(TypedDict):
    """A text that was logged."""

    key: str
    rank: int
    text: Any


class MetricsAnswer(TypedDict):
    """The series of a run and what is missing of them. ranks: by their numbers."""

    run: str
    rows: int
    lines_passed_over: int
    rows_made_again: int
    rows_left_out: list[LeftOutRows]
    steps_recorded: list[RecordedSteps]
    ranks: dict[str, LastRow]
    series: list[MetricSeries]
    text: list[MetricText]


class MetricCurve(TypedDict):
    """A curve. gaps: steps before which records are missing. not_finite_spans: first step, last step, values, kind."""

    key: str
    rank: int
    source: str
    steps: list[int]
    values: list[Number]
    count: int
    not_finite: int
    not_finite_steps: list[int]
    gaps: list[int]
    not_finite_spans: list[tuple[int, int, int, str]]


class CurvesAnswer(TypedDict):
    """Curves of a run."""

    run: str
    curves: list[MetricCurve]


class TraceSummary(TypedDict):
    """What is in a trace. Times are in nanoseconds since ``base_us``. parts: shares of a step.

    left_out: for each table that is cut, how many rows there are besides.
    """

    path: str
    rank: int | None
    attempt: int
    window: int
    world_size: int | None
    backend: str
    events: int
    base_us: int
    start: int
    end: int
    recorded: list[str]
    devices: list[str]
    matmul_precision: str
    capability: list[int] | None
    device_bytes: int
    steps: list[Step]
    operators: list[Operator]
    kernels: list[Work]
    copies: list[Work]
    waits: list[Work]
    regions: list[Work]
    modules: list[Work]
    updates: list[Work]
    saves: list[Work]
    loads: list[Work]
    closing_wait: int
    device: Device | None
    memory: list[Memory]
    problems: list[str]
    verdict: str
    median_step_ms: Number
    parts: dict[str, Number]
    flops_per_step: Number
    border_steps: list[int | None]
    left_out: NotRequired[dict[str, int]]


class ComparedRank(TypedDict):
    """A rank among others: nanoseconds of a step. extra: of its own work, against the median of the others."""

    label: str
    step: Number
    own: Number
    exposed: Number
    extra: Number


class RankDifferences(TypedDict):
    """How ranks differ. longer: nanoseconds a step that the part ``longest`` takes more on the slowest."""

    each: list[ComparedRank]
    slowest: str
    longest: str
    longer: Number
    covers: Number
    skew: Number
    common: int


class TraceSummaries(TypedDict):
    """The summaries of traces. times: their unit. ranks: how they differ, if there are several."""

    times: str
    traces: list[TraceSummary]
    ranks: RankDifferences | None
    ranks_left_out: list[int]
    reading: NotRequired[Reading]


class CallRow(TypedDict):
    """A call in a tree, below the row before it that is less deep. Times in nanoseconds."""

    name: str
    kind: str
    depth: int
    calls: int
    own: int
    total: int


class CallTree(TypedDict):
    """The calls of one trace. calls_cut: for which there was no room."""

    trace: str
    by: str
    steps: int
    calls_cut: int
    rows: list[CallRow]


class CallTrees(TypedDict):
    """The calls of traces. times: their unit."""

    times: str
    traces: list[CallTree]
    reading: NotRequired[Reading]


class TraceStep(TypedDict):
    """A step as it is drawn. parts: milliseconds."""

    number: int | None
    start_ms: Number
    length_ms: Number
    parts: dict[str, Number]


class TraceLane(TypedDict):
    """The steps of one trace beside those of others."""

    label: str
    mean_ms: dict[str, Number]
    length_ms: Number
    steps: list[TraceStep]


class FlameGraph(TypedDict):
    """A tree as rows: number of its name, of the row above, kind, calls, total and own nanoseconds."""

    names: list[str]
    rows: list[tuple[int, int, str, int, int, int]]
    steps: int
    depth: int
    note: str


class MemoryCurve(TypedDict):
    """Memory of a device: milliseconds, the most and the least bytes. holders: bytes, percent, who, at the peak."""

    device: str
    note: str
    line: list[tuple[Number, int, int]]
    peak: int
    peak_ms: Number
    holders: list[tuple[int, Number, str]]


class TraceTable(TypedDict):
    """A table of a trace."""

    title: str
    columns: list[str]
    rows: list[list[object]]
    note: str


class DrawnTrace(TypedDict):
    """A trace as the page shows it. flames: by what calls are joined by."""

    label: str
    rank: int | None
    attempt: int
    window: int
    verdict: str
    facts: list[str]
    begins: list[Number]
    flames: dict[str, FlameGraph]
    memory: list[MemoryCurve]
    tables: list[TraceTable]


class TracePage(TypedDict):
    """Traces of a run as its page shows them. parts: of a step, in the order of the bar."""

    parts: list[str]
    bar_note: str
    lanes: list[TraceLane]
    lanes_note: str
    traces: list[DrawnTrace]
    reading: NotRequired[Reading]


class TraceSpans(msgspec.Struct, kw_only=True):
    """Spans of a range of a trace. Numbers are places in the lists of names and lanes.

    names: with a letter before each (o operator, s span, f Python, r runtime call, k kernel, c copy).
    left_out: shorter spans that begin in the range. step: the one that the range is of, if that was asked for and is there.
    reading: how far it is, until there is something to answer.
    """

    from_ms: float
    to_ms: float
    whole_ms: float = 0.0
    lanes: list[str] = []
    names: list[str] = []
    spans: list[Span] = []
    left_out: int = 0
    step: int | None = None
    reading: Reading | None = None
