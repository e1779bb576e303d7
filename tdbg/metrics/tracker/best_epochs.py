"""The best epochs of a run, by one named criterion."""

import math
from typing import Any, NamedTuple

from tdbg.core.directions import direction_of, parse_direction
from tdbg.core.errors import TdbgError
from tdbg.metrics.keys import Key


class Epoch(NamedTuple):
    """One of the best: the criterion's value there."""

    value: float
    epoch: int | float | None
    step: int | None


class BestEpochs:
    """The ``size`` best epochs by one criterion, best first; of equal ones the earlier.

    criterion: a key, such as ``val/loss``. higher_is_better: by the metric's name if left out.
    """

    def __init__(
        self, criterion: str | Key = "val/loss", size: int = 5, higher_is_better: bool | str | None = None
    ) -> None:
        self.criterion = Key.parse(str(criterion))
        self.size = size
        if size < 0:
            raise TdbgError(f"the best {size} epochs cannot be kept", "ask for 0 or more")
        name = self.criterion.metric
        better = parse_direction(higher_is_better, name) if higher_is_better is not None else direction_of(name)
        if better is None:
            raise TdbgError(
                f"{self.criterion} has no known direction",
                f'pass its direction: directions={{"{name}": "max"}}',
            )
        self.higher_is_better = better
        self.epochs: list[Epoch] = []

    def add_if_best(self, value: float, epoch: int | float | None, step: int | None) -> bool:
        """Take an epoch if it is one of the best; True if it is. NaN and Inf are not."""
        if not math.isfinite(value) or not self.size:
            return False
        kept = Epoch(value, epoch, step)
        self.epochs.append(kept)
        self.epochs.sort(key=lambda one: -one.value if self.higher_is_better else one.value)  # stable: ties keep order
        self.epochs = self.epochs[: self.size]
        return any(one is kept for one in self.epochs)

    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "criterion": str(self.criterion),
            "size": self.size,
            "higher_is_better": self.higher_is_better,
            "epochs": [list(one) for one in self.epochs],
        }
