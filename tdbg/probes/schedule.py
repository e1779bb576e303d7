"""LR and SCHEDULING: the learning rate, who sets it, and whether the schedule fits the run."""

import ast
import inspect
import linecache
import re
import sys
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdbg.core.events import Step, number
from tdbg.core.frames import get_line
from tdbg.core.observations import Observed
from tdbg.core.observations.schedule import (
    OrderReversed,
    PlateauJudged,
    RateAboveBound,
    RateChanged,
    ScheduleOver,
    SchedulerBuilt,
    SchedulerIdle,
    SchedulerStepped,
    format_first_rate,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.forward import round_number
from tdbg.runtime import tensors
from tdbg.runtime.code_places import program_frame
from tdbg.runtime.torch_hooks import iter_targets

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from tdbg.runtime.monitor import Monitor

MAX_GROUPS = 8
MAX_SCHEDULERS = 64
JUMP = 1.5  # a rate that changes by so much at once is told in any case
RARE_STEPS = 8  # a scheduler that steps no more often than that is told each time
FREE_LINES = 16  # jumps and turns that are told in any case; later ones too where the last line is RARE_STEPS ago
WARM_RISES = 3  # rises in a row from the first rate on are a warm-up
IN_A_ROW = 3
EVERY_UPDATE = 5  # updates in a row, each with a step of the decay
PAST_SHARE = 0.05  # of its length: so far past its end a schedule is over for sure
EPOCH_SHARE = 1.5  # an epoch so many times longer than the schedule
COLLAPSED = 1e-6  # of the highest rate
IDLE_EPOCHS = 3
LATE_STARTERS = ("ReduceLROnPlateau", "SWALR")  # these may wait for a validation, or for the last epochs
DECAYS = ("StepLR", "MultiStepLR", "ExponentialLR")
ADAMS = ("adam",)
NO_ADAMS = ("dadapt", "prodigy")  # their rate is a factor: 1 is its default
PARAMETERS = (
    "T_max",
    "T_0",
    "T_mult",
    "eta_min",
    "total_steps",
    "step_size",
    "milestones",
    "_milestones",
    "gamma",
    "start_factor",
    "end_factor",
    "factor",
    "total_iters",
    "power",
    "patience",
    "cooldown",
    "threshold",
    "mode",
    "min_lrs",
    "base_lrs",
)  # of torch's schedulers, as their attributes are named
LENGTHS = ("total_steps", "T_max")


@dataclass(slots=True)
class _Course:
    """What one scheduler has done so far."""

    name: str
    which: int  # number of its optimizer, in the order seen
    planned: int | None  # its own length: T_max, total_steps
    whole: bool  # known since it was built
    own_step: bool  # its step() is not torch's
    at: int  # updates done when it was built, later when it stepped last
    epoch: float = 0.0  # its last_epoch
    advances: int = 0
    early: bool = False  # it stepped once before the first update
    lost: float | None = None  # the rate that was never used thereby
    crowd: int = 0  # advances since the last update
    size: int = 0  # advances between the two updates before
    crowded: int = 0  # updates in a row with the same number of advances, two or more
    every: int = 0  # updates in a row with an advance
    epochs_then: int | None = None  # passes over the loader when it was announced
    built_by: tuple[CodeType, int] | None = None  # the code of the program that built it, and the line

    @property
    def known_length(self) -> int | None:
        """Its own length, where its steps are counted from the first on: else none of them can be set against it."""
        return self.planned if self.whole else None

    def close_interval(self, gap: int) -> None:
        """Updates were done since the last advance: count how it steps between them."""
        crowd, gone = self.crowd >= 2 and gap == 1, self.crowd
        self.crowded = self.crowded + 1 if crowd and gone == self.size else int(crowd)
        self.size, self.crowd = gone, 0
        self.every = self.every + 1 if gap == 1 else 0


@dataclass(slots=True)
class _Pending:
    """A step of a scheduler whose effect on the rates is yet to be read."""

    optimizer: "weakref.ref[Optimizer]"
    course: _Course
    step: int
    before: list[float]
    gap: int  # updates since it stepped last


@PROBES.add
class Schedule(Probe):
    """Each change of the learning rate, and what the schedulers decide.

    Reads:  every step of torch's schedulers and of those derived from them (where they compute their rates), the
            metric and the state of ``ReduceLROnPlateau``, the rates in ``param_groups`` and in the step's record.
    Emits:  LR: RATE for changes of the rate, ORDER and HIGH once, if so. SCHEDULING: BUILT once a scheduler, STEP for
            its steps, PLATEAU for each metric, PLAN and IDLE once, if so. Where only one of the flags is on, all
            lines are under that one.
    Cost:   some 5 us a scheduler step; a line on sampled steps, and for first steps, jumps, turns and rare steps.
    Limits: a scheduler that is none of torch's (timm's, say) is seen by the rates alone. The rates after a scheduler's
            step are read when the next update begins. Device tensors as rates are not read.
    Source: torch's documentation of `torch.optim.lr_scheduler`: optimizer.step() comes first.
    """

    name = "schedule"
    levels = ("advanced", "extreme")
    presence_s = 5e-6
    observations = (
        RateChanged,
        RateAboveBound,
        OrderReversed,
        SchedulerBuilt,
        SchedulerStepped,
        PlateauJudged,
        ScheduleOver,
        SchedulerIdle,
    )

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._reset_state()

    def _reset_state(self) -> None:
        self._courses: weakref.WeakKeyDictionary[LRScheduler, _Course] = weakref.WeakKeyDictionary()
        self._unannounced: list[tuple[weakref.ref[LRScheduler], _Course]] = []
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._main: weakref.ref[Optimizer] | None = None
        self._updated: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._pending: _Pending | None = None
        self._last: tuple[int, int] = (0, 0)  # of the last STEP told: its step, and the direction of the rate
        self._plateau_before: list[float] = []
        self._batches: int | None = None
        self._rates: list[float] = []
        self._first_step = 0
        self._highest = 0.0
        self._rises = self._high = self._elsewhere = 0
        self._warming = True
        self._changed = False  # the rate has changed since it was seen first
        self._reported: set[str] = set()
        self._free: dict[str, tuple[int, int]] = {}  # part -> lines told in any case, and the step of the last one

    def attach(self) -> None:
        self._bound = self.monitor.settings.get_threshold("LR.high")
        if not any(iter_targets("scheduler-stepped")):
            self.unavailable("in this torch the steps of schedulers are not seen; the rates are")
        self.patch_at("scheduler-stepped", after=self._handle_computed_rates)
        self.patch_at("plateau-made", after=self._plateau_built)
        self.patch_at("plateau-stepped", before=self._plateau_begins, after=self._plateau_ended)

    def forked(self) -> None:
        self._reset_state()

    def _emit_under_flag(self, flag: str, seen: Observed, step: int | None = None) -> None:
        """Under its own flag, or the other one where that alone is on."""
        on = self.flags
        self.emit(seen, flag=flag if flag in on or not on else on[0], step=step)

    def _should_report(self, part: str, step: int) -> bool:
        """True if something notable may be told unasked: a rate that swings in every step must not fill the log."""
        count, last = self._free.get(part, (0, 0))
        if count >= FREE_LINES and step - last < RARE_STEPS:
            return False
        self._free[part] = count + 1, step
        return True

    # schedulers

    def _handle_computed_rates(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        """A scheduler has computed its rates, and is about to set them."""
        scheduler, error = args[0].o, args[1] if len(args) > 1 else None
        if error is not None:
            return
        first = _is_first(scheduler)
        course = self._course_of(scheduler, whole=first)
        if course is not None and not first:
            self._report_pending_step()
            self._advance_course(scheduler, course)

    def _course_of(self, scheduler: "LRScheduler", *, whole: bool) -> _Course | None:
        known = self._courses.get(scheduler)
        if known is not None or len(self._courses) >= MAX_SCHEDULERS:
            return known
        optimizer = scheduler.optimizer
        length = next((value for name in LENGTHS if isinstance(value := getattr(scheduler, name, None), int)), None)
        course = self._courses[scheduler] = _Course(
            name=type(scheduler).__name__,
            which=self._numbers.setdefault(optimizer, len(self._numbers)),
            planned=length,
            whole=whole,
            own_step=not str(type(scheduler).step.__module__).startswith("torch."),
            at=self._count_updates(optimizer),
            epoch=float(scheduler.last_epoch),
        )
        if whole:
            frame = program_frame(sys._getframe())
            course.built_by = (frame.f_code, get_line(frame)) if frame is not None else None
            self._unannounced.append((weakref.ref(scheduler), course))
        return course

    def _count_updates(self, optimizer: "Optimizer") -> int:
        """Updates so far: steps of the main optimizer, skipped ones too; of any other one all updates."""
        return int(self.monitor.step if self.monitor.is_main(optimizer) else self.monitor.updates)

    def _advance_course(self, scheduler: "LRScheduler", course: _Course) -> None:
        now, optimizer = self._count_updates(scheduler.optimizer), scheduler.optimizer
        absolute = not course.epoch < scheduler.last_epoch  # step(epoch) sets a rate, whatever came before
        course.epoch = float(scheduler.last_epoch)
        before, gap = _read_rates(optimizer), now - course.at
        if gap or not course.advances:
            course.close_interval(gap)
        course.crowd += 1
        course.advances += 1
        course.at = now
        if not absolute:
            self._judge_order(scheduler, course, before, gap)
        self._judge_plan(scheduler, course, before)
        self._judge_target(optimizer, course, before)
        if course.advances == 1:
            self._report_first(course, before)
        else:
            self._pending = _Pending(weakref.ref(optimizer), course, self._now, before, gap)

    @property
    def _now(self) -> int:
        """The step that a scheduler's step belongs to: the one that has just ended."""
        return max(self.monitor.step, 1)

    def _report_first(self, course: _Course, before: list[float]) -> None:
        """At once: it may be the last thing that the program does."""
        why = "switch" if self._last[0] else "first"
        self._last = self._now, 0
        first = SchedulerStepped(
            scheduler=course.name,
            which=course.which,
            advanced=1,
            updates=course.at,
            why=why,
            before=_shorten_rates(before),
            planned=course.known_length,
            whole=course.whole,
        )
        self._emit_under_flag("SCHEDULING", first, self._now)

    def _report_pending_step(self) -> None:
        """The rates that the last step of a scheduler set can be read now: tell it, if it is worth it."""
        pending, self._pending = self._pending, None
        optimizer = pending.optimizer() if pending is not None else None
        if pending is None or optimizer is None or pending.step == self._last[0]:
            return
        course, rates = pending.course, _read_rates(optimizer)
        why, direction = self._explain_step(pending, rates)
        if not (why and self._should_report("STEP", pending.step)) and not self.should_sample():
            return
        self._last = pending.step, direction
        stepped = SchedulerStepped(
            scheduler=course.name,
            which=course.which,
            advanced=course.advances,
            updates=course.at,
            why=why,
            before=_shorten_rates(pending.before),
            rates=_shorten_rates(rates),
            planned=course.known_length,
            per_update=course.crowd if course.crowd > 1 else None,
        )
        self._emit_under_flag("SCHEDULING", stepped, pending.step)

    def _explain_step(self, pending: _Pending, rates: list[float]) -> tuple[str, int]:
        """What makes this step of a scheduler worth a line in any case, and the direction of the rate."""
        old, new = _find_rate_change(pending.before, rates)
        direction = (new > old) - (new < old)
        if old > 0 and new > 0 and not 1 / JUMP < new / old < JUMP:
            return "jump", direction
        if direction and self._last[1] and direction != self._last[1]:
            return "turn", direction
        return ("rare" if pending.gap >= RARE_STEPS else ""), direction or self._last[1]

    # what may be wrong with a scheduler

    def _judge_order(self, scheduler: "LRScheduler", course: _Course, before: list[float], gap: int) -> None:
        """One step of the scheduler before the first update, then in turn: the first rate was never used."""
        if course.advances == 1:
            fresh = not scheduler.optimizer.state and course.epoch <= 1.0  # nothing was resumed
            course.early = course.whole and gap == 0 and fresh and self.monitor.in_update is None
            course.lost = before[0] if before else None
        elif course.advances == 2 and course.early and gap > 0 and course.lost and "order" not in self._reported:
            self._reported.add("order")
            reversed_order = OrderReversed(
                scheduler=course.name, skipped_rate=round_number(course.lost), updates=course.at
            )
            self._emit_under_flag("LR", reversed_order)

    def _judge_plan(self, scheduler: object, course: _Course, before: list[float]) -> None:
        """A schedule that is over long before the training: its unit is not the one it is stepped in."""
        self._highest = max([self._highest, *before])
        if not course.whole or "plan" in self._reported:
            return
        kind, planned = "", course.planned
        past = (
            course.name == "CosineAnnealingLR"
            and planned is not None
            and course.epoch >= planned + max(2.0, PAST_SHARE * planned)
        )
        if past and course.crowded >= IN_A_ROW and course.size != self.monitor.world_size:
            kind = "crowded"
        elif past and course.every >= IN_A_ROW and self._in_first_epoch(planned or 0):
            kind = "epoch"
        elif course.every >= EVERY_UPDATE and course.name in DECAYS and self._in_first_epoch(EVERY_UPDATE):
            kind = "collapsed" if before and max(before) < COLLAPSED * self._highest else ""
        if kind:
            self._reported.add("plan")
            self._report_plan(course, kind, before)

    def _in_first_epoch(self, length: int) -> bool:
        """True in the first pass over a loader that is much longer than ``length``."""
        return bool(self.monitor.epoch == 0 and self._batches and self._batches >= EPOCH_SHARE * length)

    def _report_plan(self, course: _Course, kind: str, before: list[float]) -> None:
        over = ScheduleOver(
            kind=kind,
            scheduler=course.name,
            planned=course.planned,
            advanced=course.advances,
            updates=course.at,
            per_update=max(course.size, 1),
            batches=self._batches,
            rates=_shorten_rates(before),
            highest=self._highest,
        )
        self._emit_under_flag("SCHEDULING", over)

    def _judge_target(self, optimizer: "Optimizer", course: _Course, before: list[float]) -> None:
        """A scheduler that steers an optimizer which another one over the same parameters has replaced."""
        main = self._main() if self._main is not None else None
        if main is None or optimizer is main or optimizer in self._updated or "idle" in self._reported:
            return
        ours, theirs = optimizer.param_groups, main.param_groups
        same = ours and theirs and ours[0]["params"] and ours[0]["params"][0] is theirs[0]["params"][0]
        if not same or ours is theirs or ours[0] is theirs[0] or before == _read_rates(main):
            return
        self._elsewhere += 1
        if self._elsewhere >= IN_A_ROW:
            self._reported.add("idle")
            idle = SchedulerIdle(kind="elsewhere", scheduler=course.name, updates=self.monitor.step)
            self._emit_under_flag("SCHEDULING", idle)

    # ReduceLROnPlateau

    def _plateau_built(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        self._course_of(args[0], whole=True)

    def _plateau_begins(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        self._report_pending_step()
        self._plateau_before = _read_rates(args[0].optimizer)

    def _plateau_ended(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        scheduler = args[0]
        course = self._course_of(scheduler, whole=False)
        if course is None:
            return
        gap, course.at = self._count_updates(scheduler.optimizer) - course.at, self._count_updates(scheduler.optimizer)
        course.advances += 1
        rates, before = _read_rates(scheduler.optimizer), self._plateau_before
        notable = course.advances == 1 or rates != before or gap >= RARE_STEPS
        if not (notable and self._should_report("PLATEAU", self._now)) and not self.should_sample():
            return
        metric = _read_metric(args[1] if len(args) > 1 else kwargs.get("metrics"))
        judged = PlateauJudged(
            scheduler=course.name,
            which=course.which,
            advanced=course.advances,
            updates=course.at,
            rates=_shorten_rates(rates),
            before=_shorten_rates(before),
            reduced=rates != before,
            metric=number(metric),
            best=number(_read_metric(scheduler.best)),
            patience=scheduler.patience,
            bad_epochs=scheduler.num_bad_epochs,
            cooldown=scheduler.cooldown_counter,
            mode=scheduler.mode,
        )
        self._emit_under_flag("SCHEDULING", judged, self._now)

    # updates and records

    def update_begins(self, optimizer: "Optimizer") -> None:
        if self.monitor.is_main(optimizer) and (self._main is None or self._main() is not optimizer):
            self._main = weakref.ref(optimizer)
        self._updated.add(optimizer)
        if self._pending is not None:
            self._report_pending_step()
        if self._unannounced:
            self._announce_schedule(optimizer)
        if self._courses and "idle" not in self._reported:
            self._judge_idle(optimizer)

    def _announce_schedule(self, optimizer: "Optimizer") -> None:
        """The first update of an optimizer that schedulers were built for: tell of the first one left."""
        for entry in self._unannounced:
            scheduler, course = entry[0](), entry[1]
            if scheduler is None:
                self._unannounced.remove(entry)
                return
            if scheduler.optimizer is not optimizer:
                continue
            self._unannounced.remove(entry)
            course.epochs_then = self.monitor.epoch
            given = {
                name: _simplify_argument(getattr(scheduler, name)) for name in PARAMETERS if hasattr(scheduler, name)
            }
            given = {name.lstrip("_"): value for name, value in given.items() if value is not None}
            built = SchedulerBuilt(
                scheduler=course.name,
                which=course.which,
                optimizer=type(optimizer).__name__,
                parameters=given,
                planned=course.planned,
                own_step=course.own_step,
                rates=_shorten_rates(_read_rates(optimizer)),
                step_line=_find_scheduler_step_line(*course.built_by, course.name) if course.built_by else None,
            )
            self._emit_under_flag("SCHEDULING", built)
            return  # one a step

    def _judge_idle(self, optimizer: "Optimizer") -> None:
        """Schedulers were built for this optimizer, and none has stepped in several epochs."""
        epoch = self.monitor.epoch
        if epoch is None or epoch < IDLE_EPOCHS or self._changed or not self.monitor.is_main(optimizer):
            return
        mine = [course for scheduler, course in self._courses.items() if scheduler.optimizer is optimizer]
        since = min((course.epochs_then or 0 for course in mine), default=epoch)
        if not mine or epoch - since < IDLE_EPOCHS or not all(map(_could_have_stepped, mine)):
            return
        self._reported.add("idle")
        idle = SchedulerIdle(
            kind="never",
            scheduler=mine[0].name,
            epochs=epoch - since,
            updates=self.monitor.step,
            rate=format_first_rate(_shorten_rates(_read_rates(optimizer))),
        )
        self._emit_under_flag("SCHEDULING", idle)

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        self._batches = record.batches
        if not record.lr:
            return
        self._judge_height(record, optimizer)
        before, rates = self._rates, [float(rate) for rate in record.lr[:MAX_GROUPS]]
        if rates != before:
            self._rates = rates
            self._rate_changed(record, before, optimizer)

    def _judge_height(self, record: Step, optimizer: "Optimizer") -> None:
        rates = [float(rate) for rate in record.lr]
        if max(rates) <= self._bound or not _is_adam(optimizer) or "high" in self._reported:
            self._high = 0
            return
        self._high += 1
        if self._high < IN_A_ROW:
            return
        self._reported.add("high")
        high = RateAboveBound(rates=_shorten_rates(rates), optimizer=type(optimizer).__name__, above=self._bound)
        self._emit_under_flag("LR", high, record.step)

    def _rate_changed(self, record: Step, before: list[float], optimizer: "Optimizer") -> None:
        rates = self._rates
        if not before:
            self._first_step = record.step
        old, new = _find_rate_change(before, rates)
        self._changed = self._changed or bool(before)
        rose, ended = new > old, False
        if self._warming and before:
            self._rises = self._rises + 1 if rose else self._rises
            self._warming = rose
            ended = not rose and self._rises >= WARM_RISES
        jumped = old > 0 and new > 0 and not 1 / JUMP < new / old < JUMP
        notable = not before or ((ended or jumped) and self._should_report("RATE", record.step))
        twice = len(self.flags) < 2 and any(course.advances for course in self._courses.values())  # STEP tells it
        if not notable and (twice or not self.should_sample()):
            return
        warm = self._warming and self._rises >= WARM_RISES
        phase = "warm-up" if warm else "rising" if rose else "falling" if new < old else "constant"
        changed = RateChanged(
            rates=_shorten_rates(rates),
            optimizer=type(optimizer).__name__,
            phase=phase,
            before=_shorten_rates(before) if before else None,
            warm_up_steps=record.step if ended else None,
            first_step=self._first_step,
        )
        self._emit_under_flag("LR", changed, record.step)


def _could_have_stepped(course: _Course) -> bool:
    """True if it never stepped, although such schedulers do so from the first epoch on, and it would have been seen."""
    return course.whole and not course.advances and not course.own_step and course.name not in LATE_STARTERS


def _is_first(scheduler: "LRScheduler") -> bool:
    """True while a scheduler computes its rates for the first time, which its constructor asks for."""
    initial = getattr(scheduler, "_is_initial", None)  # not there before torch 2.7
    if initial is not None:
        return bool(initial)
    return getattr(scheduler, "_step_count", 0) <= 1 and scheduler.last_epoch <= 0


def _is_adam(optimizer: "Optimizer") -> bool:
    name = type(optimizer).__name__.lower()
    family = [base.__name__.lower() for base in type(optimizer).__mro__]
    return any(word in base for base in family for word in ADAMS) and not any(word in name for word in NO_ADAMS)


def _read_rates(optimizer: "Optimizer") -> list[float]:
    """The learning rates of the groups; those that are device tensors are left out."""
    found = []
    for group in optimizer.param_groups[:MAX_GROUPS]:
        rate = group.get("lr")
        if isinstance(rate, int | float) or (isinstance(rate, Tensor) and tensors.on_host(rate)):
            found.append(float(rate))
    return found


def _shorten_rates(rates: list[float]) -> list[Any]:
    return [round_number(rate) for rate in rates[:MAX_GROUPS]]


def _find_rate_change(before: list[float], rates: list[float]) -> tuple[float, float]:
    """The rate of the first group that changed, before and after; of the first group where none did."""
    pairs = list(zip(before, rates, strict=False)) or [(0.0, rates[0] if rates else 0.0)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def _simplify_argument(value: object) -> Any:
    """What a scheduler was given, as bounded data; None for what is none."""
    if isinstance(value, dict):
        value = sorted(value)  # a Counter of milestones
    if isinstance(value, list | tuple):
        items = [_simplify_argument(item) for item in value[:MAX_GROUPS]]
        return items if len(value) <= MAX_GROUPS else [*items, f"and {len(value) - MAX_GROUPS} more"]
    if isinstance(value, float):
        return round_number(value)
    return value if isinstance(value, bool | int | str) else None


def _read_metric(value: object) -> float | None:
    """A metric, where reading it waits for nothing."""
    if isinstance(value, Tensor):
        return float(value) if tensors.on_host(value) and value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _find_scheduler_step_line(code: CodeType, line: int, scheduler: str) -> int | None:
    """The line that steps the scheduler which is built on this one; None where none is seen. Cost: some 0.3 ms.

    A local name is looked for in its function alone.
    """
    lines = linecache.getlines(code.co_filename)
    name = _read_target(lines[line - 1].strip(), scheduler) if 0 < line <= len(lines) else ""
    if not name:
        return None
    last = len(lines)
    if code.co_flags & inspect.CO_NEWLOCALS and "." not in name:
        last = max((at for _, _, at in code.co_lines() if at is not None), default=last)
    call = re.compile(rf"(?<![\w.]){re.escape(name)}\s*\.\s*step\s*\(")
    after = range(1 if "." in name else line, last + 1)
    return next((at for at in after if call.search(lines[at - 1].partition("#")[0])), None)


def _read_target(statement: str, scheduler: str) -> str:
    """The name that a line assigns a new scheduler to; empty where it is none."""
    try:
        node = ast.parse(statement).body[0]
    except (SyntaxError, IndexError, ValueError):  # the statement goes on in the next line
        match = re.match(r"([\w.]+)\s*=\s*[\w.]*\(?", statement)
        return match[1] if match is not None and statement.endswith("(") else ""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    pairs = [(node.targets[0], node.value)]
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
    for target, value in pairs:
        if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == scheduler:
            return ast.unparse(target)
    return ""
