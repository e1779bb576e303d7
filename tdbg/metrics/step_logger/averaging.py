"""Exact means of the values since the last write to the sinks, weighted by samples."""

from collections.abc import Mapping
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.metrics.keys import Key, core_alias
from tdbg.metrics.tracker.metric_values import as_float
from tdbg.metrics.tracker.partial import Partial

VERSION = 1
NOT_FINITE = "not_finite"  # how many samples of a metric were left out of its mean


class AveragingWindow:
    """Feed it a step's values; ``flush`` gives their means and begins anew.

    renames: more than one step can be in it, so that every averaged key carries ``step_avg_``. Values of categories
    other than ``loss`` (lr, schedule, pipeline, gradnorm), and a phase's learning rate (`keys.LAST`), stay last values
    under their own names.
    """

    def __init__(self, *, renames: bool) -> None:
        self.renames = renames
        self.steps = 0
        self._sums: dict[Key, Partial] = {}
        self._last: dict[Key, float] = {}

    def add_step(self, values: Mapping[Key, float], samples: int = 1) -> None:
        """Take a step's values, means over ``samples``. Cost: about 1 us a value."""
        for key, value in values.items():
            if key.of_last:
                self._last[key] = value
                continue
            found = self._sums.get(key)
            if found is None:
                found = self._sums[key] = Partial()
            found.add_mean(value, samples)
        self.steps += 1

    def compute_means(self, *, core: bool = True) -> dict[str, float]:
        """What a flush would give; changes nothing. A key without any finite value is NaN.

        core: with the copies for dashboards. Samples that were not finite are told under ``PHASE/not_finite_METRIC``.
        """
        found: dict[str, float] = {}
        for key, sums in self._sums.items():
            mean = sums.compute_mean()
            value = float("nan") if mean is None else mean
            found[str(key.average() if self.renames else key)] = value
            if core and (copy := core_alias(key)) is not None:
                found[str(copy)] = value
            if sums.nan or sums.inf:
                name = f"{key.metric}_{key.task}" if key.task else key.metric
                found[str(Key(key.phase, NOT_FINITE, name, key.subset))] = sums.nan + sums.inf
        return found | {str(key): value for key, value in self._last.items()}

    def flush(self, *, core: bool = True) -> dict[str, float]:
        """The means of what came since the last flush; empty if nothing did."""
        found = self.compute_means(core=core)
        self._sums, self._last, self.steps = {}, {}, 0
        return found

    def state_dict(self) -> dict[str, object]:
        """What is in it, as plain data."""
        return {
            "version": VERSION,
            "steps": self.steps,
            "sums": {str(key): sums.state() for key, sums in self._sums.items()},
            "last": {str(key): value for key, value in self._last.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state. Raises TdbgError for one that is not sound, and then changes nothing."""
        try:
            if state["version"] != VERSION:
                raise ValueError(f"version {state['version']!r} is not supported")
            steps = int(state["steps"])
            sums = {Key.parse(key): _parse_partial(found) for key, found in state["sums"].items()}
            last = {Key.parse(key): as_float(value, key) for key, value in state["last"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TdbgError(f"the saved averages are invalid: {error!r}", "load another checkpoint") from None
        self.steps, self._sums, self._last = steps, sums, last


def _parse_partial(found: Any) -> Partial:
    numerator, *numbers = found
    shift, count, batches, nan, inf = map(int, numbers)
    if min(shift, count, batches, nan, inf) < 0:
        raise ValueError("a count below 0")
    return Partial(int(numerator, 16), shift, count, batches, nan, inf)
