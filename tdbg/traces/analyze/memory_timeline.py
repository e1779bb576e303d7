"""Memory over time: the peak, and what held it."""

from typing import TYPE_CHECKING

from tdbg.traces.parse import event_names
from tdbg.traces.summary import Memory

if TYPE_CHECKING:
    from tdbg.traces.parse.event_stream import Event

POINTS = 512  # of a line; at twice as many, two become one
TOP = 20  # holders
ALIVE = 2_000_000  # allocations that are followed


class MemoryTimeline:
    """One device's memory while its events pass by."""

    def __init__(self, device: str) -> None:
        self.found = Memory(device)
        self._alive: dict[int, tuple[int, str]] = {}
        self._held: dict[str, int] = {}
        self._rising = False  # at a new peak, whose holders are not written down yet
        self._width = 1 << 14  # ns of a point
        self._any = False

    def add_event(self, event: "Event", time: int, opened: str) -> None:
        """One ``[memory]`` event. opened: the outermost operator that was open; empty for none."""
        args = event.args
        if args is None:
            return
        allocated, amount = event_names.whole_number(args.allocated), event_names.whole_number(args.amount)
        if allocated is None or amount is None:
            return
        if not self._any:
            self._any = True
            self.found.first = allocated - amount
            self._add_line_point(
                time, self.found.first
            )  # or the first step seems to have had all along what it allocates first
        if amount < 0 and self._rising:
            self._write_down()
        self._track_allocation(amount, args.address if isinstance(args.address, int) else 0, opened)
        if allocated > self.found.peak:
            self.found.peak, self.found.peak_at, self._rising = allocated, time, True
        self.found.last = allocated
        self.found.reserved = max(self.found.reserved, event_names.whole_number(args.reserved) or 0)
        self._add_line_point(time, allocated)

    def finish_timeline(self) -> Memory:
        """All of it, after the last event."""
        if self._rising:
            self._write_down()
        return self.found

    def _track_allocation(self, amount: int, address: int, opened: str) -> None:
        if amount < 0:
            size, name = self._alive.pop(address, (0, ""))
            if size:
                self._held[name] -= size
        elif len(self._alive) < ALIVE:
            name = opened.removeprefix(f"{event_names.AUTOGRAD}: ") or "outside of any operator"
            self._alive[address] = (amount, name)
            self._held[name] = self._held.get(name, 0) + amount

    def _write_down(self) -> None:
        self._rising = False
        most = sorted(((size, name) for name, size in self._held.items() if size > 0), reverse=True)
        self.found.holders = {name: size for size, name in most[:TOP]}

    def _add_line_point(self, time: int, allocated: int) -> None:
        line = self.found.line
        begin = time - time % self._width
        if line and line[-1][0] >= begin:
            at, most, least = line[-1]
            line[-1] = (at, max(most, allocated), min(least, allocated))
            return
        line.append((begin, allocated, allocated))
        while len(line) > 2 * POINTS:
            self._width *= 2
            merged: dict[int, tuple[int, int]] = {}
            for at, most, least in line:
                key = at - at % self._width
                known = merged.get(key, (most, least))
                merged[key] = (max(known[0], most), min(known[1], least))
            line[:] = [(at, most, least) for at, (most, least) in merged.items()]
