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


class ReportedFinding(TypedDict):
    """A finding. follows_from: the one that caused it, by its place in the list."""

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
    follows_from: Origin | None


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
