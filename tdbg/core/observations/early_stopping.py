"""What the probe `early-stopping` sees."""

import math

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed

FAULTS = {
    "ignores": "a new best value was counted as no improvement, {count} checks in a row",
    "follows": "worse values were taken as the new best, {count} checks in a row",
    "nan": "NaN counts neither as an improvement nor against patience, {count} checks in a row",
}


class StoppingCheck(Observed):
    """A check of an early stopper, and what it keeps after it."""

    PROBE = "early-stopping"
    PART = "CHECK"
    EVIDENCE = Evidence.LOCATED
    ALWAYS = ("value", "best", "first", "counter", "patience")

    stopper: str = doc("class of the early stopper", "")
    check: int = doc("number of the check, from 1", 0)
    metric: str = doc("name of the metric, as the stopper or its argument calls it", "")
    value: Number | None = doc("the metric at this check")
    best: Number | None = doc("the best value that the stopper has stored")
    first: Number | None = doc("the metric at the first check")
    counter: float | None = doc("consecutive checks that the stopper counted as no improvement")
    patience: float | None = doc("number of checks without improvement after which it stops")
    mode: str = doc("min or max: the direction that the stopper treats as better, if known", "")
    better: str = doc("min or max: the better direction by the metric's name; empty if unclear", "")
    stop: bool = doc("true if the stopper asks to stop", False)
    fault: str | None = doc("what is wrong: ignores, follows or nan")
    streak: int | None = doc("consecutive checks that showed the fault")
    since: int | None = doc("step of the first of these checks")

    @property
    def level(self) -> str:
        """W for a fault, I where it stops the run."""
        return "W" if self.fault else "I" if self.stop else "D"

    def text(self) -> str:
        """The metric, the best so far, how long there was no improvement, and what follows from it."""
        text = f"{self.stopper}, check {self.check}: {self.metric or 'metric'}"
        text += f" {_format_value(self.value)}" if self.value is not None else " unknown"
        text += f", best {_format_value(self.best)}" if self.best is not None else ""
        if self.counter is not None:
            text += f", {self.counter:g} of {self.patience or 0:g} without improvement"
        text += f" (mode {self.mode})" if self.mode else ""
        text += "; stops the run" if self.stop else "; continues"
        if self.fault in FAULTS:
            text += f"; {FAULTS[self.fault].format(count=self.streak)}"
        return text


def _format_value(value: Number) -> str:
    return f"{value:.6g}" if isinstance(value, float) and math.isfinite(value) else str(value)
