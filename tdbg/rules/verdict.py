"""The verdict: every finding of a run, how each rank ended, and what tdbg cost: as data, and in the words for people."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from tdbg.core.events import SEVERITIES, Finding, Number
from tdbg.core.flags import Value
from tdbg.core.rundir import RUNS, RunDir, write_json
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import is_at_least
from tdbg.rules.cost_lines import BaselineRow, CostRow, format_cost, list_baseline, list_costs
from tdbg.rules.debug_summary import (
    DebugSummary,
    FoundAnomalies,
    TrainingSummary,
    summarize_debuggers,
    summarize_training,
)
from tdbg.rules.finding_lines import Story, format_finding, format_title, group_stories, list_stories
from tdbg.rules.flag_lines import InjectionRow, format_flags
from tdbg.rules.preflight_lines import TrialRow, explain_untested, format_trials
from tdbg.rules.rank_lines import RankRow, format_loss, has_ended_as_planned, list_processes, list_progress
from tdbg.rules.screen_rows import COLUMNS, ROWS, count_rows, cut_rows, fit_stories
from tdbg.rules.text import clip_text, format_figure
from tdbg.rules.watched import NotWatched, WatchedRow, format_not_watched, format_watched

REPORT_FILE = "report.json"
VERSION = 1
VERDICT_LINES = 10
SHOWN_FINDINGS = 5  # lines at the end of a run
SHOWN_ENDINGS = 3
SHOWN_TRAININGS = 5
SHOWN_NOTES = 2
STORY_ROWS = 6  # of a screen these are for findings, whatever else there is
PREFIX_COLUMNS = 6  # of the ``tdbg: `` before each line on stderr
JUMPED = "non-finite"  # the trigger of which a finding speaks anyway


class ExitRow(TypedDict):
    """How the command ended."""

    code: int | None
    text: str


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


class Origin(TypedDict):
    """The finding that another one follows from: its place in the list, and its code."""

    finding: int
    code: str


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Verdict:
    """What is known of a run. `format_summary` is its short form; `format_page` and `as_dict` hold everything."""

    run: str
    findings: list[Finding] = field(default_factory=list)  # in the order of `order_findings`
    causes: list[int | None] = field(default_factory=list)  # of each finding: the place of the one that it follows from
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
    training: TrainingSummary = field(default_factory=lambda: summarize_training([]))
    anomalies: dict[str, FoundAnomalies] = field(default_factory=dict)  # by sort of debugger of the Python API
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    level: str = ""
    watched: WatchedRow | None = None
    not_watched: list[NotWatched] = field(default_factory=list)
    capture_line: str = ""  # what was captured, in the short form
    profile_line: str = ""  # what was profiled
    is_preflight: bool = False  # the program ended before its first update, as --preflight asks
    trials: list[TrialRow] = field(default_factory=list)
    has_unseen_losses: bool = False  # a rank made its gradients without a backward pass

    def get_stories(self) -> list[Story]:
        """The findings by what they follow from: each cause with its consequences, the earliest first."""
        return group_stories(self.findings, self.causes)

    def list_causes(self) -> list[Finding | None]:
        """For each finding the one that it follows from, if any."""
        known = [*self.causes, *[None] * len(self.findings)]
        return [None if at is None else self.findings[at] for at, _ in zip(known, self.findings, strict=False)]

    def _describe_silence(self) -> str:
        """No finding must mean that nothing was wrong, never that nothing was looked at."""
        if self.is_preflight and not self.trials:
            return explain_untested(failed=self._has_preflight_failed())
        if self.is_preflight_refused:
            return "preflight refused"
        if self.is_preflight:
            tried = any(row["tried"] for row in self.trials)
            return "no problem found in the preflight" if tried else "preflight: no test could be made"
        if self.level == "off":
            return "level off: nothing was looked at"
        if not any(row["steps"] or row["evals"] for row in (*self.ranks, *self.others)):
            return "no step and no evaluation was seen"
        unseen = " (some losses were not checked: updates without a backward pass)" if self.has_unseen_losses else ""
        return f"no problem found in what was watched{unseen}"

    @property
    def is_preflight_refused(self) -> bool:
        """True if nothing could be tried, as a forward pass needs other ranks."""
        return any(row["refused"] for row in self.trials)

    @property
    def worst_severity(self) -> str | None:
        """The severity of the worst finding, if there is one; it need not be the first: see `order_findings`."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default=None)

    def should_fail(self, floor: str) -> bool:
        """True if a finding is at least as severe as ``floor`` (what `--fail-on` asks)."""
        return any(is_at_least(finding.severity, floor) for finding in self.findings)

    def format_headline(self) -> str:
        """The whole run in one line."""
        counts = Counter(finding.severity for finding in self.findings)
        split = ", ".join(
            _format_severity_count(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity]
        )
        found = (
            f"{format_count(len(self.findings), 'finding')} ({split})" if self.findings else self._describe_silence()
        )
        parts = [f"verdict: {found}"]
        if self.ranks:
            steps = max(row["steps"] or row["evals"] for row in self.ranks)
            unit = "evaluation call" if steps and not any(row["steps"] for row in self.ranks) else "step"
            who = (
                f"{format_count(self.trainings, 'training process')} without a process group" if self.trainings else ""
            )
            steps = max(steps, *(row["steps"] for row in self.others)) if who else steps
            least = unit != "step" and any(row["evals_at_least"] for row in self.ranks)
            done = f"{'at least ' if least else ''}{format_count(steps, unit)}"
            loss = format_loss(self.ranks[0]) if len(self.ranks) == 1 and not who else ""
            parts.append(f"{who or format_count(len(self.ranks), 'rank')}, {done}{loss}")
        if exception := self._find_start_exception():
            parts.append(clip_text(exception.title, 240))
        if self.exit.get("text"):
            parts.append(self.exit["text"])
        return "; ".join(filter(None, [*parts, format_cost(self.cost)]))

    def _find_start_exception(self) -> Finding | None:
        """The exception that kept all ranks from their first step: then the one line has to say it."""
        if not self.findings or any(row["steps"] or row["evals"] for row in self.ranks):
            return None
        story = self.get_stories()[0]
        return next((finding for finding in (story.first, *story.followers) if finding.code == "TD-R003"), None)

    def format_summary(self, limit: int = VERDICT_LINES) -> list[str]:
        """The short form for the end of a run: at most ``limit`` lines and one screen; three lines of a healthy run."""
        columns = COLUMNS - PREFIX_COLUMNS
        rows = ROWS - count_rows(self._format_trouble()[:1], columns)  # the supervisor adds it
        if not self.findings:
            return cut_rows(self._format_healthy_run()[:limit], rows, columns)
        more = f"more: `{self._build_report_command()}`, `tdbg explain {self.get_stories()[0].first.code}`"
        tried = format_trials(self.trials, failed=self._has_preflight_failed()) if self.is_preflight else ()
        tail = [more, *self._format_rank_lines(), *tried, *self._format_extras()]
        room = min(max(limit - 1 - len(tail), 1), SHOWN_FINDINGS)
        while True:
            lines = [self.format_headline(), *list_stories(self.get_stories(), room), *tail]
            room -= 1
            if not room or count_rows(lines, columns) <= rows:
                break
        lines = cut_rows(lines[:limit], rows, columns)
        if more in lines:
            lines.remove(more)
            lines.append(more)
        return lines

    def format_screen(self, notes: Sequence[str] = ()) -> list[str]:
        """The form of `tdbg report`: one screen of 24 rows, whose last line says how much more there is.

        notes: what people left with the run; the last ones are shown.
        """
        added = [
            *self._format_trouble()[:1],
            *(clip_text(f"note: {text.strip()}", 150) for text in notes[-SHOWN_NOTES:]),
        ]
        if not self.findings:
            return cut_rows([*self._format_healthy_run(), *added], ROWS)
        ends = [self.format_headline(), self._format_more_hint(999)]
        tail = [*self._format_rank_lines(), *self._format_extras(), *added]
        tail = cut_rows(tail, ROWS - STORY_ROWS - count_rows(ends))
        rows = ROWS - count_rows([*ends, *tail])
        stories = fit_stories(self.get_stories(), rows)
        rows -= count_rows(stories)
        coverage = self.format_coverage()  # evidence comes before it
        while coverage and count_rows(coverage) > rows:
            coverage.pop()
        lines = [self.format_headline(), *stories, *tail, *coverage]
        left = sum(map(bool, self.format_page())) - len(lines)
        return [*lines, self._format_more_hint(max(left, 0))]

    def format_page(self) -> list[str]:
        """The long form for `tdbg report --all`."""
        lines = [self.format_headline(), *self.format_coverage()]
        for story in self.get_stories():
            lines += self._format_whole_finding(story.first)
            for finding in story.followers:
                lines += self._format_whole_finding(finding)
        observed = [f"{flag}: {row['text']}" for flag, row in self.observations_by_flag.items()]
        for heading, rows in (
            ("triggers", [_format_trigger(row) for row in self.triggers]),
            ("flags", format_flags(self.injections)),
            ("observations by flag", observed),
            ("not watched", [_format_unwatched(row) for row in self.not_watched]),
            ("ranks", self._format_rank_lines(limit=1000)),
            ("notes", self.notes),
            ("files", self.files),
        ):
            if rows:
                lines += ["", f"{heading}:", *(f"  {row}" for row in rows)]
        lines += ["", *list_costs(self.cost, self.costliest), *list_baseline(self.baseline)]
        return [*lines, *self._format_trouble()]

    def as_dict(self) -> dict[str, object]:
        """Plain data: the content of report.json and of `tdbg report --json`."""
        return {
            "version": VERSION,
            "run": self.run,
            "headline": self.format_headline(),
            "worst_severity": self.worst_severity,
            "findings": [
                {**finding.as_dict(), "follows_from": self._find_origin(place)}
                for place, finding in enumerate(self.findings)
            ],
            "ranks": self.ranks,
            "others": self.others,
            "exit": self.exit,
            "cost": self.cost,
            "baseline": self.baseline or {},
            "flags": self.flags,
            "injections": self.injections,
            "looks": self.observations_by_flag,
            "triggers": self.triggers,
            "watched": self.watched or {},
            "not_watched": self.not_watched,
            "preflight": self.trials,
            "training_summary": self.training,
            "debug_summary": self._summarize_debuggers(),
            "notes": self.notes,
            "files": self.files,
            "trouble": self.trouble,
        }

    def _summarize_debuggers(self) -> DebugSummary:
        observations = sum(row.get("count", 0) for row in self.observations_by_flag.values())
        return summarize_debuggers(self.training, self.findings, observations, self.anomalies)

    def write_report(self, run: RunDir) -> None:
        """Leave report.json in the run directory (the supervisor's last act)."""
        write_json(run.path / REPORT_FILE, self.as_dict())

    def _find_origin(self, place: int) -> Origin | None:
        """What the finding at this place follows from, if anything."""
        at = self.causes[place] if place < len(self.causes) else None
        return None if at is None else {"finding": at, "code": self.findings[at].code}

    def _format_whole_finding(self, finding: Finding) -> list[str]:
        """All that is known of a finding, and what it follows from."""
        origin = self._find_origin(next(place for place, one in enumerate(self.findings) if one is finding))
        follows = [f"  follows from: {format_title(self.findings[origin['finding']])}"] if origin else []
        return ["", *format_finding(finding, limit=40), *follows]

    def _format_healthy_run(self) -> list[str]:
        """What was watched and what was not; of ranks only what the headline does not say."""
        *first, last = self.format_coverage()
        ranks = [] if self._has_ended_well() else self._format_rank_lines()
        return [
            self.format_headline(),
            *first,
            f"{last}; more: `{self._build_report_command()} --all`",
            *ranks,
            *self._format_extras(),
        ]

    def _has_ended_well(self) -> bool:
        return not self.trainings and not self.others and not self.restarts and has_ended_as_planned(self.ranks)

    def format_coverage(self) -> list[str]:
        """What was watched and what was not; of a preflight what was tried."""
        if self.is_preflight:
            return format_trials(self.trials, failed=self._has_preflight_failed())
        return [format_watched(self.watched, self.level), format_not_watched(self.level, self.not_watched)]

    def _has_preflight_failed(self) -> bool:
        """True if the trials failed, or an update was made without them."""
        return any(finding.code == "TD-C005" for finding in self.findings) or any(row["steps"] for row in self.ranks)

    def _format_extras(self) -> list[str]:
        """What an option asked for."""
        made = filter(None, (self.capture_line, self.profile_line))
        return [*self._format_first_trigger(), *made, *list_baseline(self.baseline)]

    def _format_trouble(self) -> list[str]:
        return [f"trouble: {text}" for text in self.trouble]

    def _format_more_hint(self, count: int) -> str:
        lines = f"{format_count(count, 'more line')}" if count else "all of it"
        return f"{lines}: `{self._build_report_command()} --all`; what a code means: `tdbg explain {self.get_stories()[0].first.code}`"

    def _build_report_command(self) -> str:
        """``tdbg report 20261121-031500-train``: what to type in this folder."""
        path = Path(self.run)
        if path.absolute().parent == Path(RUNS).absolute() and not Path(path.name).exists():
            return f"tdbg report {shlex.quote(path.name)}"
        return f"tdbg report {shlex.quote(self.run)}"

    def _format_rank_lines(self, limit: int = SHOWN_ENDINGS) -> list[str]:
        """A line for ranks that ended alike; processes beside them have their own."""
        apart = [*self.ranks, *self.others] if self.trainings else self.others
        shown = [*list_progress([] if self.trainings else self.ranks), *list_processes(apart)]
        limit = max(limit, SHOWN_TRAININGS) if self.trainings else limit
        if len(shown) > limit:
            left = sum(count for _, count in shown[limit - 1 :])
            what = "further process" if apart else "further rank"
            shown[limit - 1 :] = [(f"{format_count(left, what)}: see `{self._build_report_command()} --all`", left)]
        return [
            *(text for text, _ in shown),
            *([f"restarts: {clip_text(self.restarts, 300)}"] if self.restarts else []),
        ]

    def _format_first_trigger(self) -> list[str]:
        """One line for the short form: the first trigger no finding speaks of anyway."""
        shown = [row for row in self.triggers if row["condition"] != JUMPED]
        if not shown:
            return []
        more = f" and {len(shown) - 1} more: see `{self._build_report_command()} --all`" if len(shown) > 1 else ""
        return [f"trigger: {_format_trigger(shown[0])}{more}"]


def _format_severity_count(count: int, severity: str) -> str:
    """``2 errors``, but ``2 critical`` and ``2 info``."""
    return format_count(count, severity) if severity in ("error", "warning") else f"{count} {severity}"


def _format_trigger(row: TriggerRow) -> str:
    """``loss spike at step 40, rank 0 (loss 12): dump, level=advanced for 20; rank0000/trigger_step00000040.json``."""
    values = ", ".join(f"{name} {format_figure(value)}" for name, value in row["values"].items() if value is not None)
    said = f" ({values})" if values else ""
    files = "".join(f"; {file}" for file in (row["dump"], row["batch"]) if file)
    return clip_text(
        f"{row['condition']} at step {row['step']}, {row['who']}{said}: {row['action'] or 'noted'}{files}", 300
    )


def _format_unwatched(row: NotWatched) -> str:
    """``TD-D001, TD-D002: needs --flag DATALOADER or --level advanced``."""
    return clip_text(f"{join_limited(row['codes'], 8)}: {row['reason']}", 200)
