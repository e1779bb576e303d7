"""The verdict: every finding of a run, how each rank ended, and what tdbg cost: as data, and in the words for people."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from tdbg.core.events import SEVERITIES, Finding, Number
from tdbg.core.flags import LEVELS, Value
from tdbg.core.observations import Evidence
from tdbg.core.rundir import RunDir, write_json
from tdbg.core.tables import counted, joined
from tdbg.rules import at_least
from tdbg.rules.flag_lines import InjectionRow, flag_lines
from tdbg.rules.text import TRACEBACK, clip, figure, ranges

REPORT_FILE = "report.json"
VERSION = 1
BLOCK_LINES = 6
VERDICT_LINES = 10
SHOWN_FINDINGS = 4
SHOWN_ENDINGS = 3
SHOWN_TRAININGS = 5
SHOWN_FLAGS = 3  # of a level, in the short form
TOLD_PCT = 0.05
SHORT_RUN_S = 10.0
UNSURE = (Evidence.AFTER_REDUCTION, Evidence.FROM_WEIGHTS, Evidence.STATISTICAL)
JUMPED = "non-finite"  # the trigger of which a finding speaks anyway


class RankRow(TypedDict):
    """How far one process came, and how it ended."""

    rank: int | None
    folder: str
    host: str
    pid: int | None
    attempts: int
    steps: int
    evals: int
    evals_at_least: bool
    skipped: int
    planned: int | None
    loss: Number | None
    loss_step: int | None
    ended: str
    code: int | None
    last_t: float


class ExitRow(TypedDict):
    """How the command ended."""

    code: int | None
    text: str


class CostShare(TypedDict):
    """tdbg's own time in one process."""

    rank: int | None
    own_ms: float
    wall_ms: float
    pct: float


class CostRow(TypedDict, total=False):
    """tdbg's own time in all processes; without a cost ``pct`` is None, and only ``ranks`` is there beside it."""

    pct: float | None
    budget_pct: float
    inspection_ms: float
    allowance_ms: float
    startup_ms: float
    checks_pct: float
    capture_pct: float
    diagnostics_pct: float
    away_pct: float
    records_pct: float
    worst: CostShare
    errors: int
    dropped: int
    ranks: list[CostShare]


class BaselineRow(TypedDict):
    """The paired ratio of blocks of steps with tdbg on and off."""

    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    block: int


class ObservationsRow(TypedDict, total=False):
    """What the probe of a flag told, over all ranks."""

    count: int
    last_step: int | None
    last: str
    rank: int | None
    text: str


class TriggerRow(TypedDict):
    """A condition that came true."""

    step: int
    rank: int | None
    who: str
    condition: str
    values: dict[str, Number | None]
    action: str
    stop: bool
    dump: str
    batch: str


class NotWatched(TypedDict):
    """Rules that could not see what they are there for. flag, level: what would arm them, where that is known."""

    codes: list[str]
    reason: str
    flag: str
    level: str


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Verdict:
    """What is known of a run. `lines` is its short form; `page` and `as_dict` hold everything."""

    run: str
    findings: list[Finding] = field(default_factory=list)  # worst first, then by step; a cause before what follows
    ranks: list[RankRow] = field(default_factory=list)
    others: list[RankRow] = field(default_factory=list)  # processes that stepped beside their rank
    trainings: int = 0  # processes of one rank that trained each on its own, without a process group
    restarts: str = ""  # how each attempt went, if there were several
    exit: ExitRow = field(default_factory=lambda: ExitRow(code=None, text=""))
    cost: CostRow = field(default_factory=CostRow)
    costliest: str = ""  # the process with the largest share of its time, by name
    baseline: BaselineRow | None = None
    flags: dict[str, Value] = field(default_factory=dict)
    injections: list[InjectionRow] = field(default_factory=list)  # what became of each flag in the program's config
    observations_by_flag: dict[str, ObservationsRow] = field(default_factory=dict)  # of flags and levels
    triggers: list[TriggerRow] = field(default_factory=list)  # conditions that came true; no findings
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    level: str = ""
    not_watched: list[NotWatched] = field(default_factory=list)
    capture_line: str = ""  # what was captured, in the short form
    profile_line: str = ""  # what was profiled
    has_unseen_losses: bool = False  # a rank made its gradients without a backward pass

    def _describe_silence(self) -> str:
        """No finding must mean that nothing was wrong, never that nothing was looked at."""
        if self.level == "off":
            return "level off: nothing was looked at"
        unseen = " (some losses were not checked: updates without a backward pass)" if self.has_unseen_losses else ""
        return f"no problem found in what was watched{unseen}"

    @property
    def worst_severity(self) -> str | None:
        """The severity of the worst finding, if there is one; it need not be the first: see `sort_findings`."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default=None)

    def fails(self, floor: str) -> bool:
        """True if a finding is at least as severe as ``floor`` (what `--fail-on` asks)."""
        return any(at_least(finding.severity, floor) for finding in self.findings)

    def headline(self) -> str:
        """The whole run in one line."""
        counts = Counter(finding.severity for finding in self.findings)
        split = ", ".join(
            _count_text(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity]
        )
        found = f"{counted(len(self.findings), 'finding')} ({split})" if self.findings else self._describe_silence()
        parts = [f"verdict: {found}"]
        if self.ranks:
            steps = max(row["steps"] or row["evals"] for row in self.ranks)
            unit = "evaluation call" if steps and not any(row["steps"] for row in self.ranks) else "step"
            who = f"{self.trainings} training processes without a process group" if self.trainings else ""
            steps = max(steps, *(row["steps"] for row in self.others)) if who else steps
            least = unit != "step" and any(row["evals_at_least"] for row in self.ranks)
            done = f"{'at least ' if least else ''}{counted(steps, unit)}"
            parts.append(f"{who or counted(len(self.ranks), 'rank')}, {done}")
        if self._ended_by_exception():
            parts.append(clip(self.findings[0].title, 240))
        if self.exit.get("text"):
            parts.append(self.exit["text"])
        return "; ".join(parts)

    def _ended_by_exception(self) -> bool:
        """True if an exception kept all ranks from their first step: then the one line has to say it."""
        stepped = any(row["steps"] or row["evals"] for row in self.ranks)
        return not stepped and bool(self.findings) and self.findings[0].code == "TD-R003"

    def lines(self, limit: int = VERDICT_LINES) -> list[str]:
        """The short form for the end of a run, at most ``limit`` lines."""
        tail = [
            *([] if self.findings else self._unwatched_lines()),
            *self._rank_lines(),
            *self._trigger_lines(),
            *filter(None, (self.capture_line, self.profile_line)),
            *self._cost_lines(),
        ]
        if self.findings:
            tail.append(f"more: `tdbg report {self.run}`, `tdbg explain {self.findings[0].code}`")
        room = max(limit - 1 - len(tail), 1)
        shown = min(room, SHOWN_FINDINGS)
        titles = [f"  {title_line(finding)}" for finding in self.findings[:shown]]
        if len(self.findings) > shown:
            titles[-1] = f"  ... and {counted(len(self.findings) - shown + 1, 'more finding')}"
        return [self.headline(), *titles, *tail][:limit]

    def page(self) -> list[str]:
        """The long form for `tdbg report`."""
        lines = [self.headline()]
        for finding in self.findings:
            lines += ["", *block(finding, limit=40), *_grade_lines(finding)]
        told = [f"{flag}: {row['text']}" for flag, row in self.observations_by_flag.items()]
        for heading, rows in (
            ("triggers", [_trigger_line(row) for row in self.triggers]),
            ("flags", flag_lines(self.injections)),
            ("observations by flag", told),
            ("not watched", [_unwatched_line(row) for row in self.not_watched]),
            ("ranks", self._rank_lines(limit=1000)),
            ("notes", self.notes),
            ("files", self.files),
        ):
            if rows:
                lines += ["", f"{heading}:", *(f"  {row}" for row in rows)]
        lines += ["", *self._cost_lines()]
        return [*lines, *(f"trouble: {text}" for text in self.trouble)]

    def as_dict(self) -> dict[str, object]:
        """Plain data: the content of report.json and of `tdbg report --json`."""
        return {
            "version": VERSION,
            "run": self.run,
            "headline": self.headline(),
            "worst_severity": self.worst_severity,
            "findings": [finding.as_dict() for finding in self.findings],
            "ranks": self.ranks,
            "others": self.others,
            "exit": self.exit,
            "cost": self.cost,
            "baseline": self.baseline or {},
            "flags": self.flags,
            "injections": self.injections,
            "looks": self.observations_by_flag,
            "triggers": self.triggers,
            "not_watched": self.not_watched,
            "notes": self.notes,
            "files": self.files,
            "trouble": self.trouble,
        }

    def write(self, run: RunDir) -> None:
        """Leave report.json in the run directory (the supervisor's last act)."""
        write_json(run.path / REPORT_FILE, self.as_dict())

    def _rank_lines(self, limit: int = SHOWN_ENDINGS) -> list[str]:
        """``ranks 0-3: step 60 of 100, ended``: ranks that ended alike share a line; processes beside them have their own."""
        groups: dict[str, list[RankRow]] = {}
        apart = [*self.ranks, *self.others] if self.trainings else self.others
        for row in () if self.trainings else self.ranks:
            groups.setdefault(_progress_text(row), []).append(row)
        shown = [(_group_line(how, rows), len(rows)) for how, rows in groups.items()]
        shown += [(f"process {row['pid']}: {_progress_text(row)}{_loss_text(row)}", 1) for row in apart]
        limit = max(limit, SHOWN_TRAININGS) if self.trainings else limit
        if len(shown) > limit:
            left = sum(count for _, count in shown[limit - 1 :])
            what = "further process" if apart else "further rank"
            shown[limit - 1 :] = [(f"{counted(left, what)}: see `tdbg report {self.run}`", left)]
        return [*(text for text, _ in shown), *([f"restarts: {clip(self.restarts, 300)}"] if self.restarts else [])]

    def _trigger_lines(self) -> list[str]:
        """One line for the short form: the first trigger no finding speaks of anyway."""
        told = [row for row in self.triggers if row["condition"] != JUMPED]
        if not told:
            return []
        more = f" and {len(told) - 1} more: see `tdbg report {self.run}`" if len(told) > 1 else ""
        return [f"trigger: {_trigger_line(told[0])}{more}"]

    def _unwatched_lines(self) -> list[str]:
        """What a higher level or a flag would have watched, in one line."""
        parts = []
        for level in LEVELS:
            rows = [row for row in self.not_watched if row["level"] == level and row["flag"]]
            flags = Counter({row["flag"]: len(row["codes"]) for row in rows})
            if flags:  # those of most rules first
                parts.append(f"{joined([flag for flag, _ in flags.most_common()], SHOWN_FLAGS)} (--level {level})")
        return [f"not watched: {'; '.join(parts)}"] if parts else []

    def _unbudgeted_text(self) -> str:
        """What was asked for and the budget does not hold, where it is worth a word."""
        parts = (
            ("checks of each rank's gradients", self.cost["checks_pct"]),
            ("capturing", self.cost["capture_pct"]),
            ("diagnostics", self.cost["diagnostics_pct"]),
            ("log records", self.cost["records_pct"]),
        )
        return "".join(f", {what} {pct:.2f} %" for what, pct in parts if pct >= TOLD_PCT)

    def _unhooked_text(self) -> str:
        """How long the hooks of modules were away, which is what short calls need to stay cheap."""
        share = self.cost.get("away_pct", 0.0)
        return (
            f"; without module hooks for {share:.0f} % of the time, as calls are too short for them"
            if share >= 1
            else ""
        )

    def _inspection_text(self) -> str:
        """What the opening inspection used of its allowance, where there is one."""
        allowance_s = self.cost.get("allowance_ms", 0.0) / 1000
        used_s = self.cost.get("inspection_ms", 0.0) / 1000
        return f", opening inspection {used_s:.2f} s of {allowance_s:g} s" if allowance_s else ""

    def _short_run_text(self) -> str:
        """Why a run that was over in a moment cost more than its budget."""
        wall_s = max(row["wall_ms"] for row in self.cost["ranks"]) / 1000
        if wall_s > SHORT_RUN_S or (self.cost["pct"] or 0.0) <= self.cost["budget_pct"]:
            return ""
        return f"; above the budget because the run took only {wall_s:.1f} s: the first steps are always watched"

    def _cost_lines(self) -> list[str]:
        lines = []
        if self.cost.get("pct") is not None:
            several = len(self.cost["ranks"]) > 1
            at = f", {self.costliest} {self.cost['worst']['pct']:.2f} %" if several else ""
            lines.append(
                f"cost of tdbg: {self.cost['pct']:.2f} % of the wall time (budget {self.cost['budget_pct']:g} %){at}"
                f"{self._inspection_text()}, start-up {self.cost['startup_ms']:.0f} ms{self._unbudgeted_text()}{self._short_run_text()}{self._unhooked_text()}"
            )
        if self.baseline and self.baseline["low"] is None:
            lines.append(
                f"baseline: {counted(self.baseline['pairs'], 'pair')} of blocks are too few to tell; 6 are needed"
            )
        elif self.baseline:
            lines.append(
                f"baseline: x{self.baseline['ratio']:.4f} with tdbg on"
                f" (95 %: {figure(self.baseline['low'])} to {figure(self.baseline['high'])})"
                f" over {self.baseline['pairs']} pairs of {self.baseline['block']} steps"
            )
        return lines


def _count_text(count: int, severity: str) -> str:
    """``2 errors``, but ``2 critical`` and ``2 info``."""
    return counted(count, severity) if severity in ("error", "warning") else f"{count} {severity}"


def _group_line(how: str, rows: Sequence[RankRow]) -> str:
    return f"{ranges(row['rank'] or 0 for row in rows)}: {how}{_loss_text(rows[0]) if len(rows) == 1 else ''}"


def _progress_text(row: RankRow) -> str:
    """``step 60 of 100, ended``."""
    least = "at least " if row["evals_at_least"] else ""
    calls = f"{least}{counted(row['evals'], 'evaluation call')}"
    done = f"step {row['steps']}" if row["steps"] or not row["evals"] else calls
    planned = f" of {row['planned']}" if row["planned"] else ""
    again = f", after {counted(row['attempts'] - 1, 'restart')}" if row["attempts"] > 1 else ""
    return f"{done}{planned}, {row['ended']}{again}"


def _loss_text(row: RankRow) -> str:
    """``, loss 2.31 at step 9``: of the last step whose loss is known, which need not be the last done."""
    if row["loss"] is None:
        return ""
    at = f" at step {row['loss_step']}" if row["steps"] and row["loss_step"] != row["steps"] else ""
    return f", loss {figure(row['loss'])}{at}"


def _trigger_line(row: TriggerRow) -> str:
    """``loss spike at step 40, rank 0 (loss 12): dump, level=advanced for 20; rank0000/trigger_step00000040.json``."""
    values = ", ".join(f"{name} {figure(value)}" for name, value in row["values"].items() if value is not None)
    said = f" ({values})" if values else ""
    files = "".join(f"; {file}" for file in (row["dump"], row["batch"]) if file)
    return clip(f"{row['condition']} at step {row['step']}, {row['who']}{said}: {row['action'] or 'noted'}{files}", 300)


def _unwatched_line(row: NotWatched) -> str:
    """``TD-D001, TD-D002: needs --flag DATALOADER or --level advanced``."""
    return clip(f"{joined(row['codes'], 8)}: {row['reason']}", 200)


def title_line(finding: Finding) -> str:
    """``TD-N001 critical: first NaN at step 3, rank 1, ...``."""
    return clip(f"{finding.code} {finding.severity}: {finding.title}", 200)


def _grade_lines(finding: Finding) -> list[str]:
    """How the evidence knows what it says, where that leaves a doubt."""
    return [f"  evidence is {kind.value}" for kind in UNSURE if kind.word == finding.grade]


def block(finding: Finding, limit: int = BLOCK_LINES) -> list[str]:
    """A finding with its evidence, its cause and what to try, at most ``limit`` lines."""
    tail = [f"  cause: {finding.cause}"] if finding.cause else []
    tail += [f"  try: {finding.try_next}"] if finding.try_next else []
    room = max(limit - 1 - len(tail), 0)
    shown = finding.evidence[:room]
    if len(shown) < len(finding.evidence) and TRACEBACK in shown:
        shown = shown[: shown.index(TRACEBACK)]  # the head of one says nothing
    return [title_line(finding), *(clip(f"  {line}", 200) for line in shown), *tail][:limit]
