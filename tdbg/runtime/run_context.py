"""Who watches this process, as far as a diagnostic that the program calls has to know.

Nobody at first: then the flags of the variable TDBG_FLAGS count, and words go to the logger ``tdbg``. In a run, and
once the Python API is asked for flags, the floor above installs another one here.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tdbg.core.config import Selection
from tdbg.core.flag_variable import read_flag_variable
from tdbg.core.flags import Value, tag

if TYPE_CHECKING:
    from tdbg.runtime.listener import Listener
    from tdbg.runtime.monitor import Monitor

LOG = logging.getLogger("tdbg")
LEVELS = {"D": 10, "S": 15, "I": 20, "W": 30, "E": 40}


class NullContext:
    """A process that nobody watches."""

    def __init__(self, flags: dict[str, Value]) -> None:
        self.flags = flags  # in force, by name: the very dict, which a watch changes in place

    def is_step_selected(self, *, any_step: bool = False) -> bool:
        """True if the running step and this rank are to be looked at (``--steps``, ``--every``, ``--ranks``)."""
        return True

    def record_flag_use(self, flag: str) -> None:
        """The program uses a flag that is on."""

    def log_line(self, mark: str, text: str, level: str = "D") -> None:
        """A record under a tag."""
        LOG.log(LEVELS[level], "%s %s", mark, text)

    def record_observation(
        self, probe: "type[Listener]", flag: str, part: str, text: str, values: dict[str, object], level: str = "D"
    ) -> None:
        """A record that is kept as an event of the run as well."""
        self.log_line(tag(flag, part), text, level)

    def record_note(self, code: str, text: str) -> None:
        """Something a reader of the verdict should know, once per code."""

    def record_time(self, seconds: float) -> None:
        """So long a diagnostic took."""


class RunContext(NullContext):
    """A process with a watch, or one that may get it: a run's, or that of the Python API.

    monitor: the watch, None while there is none. take: told of the first use of each flag that is on.
    is_logged: whether the watch has a log of its own; without one, words go to the logger ``tdbg``.
    """

    def __init__(
        self,
        flags: dict[str, Value],
        monitor: "Callable[[], Monitor | None]",
        take: Callable[[str, Value], None],
        is_logged: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(flags)
        self._is_logged = is_logged
        self._monitor = monitor
        self._take = take
        self._taken: set[str] = set()

    def _find_monitor(self) -> "Monitor | None":
        data: Any = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            return None  # a DataLoader's worker is no rank
        return self._monitor()

    def is_step_selected(self, *, any_step: bool = False) -> bool:
        monitor = self._find_monitor()
        if monitor is None:
            return True
        wanted = Selection.from_settings(monitor.settings)
        return wanted.is_rank_selected(monitor.rank) and (any_step or wanted.is_step_selected(monitor.running_step))

    def record_flag_use(self, flag: str) -> None:
        if flag not in self._taken:
            self._taken.add(flag)
            self._take(flag, self.flags.get(flag, True))

    def log_line(self, mark: str, text: str, level: str = "D") -> None:
        monitor = self._find_monitor()
        if monitor is None or not self._is_logged():
            super().log_line(mark, text, level)
        else:
            monitor.log_line(mark, text, level, step=monitor.running_step)

    def record_observation(
        self, probe: "type[Listener]", flag: str, part: str, text: str, values: dict[str, object], level: str = "D"
    ) -> None:
        monitor = self._find_monitor()
        if monitor is None:
            super().record_observation(probe, flag, part, text, values, level)
        else:
            monitor.spoke = True
            step, epoch = monitor.running_step, monitor.epoch
            monitor.event_buffer.emit_observation(probe, flag, part, text, values, level, step=step, epoch=epoch)
            if not self._is_logged():
                super().log_line(tag(flag, part), text, level)

    def record_note(self, code: str, text: str) -> None:
        monitor = self._find_monitor()
        if monitor is not None:
            monitor.when_rank(lambda: monitor.note(code, text))

    def record_time(self, seconds: float) -> None:
        monitor = self._find_monitor()
        if monitor is not None:
            monitor.budget.called_s += seconds


current = NullContext(read_flag_variable(os.environ))


def install_context(context: NullContext) -> None:
    """From now on this context is asked and told."""
    global current
    current = context
