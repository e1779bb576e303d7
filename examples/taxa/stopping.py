"""Early stopping."""

from collections.abc import Mapping
from typing import Any


class EarlyStopping:
    """Ends a run whose metric has not improved for more than ``patience`` checks."""

    def __init__(self, metric: str, patience: int, min_delta: float, mode: str) -> None:
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self.best: float | None = None
        self.counter = 0
        self.early_stop = False

    def __call__(self, value: float) -> bool:
        """Take the value of one check; True if the run is to end. NaN is no improvement."""
        sign = 1.0 if self.mode == "min" else -1.0
        if value == value and (self.best is None or sign * value < sign * self.best - self.min_delta):
            self.best, self.counter = value, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience
        return self.early_stop

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on."""
        return {"best": self.best, "counter": self.counter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.best, self.counter = state["best"], state["counter"]


def mode_of(metric: str) -> str:
    """Which way a metric gets better: losses fall, all else rises."""
    return "min" if "loss" in metric else "max"
