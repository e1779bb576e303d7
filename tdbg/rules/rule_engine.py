"""Evaluates the rules over the events of a run, live and offline alike, and draws the verdict from them."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from tdbg.core import sink_files
from tdbg.core.events import NO_BACKWARD, UNAVAILABLE, Cost, Event, Finding, Note, Observation, ProbeOff, Start, Step
from tdbg.core.flags import FLAGS, LEVELS
from tdbg.core.observations import OF_INSPECTION, OF_LOADERS
from tdbg.core.observations.dataloader import DataWait
from tdbg.core.observations.preflight import Refused
from tdbg.core.rule_base import Unarmed, evaluate_rules
from tdbg.core.rundir import ProcessDir, RunDir, read_alert_reports
from tdbg.core.tables import format_count, join_limited
from tdbg.core.urls import is_url
from tdbg.rules import RULES, Rule
from tdbg.rules._live_findings import correct_live_findings, read_live_findings
from tdbg.rules._order import order_findings
from tdbg.rules._rule_cards import LoadedCard, RuleCard, list_rule_cards
from tdbg.rules._signals import Signals
from tdbg.rules.cost_lines import BaselineRow, CostRow, CostShare, compute_cost_pct
from tdbg.rules.debug_summary import merge_anomalies, summarize_training
from tdbg.rules.preflight_lines import list_trials
from tdbg.rules.rank_lines import RankRow
from tdbg.rules.recorded_lines import Recorded, describe_capture, has_profile, merge_profiles
from tdbg.rules.restarts import describe_restarts
from tdbg.rules.text import clip_text, get_kept_path
from tdbg.rules.verdict import REPORT_FILE, ExitRow, ObservationsRow, TriggerRow, Verdict
from tdbg.rules.view import MAX_TRIGGERS, ProcessView, View, describe_exit, to_finite
from tdbg.rules.watched import NO_LOADER, NotWatched, count_watched

MAX_FINDINGS = 200
MAX_FILES = 60
PROFILER, CAPTURE = "PROFILER", "capture"  # what observations of these are kept under


Feed = tuple[Rule, Callable[[ProcessDir, Event], Iterable[Finding]]]  # a rule with its `feed`


class RuleEngine:
    """Feeds the events of a run to the rules; one instance per run.

    cards: of these rules; all if left out. compares_ranks: False leaves out the rules that need several ranks.
    """

    def __init__(self, run: RunDir, cards: Sequence[RuleCard] | None = None, *, compares_ranks: bool = True) -> None:
        self.run = run
        self.view = View(run)
        self.findings: list[Finding] = []
        self._fed: ProcessDir | None = None  # whose event the rules see
        self.trouble = RULES.load_third_party()
        known = list_rule_cards() if cards is None else cards
        self._cards = [card for card in known if compares_ranks or card.needed_ranks <= 1]
        files = ((name, error) for name, error in RULES.broken.items() if ":" not in name)
        self.trouble += [f"{name} could not be loaded: {error}" for name, error in files]
        self._cards_by_key = _group_cards(self._cards)  # the key: an event, or the probe of an observation
        self._feeds_by_key: dict[type[Event] | str, tuple[Feed, ...]] = {}
        self._rules: dict[str, Rule] = {}  # by code: those that were needed so far
        self._failed_codes: set[str] = set()
        # What the rules for several ranks have not seen: they are loaded at the first sign of a second rank.
        self._unseen_starts: list[tuple[ProcessDir, Start]] | None = []
        self._make_rules(card for card in self._cards if isinstance(card, LoadedCard))

    def feed(self, process: ProcessDir, event: Event) -> list[Finding]:
        """See one event; returns the findings that are new with it."""
        self._fed = process
        key: type[Event] | str = type(event)
        if type(event) is Observation and event.probe in self._cards_by_key:
            key = event.probe
        early = self._admit_rank_rules(process, event, key) if self._unseen_starts is not None else []
        feeds = self._feeds_by_key.get(key)
        if feeds is None:
            rules = self._make_rules(
                card for card in self._cards_by_key.get(key, ()) if not self._is_load_deferred(card)
            )
            feeds = self._feeds_by_key[key] = tuple((rule, rule.feed) for rule in rules)
        new = early + evaluate_rules(feeds, self._switch_off, process, event)
        self.view.add_event(process, event)  # last: it drops the long vectors
        return self._add_findings(new) if new else new

    def _find_attempt(self) -> int | None:
        """The attempt of a restarted job whose event is shown to the rules; None at the end of the run.

        None too for one program after another, of which the later is no restart.
        """
        found = self.view.processes.get(self._fed.label) if self._fed is not None else None
        if found is None or not found.launch:
            return None if found is None else 0
        is_restart = len(self.view.list_attempts(found)) > 1 or self.view.is_counted_restart(found)
        return found.launch if is_restart else None

    def _admit_rank_rules(self, process: ProcessDir, event: Event, key: type[Event] | str) -> list[Finding]:
        """Load the rules for several ranks if the event is for them, and show them the starts before it."""
        unseen = self._unseen_starts
        assert unseen is not None
        if isinstance(event, Start) and event.world_size <= 1:
            unseen.append((process, event))
            return []
        if key in self._feeds_by_key and not isinstance(event, Start):  # known to be none of theirs
            return []
        if (
            isinstance(event, Step | Note | ProbeOff) or key == DataWait.PROBE
        ):  # any run has them: no sign of a second rank
            return []
        cards = [card for card in self._cards_by_key.get(Start, ()) if self._is_load_deferred(card)]
        if not isinstance(event, Start) and not any(
            self._is_load_deferred(card) for card in self._cards_by_key.get(key, ())
        ):
            return []
        self._unseen_starts = None
        self._feeds_by_key.clear()
        feeds = [(rule, rule.feed) for rule in self._make_rules(cards)]
        return [new for start in unseen for new in evaluate_rules(feeds, self._switch_off, *start)]

    def _is_load_deferred(self, card: RuleCard) -> bool:
        """True for a rule for several ranks that is not loaded, as long as there is one."""
        return self._unseen_starts is not None and card.needed_ranks > 1 and not isinstance(card, LoadedCard)

    def finish(self, exit_code: int | None = None) -> Verdict:
        """Evaluate the whole run after its last event.

        exit_code: of the command, where the caller knows it; minus the signal's number, or as run.json has it.
        """
        self._fed = None
        self.view.read_outcome(exit_code)
        rules = self._make_rules(card for card in self._cards if self._needs_finish(card))
        self._add_findings(evaluate_rules([(rule, rule.finish) for rule in rules], self._switch_off, self.view))
        return self._draw_verdict()

    def _needs_finish(self, card: RuleCard) -> bool:
        """True if the rule's `finish` may have something to say."""
        known = bool(self.view.processes) or card.code in self._rules or not card.needs_process
        return card.has_finish and known and not self._is_load_deferred(card)

    def _make_rules(self, cards: Iterable[RuleCard]) -> list[Rule]:
        """The rules of these cards, each loaded when it is first needed; without those that failed."""
        working = [(card, partial(self._make_rule, card)) for card in cards if card.code not in self._failed_codes]
        return evaluate_rules(working, self._switch_off)

    def _make_rule(self, card: RuleCard) -> tuple[Rule]:
        if card.code not in self._rules:
            self._rules[card.code] = rule = card.load_rule()
            rule.find_attempt = self._find_attempt
        return (self._rules[card.code],)

    def _add_findings(self, found: list[Finding]) -> list[Finding]:
        """Keep those that are new; a rule may give out one that it gave before, which then says something else."""
        kept: list[Finding] = []
        for finding in found:
            is_known = any(finding is one for one in self.findings)
            if is_known or len(self.findings) < MAX_FINDINGS:
                kept.append(finding)
                self.findings += [] if is_known else [finding]
        return kept

    def _switch_off(self, rule: Rule | RuleCard, error: Exception) -> None:
        self._failed_codes.add(rule.code)
        for key, feeds in self._feeds_by_key.items():
            self._feeds_by_key[key] = tuple(feed for feed in feeds if feed[0] is not rule)
        text = f"rule {rule.code} failed and was switched off: {type(error).__name__}: {error}"
        if text not in self.trouble:
            self.trouble.append(text)

    def _check_card(self, card: RuleCard, signals: Signals) -> list[tuple[str, Unarmed]]:
        """The rule's code and why it is not armed; nothing if it is."""
        if card.has_check:
            unarmed = self._make_rule(card)[0].check_armed(signals)
        else:
            unarmed = signals.find_unarmed(card.needed_probes, card.needed_ranks, needs_training=card.needs_training)
        return [] if unarmed is None else [(card.code, unarmed)]

    def list_confirmed(self) -> list[Finding]:
        """The findings so far but for those that their rule took back; also from another thread than the one that feeds."""
        withdrawn = {id(finding) for rule in list(self._rules.values()) for finding in rule.withdrawn}
        return [finding for finding in list(self.findings) if id(finding) not in withdrawn]

    def _draw_verdict(self) -> Verdict:
        view = self.view
        order = order_findings(self.list_confirmed())
        corrections = correct_live_findings(self.run, order.findings)
        checks = [
            (card, partial(self._check_card, card)) for card in self._cards if card.code not in self._failed_codes
        ]
        signals = _read_signals(view)
        unarmed = evaluate_rules(checks, self._switch_off, signals)
        return Verdict(
            run=self.run.place,
            findings=order.findings,
            causes=order.causes,
            ranks=[_build_rank_row(view, found) for found in view.list_rank_processes()],
            others=[_build_rank_row(view, found) for found in view.list_side_processes()],
            trainings=len(view.list_trainings()),
            restarts=describe_restarts(view, view.run.read_hellos()),
            exit=_build_exit_row(view),
            cost=_sum_costs(view),
            costliest=_name_costliest(view),
            baseline=_find_baseline(view),
            flags=dict(view.settings.flags),
            injections=view.injections.list_rows(),
            observations_by_flag=_count_observations_by_flag(view),
            triggers=_build_trigger_rows(view),
            training=summarize_training([found.counts for found in view.list_rank_processes()]),
            anomalies=merge_anomalies([found.anomalies for found in view.processes.values()]),
            notes=[
                *([self.run.gap] if self.run.gap else []),
                *_merge_notes(view),
                *corrections,
                *_describe_join(view),
                *_describe_alerts(self.run),
                *_describe_sinks(self.run),
            ],
            files=_list_files(self.run),
            trouble=self.trouble,
            level=view.settings.level,
            watched=count_watched(view, signals.level, len(checks), len(checks) - len(unarmed)),
            not_watched=_group_unarmed(unarmed),
            capture_line=_format_capture_line(view),
            profile_line=_format_profile_line(view),
            is_preflight=view.settings.preflight,
            trials=list_trials(event for found in view.processes.values() for event in found.trials),
            has_unseen_losses=any(NO_BACKWARD in found.notes for found in view.list_rank_processes()),
        )


def _group_cards(cards: Sequence[RuleCard]) -> dict[type[Event] | str, list[RuleCard]]:
    """The rules that listen to each event; of observations to those of each probe that a rule names."""
    found: defaultdict[type[Event] | str, list[RuleCard]] = defaultdict(list)
    probes = {probe for card in cards for probe in card.probes}
    for card in cards:
        keys = set(card.iter_event_keys())
        for key in keys | (probes if Observation in keys else set()):
            found[key].append(card)
    return dict(found)


def _build_rank_row(view: View, found: ProcessView) -> RankRow:
    last = found.last or found.last_eval
    loss, loss_step = (last.loss, last.step) if last else (None, None)
    if found.end is not None and found.end.loss is not None and found.end.loss_step >= (loss_step or 0):
        loss, loss_step = found.end.loss, found.end.loss_step
    return {
        "rank": found.rank,
        "folder": found.process.label,
        "host": found.start.host if found.start else "",
        "pid": found.start.pid if found.start else None,
        "attempts": len(view.list_attempts(found)),
        "steps": found.step,
        "evals": found.evals,
        "evals_at_least": found.cost is not None and found.cost.away_ms > 0,  # calls without hooks are not counted
        "skipped": found.skipped,
        "planned": found.plan.steps if found.plan else None,
        "loss": loss,
        "loss_step": loss_step,
        "ended": view.describe_ending(found),
        "code": view.find_process_exit(found),
        "last_t": found.t,
    }


def _build_exit_row(view: View) -> ExitRow:
    code = view.exit_code
    if code is None:
        return {"code": None, "text": "cut off before its end" if view.over else "still running"}
    return {"code": code, "text": describe_exit(code)}


def _compute_cost_shares(view: View) -> list[tuple[ProcessView, CostShare]]:
    """What each process that stepped says of tdbg's own time."""
    shares: list[tuple[ProcessView, CostShare]] = []
    for found in view.list_active_processes():
        share = compute_cost_pct(found.cost)
        if found.cost is not None and share is not None:
            row = CostShare(rank=found.rank, own_ms=found.cost.own_ms, wall_ms=found.cost.wall_ms, pct=share)
            shares.append((found, row))
    return shares


def _name_costliest(view: View) -> str:
    """The process with the largest share, named as its own line of the verdict does; empty if none says."""
    shares = _compute_cost_shares(view)
    if not shares:
        return ""
    found, _ = max(shares, key=lambda share: share[1]["pct"])
    is_apart = bool(view.list_trainings()) or found.process.label in {
        one.process.label for one in view.list_side_processes()
    }
    if is_apart or not found.process.is_rank:
        return f"process {found.start.pid}" if found.start else f"process {found.process.label}"
    return found.display_name


def _sum_costs(view: View) -> CostRow:
    """tdbg's own time in all processes; the share is of all their wall time together."""
    rows = [row for _, row in _compute_cost_shares(view)]
    if not rows:
        return {"pct": None, "ranks": []}
    costs = [found.cost for found in view.list_active_processes() if found.cost is not None]
    allowance_ms = max(cost.allowance_ms for cost in costs)
    inspection: CostRow = {}
    if allowance_ms:
        inspection = {"inspection_ms": max(cost.inspection_ms for cost in costs), "allowance_ms": allowance_ms}
    return inspection | {
        "pct": sum(row["pct"] * row["wall_ms"] for row in rows) / sum(row["wall_ms"] for row in rows),
        "budget_pct": max(map(_compute_budget_pct, costs)),
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


def _compute_budget_pct(cost: Cost) -> float:
    """The budget; where level or flags changed it on the way, the mean over time."""
    if cost.wall_ms <= 0 or not cost.earned_ms:
        return cost.budget_pct
    mean = 100 * cost.earned_ms / cost.wall_ms
    return cost.budget_pct if math.isclose(mean, cost.budget_pct, rel_tol=0.02) else round(mean, 2)


def _find_baseline(view: View) -> BaselineRow | None:
    """The paired ratio of the first process that has one."""
    for found in view.list_rank_processes():
        kept = found.baseline
        if kept is not None and to_finite(kept.ratio) is not None:
            return {"ratio": kept.ratio, "low": kept.low, "high": kept.high, "pairs": kept.pairs, "block": kept.block}
    return None


def _build_trigger_rows(view: View) -> list[TriggerRow]:
    found = [(process, event) for process in view.list_active_processes() for event in process.triggers]
    return [
        TriggerRow(
            step=event.step,
            rank=process.rank,
            who=process.display_name,
            condition=event.condition,
            values=event.values,
            action=event.action,
            stop=event.stop,
            dump=_locate_kept_file(process, event.dump),
            batch=_locate_kept_file(process, event.batch),
        )
        for process, event in sorted(found, key=lambda item: item[1].step)[:MAX_TRIGGERS]
    ]


def _locate_kept_file(process: ProcessView, file: str) -> str:
    return get_kept_path(process.process.label, file) if file else ""


def _sort_processes(view: View) -> list[ProcessView]:
    """Processes that stepped: ranks first, in their order. Of processes that were one rank in turn the last speaks."""
    ranks = {process.process.label for process in view.list_rank_processes()}

    def sort_key(process: ProcessView) -> tuple[bool, float]:
        return process.process.label not in ranks, float("inf") if process.rank is None else process.rank

    return sorted(view.list_active_processes(), key=sort_key)


def _count_observations_by_flag(view: View) -> dict[str, ObservationsRow]:
    """Per flag: how often its probe spoke, over all ranks, and the last line of the first rank (of all, for traces).

    A zero tells too.
    """
    found: dict[str, ObservationsRow] = {}
    for process in _sort_processes(view):
        for name, seen in process.observations_by_flag.items():
            first = ObservationsRow(count=0, last_step=seen.last.step, last=seen.last.text, rank=process.rank)
            found.setdefault(name, first)["count"] += seen.count
    if PROFILER in found:
        found[PROFILER]["last"] = merge_profiles(_find_last_profiles(view))
    wanted = view.settings.flags
    for flag in FLAGS:
        if flag.probe and flag.works_alone and wanted.get(flag.name) and flag.name not in found:
            found[flag.name] = ObservationsRow(count=0, last_step=None, last="")
    for row in found.values():
        row["text"] = (
            f"{format_count(row['count'], 'observation')}, the last at step {row['last_step']}: {clip_text(row['last'], 140)}"
            if row["count"]
            else "saw nothing: the notes may say why"
        )
    return found


def _find_last_profiles(view: View) -> list[Recorded]:
    """The last observation of the profiler of each rank; of every process, where no rank has one."""
    ranks = {process.process.label for process in view.list_rank_processes()}
    profilers = [process for process in view.list_active_processes() if PROFILER in process.observations_by_flag]
    chosen = [process for process in profilers if process.process.label in ranks] or profilers
    return [(process.display_name, process.observations_by_flag[PROFILER].last) for process in chosen]


def _format_capture_line(view: View) -> str:
    """What the first rank captured, and how to open it."""
    stepped = _sort_processes(view)
    others = [process for process in view.processes.values() if process not in stepped]  # of calls, with no optimizer
    capturing = [process for process in (*stepped, *others) if CAPTURE in process.observations_by_flag]
    captured = describe_capture(capturing[0].observations_by_flag[CAPTURE].last) if capturing else None
    if captured is None:
        return ""
    text, has_pages = captured
    who = f"{capturing[0].display_name}: " if len(view.list_rank_processes()) > 1 else ""
    return f"{who}{clip_text(text, 140)}: `tdbg inspect-pages {view.run.place}`" if has_pages else text


def _format_profile_line(view: View) -> str:
    """What was profiled, and how to look at it."""
    recorded = _find_last_profiles(view)
    known = [known for _, event in recorded if (known := has_profile(event)) is not None]
    if not known:
        return ""
    more = f": `{_show_trace_command(str(view.run.place))}`" if any(known) else ""
    return f"{clip_text(merge_profiles(recorded), 180)}{more}"


def _show_trace_command(place: str) -> str:
    """Traces are read from a disk alone."""
    return f"tdbg join {place} -o DIR`, then `tdbg trace show DIR" if is_url(place) else f"tdbg trace show {place}"


def _read_signals(view: View) -> Signals:
    """What the run was watched by, over all of its processes and all of its time."""
    settings, processes = view.settings, list(view.processes.values())
    levels = [settings.level, *(found.switch.level for found in processes if found.switch is not None)]
    flags = {name for name, value in settings.flags.items() if value is not False}
    for found in processes:
        flags.update(found.cost.flags if found.cost is not None else ())
        flags.update(name for name, value in (found.switch.flags if found.switch is not None else {}).items() if value)
    unavailable = {probe: f"tdbg's {probe} switched itself off" for found in processes for probe in found.failed_probes}
    for found in processes:
        notes = {
            code.removeprefix(UNAVAILABLE): text for code, text in found.notes.items() if code.startswith(UNAVAILABLE)
        }
        unavailable.update(notes)
    if not settings.preflight:
        unavailable[Refused.PROBE] = "needs --preflight"
    if settings.allowance <= 0.0:
        unavailable.update(dict.fromkeys(OF_INSPECTION, "needs the opening inspection (--allowance)"))
    if _is_without_loader(processes):
        unavailable.update(dict.fromkeys(OF_LOADERS, NO_LOADER))
    inspected = {probe for found in processes if found.cost is not None for probe in found.cost.inspected}
    return Signals(
        level=max((level for level in levels if level in LEVELS), key=LEVELS.index, default="basic"),
        flags=frozenset(flags),
        probes=frozenset(probe for found in processes for probe in found.probes) | inspected - set(unavailable),
        unavailable=unavailable,
        has_trained=any(found.step for found in processes),
        ranks=max((found.start.world_size for found in processes if found.start is not None), default=1),
    )


def _is_without_loader(processes: Sequence[ProcessView]) -> bool:
    """True where steps are on record and no DataLoader gave a batch for one of them, nor did a probe see one."""
    seen = {probe for found in processes for probe in found.probes}
    return any(found.steps_recorded for found in processes) and not (
        any(found.batches for found in processes) or seen.intersection(OF_LOADERS)
    )


def _group_unarmed(unarmed: Iterable[tuple[str, Unarmed]]) -> list[NotWatched]:
    """The rules that are not armed, by what would arm them."""
    found: dict[Unarmed, list[str]] = {}
    for code, why in unarmed:
        found.setdefault(why, []).append(code)
    return [NotWatched(codes=codes, reason=why.reason, flag=why.flag, level=why.level) for why, codes in found.items()]


def _merge_notes(view: View) -> list[str]:
    said: dict[str, list[str]] = {}
    for found in view.processes.values():
        for text in found.notes.values():
            said.setdefault(text, []).append(found.display_name)
    return [f"{text} ({join_limited(who, 4)})" for text, who in said.items()]


def _describe_alerts(run: RunDir) -> Iterator[str]:
    """What `--on-finding` and `--notify` could not send, in words."""
    for agent in read_alert_reports(run):
        options = agent.get("options")
        for option, tally in options.items() if isinstance(options, dict) else ():
            counts = [tally.get(name) if isinstance(tally, dict) else None for name in ("sent", "failed", "dropped")]
            sent, failed, dropped = (count if isinstance(count, int) else 0 for count in counts)
            why = f": {clip_text(str(tally.get('error')), 200)}" if failed and tally.get("error") else ""
            if failed or dropped:
                yield f"{option} on {agent.get('host')}: {failed + dropped} of {sent + failed + dropped} not sent{why}"


def _describe_join(view: View) -> Iterator[str]:
    """The run directories that a joined run was made of, and what is known of their clocks."""
    joined = view.info.get("joined")
    parts = joined.get("parts") if isinstance(joined, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            yield f"joined from {clip_text(str(part.get('path')), 100)}: {clip_text(str(part.get('text')), 200)}"


def _describe_sinks(run: RunDir) -> Iterator[str]:
    """What `--to` has sent, and what it could not: of each sink the last that is known."""
    latest = {str(one.get("sink")): one for one in sink_files.list_outcomes(run.path)}
    for name, one in latest.items():
        texts = [str(one[key]) for key in ("where", "error") if one.get(key)]
        yield f"--to {clip_text(name, 40)}: {clip_text('; '.join(texts), 400)}"


def _list_files(run: RunDir) -> list[str]:
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


def outline_run(run: RunDir, read: Callable[[ProcessDir], Iterable[Event]]) -> Verdict:
    """What is known of a run without judging it: how far its ranks came, and the findings told while it went on.

    read: some of the events of a process, in order, its first and last ones among them.
    """
    engine = RuleEngine(run, cards=())
    for process in run.list_processes():
        try:
            for event in read(process):
                engine.view.add_event(process, event)
        except OSError:  # it vanished, or may not be read
            continue
    engine.findings += read_live_findings(run)
    return engine.finish()


def judge_run(run: RunDir, exit_code: int | None = None) -> Verdict:
    """The verdict from the files alone: the same rules over the same events, rank after rank."""
    engine = RuleEngine(run)
    for process in run.list_processes():
        for event in _read_events(process):
            engine.feed(process, event)
    return engine.finish(exit_code)


def _read_events(process: ProcessDir) -> Iterable[Event]:
    try:
        yield from process.iter_events()
    except OSError:  # the file vanished or may not be read: the other ranks still speak
        return
