"""What tdbg says of this process; none of it is said before the process is a rank."""

import time
from collections.abc import Callable
from threading import RLock

from tdbg.core.events import Event, Observation
from tdbg.core.flags import tag
from tdbg.runtime.budget import Budget
from tdbg.runtime.listener import Listener

MAX_HELD = 1000


class EventBuffer:
    """Sends what is said to the events and the rank's logs; until the process is a rank, a bounded number waits.

    emit, log, become_rank: as the monitor is given them.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        emit: Callable[[Event], None],
        log: Callable[[str, int, str, str], None],
        become_rank: Callable[[], None],
    ) -> None:
        self.is_rank = False  # once the folder is claimed, and what has waited is said
        self._turn = RLock()  # the thread that watches for hangs may be first; a held line may say another
        self._begun = False
        self._budget = budget
        self._emit = emit
        self._log = log
        self._become_rank = become_rank
        self._held: list[Callable[[], None]] = []

    def become_rank(self) -> None:
        """Claim the rank's folder, at the first step or the first thing worth reporting."""
        if self.is_rank:
            return
        with self._turn:
            if self._begun:  # by another thread, or further up in this one
                return
            self._begun, begun = True, time.perf_counter()
            try:
                self._become_rank()
                while self._held:
                    self._held.pop(0)()
            finally:
                self.is_rank = True  # a claim that failed is not tried again
            seconds = time.perf_counter() - begun
            self._budget.start_up_s += seconds
            self._budget.exclude(seconds)

    def when_rank(self, say: Callable[[], None]) -> None:
        """Say it now if this process is a rank, else as soon as it is one."""
        if not self.is_rank:
            with self._turn:
                if not self.is_rank:
                    if len(self._held) < MAX_HELD:
                        self._held.append(say)
                    return
        say()

    def log_line(self, level: str, step: int, mark: str, text: str) -> None:
        """A line in the rank's log."""
        self.when_rank(lambda: self._log(level, step, mark, text))

    def emit_observation(
        self,
        probe: Listener | type[Listener],
        flag: str,
        part: str,
        text: str,
        values: dict[str, object],
        level: str,
        *,
        step: int,
        epoch: int | None,
    ) -> None:
        """An Observation event and its line in the log."""
        event = Observation(
            t=time.time(),
            probe=probe.name,
            flag=flag,
            part=part,
            step=step,
            epoch=epoch,
            text=text,
            values=values,
        )
        mark = tag(flag, part) if flag else f"[{probe.name}]"
        self.when_rank(lambda: self._emit_and_log(event, mark, level))

    def _emit_and_log(self, event: Observation, mark: str, level: str) -> None:
        self._emit(event)
        self._log(level, event.step, mark, event.text)
