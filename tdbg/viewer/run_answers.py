"""What the addresses of a run answer, as types: status, report, overview, a request to its ranks.

The answers are made as plain data where the commands make theirs; these describe them in the OpenAPI document.
"""

from typing import Any, TypedDict

from tdbg.core.events import Number
from tdbg.rules.cost_lines import CostRow
from tdbg.rules.debug_summary import DebugSummary, TrainingSummary
from tdbg.rules.flag_lines import InjectionRow
from tdbg.rules.preflight_lines import TrialRow
from tdbg.rules.rank_lines import RankRow
from tdbg.rules.report_page.document import FindingData
from tdbg.rules.report_page.rank_lanes import Lane
from tdbg.rules.report_page.run_curves import Chart, Clock, HeatChart
from tdbg.rules.report_page.run_tables import Table
from tdbg.rules.verdict import ExitRow, ObservationsRow, Origin, TriggerRow
from tdbg.rules.watched import NotWatched


class RankStatus(TypedDict):
    """How far a rank is. last_seen_s: seconds since its last event."""

    rank: int
    state: str
    step: int
    planned: int | None
    steps_per_s: Number | None
    loss: Number | None
    level: str
    flags: list[str]
    cost_pct: Number | None
    last_seen_s: Number | None
    host: str
    pid: int | None
    folder: str


class RunStatus(TypedDict):
    """How far a run is. state: running or ended. last_finding: the last one that was told while it ran."""

    run: str
    state: str
    exit: str
    level_at_start: str
    ranks: list[RankStatus]
    processes: int
    last_finding: dict[str, Any] | None


class RankActivity(RankStatus):
    """A rank as in the status. quiet: why it counts as quiet; empty while it does not."""

    quiet: str


class RanksAnswer(TypedDict):
    """The ranks of a run now. state: running or ended. quiet: the ranks from which nothing comes."""

    run: str
    state: str
    exit: str
    ranks: list[RankActivity]
    quiet: list[int]


class StepRecord(TypedDict):
    """What a rank recorded of a step, or in evaluation of a call. Times in milliseconds, memory in MB; t: seconds since 1970."""

    t: Number
    step: int
    phase: str
    epoch: int | None
    batch: int | None
    call: int | None
    loss: Number | None
    micro: int
    other_losses: list[Number]
    lr: list[Number]
    grad_norm: Number | None
    finite: bool | None
    checked: str
    scale: Number | None
    skipped: bool
    loader_ms: Number | None
    forward_ms: Number | None
    backward_ms: Number | None
    optimizer_ms: Number | None
    step_ms: Number | None
    host_mb: Number | None
    device_mb: Number | None
    device_peak_mb: Number | None
    samples: int | None


class ProcessSteps(TypedDict):
    """Step records of one process, in order. recorded: how many of the range there are; null where only some were read."""

    rank: int | None
    attempt: int
    folder: str
    recorded: int | None
    records: list[StepRecord]


class StepsAnswer(TypedDict):
    """Step records of a range. points: so many of a process at most."""

    run: str
    points: int
    processes: list[ProcessSteps]


class FoundFields(TypedDict):
    """What a finding says."""

    code: str
    severity: str
    title: str
    first_step: int | None
    rank: int | None
    phase: str
    module: str
    evidence: list[str]
    cause: str
    try_next: str
    grade: str


class ReportedFinding(FoundFields):
    """A finding. follows_from: the one that caused it, by its place in the list."""

    follows_from: Origin | None


class NamedFinding(FoundFields):
    """A finding. id: its name in addresses, which stays as others come. follows_from: the name of the one that caused it."""

    id: str
    follows_from: str | None


class FindingsAnswer(TypedDict):
    """Findings that fit. total: of the run. is_final: false while more is to come."""

    total: int
    is_final: bool
    findings: list[NamedFinding]


class Report(TypedDict):
    """The verdict of a run. is_final: false while more is to come. looks: what probes saw, by flag.

    baseline, watched: empty where nothing is known.
    """

    version: int
    run: str
    headline: str
    worst_severity: str | None
    findings: list[ReportedFinding]
    ranks: list[RankRow]
    others: list[RankRow]
    exit: ExitRow
    cost: CostRow
    baseline: dict[str, Any]
    flags: dict[str, bool | str]
    injections: list[InjectionRow]
    looks: dict[str, ObservationsRow]
    triggers: list[TriggerRow]
    watched: dict[str, Any]
    not_watched: list[NotWatched]
    preflight: list[TrialRow]
    training_summary: TrainingSummary
    debug_summary: DebugSummary
    notes: list[str]
    files: list[str]
    trouble: list[str]
    is_final: bool


class Lanes(TypedDict):
    """What each rank did over time. kinds: of the bars."""

    kinds: list[str]
    rows: list[Lane]
    note: str


class Overview(TypedDict):
    """The verdict in words, curves, lanes and tables. is_final: false while more is to come."""

    headline: str
    severity: str
    facts: list[str]
    lines: list[str]
    findings: list[FindingData]
    was_profiled: bool
    lanes: Lanes
    charts: list[Chart]
    clocks: list[Clock]
    heats: list[HeatChart]
    tables: list[Table]
    is_final: bool


class SwitchedRank(TypedDict):
    """A rank that has done what was asked of it. late: not at the step that was named."""

    rank: int
    step: int
    level: str
    late: bool


class RequestSent(TypedDict):
    """A request to the ranks of a live run, and which of them have done it.

    at_step: the step at which all ranks switch.
    """

    number: int
    at_step: int
    level: str
    flags: dict[str, bool | str]
    for_steps: int
    clear_history: bool
    profile_for: int
    switched: list[SwitchedRank]
    missing: list[int]
    ended: list[int]
    waited: bool
