"""How sure a median over rounds is."""

import random
import statistics


def bootstrap_interval(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """The interval that holds the middle 95 % of the medians of resampled values. Draws from `random`."""
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]
