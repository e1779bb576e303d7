"""The verdict: every finding of a run, how each rank ended, and what tdbg cost; live and offline alike."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tdbg.core.events import NO_BACKWARD, SEVERITIES, Cost, Event, Finding
from tdbg.core.flags import FLAGS
from tdbg.core.guard import guarded
from tdbg.core.rundir import ProcessDir, RunDir, write_json
from tdbg.core.tables import counted
from tdbg.rules import RULES, Rule, at_least
from tdbg.rules._order import sort_findings
from tdbg.rules._told import correct_live_findings
from tdbg.rules.flag_lines import flag_lines
from tdbg.rules.profiled import together
from tdbg.rules.text import TRACEBACK, clip, figure, joined, kept_in, ranges
from tdbg.rules.view import MAX_TRIGGERS, ProcessView, View, exit_text, finite

REPORT_FILE = "report.json"
VERSION = 1
MAX_FINDINGS = 200
MAX_FILES = 60
BLOCK_LINES = 6
VERDICT_LINES = 10
SHOWN_FINDINGS = 4
SHOWN_ENDINGS = 3
SHOWN_TRAININGS = 5
TOLD_PCT = 0.05
SHORT_RUN_S = 10.0


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What is known of a run. `lines` is its short form; `page` and `as_dict` hold everything."""

    run: str
    findings: list[Finding] = field(default_factory=list)  # worst first, then by step; a cause before what follows
    ranks: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)  # processes that stepped beside their rank
    trainings: int = 0  # processes of one rank that trained each on its own, without a process group
    exit: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    injections: list[dict[str, Any]] = field(default_factory=list)  # what became of each flag in the program's config
    looks: dict[str, Any] = field(default_factory=dict)  # what the probes of flags and levels said, by flag
    triggers: list[dict[str, Any]] = field(default_factory=list)  # conditions that came true; no findings
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    level: str = ""
    has_unseen_losses: bool = False  # a rank made its gradients without a backward pass

    def _silence(self) -> str:
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
            _severities(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity]
        )
        found = f"{counted(len(self.findings), 'finding')} ({split})" if self.findings else self._silence()
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
            *self._rank_lines(),
            *self._trigger_lines(),
            *self._capture_lines(),
            *self._profile_lines(),
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
            lines += ["", *block(finding, limit=40)]
        looks = [f"{flag}: {found['text']}" for flag, found in self.looks.items()]
        for heading, rows in (
            ("triggers", [_trigger_line(row) for row in self.triggers]),
            ("flags", flag_lines(self.injections)),
            ("observations by flag", looks),
            ("ranks", self._rank_lines(limit=1000)),
            ("notes", self.notes),
            ("files", self.files),
        ):
            if rows:
                lines += ["", f"{heading}:", *(f"  {row}" for row in rows)]
        lines += ["", *self._cost_lines()]
        return [*lines, *(f"trouble: {text}" for text in self.trouble)]

    def as_dict(self) -> dict[str, Any]:
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
            "baseline": self.baseline,
            "flags": self.flags,
            "injections": self.injections,
            "looks": self.looks,
            "triggers": self.triggers,
            "notes": self.notes,
            "files": self.files,
            "trouble": self.trouble,
        }

    def write(self, run: RunDir) -> None:
        """Leave report.json in the run directory (the supervisor's last act)."""
        write_json(run.path / REPORT_FILE, self.as_dict())

    def _rank_lines(self, limit: int = SHOWN_ENDINGS) -> list[str]:
        """``ranks 0-3: step 60 of 100, ended``: ranks that ended alike share a line; processes beside them have their own."""
        groups: dict[str, list[dict[str, Any]]] = {}
        apart = [*self.ranks, *self.others] if self.trainings else self.others
        for row in () if self.trainings else self.ranks:
            groups.setdefault(_how(row), []).append(row)
        shown = [(_group_line(how, rows), len(rows)) for how, rows in groups.items()]
        shown += [(f"process {row['pid']}: {_how(row)}{_loss(row)}", 1) for row in apart]
        limit = max(limit, SHOWN_TRAININGS) if self.trainings else limit
        if len(shown) > limit:
            left = sum(count for _, count in shown[limit - 1 :])
            what = "further process" if apart else "further rank"
            shown[limit - 1 :] = [(f"{counted(left, what)}: see `tdbg report {self.run}`", left)]
        return [text for text, _ in shown]

    def _trigger_lines(self) -> list[str]:
        """One line for the short form: the first trigger no finding speaks of anyway."""
        told = [row for row in self.triggers if row["condition"] != "non-finite"]
        if not told:
            return []
        more = f" and {len(told) - 1} more: see `tdbg report {self.run}`" if len(told) > 1 else ""
        return [f"trigger: {_trigger_line(told[0])}{more}"]

    def _capture_lines(self) -> list[str]:
        """What was captured by the first rank, and how to open it."""
        looks = self.looks.get("capture", {})
        last = looks.get("last", "")
        if last.startswith("captured nothing"):
            return [last]
        if last.startswith("capturing"):  # it was ended before it could tell
            last = "captured until it ended"
        who = f"rank {looks['rank']}: " if len(self.ranks) > 1 and looks else ""
        return [f"{who}{clip(last, 140)}: `tdbg inspect-pages {self.run}`"] if last.startswith("captured") else []

    def _profile_lines(self) -> list[str]:
        """What was profiled, and how to look at it."""
        last = self.looks.get("PROFILER", {}).get("last", "")
        if not last.startswith("profiled"):
            return []
        more = "" if last.startswith("profiled nothing") else f": `tdbg trace show {self.run}`"
        return [f"{clip(last, 180)}{more}"]

    def _beside(self) -> str:
        """What was asked for and the budget does not hold, where it is worth a word."""
        parts = (
            ("checks of each rank's gradients", self.cost["checks_pct"]),
            ("capturing", self.cost["capture_pct"]),
            ("diagnostics", self.cost["diagnostics_pct"]),
            ("log records", self.cost["records_pct"]),
        )
        return "".join(f", {what} {pct:.2f} %" for what, pct in parts if pct >= TOLD_PCT)

    def _away(self) -> str:
        """How long the hooks of modules were away, which is what short calls need to stay cheap."""
        share = self.cost.get("away_pct", 0.0)
        return (
            f"; without module hooks for {share:.0f} % of the time, as calls are too short for them"
            if share >= 1
            else ""
        )

    def _short(self) -> str:
        """Why a run that was over in a moment cost more than its budget."""
        wall_s = max(row["wall_ms"] for row in self.cost["ranks"]) / 1000
        if wall_s > SHORT_RUN_S or self.cost["pct"] <= self.cost["budget_pct"]:
            return ""
        return f"; above the budget because the run took only {wall_s:.1f} s: the first steps are always watched"

    def _cost_lines(self) -> list[str]:
        lines = []
        if self.cost.get("pct") is not None:
            worst = self.cost["worst"]
            at = f", rank {worst['rank']} {worst['pct']:.2f} %" if len(self.cost["ranks"]) > 1 else ""
            lines.append(
                f"cost of tdbg: {self.cost['pct']:.2f} % of the wall time (budget {self.cost['budget_pct']:g} %){at}"
                f", start-up {self.cost['startup_ms']:.0f} ms{self._beside()}{self._short()}{self._away()}"
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


def _severities(count: int, severity: str) -> str:
    """``2 errors``, but ``2 critical`` and ``2 info``."""
    return counted(count, severity) if severity in ("error", "warning") else f"{count} {severity}"


def _group_line(how: str, rows: list[dict[str, Any]]) -> str:
    return f"{ranges([row['rank'] for row in rows])}: {how}{_loss(rows[0]) if len(rows) == 1 else ''}"


def _how(row: dict[str, Any]) -> str:
    """``step 60 of 100, ended``."""
    least = "at least " if row["evals_at_least"] else ""
    calls = f"{least}{counted(row['evals'], 'evaluation call')}"
    done = f"step {row['steps']}" if row["steps"] or not row["evals"] else calls
    planned = f" of {row['planned']}" if row["planned"] else ""
    again = f", after {counted(row['attempts'] - 1, 'restart')}" if row["attempts"] > 1 else ""
    return f"{done}{planned}, {row['ended']}{again}"


def _loss(row: dict[str, Any]) -> str:
    """``, loss 2.31 at step 9``: of the last step whose loss is known, which need not be the last done."""
    if row["loss"] is None:
        return ""
    at = f" at step {row['loss_step']}" if row["steps"] and row["loss_step"] != row["steps"] else ""
    return f", loss {figure(row['loss'])}{at}"


def _trigger_line(row: dict[str, Any]) -> str:
    """``loss spike at step 40, rank 0 (loss 12): dump, level=advanced for 20; rank0000/trigger_step00000040.json``."""
    values = ", ".join(f"{name} {figure(value)}" for name, value in row["values"].items() if value is not None)
    said = f" ({values})" if values else ""
    files = "".join(f"; {file}" for file in (row["dump"], row["batch"]) if file)
    return clip(f"{row['condition']} at step {row['step']}, {row['who']}{said}: {row['action'] or 'noted'}{files}", 300)


def title_line(finding: Finding) -> str:
    """``TD-N001 critical: first NaN at step 3, rank 1, ...``."""
    return clip(f"{finding.code} {finding.severity}: {finding.title}", 200)


def block(finding: Finding, limit: int = BLOCK_LINES) -> list[str]:
    """A finding with its evidence, its cause and what to try, at most ``limit`` lines."""
    tail = [f"  cause: {finding.cause}"] if finding.cause else []
    tail += [f"  try: {finding.try_next}"] if finding.try_next else []
    room = max(limit - 1 - len(tail), 0)
    shown = finding.evidence[:room]
    if len(shown) < len(finding.evidence) and TRACEBACK in shown:
        shown = shown[: shown.index(TRACEBACK)]  # the head of one says nothing
    return [title_line(finding), *(clip(f"  {line}", 200) for line in shown), *tail][:limit]


class Judge:
    """Feeds the events of a run to the rules; one instance per run."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.view = View(run)
        self.findings: list[Finding] = []
        self.trouble = RULES.load_third_party()
        self._rules: list[Rule] = []
        self._listeners: dict[type[Event], list[Rule]] = {}
        files = ((name, error) for name, error in RULES.broken.items() if ":" not in name)
        self.trouble += [f"{name} could not be loaded: {error}" for name, error in files]
        for each in RULES:
            rule: Rule | None = None
            with guarded("the rule of another package may be incomplete", partial(self._switch_off, each)):
                rule = each()
            if rule is None:
                continue
            self._rules.append(rule)
            for kind in rule.listens:
                self._listeners.setdefault(kind, []).append(rule)

    def feed(self, process: ProcessDir, event: Event) -> list[Finding]:
        """See one event; returns the findings that are new with it."""
        new: list[Finding] = []
        for rule in tuple(self._listeners.get(type(event), ())):
            try:
                new.extend(rule.feed(process, event))
            except Exception as error:  # a rule must not take the verdict down; inline, as this runs at every event
                self._switch_off(rule, error)
        self.view.take(process, event)  # last: it drops the long vectors
        return self._keep(new) if new else new

    def finish(self, exit_code: int | None = None) -> Verdict:
        """Judge the whole run after its last event.

        exit_code: of the command, where the caller knows it; minus the signal's number, or as run.json has it.
        """
        self.view.close(exit_code)
        for rule in self._rules:
            with guarded("a rule must not take the verdict down", partial(self._switch_off, rule)):
                self._keep(list(rule.finish(self.view)))
        return self._verdict()

    def _keep(self, found: list[Finding]) -> list[Finding]:
        kept = found[: max(MAX_FINDINGS - len(self.findings), 0)]
        self.findings += kept
        return kept

    def _switch_off(self, rule: Rule | type[Rule], error: BaseException) -> None:
        for listeners in self._listeners.values():
            if rule in listeners:
                listeners.remove(rule)
        text = f"rule {rule.code} failed and was switched off: {type(error).__name__}: {error}"
        if text not in self.trouble:
            self.trouble.append(text)

    def _verdict(self) -> Verdict:
        view = self.view
        order = sort_findings(self.findings)
        corrections = correct_live_findings(self.run, order)
        return Verdict(
            run=str(self.run.path),
            findings=order,
            ranks=[_row(view, found) for found in view.ranks()],
            others=[_row(view, found) for found in view.beside()],
            trainings=len(view.trainings()),
            exit=_exit(view),
            cost=_cost(view),
            baseline=_baseline(view),
            flags=dict(view.settings.flags),
            injections=view.injections.rows(),
            looks=_looks(view),
            triggers=_triggers(view),
            notes=[*_notes(view), *corrections],
            files=_files(self.run),
            trouble=self.trouble,
            level=view.settings.level,
            has_unseen_losses=any(NO_BACKWARD in found.notes for found in view.ranks()),
        )


def _row(view: View, found: ProcessView) -> dict[str, Any]:
    last = found.last or found.last_eval
    loss, loss_step = (last.loss, last.step) if last else (None, None)
    if found.end is not None and found.end.loss is not None and found.end.loss_step >= (loss_step or 0):
        loss, loss_step = found.end.loss, found.end.loss_step
    return {
        "rank": found.rank,
        "folder": found.process.label,
        "host": found.start.host if found.start else "",
        "pid": found.start.pid if found.start else None,
        "attempts": len(view.attempts(found)),
        "steps": found.step,
        "evals": found.evals,
        "evals_at_least": found.cost is not None and found.cost.away_ms > 0,  # calls without hooks are not counted
        "skipped": found.skipped,
        "planned": found.plan.steps if found.plan else None,
        "loss": loss,
        "loss_step": loss_step,
        "ended": view.ending(found),
        "code": view.own_exit(found),
        "last_t": found.t,
    }


def _exit(view: View) -> dict[str, Any]:
    code = view.exit_code
    if code is None:
        return {"code": None, "text": "cut off before its end" if view.over else "still running"}
    return {"code": code, "text": exit_text(code)}


def _cost(view: View) -> dict[str, Any]:
    """What each process says of tdbg's own time; the share is of all their wall time together."""
    rows: list[dict[str, Any]] = []
    for found in view.steppers():
        if found.cost is not None and found.cost.wall_ms > 0:
            share = 100 * max(found.cost.own_ms, 0.0) / found.cost.wall_ms
            rows.append({"rank": found.rank, "own_ms": found.cost.own_ms, "wall_ms": found.cost.wall_ms, "pct": share})
    if not rows:
        return {"pct": None, "ranks": []}
    costs = [found.cost for found in view.steppers() if found.cost is not None]
    return {
        "pct": 100 * sum(row["own_ms"] for row in rows) / sum(row["wall_ms"] for row in rows),
        "budget_pct": max(map(_budget_pct, costs)),
        "startup_ms": max(cost.startup_ms for cost in costs),
        "checks_pct": 100 * sum(cost.checks_ms for cost in costs) / sum(row["wall_ms"] for row in rows),
        "capture_pct": 100 * sum(cost.capture_ms for cost in costs) / sum(row["wall_ms"] for row in rows),
        "diagnostics_pct": 100 * sum(cost.diagnostics_ms for cost in costs) / sum(row["wall_ms"] for row in rows),
        "away_pct": 100 * sum(cost.away_ms for cost in costs) / sum(row["wall_ms"] for row in rows),
        "records_pct": 100 * sum(cost.records_ms for cost in costs) / sum(row["wall_ms"] for row in rows),
        "worst": max(rows, key=lambda row: row["pct"]),
        "errors": sum(cost.errors for cost in costs),
        "dropped": sum(cost.dropped for cost in costs),
        "ranks": rows,
    }


def _budget_pct(cost: Cost) -> float:
    """The budget; where level or flags changed it on the way, the mean over time."""
    if cost.wall_ms <= 0 or not cost.earned_ms:
        return cost.budget_pct
    mean = 100 * cost.earned_ms / cost.wall_ms
    return cost.budget_pct if math.isclose(mean, cost.budget_pct, rel_tol=0.02) else round(mean, 2)


def _baseline(view: View) -> dict[str, Any]:
    """The paired ratio of the first process that has one."""
    for found in view.ranks():
        kept = found.baseline
        if kept is not None and finite(kept.ratio) is not None:
            return {"ratio": kept.ratio, "low": kept.low, "high": kept.high, "pairs": kept.pairs, "block": kept.block}
    return {}


def _triggers(view: View) -> list[dict[str, Any]]:
    found = [(process, event) for process in view.steppers() for event in process.triggers]
    rows = []
    for process, event in sorted(found, key=lambda item: item[1].step)[:MAX_TRIGGERS]:
        folder = process.process.label
        files = {
            name: kept_in(folder, file) if file else "" for name, file in (("dump", event.dump), ("batch", event.batch))
        }
        row = {"step": event.step, "rank": process.rank, "who": process.who, "condition": event.condition}
        rows.append({**row, "values": event.values, "action": event.action, "stop": event.stop, **files})
    return rows


def _looks(view: View) -> dict[str, Any]:
    """Per flag: how often its probe spoke, over all ranks, and the last line of the first rank (of all, for traces).

    A zero tells too. Of processes that were one rank one after the other the last speaks, whose steps the verdict tells.
    """
    found: dict[str, Any] = {}
    ranks = {process.process.label for process in view.ranks()}

    def order(process: ProcessView) -> tuple[bool, float]:
        return process.process.label not in ranks, float("inf") if process.rank is None else process.rank

    for process in sorted(view.steppers(), key=order):
        for name, looks in process.looks.items():
            row = found.setdefault(
                name, {"count": 0, "last_step": looks.step, "last": looks.text, "rank": process.process.rank}
            )
            row["count"] += looks.count
    profilers = [(process, process.looks["PROFILER"]) for process in view.steppers() if "PROFILER" in process.looks]
    if profilers:
        last = [one for one in profilers if one[0].process.label in ranks]
        found["PROFILER"]["last"] = together(last or profilers)
    wanted = view.settings.flags
    for flag in FLAGS:
        if flag.probe and wanted.get(flag.name) and flag.name not in found:
            found[flag.name] = {"count": 0, "last_step": None, "last": ""}
    for row in found.values():
        row["text"] = (
            f"{counted(row['count'], 'observation')}, the last at step {row['last_step']}: {clip(row['last'], 140)}"
            if row["count"]
            else "saw nothing: the notes may say why"
        )
    return found


def _notes(view: View) -> list[str]:
    said: dict[str, list[str]] = {}
    for found in view.processes.values():
        for text in found.notes.values():
            said.setdefault(text, []).append(found.who)
    return [f"{text} ({joined(who, 4)})" for text, who in said.items()]


def _files(run: RunDir) -> list[str]:
    """What a person may want to open, relative to the run directory."""
    patterns = (
        "run.json",
        REPORT_FILE,
        "notes.jsonl",
        "*.log",
        "rank*/**/batch_*",
        "rank*/**/trigger_*",
        "rank*/**/stacks_*",
        "rank*/**/flight_*",
        "rank*/**/*.pt.trace.json*",
        "rank*/**/*_log_rank*.txt",
        "rank*/**/events.jsonl",
        "rank*/**/metrics.jsonl",
        "rank*/**/metrics_state",
    )
    found = [path.relative_to(run.path).as_posix() for pattern in patterns for path in sorted(run.path.glob(pattern))]
    return found[:MAX_FILES] + ([f"... {len(found) - MAX_FILES} more"] if len(found) > MAX_FILES else [])


def judge_run(run: RunDir, exit_code: int | None = None) -> Verdict:
    """The verdict from the files alone: the same rules over the same events, rank after rank."""
    judge = Judge(run)
    for process in run.processes():
        for event in _readable(process):
            judge.feed(process, event)
    return judge.finish(exit_code)


def _readable(process: ProcessDir) -> Iterable[Event]:
    try:
        yield from process.events()
    except OSError:  # the file vanished or may not be read: the other ranks still speak
        return
