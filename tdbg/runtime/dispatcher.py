"""The active probes, and which of them subscribes to which point of a step."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from tdbg.core.guard import Guard
from tdbg.runtime.listener import Listener
from tdbg.runtime.state import State

RESTS = ("call_begins", "call_ended", "clip_begins", "clip_ended", "must_watch")  # while a profiler records


class Catalog(Protocol):
    """Where listeners come from: the floor above, which knows all probes."""

    @property
    def broken(self) -> Mapping[str, BaseException]:
        """Files that could not be imported."""

    def select_probes(self, level: str, flags: dict[str, Any]) -> list[type[Any]]:
        """The classes that a level has, and those that flags wake."""

    def load_probes(self, name: str) -> list[type[Any]]:
        """The classes in the file of this name."""

    def load_inspection_probes(self) -> list[type[Any]]:
        """The classes that the opening inspection adds."""


class ProbeDispatcher:
    """Makes probes and lets them go, and calls those that watch a point of the run.

    make: a probe of this class. failed: told of every exception of a probe, which then is switched off for good.
    """

    def __init__(
        self,
        state: State,
        catalog: Catalog,
        make: Callable[[type[Listener]], Listener],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.probes: list[Listener] = []
        # point -> who watches it, and how
        self.subscribers: dict[str, list[tuple[Listener, Callable[..., object]]]] = {}
        self._state = state
        self._make = make
        self._catalog = catalog
        self._say_failed = failed
        self._reported_broken: set[str] = set()
        self._failed_probes: set[type[Listener]] = set()  # a change of level does not bring them back
        self.rebuild_subscribers()

    def activate(self, wanted: list[type[Listener]]) -> None:
        """Have exactly these probes at work, in this order: those that stay keep what they know."""
        broken = self._catalog.broken
        for name in [name for name in broken if name not in self._reported_broken]:
            self._reported_broken.add(name)
            self._say_failed(name, broken[name])
        here = {type(probe) for probe in self.probes}
        for probe in [probe for probe in self.probes if type(probe) not in wanted]:
            self._detach_probe(probe)
        new = self._create_probes(cls for cls in wanted if cls not in here and cls not in self._failed_probes)
        order = {cls: place for place, cls in enumerate(wanted)}
        self.probes = sorted([*self.probes, *new], key=lambda probe: order[type(probe)])
        self.rebuild_subscribers()
        for probe in self.probes:
            probe.read_flags()
        for probe in new:
            probe.guard.call_guarded(probe.attach)
        self.dispatch("changed")

    def _create_probes(self, classes: Iterable[type[Listener]]) -> list[Listener]:
        made = []
        for cls in classes:
            probe = Guard(cls.name, self._say_failed).call_guarded(self._make, cls)
            if probe is not None:
                made.append(probe)
            else:
                self._failed_probes.add(cls)
        return made

    def _detach_probe(self, probe: Listener) -> None:
        self.probes = [other for other in self.probes if other is not probe]
        self.rebuild_subscribers()
        Guard(probe.name, self._say_failed).call_guarded(probe.detach)

    def handle_failure(self, probe: Listener | str, error: BaseException) -> None:
        """Switch a probe off for good and record why; of another part of tdbg, given by name, only the latter."""
        self._say_failed(probe if isinstance(probe, str) else probe.name, error)
        if isinstance(probe, Listener):
            self._failed_probes.add(type(probe))
            self._detach_probe(probe)

    def rebuild_subscribers(self) -> None:
        """Rebuild the table of subscribers, after every change of the probes and of quiet.

        The table is changed as a whole: a thread of the program's that takes batches looks into it meanwhile.
        """
        subscribers = {}
        probes = sorted(self.probes, key=lambda probe: not probe.pause_while_profiling)
        for name, method in vars(Listener).items():
            if callable(method) and not name.startswith("_"):
                subscribers[name] = [
                    (probe, getattr(probe, name))
                    for probe in probes
                    if getattr(type(probe), name) is not method
                    and name not in probe.muted
                    and name not in probe.ignores
                    if not (self._state.quiet and probe.pause_while_profiling and name in RESTS)
                ]
        self.subscribers = subscribers

    def find_probe(self, name: str) -> Any:
        """A running probe; None if it is not running."""
        return next((probe for probe in self.probes if probe.name == name), None)

    def dispatch(self, point: str, *args: object) -> None:
        """Call the probes that watch this point; one that raises is switched off."""
        for probe, method in self.subscribers[point]:
            probe.guard.call_guarded(method, *args)

    def must_watch(self) -> bool:
        """True if a probe asks for the next call, whatever it costs."""
        asked = False
        for probe, method in self.subscribers["must_watch"]:
            asked = bool(probe.guard.call_guarded(method)) or asked
        return asked
