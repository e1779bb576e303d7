"""Passes that are over, but for gradients that may still come: two forwards before one backward, two optimizers."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tdbg.debuggers.tap import Copied, Tap

MOST = 8  # passes that wait at a time
LATE = "no gradient arrived: the output was unused, was a view changed in place, or backward ran after the update"
CROWDED = f"its gradient is missing: more than {MOST} passes ran before their backward"
NO_ROOM = "its gradient is missing: passes that waited for backward filled the memory for copies"


class Ended(NamedTuple):
    """A pass whose forward is over. about: fields of `PageWriter.add`. samples: rows of its batch, 0 if unknown."""

    copied: Copied
    key: str | int
    about: dict[str, Any]
    samples: int = 0


class Waiting:
    """Hands passes over in the order in which they ran: each once its gradients are there, or nothing waits for them.

    A pass whose outputs nobody uses has gradients that never come: it stands here until the update, with those behind
    it. hand_over: what takes a pass that is complete, or as complete as it will be, and why gradients are missing if any.
    """

    def __init__(self, tap: Tap, hand_over: Callable[[Ended, str], None]) -> None:
        self.tap, self._hand_over = tap, hand_over
        self._ended: deque[Ended] = deque()

    def __len__(self) -> int:
        return len(self._ended)

    def add_pass(self, ended: Ended) -> None:
        """A pass that was ended as ``parked``."""
        self._ended.append(ended)
        while len(self._ended) > MOST:
            self._hand_over_next(CROWDED)
        self.hand_over_complete()

    def hand_over_complete(self) -> None:
        """Those before the first that still has to have a gradient."""
        while self._ended and not self._ended[0].copied.awaited:
            self._hand_over_next()

    def hand_over_all(self, before_step: int | None = None) -> None:
        """All of them, or those of earlier steps; what has not come is not waited for."""
        while self._ended and (before_step is None or self._ended[0].about["step"] < before_step):
            self._hand_over_next()

    def make_room(self) -> None:
        """All of them, since there is no room for another pass."""
        while self._ended:
            self._hand_over_next(NO_ROOM)

    def _hand_over_next(self, missing: str = LATE) -> None:
        ended = self._ended.popleft()
        self.tap.unpark(ended.copied)
        self._hand_over(ended, missing)
