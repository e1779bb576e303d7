"""The probes at work: which they are, and which of them is told of what."""

from collections.abc import Callable, Iterable
from typing import Any

from tdbg.core.flags import FLAGS
from tdbg.core.guard import Guard
from tdbg.probes import BASIC, PROBES, Probe
from tdbg.probes.state import State

RESTS = ("call_begins", "call_ended", "clip_begins", "clip_ended", "must_watch")  # while a profiler records


class Roster:
    """Makes probes and lets them go, and calls those that watch a point of the run.

    make: a probe of this class. failed: told of every exception of a probe, which then is switched off for good.
    """

    def __init__(
        self, state: State, make: Callable[[type[Probe]], Probe], failed: Callable[[str, BaseException], None]
    ) -> None:
        self.probes: list[Probe] = []
        self.subscribers: dict[str, list[tuple[Probe, Callable[..., Any]]]] = {}  # point -> who watches it, and how
        self._state = state
        self._make = make
        self._say_failed = failed
        self._told_broken: set[str] = set()
        self._failed_probes: set[type[Probe]] = set()  # a change of level does not bring them back
        self.subscribe()

    def use(self, wanted: list[type[Probe]]) -> None:
        """Have exactly these probes at work, in this order: those that stay keep what they know."""
        for name in [name for name in PROBES.broken if name not in self._told_broken]:
            self._told_broken.add(name)
            self._say_failed(name, PROBES.broken[name])
        here = {type(probe) for probe in self.probes}
        for probe in [probe for probe in self.probes if type(probe) not in wanted]:
            self._drop(probe)
        new = self._made(cls for cls in wanted if cls not in here and cls not in self._failed_probes)
        order = {cls: place for place, cls in enumerate(wanted)}
        self.probes = sorted([*self.probes, *new], key=lambda probe: order[type(probe)])
        self.subscribe()
        for probe in self.probes:
            probe.read_flags()
        for probe in new:
            probe.guard.call(probe.attach)
        self.tell("changed")

    def _made(self, classes: Iterable[type[Probe]]) -> list[Probe]:
        made = []
        for cls in classes:
            probe = Guard(cls.name, self._say_failed).call(self._make, cls)
            if probe is not None:
                made.append(probe)
            else:
                self._failed_probes.add(cls)
        return made

    def _drop(self, probe: Probe) -> None:
        self.probes = [other for other in self.probes if other is not probe]
        self.subscribe()
        Guard(probe.name, self._say_failed).call(probe.detach)

    def failed(self, probe: Probe | str, error: BaseException) -> None:
        """Switch a probe off for good and record why; of another part of tdbg, given by name, only the latter."""
        self._say_failed(probe if isinstance(probe, str) else probe.name, error)
        if isinstance(probe, Probe):
            self._failed_probes.add(type(probe))
            self._drop(probe)

    def subscribe(self) -> None:
        """Settle anew who is told of what: after every change of the probes, and of quiet.

        The table is changed as a whole: a thread of the program's that takes batches looks into it meanwhile.
        """
        subscribers = {}
        probes = sorted(self.probes, key=lambda probe: not probe.rests)
        for name, method in vars(Probe).items():
            if callable(method) and not name.startswith("_"):
                subscribers[name] = [
                    (probe, getattr(probe, name))
                    for probe in probes
                    if getattr(type(probe), name) is not method and name not in probe.ignores
                    if not (self._state.quiet and probe.rests and name in RESTS)
                ]
        self.subscribers = subscribers

    def probe(self, name: str) -> Any:
        """A running probe; None if it is not running."""
        return next((probe for probe in self.probes if probe.name == name), None)

    def tell(self, point: str, *args: Any) -> None:
        """Call the probes that watch this point; one that raises is switched off."""
        for probe, method in self.subscribers[point]:
            probe.guard.call(method, *args)

    def must_watch(self) -> bool:
        """True if a probe asks for the next call, whatever it costs."""
        asked = False
        for probe, method in self.subscribers["must_watch"]:
            asked = bool(probe.guard.call(method)) or asked
        return asked


def probes_for(level: str, flags: dict[str, Any]) -> list[type[Probe]]:
    """The probes of a level, and those that flags wake; at the default level no other file is loaded (each costs 1 to 4 ms)."""
    woken = {flag.probe for flag in FLAGS if flag.probe and flags.get(flag.name)}
    if level == "basic":  # a flag's probe stands in the file of its name
        ours = PROBES.some([*BASIC, *sorted(name.replace("-", "_") for name in woken)])
        return [*ours, *(probe for probe in PROBES.strangers() if level in probe.levels)]
    strangers = PROBES.strangers()
    ours = [probe for probe in PROBES if probe not in strangers and (level in probe.levels or probe.name in woken)]
    return [*ours, *(probe for probe in strangers if level in probe.levels)]
