"""Telling memory that grows on and on from an allocator that finds its size, in constant memory."""

from collections import deque

from tdbg.core.steady_growth import Growth, find_steady_growth

WARM_STEPS = 5  # optimizer state, caches and buffers come in the first steps
KEPT = 64
LOOK_EVERY = 5  # samples


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
            find_steady_growth(list(view), steps) for view in (self._recent, [*self._spread, *list(self._recent)[-1:]])
        ]
        return max((one for one in found if one is not None), key=lambda one: one.mb, default=None)
