"""Telling memory that grows on and on from an allocator that finds its size, in constant memory."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

WARM_STEPS = 5  # optimizer state, caches and buffers come in the first steps
KEPT = 64
LOOK_EVERY = 5  # samples
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


class Series:
    """Memory at the end of steps: the last 64 samples, and 64 spread over the whole run.

    A leak may be fast or slow, and may begin late; the two views find either.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._spread: list[tuple[int, float]] = []
        self._stride = 1
        self._count = 0

    def add_sample(self, step: int, mb: float) -> bool:
        """One more sample; those of the first steps are left out. True when it is time to look at the growth."""
        if step <= WARM_STEPS:
            return False
        self._recent.append((step, mb))
        if self._count % self._stride == 0:
            self._spread.append((step, mb))
            if len(self._spread) > KEPT:
                del self._spread[1::2]
                self._stride *= 2
        self._count += 1
        return self._count % LOOK_EVERY == 0

    def clear(self) -> None:
        """Forget all samples."""
        self.__init__()  # type: ignore[misc]

    @property
    def rise_mb(self) -> float:
        """How far the last sample lies above the first of either view, for a quick no."""
        if not self._recent:
            return 0.0
        return self._recent[-1][1] - min(self._recent[0][1], self._spread[0][1])

    def find_growth(self, steps: int) -> Growth | None:
        """The larger of the steady growths over at least ``steps`` steps that the two views show."""
        found = [
            _find_steady_growth(list(view), steps) for view in (self._recent, [*self._spread, *list(self._recent)[-1:]])
        ]
        return max((one for one in found if one is not None), key=lambda one: one.mb, default=None)


def _find_steady_growth(samples: list[tuple[int, float]], steps: int) -> Growth | None:
    """Growth that goes on in each fifth of the samples; None if it stands, falls, slows down or is one jump."""
    if len(samples) < MIN_SAMPLES or samples[-1][0] - samples[0][0] < steps:
        return None
    size = len(samples) / PARTS
    parts = [samples[round(index * size) : round((index + 1) * size)] for index in range(PARTS)]
    # The lowest of each part: memory in use for a moment is not memory that stays.
    places = [(mean(step for step, _ in part), min(mb for _, mb in part)) for part in parts]
    rises = [after[1] - before[1] for before, after in pairwise(places)]
    spans = [max(after[0] - before[0], 1e-9) for before, after in pairwise(places)]
    paces = [rise / span for rise, span in zip(rises, spans, strict=True)]
    total = sum(rises)
    if total <= 0 or max(rises) > MAX_SHARE * total or min(paces) < STEADY_SHARE * mean(paces):
        return None
    (first_step, first_mb), (last_step, last_mb) = samples[0], samples[-1]
    return Growth(first_step, last_step, first_mb, last_mb) if last_mb > first_mb else None
