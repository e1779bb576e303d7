"""Changes of level and flags while the run goes on: asked for by `tdbg control`, a trigger, or the program."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tdbg.core.control import Request
from tdbg.core.events import Switch
from tdbg.core.flags import Value
from tdbg.core.guard import guarded
from tdbg.runtime.off_thread import import_off_main_thread

if TYPE_CHECKING:
    from tdbg.core.config import Settings
    from tdbg.core.events import Event
    from tdbg.runtime.budget import Budget
    from tdbg.runtime.dispatcher import Catalog
    from tdbg.runtime.listener import Listener


class ControlledRun(Protocol):
    """The monitor, as far as changes of level and flags know it."""

    settings: "Settings"
    budget: "Budget"
    catalog: "Catalog"
    active: bool
    step: int
    eval_calls: int
    capture_until: int
    requests: "Callable[[], list[Request]]"
    emit: "Callable[[Event], None]"
    note: "Callable[[str, str], None]"

    def set_active(self, on: bool) -> None: ...
    def exempt_from_budget(self, first_step: int) -> None: ...
    def activate_probes(self, probes: "Iterable[type[Listener]]") -> None: ...
    def clear_history(self) -> None: ...
    def request_profile(self, begin: int, steps: int, why: str) -> None: ...
    def log_line(self, mark: str, text: str, level: str = "D", step: int | None = None) -> None: ...
    def when_rank(self, say: "Callable[[], None]") -> None: ...


POLL_EVERY_S = 0.5  # or more often


@dataclass(slots=True)
class _Change:
    """Level (empty: as it is) and flags that hold for some steps, above what holds for good."""

    level: str
    flags: dict[str, Value]
    until: int  # the first step after it


class LevelOverrides:
    """Brings each change into force at its step, and takes back those made for some steps.

    All ranks read the same requests and switch at the step they name; nobody is asked, nobody waits. A rank
    that is past that step already switches at once and says so. Ranks look for requests after the same steps, so that
    where all are late they still switch at the same step. Changes for some steps lie above what holds for good, the
    later above the earlier; of whatever is changed for good, they give way.
    """

    def __init__(self, monitor: ControlledRun) -> None:
        self.monitor = monitor
        self.asked_since = 0.0  # in a restarted rank: when it woke up; requests before were made to another process
        self._polled_at = 0.0
        self._polled_step = 0
        self._poll_stride = 1  # a power of two: requests are looked for after its multiples
        self._number = 0  # of the last request taken up
        self._pending: list[Request] = []
        self._soon: list[tuple[str, dict[str, Value], str, int]] = []
        self._base: tuple[str, dict[str, Value]] = ("", {})  # what holds for good, while something lies above it
        self._above: list[_Change] = []

    @property
    def has_requests(self) -> bool:
        """True while a request waits for its step."""
        return bool(self._pending)

    @property
    def temporary(self) -> bool:
        """True while a change made for some steps is in force, or about to be."""
        return bool(self._above) or any(for_steps for *_, for_steps in self._soon)

    @property
    def level(self) -> str:
        """The level that holds for good; a change for some steps may lie above it."""
        return self._base[0] if self._above else self.monitor.settings.level

    @property
    def _coming(self) -> int:
        """The step that comes next; where nothing but evaluation is done, the call."""
        return (self.monitor.step or self.monitor.eval_calls) + 1

    def apply_due_changes(self) -> None:
        """A step has ended: do what is due before the next. Cost: a clock read, and a stat some times a second."""
        if self._is_poll_due(time.monotonic()):
            self._poll_requests()
        if self._above or self._pending or self._soon:
            timed, begun = self.monitor.active, self.monitor.budget.start_up_s
            self._apply_pending()
            if timed:  # waking probes up is booked as start-up; whoever is being timed leaves it out
                self.monitor.budget.exclude(self.monitor.budget.start_up_s - begun)

    def _is_poll_due(self, now: float) -> bool:
        """True after a multiple of the stride, which all ranks reach together, and where steps take longer than they did.

        Clocks alone would have ranks look after different steps.
        """
        done, waited_s = self._coming - 1, now - self._polled_at
        if done // self._poll_stride == self._polled_step // self._poll_stride and waited_s < POLL_EVERY_S:
            return False
        step_s = waited_s / max(done - self._polled_step, 1)
        # The bounds are far apart, so that ranks whose clocks differ a little keep to the same stride.
        while self._poll_stride > 1 and self._poll_stride * step_s > POLL_EVERY_S / 2:
            self._poll_stride //= 2
        while self._poll_stride * max(step_s, 1e-6) < POLL_EVERY_S / 8:
            self._poll_stride *= 2
        self._polled_at, self._polled_step = now, done
        return True

    def _apply_pending(self) -> None:
        coming = self._coming
        if any(change.until <= coming for change in self._above):
            self._above = [change for change in self._above if change.until > coming]
            self._apply_changes("end")
        for request in [request for request in self._pending if request.at_step <= coming]:
            self._pending.remove(request)
            self._accept_request(request)
        soon, self._soon = self._soon, []
        for level, flags, why, for_steps in soon:
            self.change_now(level, flags, why, for_steps)

    def _note_ignored(self, error: BaseException) -> None:
        self.monitor.note("control", f"control.json was ignored: {error}"[:300])

    def _poll_requests(self) -> None:
        found: list[Request] = []
        with guarded("a broken control file changes nothing", self._note_ignored):
            found = self.monitor.requests()
        for request in found:
            if request.number > self._number:
                self._number = request.number
                if request.t >= self.asked_since:
                    self._pending.append(request)
                elif not request.for_steps:  # what was to hold for good holds for the restarted rank too
                    self._pending.append(replace(request, at_step=0, clear_history=False, profile_for=0))

    def _accept_request(self, request: Request) -> None:
        if request.clear_history:
            self.monitor.clear_history()
        late = 0 < request.at_step < self._coming
        begin = request.at_step or self._coming  # a late rank goes back together with the others
        if request.capture_for:
            self.monitor.capture_until = max(self.monitor.capture_until, begin + request.capture_for)
            if not request.level and not request.flags:
                self._report_switch("capture", request.number, late)
                return
        if request.profile_for:
            self.monitor.request_profile(max(begin, self._coming), request.profile_for, request.why or "control")
            if not request.level and not request.flags:
                self._report_switch("profile", request.number, late)
                return
        until = begin + request.for_steps if request.for_steps else 0
        if until and until <= self._coming:
            self._report_switch("control", request.number, late)
        else:
            self._register_change(request.level, request.flags, until)
            self._apply_changes("control", request.number, late)

    def change_now(self, level: str, flags: dict[str, Value], why: str, for_steps: int = 0) -> None:
        """Change level (empty: as it is) and flags now, from within the rank."""
        self._register_change(level, flags, self._coming + for_steps if for_steps else 0)
        self._apply_changes(why)

    def queue(self, level: str, flags: dict[str, Value], why: str, for_steps: int = 0) -> None:
        """The same once the step that is ending has ended: for those who are told of it while probes are called."""
        self._soon.append((level, flags, why, for_steps))

    def _register_change(self, level: str, flags: dict[str, Value], until: int) -> None:
        settings = self.monitor.settings
        if not self._above:
            self._base = settings.level, dict(settings.flags)
        if until:
            self._above.append(_Change(level, dict(flags), until))
            return
        self._base = level or self._base[0], {**self._base[1], **flags}
        for change in self._above:
            change.level = "" if level else change.level
            change.flags = {name: value for name, value in change.flags.items() if name not in flags}
        self._above = [change for change in self._above if change.level or change.flags]

    def _apply_changes(self, why: str, asked: int = 0, late: bool = False) -> None:
        monitor, settings, begun = self.monitor, self.monitor.settings, time.perf_counter()
        self._update_settings()
        if settings.level == "off":
            monitor.set_active(False)
        else:
            monitor.set_active(True)
            monitor.budget.change_share(settings.budget_pct, time.perf_counter())
            if asked:  # somebody waits for what these flags see
                monitor.exempt_from_budget(self._coming)
            level, flags = settings.level, dict(settings.flags)
            import_off_main_thread(lambda: monitor.catalog.select_probes(level, flags))
            monitor.activate_probes(monitor.catalog.select_probes(level, flags))
        monitor.budget.start_up_s += time.perf_counter() - begun
        self._report_switch(why, asked, late)

    def _update_settings(self) -> None:
        """Make the settings what they are to be now."""
        settings = self.monitor.settings
        settings.level, flags = self._base
        settings.flags.clear()
        settings.flags.update(flags)
        for change in self._above:
            settings.level = change.level or settings.level
            settings.flags.update(change.flags)

    def _report_switch(self, why: str, asked: int, late: bool) -> None:
        settings = self.monitor.settings
        on = {name: value for name, value in settings.flags.items() if value is not False}
        event = Switch(t=time.time(), step=self._coming - 1, level=settings.level, flags=on, why=why)
        event.asked, event.late = asked, late
        self.monitor.when_rank(lambda: self.monitor.emit(event))
        names = f", flags {', '.join(on)}" if on else ""
        self.monitor.log_line("[control]", f"level {settings.level}{names} after step {event.step} ({why})", "I")

    def forked(self) -> None:
        """In a forked child, whose steps begin anew: only what holds for good is left."""
        self._pending, self._soon = [], []
        if self._above:
            self._above = []
            self._update_settings()
