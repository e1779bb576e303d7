"""What the probe `schedule` sees."""

from typing import Any

from tdbg.core.events import Number, as_float, doc
from tdbg.core.observations import Evidence, Observed, format_number
from tdbg.core.tables import format_count

Rates = list[Number | None]


class _OfSchedule(Observed):
    """Calls of schedulers, and the rates as they stand in the optimizer."""

    PROBE = "schedule"
    EVIDENCE = Evidence.LOCATED


class _Warning(_OfSchedule):
    """Told once."""

    LEVEL = "W"


class RateChanged(_OfSchedule):
    """The learning rate of the main optimizer changed, or is seen for the first time."""

    PART = "RATE"

    rates: Rates = doc("learning rates of the groups, at most eight", factory=list)
    optimizer: str = doc("class of the optimizer", "")
    phase: str = doc("warm-up, rising, constant or falling", "")
    before: Rates | None = doc("the rates before the change")
    warm_up_steps: int | None = doc("the step at which the warm-up ended")

    first_step: int = 0  # of the rates that were seen: for the line alone

    def text(self) -> str:
        """Both rates, and where the warm-up ended."""
        if self.before is None:
            return f"{self.optimizer}: {format_first_rate(self.rates)}"
        text = f"{self.optimizer}: {format_rate_change(self.before, self.rates)} ({self.phase})"
        ended = self.warm_up_steps is not None
        return text + (f"; warm-up from step {self.first_step} ended" if ended else "")


class RateAboveBound(_Warning):
    """A learning rate above LR.high with an optimizer of the Adam family."""

    PART = "HIGH"

    rates: Rates = doc("learning rates of the groups, at most eight", factory=list)
    optimizer: str = doc("class of the optimizer", "")
    above: float | None = doc("the bound for optimizers of the Adam family that the rate exceeds (LR.high)")

    @property
    def highest_rate(self) -> float:
        """The highest of the rates."""
        return max((rate for rate in map(as_float, self.rates) if rate is not None), default=0.0)

    def text(self) -> str:
        """The rate, and what it does."""
        return f"learning rate {self.highest_rate:.4g} with {self.optimizer}: each update moves every weight by about that much"


class SchedulerBuilt(_OfSchedule):
    """A scheduler, at the first update of its optimizer."""

    PART = "BUILT"
    ALWAYS = ("planned",)

    scheduler: str = doc("class of the scheduler", "")
    which: int = doc("number of its optimizer, from 0, in the order seen", 0)
    optimizer: str = doc("class of the optimizer", "")
    parameters: dict[str, Any] = doc("arguments of the scheduler", factory=dict)
    planned: int | None = doc("length of the schedule in scheduler steps, if it has one")
    own_step: bool = doc("true if its step() is not torch's", False)
    rates: Rates = doc("learning rates of the groups, at most eight", factory=list)
    step_line: int | None = doc("line number of its step() call, in the file that built it; null if not found")

    def text(self) -> str:
        """What it was given."""
        words = ", ".join(f"{name} {value}" for name, value in list(self.parameters.items())[:5])
        return f"{self.optimizer} is scheduled by {self.scheduler} ({words})"


class SchedulerStepped(_OfSchedule):
    """A step of a scheduler."""

    PART = "STEP"

    scheduler: str = doc("class of the scheduler", "")
    which: int = doc("number of its optimizer, from 0, in the order seen", 0)
    advanced: int = doc("number of scheduler steps so far", 0)
    updates: int = doc("updates done by then", 0)
    why: str = doc("why it is reported: first, jump, turn, switch or rare; empty for a sampled step", "")
    before: Rates = doc("the rates before the change", factory=list)
    rates: Rates | None = doc("learning rates of the groups, at most eight; not known yet at the first step")
    planned: int | None = doc("length of the schedule in scheduler steps, if it has one")
    per_update: int | None = doc("number of scheduler steps between two updates")

    whole: bool = True  # known since it was built

    def text(self) -> str:
        """Which step of how many, and what it did to the rate."""
        if self.rates is None:
            when = "steps for the first time" if self.whole else "is seen stepping for the first time"
            return f"{self.scheduler} {when}, after {format_count(self.updates, 'update')}, at rate {format_first_rate(self.before)}"
        of = f" of {self.planned}" if self.planned is not None else ""
        text = f"{self.scheduler} step {self.advanced}{of}, after {format_count(self.updates, 'update')}"
        return f"{text}: {format_rate_change(self.before, self.rates)}" + (f" ({self.why})" if self.why else "")


class OrderReversed(_Warning):
    """A scheduler stepped before the first update, so that its first rate was never used."""

    PART = "ORDER"

    scheduler: str = doc("class of the scheduler", "")
    updates: int = doc("updates done by then", 0)
    skipped_rate: Number | None = doc("the rate that was never used")

    def text(self) -> str:
        """The rate that was lost."""
        lost = as_float(self.skipped_rate)
        rate = f"{lost:.4g}" if lost is not None else "unknown"
        return f"{self.scheduler} stepped before the first update: the rate {rate} was never used"


class PlateauJudged(_OfSchedule):
    """ReduceLROnPlateau was given a metric."""

    PART = "PLATEAU"
    ALWAYS = ("metric", "best")

    scheduler: str = doc("class of the scheduler", "")
    which: int = doc("number of its optimizer, from 0, in the order seen", 0)
    advanced: int = doc("number of scheduler steps so far", 0)
    updates: int = doc("updates done by then", 0)
    rates: Rates = doc("learning rates of the groups, at most eight", factory=list)
    before: Rates = doc("the rates before the change", factory=list)
    reduced: bool = doc("true if the rate was reduced", False)
    metric: Number | None = doc("the metric passed to the scheduler, if it is on the host")
    best: Number | None = doc("the best metric so far")
    bad_epochs: int = doc("number of consecutive calls without improvement", 0)
    patience: int = doc("number of calls without improvement that are allowed", 0)
    cooldown: int = doc("number of cooldown calls left", 0)

    mode: str = ""  # min or max: for the line alone

    def text(self) -> str:
        """The metric, the best, how many were no better, and the rate."""
        metric = as_float(self.metric)
        said = f"metric {metric:.6g}, " if metric is not None else ""
        return (
            f"{self.scheduler}: {said}best {self.best}, {self.bad_epochs} of {self.patience} bad ({self.mode}):"
            f" {format_rate_change(self.before, self.rates)}"
        )


class ScheduleOver(_Warning):
    """A schedule that is over long before the training."""

    PART = "PLAN"
    ALWAYS = ("planned", "batches")

    kind: str = doc("why: epoch (an epoch is longer), crowded (several steps an update) or collapsed (rate near 0)", "")
    scheduler: str = doc("class of the scheduler", "")
    planned: int | None = doc("length of the schedule in scheduler steps, if it has one")
    advanced: int = doc("number of scheduler steps so far", 0)
    updates: int = doc("updates done by then", 0)
    per_update: int = doc("number of scheduler steps between two updates", 1)
    batches: int | None = doc("batches of an epoch")
    rates: Rates = doc("learning rates of the groups, at most eight", factory=list)

    highest: float | None = None  # the highest rate so far: for the line alone

    def text(self) -> str:
        """After how many updates, and how that is known."""
        rate = format_first_rate(self.rates) + (f", down from {self.highest:.4g}" if self.highest is not None else "")
        reason = {
            "crowded": f"{format_count(self.per_update, 'scheduler step')} per update",
            "epoch": f"an epoch has {format_count(self.batches or 0, 'batch')}, and the scheduler steps after each",
            "collapsed": f"the rate is {rate}, in the first epoch",
        }.get(self.kind, self.kind)
        length = f" of {format_count(self.planned, 'step')}" if self.planned is not None else ""
        return f"{self.scheduler}{length} ended after {format_count(self.updates, 'update')}: {reason}"


class SchedulerIdle(_Warning):
    """A scheduler that has no effect on the rate in use."""

    PART = "IDLE"

    kind: str = doc("never (it has not stepped) or elsewhere (it controls another optimizer)", "")
    scheduler: str = doc("class of the scheduler", "")
    updates: int = doc("updates done by then", 0)
    epochs: int | None = doc("passes over the training loader since it was built")

    rate: str = ""  # in use: for the line alone

    def text(self) -> str:
        """Why it has none."""
        if self.kind == "elsewhere":
            return f"{self.scheduler} drives another optimizer, not the one that updates these parameters"
        stays = f": the rate stays {self.rate}" if self.rate else ""
        return f"{self.scheduler} has never stepped in {format_count(self.epochs or 0, 'epoch')}{stays}"


def format_first_rate(rates: Rates) -> str:
    """The rate of the first group, and how many more there are."""
    more = f" (+{len(rates) - 1})" if len(rates) > 1 else ""
    return (format_number(rates[0]) if rates else "unknown") + more


def format_rate_change(before: Rates, rates: Rates) -> str:
    """The rate of the first group that changed, before and after."""
    if before == rates:
        return f"stays {format_first_rate(rates)}"
    pairs = list(zip(before, rates, strict=False)) or [(0.0, rates[0] if rates else 0.0)]
    old, new = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return f"{format_number(old)} -> {format_number(new)}" + (f" (+{len(rates) - 1})" if len(rates) > 1 else "")
