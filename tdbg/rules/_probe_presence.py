"""Whether a probe was in the loop: where it was, its word counts; where it was not, step records are all there is."""

from tdbg.core.events import Cost, Event, ProbeOff
from tdbg.core.flags import LEVELS
from tdbg.rules._signals import Signals


class ProbePresence:
    """Follows the events of one process that say whether a probe is at work there after the opening inspection."""

    def __init__(self, probe: str) -> None:
        self._probe = probe
        self._has_failed = False
        self.is_absent = False  # known to be away

    def add_event(self, event: Event) -> None:
        """Take an event of the process."""
        if isinstance(event, ProbeOff):
            self._has_failed = self._has_failed or event.probe == self._probe
        elif isinstance(event, Cost):
            level = event.level if event.level in LEVELS else "basic"
            signals = Signals(level, frozenset(event.flags), frozenset(event.stayed or ()))
            is_away = event.stayed is not None and not signals.is_watching(self._probe)
            self.is_absent = event.level != "off" and (self._has_failed or is_away)
