"""Telling a quantity that grows on and on from one that finds its size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

PARTS = 5
MIN_SAMPLES = 10
STEADY_SHARE = 0.3  # each part's pace must reach this share of the mean pace
MAX_SHARE = 0.5  # no part may bring more than this share of it all: one jump is no creep


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grew steadily."""

    from_step: int
    to_step: int
    from_mb: float
    to_mb: float

    @property
    def mb(self) -> float:
        """How much it grew."""
        return self.to_mb - self.from_mb

    @property
    def steps(self) -> int:
        """Over how many steps."""
        return self.to_step - self.from_step

    @property
    def pct(self) -> float:
        """In percent of what it was."""
        return 100.0 * self.mb / max(self.from_mb, 1e-9)


def find_steady_growth(samples: Sequence[tuple[int, float]], steps: int) -> Growth | None:
    """Growth of (step, MB) that goes on in each fifth of the samples; None if it stands, falls, slows down or is one jump."""
    if len(samples) < MIN_SAMPLES or samples[-1][0] - samples[0][0] < steps:
        return None
    # The lowest of each part: memory in use for a moment is not memory that stays.
    parts = split_into_parts(samples)
    places = [(sum(step for step, _ in part) / len(part), min(mb for _, mb in part)) for part in parts]
    rises = [after[1] - before[1] for before, after in pairwise(places)]
    spans = [max(after[0] - before[0], 1e-9) for before, after in pairwise(places)]
    paces = [rise / span for rise, span in zip(rises, spans, strict=True)]
    total = sum(rises)
    if total <= 0 or max(rises) > MAX_SHARE * total or min(paces) < STEADY_SHARE * sum(paces) / len(paces):
        return None
    (first_step, first_mb), (last_step, last_mb) = samples[0], samples[-1]
    return Growth(first_step, last_step, first_mb, last_mb) if last_mb > first_mb else None


def split_into_parts(samples: Sequence[tuple[int, float]]) -> list[Sequence[tuple[int, float]]]:
    """Five parts of about as many samples each."""
    size = len(samples) / PARTS
    return [samples[round(index * size) : round((index + 1) * size)] for index in range(PARTS)]
