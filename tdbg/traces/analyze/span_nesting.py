"""The caller of each span of a thread, for a whole batch at once."""

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

LEVELS = 64  # of calls within calls that are found all at once; deeper ones one by one


def find_parents(starts: Numbers, ends: Numbers) -> Numbers:
    """For each span the place of the one that called it; -1 for none.

    starts: in order. The caller is the last one before it that has not ended when it starts, as a stack would tell.
    Cost: some 0.1 us a span and level.
    """
    found = np.full(len(starts), -1, np.int64)
    left = np.arange(len(starts))  # those that are below the levels that are done
    for _ in range(LEVELS):
        begins = starts[left]
        reach = np.maximum.accumulate(ends[left])
        outer = np.ones(len(left), bool)
        outer[1:] = begins[1:] >= reach[:-1]  # all before it, of those that are left, have ended
        inner = ~outer
        if not inner.any():
            return found
        callers = left[outer]
        left = left[inner]
        found[left] = callers[np.cumsum(outer)[inner] - 1]
    _by_stack(starts, ends, left, found)
    return found


def _by_stack(starts: Numbers, ends: Numbers, left: Numbers, found: Numbers) -> None:
    """The same for those that are left, one by one."""
    stack: list[tuple[int, int]] = []  # end, place
    for place, start, end in zip(left.tolist(), starts[left].tolist(), ends[left].tolist(), strict=True):
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack:
            found[place] = stack[-1][1]
        stack.append((end, place))


def list_call_chain(found: Numbers, place: int) -> list[int]:
    """The places of a span and of all that called it, the outermost first."""
    places = []
    while place >= 0:
        places.append(place)
        place = int(found[place])
    return places[::-1]


class Sums:
    """Numbers that are added up by index, many at a time; they grow as there are more indices."""

    def __init__(self) -> None:
        self._held = np.zeros(1024, np.int64)

    def add_values(self, at: Any, values: Any) -> None:
        """values: one for each index, or one for all."""
        most = int(np.max(at, initial=-1))
        if most >= len(self._held):
            self._held = np.concatenate((self._held, np.zeros(max(len(self._held), most + 1), np.int64)))
        np.add.at(self._held, at, values)

    def get_first_sums(self, count: int) -> list[int]:
        """Those of the first indices."""
        self.add_values([count], 0)
        found: list[int] = self._held[:count].tolist()
        return found
