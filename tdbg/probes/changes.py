"""Changes of level and flags while the run goes on: asked for by `tdbg control`, a trigger, or the program."""

import time
from typing import TYPE_CHECKING, Any

from tdbg.control import Request
from tdbg.events import Switch

if TYPE_CHECKING:
    from tdbg.probes.monitor import Monitor

POLL_EVERY_S = 0.5


class Changes:
    """Brings each change into force at its step, and takes back those made for some steps.

    All ranks read the same requests and switch at the step they name; nobody is asked, nobody waits. A rank
    that is past that step already switches at once and says so.
    """

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor
        self._polled_at = 0.0
        self._number = 0  # of the last request taken up
        self._pending: list[Request] = []
        self._before: tuple[str, dict[str, Any]] | None = None  # what a change for some steps goes back to
        self._until = 0  # the first step after it

    def due(self) -> None:
        """A step has ended: do what is due before the next. Cost: a clock read, and a stat twice a second."""
        now = time.monotonic()
        if now - self._polled_at >= POLL_EVERY_S:
            self._polled_at = now
            self._poll()
        coming = self.monitor.step + 1
        if self._before is not None and coming >= self._until:
            (level, flags), self._before = self._before, None
            self._apply(level, flags, "end")
        for request in [request for request in self._pending if request.at_step <= coming]:
            self._pending.remove(request)
            self._take(request)

    def _poll(self) -> None:
        try:
            found = self.monitor.requests()
        except Exception as error:  # guard: a broken control file changes nothing
            self.monitor.note("control", f"control.json was ignored: {error}"[:300])
            return
        for request in found:
            if request.number > self._number:
                self._number = request.number
                self._pending.append(request)

    def _take(self, request: Request) -> None:
        if request.clear_history:
            self.monitor.clear_history()
        late = 0 < request.at_step <= self.monitor.step
        settings = self.monitor.settings
        level, flags = request.level or settings.level, {**settings.flags, **request.flags}
        if request.for_steps:
            self._go_back_after(self.monitor.step + 1 + request.for_steps)
        else:
            self._before = None
        self._apply(level, flags, "control", asked=request.number, late=late)

    def _go_back_after(self, step: int) -> None:
        if self._before is None:
            settings = self.monitor.settings
            self._before = settings.level, dict(settings.flags)
        self._until = step

    @property
    def temporary(self) -> bool:
        """True while a change made for some steps is in force."""
        return self._before is not None

    def make(self, level: str, flags: dict[str, Any], why: str, for_steps: int = 0) -> None:
        """Change level (empty: as it is) and flags now, from within the rank."""
        settings = self.monitor.settings
        if for_steps:
            self._go_back_after(self.monitor.step + 1 + for_steps)
        self._apply(level or settings.level, {**settings.flags, **flags}, why)

    def _apply(self, level: str, flags: dict[str, Any], why: str, *, asked: int = 0, late: bool = False) -> None:
        from tdbg.probes.monitor import probes_for

        monitor, settings = self.monitor, self.monitor.settings
        settings.level = level
        settings.flags.clear()
        settings.flags.update(flags)
        if level == "off":
            monitor.switch(False)
        else:
            monitor.switch(True)
            monitor.budget.change_share(settings.budget_pct, time.perf_counter())
            monitor.use(probes_for(level, settings.flags))
        on = {name: value for name, value in flags.items() if value is not False}
        monitor.emit(Switch(step=monitor.step, level=level, flags=on, why=why, asked=asked, late=late))
