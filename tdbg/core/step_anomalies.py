"""What counts as an anomaly of one step: a loss far above its course, a gradient norm out of bounds.

The triggers of a rank, `tdbg.TrainingDebugger` and the summaries of a run go by the same bounds.
"""

import math

from tdbg.core.events import Number, Step, as_float
from tdbg.core.window import Window

EXPLOSION = 10.0  # L2 norm of a parameter's gradient, from which on it counts as exploding
VANISHING = 1e-6  # and below which as vanishing

WARM_RECORDS = 32  # a loss spike needs so many losses to stand out from,
MADS = 8.0  # so many median absolute deviations above their median,
RATIO = 2.0  # and above this many times it; losses that vary by factors
LOG_SIGMAS = 6.0  # must leave so many robust deviations of their logarithms behind


class LossSpike:
    """A single loss far above the last 64. Losses that can be zero or negative, and GANs, have no spikes here."""

    def __init__(self) -> None:
        self.window = Window()
        self.silent = False

    def is_met(self, record: Step) -> bool:
        """See one record. Cost: 1 us, 20 us where the loss has doubled."""
        loss = as_float(record.loss)
        if loss is None:
            return False
        self.silent = self.silent or bool(record.other_losses)
        return self.observe_loss(loss / max(record.micro, 1))  # a sum grows with its summands

    def observe_loss(self, loss: float) -> bool:
        """See the loss of one call."""
        if self.silent or not math.isfinite(loss):
            return False
        self.silent = loss <= 0.0
        far = self.is_outlier(loss)
        self.window.push(loss)
        return far

    def compute_bound(self) -> float:
        """A loss up to this one does not stand out from those seen."""
        if self.silent or len(self.window) < WARM_RECORDS:
            return math.inf
        return max(RATIO * self.window.median, self.window.highest)

    def is_outlier(self, loss: float) -> bool:
        """True if one call's loss stands out from those seen."""
        window, base = self.window, self.window.median
        if loss <= self.compute_bound():
            return False
        return (
            loss > base + MADS * window.compute_mad()
            and math.log(loss / base) > LOG_SIGMAS * window.compute_log_sigma()
        )


def has_exploded(norms: list[Number]) -> bool:
    """True if one of the norms is above the bound or not finite."""
    return any(not float(norm) <= EXPLOSION for norm in norms)


def has_vanished(norms: list[Number]) -> bool:
    """True if one of the norms is below the bound; a negative one stands for no gradient."""
    return any(0.0 <= float(norm) < VANISHING for norm in norms)
