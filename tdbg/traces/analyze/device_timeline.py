"""The accelerators' timeline: kernels, copies, and the calls that launched or waited for them."""

from array import array
from typing import TYPE_CHECKING

from tdbg.traces.parse import event_names
from tdbg.traces.summary import Work

if TYPE_CHECKING:
    from tdbg.traces.parse.event_stream import Event, Number

SHORT = 10_000  # ns
UNKNOWN = -(1 << 62)  # no time: times are counted from the first event of the file, and one before it is below 0
PENDING = 1_000_000  # launches whose kernel has not come yet, and kernels whose launch has not
MOST = 20_000  # names of kernels, and of copies
MORE = "(more)"
MOST_DEVICES = 64
MOST_WAITS = 2_000  # names of waits on each thread

Key = tuple[int | str, int | str]  # of a thread: pid, tid
Wait = tuple[Key, str]  # on which thread, and its name


class Devices:
    """All accelerators of a trace. Times are kept as start, end, start, end, ... of 8 bytes each."""

    def __init__(self) -> None:
        self.kernels: dict[str, Work] = {}
        self.copies: dict[str, Work] = {}
        self.waits: dict[Wait, array[int]] = {}
        self.computed, self.collective, self.filled = array("q"), array("q"), array("q")
        self.copied: dict[str, array[int]] = {}  # by direction
        self.pageable = array("q")
        self.products: dict[str, array[int]] = {}  # kernels that multiply matrices: matrix, or tensor
        self.launched = array("q")  # of each computing kernel: when it was launched; UNKNOWN if nobody knows
        self.called, self.moved = array("q"), array("q")  # of kernels, and of copies: start, end of the launching call
        self.launches = 0
        self.last_launch = 0
        self.ids: set[Number] = set()  # of devices that ran kernels
        self.apart: dict[Number, array[int]] = {}  # what each of several did; empty as long as there is one
        self._first: Number = None  # that one
        self._waiting: dict[int, tuple[int, int]] = {}  # launch seen, kernel not: start and end of the call
        self._early: dict[int, tuple[int, int, array[int]]] = {}  # the other way round: place in `launched`, start

    def add_kernel(self, event: "Event", start: int, dur: int) -> None:
        """A kernel on a stream."""
        work = self.kernels.get(event.name)
        if work is not None:
            kind = work.kind
        else:
            kind = event_names.classify_kernel(event.name)
            name = event.name if len(self.kernels) < MOST else MORE
            work = self.kernels.setdefault(name, Work(name, kind if name != MORE else event_names.OTHER))
        if event.args is not None and len(self.ids) < MOST_DEVICES:
            self.ids.add(event.args.device)
        work.calls += 1
        work.total += dur
        work.short += dur < SHORT
        self._add_device_span(event, start, start + dur)
        if kind == event_names.COMMUNICATION:
            self.collective.extend((start, start + dur))
            self._match_launch(event, start, -1, self.called)
            return
        self.computed.extend((start, start + dur))
        if kind != event_names.OTHER:
            self.products.setdefault(kind, array("q")).extend((start, start + dur))
        self.launched.append(UNKNOWN)
        self._match_launch(event, start, len(self.launched) - 1, self.called)

    def _add_device_span(self, event: "Event", start: int, end: int) -> None:
        """Something runs on a device; told before it is kept elsewhere."""
        device = event.args.device if event.args is not None else None
        if device is None or (device == self._first and not self.apart):
            return
        if self._first is None:
            self._first = device
            return
        if not self.apart:
            self.apart[self._first] = array("q")
            for times in (self.computed, self.collective, self.filled, *self.copied.values()):
                self.apart[self._first].extend(times)
        if device in self.apart or len(self.apart) < MOST_DEVICES:
            self.apart.setdefault(device, array("q")).extend((start, end))

    def _match_launch(self, event: "Event", start: int, at: int, into: "array[int]") -> None:
        """Find the call that launched it, if it has passed by; else it is remembered. at: its place in `launched`."""
        correlation = event.args.correlation if event.args is not None else None
        if not isinstance(correlation, int):
            return
        call = self._waiting.pop(correlation, None)
        if call is not None:
            self._pair_launch(at, start, into, call)
        elif len(self._early) < PENDING:
            self._early[correlation] = (at, start, into)

    def _pair_launch(self, at: int, start: int, into: "array[int]", call: tuple[int, int]) -> None:
        if at >= 0:
            self.launched[at] = call[0]
        into.extend((start, call[1]))

    def add_copy(self, event: "Event", start: int, dur: int) -> None:
        """A copy to, from or on a device."""
        end = start + dur
        self._add_device_span(event, start, end)
        towards = event_names.parse_copy_direction(event.name)
        name = event.name if event.name in self.copies or len(self.copies) < MOST else MORE
        work = self.copies.setdefault(name, Work(name, towards))
        work.calls += 1
        work.total += end - start
        work.nbytes += event_names.whole_number(event.args.bytes) or 0 if event.args is not None else 0
        self.copied.setdefault(towards, array("q")).extend((start, end))
        self._match_launch(event, start, -1, self.moved)
        if "Pageable" in event.name and towards == "HtoD":
            self.pageable.extend((start, end))

    def add_memset(self, event: "Event", start: int, dur: int) -> None:
        """A memset."""
        self._add_device_span(event, start, start + dur)
        self.filled.extend((start, start + dur))
        self._match_launch(event, start, -1, self.moved)

    def add_runtime_call(self, event: "Event", start: int, dur: int) -> None:
        """A call of the device's runtime on a thread of the program."""
        name = event.name
        end = start + dur
        if event_names.WAITS.fullmatch(name):
            wait = ((event.pid, event.tid), name)
            if wait in self.waits or len(self.waits) < MOST_WAITS:
                self.waits.setdefault(wait, array("q")).extend((start, end))
        elif event_names.LAUNCH.search(name):
            self.launches += 1
            self.last_launch = max(self.last_launch, start)
            correlation = event.args.correlation if event.args is not None else None
            if not isinstance(correlation, int):
                return
            early = self._early.pop(correlation, None)
            if early is not None:
                self._pair_launch(*early, (start, end))
            elif len(self._waiting) < PENDING:
                self._waiting[correlation] = (start, end)

    def find_closing_wait(self, after: int) -> tuple[Wait | None, int]:
        """The profiler's own wait at its end: which, and where it stands in `waits`; None where there is none.

        torch.profiler synchronises the device when it stops. That call is the last of its kind, and nothing is
        launched after it. after: the end of the last step that is marked, which the profiler closes before it stops.
        """
        latest, found, at = -1, None, 0
        for wait, times in self.waits.items():
            if wait[1].endswith(event_names.DEVICE_WAIT):
                place = max(range(0, len(times), 2), key=lambda one: times[one])
                if times[place] > latest:
                    latest, found, at = times[place], wait, place
        return (found, at) if latest >= max(self.last_launch, after) else (None, 0)
