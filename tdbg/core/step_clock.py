"""When each step of a process was done: in constant memory, exact where its longest pauses are."""

from array import array

MAX_PARTS = 500


class StepClock:
    """Steps and times of a process, thinned: of each part of equally many records its first, and both sides of its longest pause.

    Between these a time is in proportion: a step that took long keeps its length, however many steps there are.
    """

    def __init__(self, parts: int = MAX_PARTS) -> None:
        self._most = max(parts, 2) & ~1
        self._size = 1  # records of a whole part
        self._held = 1  # of the last one
        self._steps, self._times = array("q"), array("d")  # the first of each part
        self._pauses: list[tuple[int, float, int, float]] = []  # its longest: step and time before, and after
        self._pause_s = 0.0  # a step, of that of the last part
        self._last: tuple[int, float] | None = None

    def add_record(self, step: int, t: float) -> None:
        """The next record; one that goes back in steps or time is passed over. Cost: under 1 us."""
        before, before_t = self._last or (step - 1, t)
        if step <= before or t < before_t:
            return
        is_first, self._last = self._last is None, (step, t)
        pause_s = (t - before_t) / (step - before)
        pause = (step, t, step, t) if is_first else (before, before_t, step, t)
        if self._held < self._size and not is_first:
            self._held += 1
            if pause_s > self._pause_s:
                self._pause_s, self._pauses[-1] = pause_s, pause
            return
        if len(self._pauses) >= self._most:
            self._join_parts()
        self._held, self._pause_s = 1, pause_s
        self._steps.append(step)
        self._times.append(t)
        self._pauses.append(pause)

    def _join_parts(self) -> None:
        """Make one part of each two neighbours."""
        pairs = zip(self._pauses[::2], self._pauses[1::2], strict=True)
        self._pauses = [max(pair, key=_length_of) for pair in pairs]
        self._steps, self._times = self._steps[::2], self._times[::2]
        self._size *= 2

    def list_points(self, start_t: float) -> tuple[list[int], list[float]]:
        """Steps in order, and the seconds of each since ``start_t``."""
        found = dict(zip(self._steps, self._times, strict=True))
        for before, before_t, after, after_t in self._pauses:
            found[before], found[after] = before_t, after_t
        if self._last is not None:
            found[self._last[0]] = self._last[1]
        return sorted(found), [round(found[step] - start_t, 3) for step in sorted(found)]


def _length_of(pause: tuple[int, float, int, float]) -> float:
    """Seconds of a pause a step: many steps without a record are none."""
    before, before_t, after, after_t = pause
    return (after_t - before_t) / max(after - before, 1)
