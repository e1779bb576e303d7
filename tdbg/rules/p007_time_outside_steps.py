"""TD-P007: much of the time goes outside of training steps."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tdbg.core.events import MAX_STEP, Cost, Event, Finding, Observation, Start, Step
from tdbg.core.observations import Evidence
from tdbg.core.observations.checkpoint import CheckpointRead, CheckpointSaved, LoadFailed, SaveFailed
from tdbg.core.observations.compilation import CompileTime
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule, read_observations
from tdbg.rules.text import format_ranks
from tdbg.rules.view import ProcessView, View

SHARE, LEAST_S = 0.3, 20.0  # of the time from the first to the last step
PAUSE_S = 1.0  # between two steps: what is shorter is not looked at, unless its owner is known
OWNED_S = 0.05  # the same where the owner is known
GAP_SHARE = 0.25  # of the time between two marks: what is less may be a step that took longer
LONGER = 3.0  # times a usual step
RECENT = 64  # steps on record that say how long a step usually takes
LEAST_STEPS = 3
SURE_STEPS = 10
UNSURE = 1.5  # times the usual step, while fewer than LEAST_RATES stretches have shown how long unrecorded steps take
RATES, LEAST_RATES = 32, 4  # of stretches of steps that have no record
MAX_OPEN = 256  # gaps that wait for what is written later
LEAST_PAUSES = 3  # fewer, or one that is most of them, may be a sleeping machine, a debugger or a notebook
CALLS_SHARE = 0.25  # of successive steps with calls without gradients (a teacher, a target network): no evaluation
LATE_S = 10.0  # the compiler's list is read every 5 s
MAX_SPANS = 1024

CHECKPOINTS, EVALUATION, COMPILING, PAUSES = "checkpoints", "evaluation", "compiling", "pauses"
SAVES = (CheckpointSaved, CheckpointRead, SaveFailed, LoadFailed)
ADVICE = {
    CHECKPOINTS: "save less often, to a faster disk, or in the background (torch.distributed.checkpoint.async_save)",
    EVALUATION: "evaluate less often, on fewer or larger batches, or with more DataLoader workers; rollouts: in larger "
    "batches",
    COMPILING: "TORCH_LOGS=recompiles prints why; mark sizes that change as dynamic, and keep the compiler's cache",
    PAUSES: "`tdbg stacks RUN` during a pause shows the line; log, plot and copy files less often, or in a thread",
}


COMPILED_ONCE = "the first compilation is needed once a run; the compiler's cache on disk makes it shorter"


@dataclass
class _Gap:
    """The time from the end of one step to the end of a later one."""

    after: int
    until: int
    begin: float
    end: float
    record: Step | None
    calls: list[tuple[float, float]]  # (begin, end) of the evaluation calls on record in it
    unseen_calls: bool = False  # more calls were counted than are on record
    is_synced: bool = False  # an accelerator had no more than a step of work left when it began

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def is_evaluated(self) -> bool:
        """True if the model was called without gradients in it."""
        return bool(self.calls) or self.unseen_calls


@dataclass
class _Loss:
    """The time that one owner took."""

    seconds: float = 0.0
    count: int = 0
    longest_s: float = 0.0
    longest_after: int = 0
    first_after: int | None = None

    def add_gap(self, seconds: float, after: int) -> None:
        self.seconds += seconds
        self.count += 1
        if self.first_after is None:
            self.first_after = after
        if seconds > self.longest_s:
            self.longest_s, self.longest_after = seconds, after


@dataclass
class _Calls:
    """The evaluation calls since the last mark: all of them as a whole, in constant memory."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def add_call(self, begin: float, end: float) -> None:
        if len(self.spans) < 3:
            self.spans.append((begin, end))
        else:  # the first one, and the last two
            self.spans[1:] = [self.spans[2], (begin, end)]


class _Course:
    """Where the time of one process went, mark by mark. A mark: a moment at which the number of steps is on record."""

    def __init__(self) -> None:
        self.losses = {owner: _Loss() for owner in (CHECKPOINTS, EVALUATION, COMPILING, PAUSES)}
        self.on_device = False
        self.step = 0
        self.start_t = self.t = 0.0
        self.own_s = 0.0
        self._records = 0
        self._last_record = self._in_a_row = 0  # a step on record has waited for the one on record before it
        self._usual_at, self._usual_s = 0, 0.0  # after how many records it was reckoned
        self._steps: deque[tuple[float, float]] = deque(maxlen=RECENT)  # seconds in phases, and outside of them
        self._rates: deque[float] = deque(maxlen=RATES)
        self._calls = _Calls()
        self._has_unseen_calls = False  # since the last mark
        self._successive = self._with_calls = 0  # steps on record right after another, and those with calls between
        self._evals = 0
        self._cost_t = 0.0
        self._open: deque[_Gap] = deque()
        self._spans: deque[tuple[float, float, str]] = deque(maxlen=MAX_SPANS)
        self._spans_until = 0.0

    def add_step(self, event: Step) -> None:
        """Take a step on record, of training or evaluation."""
        if event.phase == "eval":
            self._evals = max(self._evals, event.call or 0)
            self._calls.add_call(event.t - (event.forward_ms or 0.0) / 1e3, event.t)
            return
        step_s = event.step_ms / 1e3 if event.step_ms else _sum_phases(event)
        if event.step == 1 and not self.start_t:
            self.start_t = self.t = event.t - step_s
        gap = self._add_mark(event.step, event.t, event)
        if gap is not None and gap.until - gap.after == 1:
            self._successive += 1
            self._with_calls += gap.is_evaluated
        busy_s = min(_sum_phases(event), step_s)
        self._steps.append((busy_s, step_s - busy_s))
        self._records += 1
        self._in_a_row = self._in_a_row + 1 if event.step == self._last_record + 1 else 1
        self._last_record = event.step
        self._settle_gaps(event.t)

    def add_cost(self, event: Cost) -> None:
        """Take a cost event, which counts steps and evaluation calls that are not on record as well."""
        self.own_s = (event.own_ms + event.report_ms + event.capture_ms + event.diagnostics_ms) / 1e3
        is_done = event.step > self.step or event.t - self.t < OWNED_S  # it is written as a step ends, not in between
        if self.start_t:  # the first step has a record in any case
            self._add_mark(event.step, event.t, None)
        if event.evals > self._evals:
            self._evals = event.evals
            self._has_unseen_calls = not is_done  # they were made since the last step
            for gap in self._open if is_done else ():
                gap.unseen_calls = gap.unseen_calls or gap.end > self._cost_t
        self._cost_t = event.t

    def add_span(self, owner: str, begin: float, end: float) -> None:
        """Take what is known to have run at a time."""
        self._spans.append((begin, end, owner))
        self._spans_until = max(self._spans_until, end)

    def _add_mark(self, step: int, t: float, record: Step | None) -> _Gap | None:
        if not self.start_t:
            self.start_t, self.t, self.step = t, t, step
            return None
        if step <= self.step:
            for gap in self._open:  # a record may come after the cost event of its step
                if record is not None and gap.until == step and gap.record is None:
                    gap.record, gap.is_synced = record, self._is_synced(gap)
            return None
        calls = [one for one in self._calls.spans if one[1] > self.t]
        gap = _Gap(self.step, step, self.t, max(t, self.t), record, calls, self._has_unseen_calls)
        gap.is_synced = record is not None and self._is_synced(gap)
        self.step, self.t, self._calls, self._has_unseen_calls = step, gap.end, _Calls(), False
        is_owned = gap.is_evaluated or self._spans_until > gap.begin
        if gap.seconds >= PAUSE_S or is_owned:
            self._open.append(gap)
        if gap.until - gap.after > 1 and not is_owned:
            self._rates.append(gap.seconds / (gap.until - gap.after))
        return gap

    def _is_synced(self, gap: _Gap) -> bool:
        return gap.until - gap.after == 1 and self._last_record == gap.after and self._in_a_row >= 2

    def _settle_gaps(self, now: float) -> None:
        """Settle the gaps of which nothing more can become known."""
        while self._open and (self._is_settled(self._open[0], now) or len(self._open) > MAX_OPEN):
            self._attribute_gap(self._open.popleft())

    def _is_settled(self, gap: _Gap, now: float) -> bool:
        is_usual_known = gap.until - gap.after == 1 or len(self._rates) >= LEAST_RATES
        return is_usual_known and self._records >= SURE_STEPS and now > gap.end + LATE_S

    def settle_all(self) -> None:
        """The run is over."""
        while self._open:
            self._attribute_gap(self._open.popleft())

    def _attribute_gap(self, gap: _Gap) -> None:
        steps = gap.until - gap.after
        spans = list(_clip_spans(self._spans, gap.begin, gap.end))
        while self._spans and self._spans[0][1] < gap.begin:
            self._spans.popleft()
        if not spans and gap.record is not None and gap.seconds - _sum_phases(gap.record) < OWNED_S:
            return
        is_owned = bool(spans) or gap.is_evaluated
        lost_s = gap.seconds - self._estimate_busy(gap, steps, spans, is_owned)
        if lost_s < (OWNED_S if is_owned else PAUSE_S) or lost_s < GAP_SHARE * gap.seconds:
            return
        for owner in (CHECKPOINTS, COMPILING):
            owned_s = min(sum(end - begin for begin, end, one in spans if one == owner), lost_s)
            if owned_s >= OWNED_S:
                self.losses[owner].add_gap(owned_s, gap.after)
                lost_s -= owned_s
        if self.on_device and not gap.is_synced:  # the host may be far ahead, and wait for the device in any step
            lost_s = min(lost_s, gap.calls[-1][1] - gap.calls[0][0]) if gap.calls else 0.0
        if self._with_calls > CALLS_SHARE * self._successive:
            return  # the calls belong to the steps, and hide how long these waited for a batch
        pause_s = _find_pause(gap, lost_s, spans)
        if lost_s - pause_s >= OWNED_S and gap.is_evaluated:
            self.losses[EVALUATION].add_gap(lost_s - pause_s, gap.after)
        if pause_s >= PAUSE_S and (steps == 1 or len(self._rates) >= LEAST_RATES):
            self.losses[PAUSES].add_gap(pause_s, gap.after)

    def _estimate_busy(self, gap: _Gap, steps: int, spans: list[tuple[float, float, str]], is_owned: bool) -> float:
        """So many seconds at most went into the steps of a gap; all of them where that is not known."""
        usual_s = self._usual_step_s()
        if usual_s is None:
            return gap.seconds
        if steps == 1:
            busy_s = _sum_phases(gap.record) if gap.record is not None else 0.0
            busy_s -= sum(end - begin for begin, end, owner in spans if owner == COMPILING)
            is_pause = is_owned or gap.seconds >= LONGER * usual_s
            return max(busy_s, usual_s) if is_pause else gap.seconds
        rates = sorted(self._rates)
        if len(rates) >= LEAST_RATES:
            usual_s = max(usual_s, rates[len(rates) // 4])
        else:
            usual_s *= UNSURE
        return steps * usual_s

    def _usual_step_s(self) -> float | None:
        """The mean of the last steps on record, twice its own error higher; long waits between phases count as usual ones."""
        count = len(self._steps)
        if count < LEAST_STEPS:
            return None
        if self._usual_at != self._records:
            self._usual_at = self._records
            limit_s = LONGER * sorted(rest for _, rest in self._steps)[count // 2]
            times = [busy + (rest if rest < limit_s else limit_s) for busy, rest in self._steps]
            mean = sum(times) / count
            variance = sum((one - mean) ** 2 for one in times) / (count - 1)
            self._usual_s = mean + 2 * math.sqrt(variance / count)
        return self._usual_s


@RULES.add
class TimeOutsideSteps(Rule):
    """Shows where the time went in a run that spent much of it outside of training steps.

    What it does: Adds up the time that training steps do not explain, and splits it into checkpoints (saving
    and loading), evaluation (the model is called without gradients), compiling (torch.compile, also during a
    step) and pauses (gaps of a second or more without a known cause). Each is given in seconds and as a share
    of the time from the first to the last step. A step without a record counts as a usual step, not as a pause.
    Waiting for batches is reported by TD-P002 instead. tdbg's own time is subtracted from the pauses. Under
    torch.profiler no pauses are reported, because writing a trace causes some. On an accelerator a pause counts
    only between steps that are all on record: elsewhere the host may just be waiting for queued work. Where most
    steps call a model without gradients (a teacher, a target network), only checkpoints and compiling count.

    Why it matters: A job whose accelerator is idle half of the time, while checkpoints are written, looks
    healthy in every curve.

    Example:
        TD-P007 info: 46% of the time went outside of training steps: checkpoints 412 s (31%), evaluation 150 s
        (11%), pauses 54 s (4%), rank 0
          pauses: 9 without a known cause, 54 s, the longest 12 s after step 4000

    What to do: Start with the part that is named first. Save less often or in the background; evaluate on fewer
    batches; find out why functions are recompiled (`TORCH_LOGS=recompiles`). During a pause, `tdbg stacks RUN`
    shows the line that the program is at. This is a note, not a fault: much evaluation may be intended.

    Thresholds: 30 % of the time from the first to the last step, and 20 s. A gap between two steps counts if
    the steps do not explain a quarter of it or more. A pause is 1 s or longer; between two successive steps, if
    nothing else is known of the gap, the gap is also at least 3 times as long as a usual step. Fewer than three
    pauses, or one that is longer than the others together, are not reported: the machine may have slept.
    """

    code = "TD-P007"
    title = "much of the time goes outside of training steps"
    severity = "info"
    grade = Evidence.STATISTICAL.grade_word
    listens = (Start, Step, Cost, Observation)
    observes = (*SAVES, CompileTime)
    needs = Needs(events=(Step,))

    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Step | Cost) and abs(event.step) > MAX_STEP:
            return ()
        course = self._courses.get(process.label)
        if course is None:
            course = self._courses[process.label] = _Course()
        if isinstance(event, Start):
            course.on_device = event.device.get("type", "cpu") != "cpu"
        elif isinstance(event, Step):
            course.add_step(event)
        elif isinstance(event, Cost):
            course.add_cost(event)
        else:
            for seen in read_observations(event, self.observes):
                if isinstance(seen, CompileTime):
                    for begin, seconds in zip(seen.began, seen.took_s, strict=False):
                        course.add_span(COMPILING, begin, begin + seconds)
                elif isinstance(seen, SAVES):
                    course.add_span(CHECKPOINTS, event.t - seen.took_s, event.t)
        return ()

    def finish(self, view: View) -> Iterable[Finding]:
        found = self._find_losses(view.list_rank_processes()) or self._find_losses(view.list_side_processes())
        if not found:
            return ()
        # A rank that waits while another one saves has a pause: the one that knows best what it did is told.
        _, process, course = min(found, key=lambda one: (one[0], one[1].rank or 0))
        others = [one.rank for _, one, _ in found if one is not process and one.rank is not None]
        return (self._make_time_finding(process, course, others),)

    def _find_losses(self, processes: Iterable[ProcessView]) -> list[tuple[float, ProcessView, _Course]]:
        """Those that lost so much time, each with the seconds of its pauses."""
        found: list[tuple[float, ProcessView, _Course]] = []
        for process in processes:
            course = self._courses.get(process.process.label)
            if course is None:
                continue
            course.settle_all()
            pauses = course.losses[PAUSES]
            is_notable = pauses.count >= LEAST_PAUSES and pauses.longest_s <= pauses.seconds / 2
            if "profiler" in process.probes or not is_notable:
                pauses.seconds = 0.0
            pauses_s = max(pauses.seconds - course.own_s, 0.0)
            pauses.seconds, course.own_s = pauses_s, 0.0
            lost_s = sum(loss.seconds for loss in course.losses.values())
            if lost_s >= max(LEAST_S, SHARE * (course.t - course.start_t)):
                found.append((pauses_s, process, course))
        return found

    def _make_time_finding(self, process: ProcessView, course: _Course, others: list[int]) -> Finding:
        whole_s = course.t - course.start_t
        losses = {owner: loss for owner, loss in course.losses.items() if loss.seconds >= OWNED_S}
        owners = sorted(losses, key=lambda owner: -losses[owner].seconds)
        lost_s = sum(loss.seconds for loss in losses.values())
        parts = [
            f"{name} {_format_time(losses[name].seconds)} ({losses[name].seconds / whole_s:.0%})" for name in owners
        ]
        evidence = [_describe_loss(name, losses[name]) for name in owners]
        evidence.append(
            f"{_format_time(lost_s)} of the {_format_time(whole_s)} from the first step to step {course.step}"
        )
        if others:
            evidence.append(f"also on {format_ranks(sorted(others))}")
        first = min(loss.first_after for loss in losses.values() if loss.first_after is not None)
        return self.make_finding(
            f"{lost_s / whole_s:.0%} of the time went outside of training steps: {', '.join(parts)},"
            f" {process.display_name}",
            first_step=first,
            rank=process.rank,
            evidence=evidence,
            cause=f"the largest part is {owners[0]}" if len(owners) > 1 else "",
            try_next=COMPILED_ONCE
            if owners[0] == COMPILING and losses[COMPILING].longest_after <= 1
            else ADVICE[owners[0]],
        )


def _sum_phases(event: Step) -> float:
    """Seconds of a step in its phases."""
    return sum(part or 0.0 for part in (event.loader_ms, event.forward_ms, event.backward_ms, event.optimizer_ms)) / 1e3


def _clip_spans(
    spans: Iterable[tuple[float, float, str]], begin: float, end: float
) -> Iterator[tuple[float, float, str]]:
    """What of the spans lies between two times, without what another one covers: a save may call another."""
    covered = begin
    for first, last, owner in sorted(spans):
        first, last = max(first, covered), min(last, end)
        if last > first:
            yield first, last, owner
            covered = last


def _find_pause(gap: _Gap, lost_s: float, spans: list[tuple[float, float, str]]) -> float:
    """How much of what no span owns is a pause: all, or what comes long after the last evaluation call."""
    if not gap.is_evaluated:
        return lost_s
    if gap.unseen_calls or len(gap.calls) < 3:
        return 0.0  # it is not known when the pass ended
    last_t = gap.calls[-1][1]
    between_s = last_t - gap.calls[-2][1]
    rest_s = gap.end - last_t - between_s - sum(end - max(begin, last_t) for begin, end, _ in spans if end > last_t)
    busy_s = _sum_phases(gap.record) if gap.record is not None else 0.0
    pause_s = min(rest_s - busy_s, lost_s)
    return pause_s if pause_s >= max(PAUSE_S, LONGER * between_s) else 0.0


def _format_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _describe_loss(owner: str, loss: _Loss) -> str:
    longest_s = min(loss.longest_s, loss.seconds)  # tdbg's own time is subtracted from the sum
    where = f"{_format_time(loss.seconds)}, the longest {_format_time(longest_s)} after step {loss.longest_after}"
    if owner == PAUSES:
        return f"pauses: {loss.count} without a known cause, {where}"
    kind = " (calls without gradients, also rollouts)" if owner == EVALUATION else ""
    return f"{owner}: in {format_count(loss.count, 'gap')} between steps{kind}, {where}"
