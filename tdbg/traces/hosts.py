"""The threads of the program: operators with their own time, and what part of a step each thread is in."""

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from tdbg.traces import kinds
from tdbg.traces.summary import Operator, Work

if TYPE_CHECKING:
    from tdbg.traces.stream import Event

MOST = 20_000  # operators by name and shapes; then by name alone
CUT = 256  # letters of shapes
MOST_NAMES = 4_000  # names of regions, and of modules
MOST_FRAMES = 8  # lines of the program that one operator is called from
WAITING = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
ZEROING = ("aten::zero_", "aten::_foreach_zero_")
MORE = "(more)"


class Thread:
    """One thread while it passes by: what is open now, and its outermost operators as start, end, start, end, ..."""

    __slots__ = (
        *("asks", "backward", "collective", "cursor", "ends", "frames", "key", "loader", "open", "optimizer", "outer"),
        *("saves", "seen", "starts", "which", "zeroing"),
    )

    def __init__(self, key: tuple[int | str, int | str]) -> None:
        self.key = key
        self.open: list[tuple[int, Operator, int]] = []  # end, operator, start
        self.frames: list[tuple[int, str]] = []  # end, the innermost line of the program
        self.seen = 0
        self.starts, self.ends, self.which = array("q"), array("q"), array("l")  # each outermost operator, by number
        self.cursor = 0  # of them, how many are known to be called from where
        self.outer, self.backward, self.collective, self.loader, self.optimizer = (array("q") for _ in range(5))
        self.asks, self.saves, self.zeroing = array("q"), array("q"), array("q")


class Threads:
    """All threads. Events of a thread and category must come in the order of their start; ``disorder`` counts others."""

    def __init__(self) -> None:
        self.of: dict[tuple[int | str, int | str], Thread] = {}
        self.operators: list[Operator] = []
        self._known: dict[tuple[str, bytes], tuple[Operator, int]] = {}
        self.regions: dict[str, Work] = {}
        self.modules: dict[str, Work] = {}
        self.saves: dict[str, Work] = {}
        self.steps: list[tuple[int, int, int, Thread]] = []  # number, start, end
        self.disorder = 0
        self.framed = False
        self.shaped = False

    def thread(self, event: "Event") -> Thread:
        """The thread of an event."""
        key = (event.pid, event.tid)
        found = self.of.get(key)
        if found is None:
            found = self.of[key] = Thread(key)
        return found

    def operator(self, event: "Event", start: int, dur: int) -> None:
        """A span of category cpu_op. About 1 us: a trace has a million of them."""
        thread = self.of.get((event.pid, event.tid)) or self.thread(event)
        if start < thread.seen:
            self.disorder += 1
        thread.seen = start
        name = event.name
        args = event.args
        dims = bytes(args.dims)[:CUT] if args is not None else b""
        entry, number = self._known.get((name, dims)) or self._new(name, dims)
        stack = thread.open
        while stack and (stack[-1][0] <= start or stack[-1][2] > start):
            stack.pop()
        if stack:
            end, parent, _ = stack[-1]
            parent.own -= dur if start + dur <= end else end - start
        else:
            self._outermost(thread, number, start, start + dur)
        entry.calls += 1
        entry.total += dur
        entry.own += dur
        stack.append((start + dur, entry, start))
        if name in WAITING:  # the program asks for a value: on an accelerator it waits for it
            _extend(thread.asks, start, start + dur)
        elif name in ZEROING:
            _extend(thread.zeroing, start, start + dur)

    def _new(self, name: str, dims: bytes) -> tuple[Operator, int]:
        if dims and len(self.operators) >= MOST:
            dims = b""
        if (name, dims) not in self._known:
            self.shaped = self.shaped or bool(dims)
            text = "".join(dims.decode("utf-8", "replace").split()).replace(",", ", ")
            self._known[name, dims] = (
                Operator(name, f"{text[:-1]}..." if len(dims) == CUT else text),
                len(self._known),
            )
            self.operators.append(self._known[name, dims][0])
        return self._known[name, dims]

    def _outermost(self, thread: Thread, number: int, start: int, end: int) -> None:
        name = self.operators[number].name
        if name.startswith(kinds.AUTOGRAD):
            times = thread.backward
        else:
            times = thread.collective if name.startswith(kinds.COLLECTIVES) else thread.outer
        _extend(times, start, end)
        thread.starts.append(start)
        thread.ends.append(end)
        thread.which.append(number)

    def outermost(self, thread: Thread, time: int) -> str:
        """The outermost operator that was open at a time; empty for none."""
        at = bisect_right(thread.starts, time) - 1
        return self.operators[thread.which[at]].name if at >= 0 and thread.ends[at] >= time else ""

    def annotation(self, event: "Event", start: int, dur: int) -> None:
        """A span that the program, torch or a library named."""
        name = event.name
        thread = self.thread(event)
        step = kinds.STEP.fullmatch(name)
        if step:
            self.steps.append((int(step[1]), start, start + dur, thread))
            return
        if name.startswith(kinds.LOADER):
            _extend(thread.loader, start, start + dur)
        elif name.startswith(kinds.OPTIMIZERS):
            _extend(thread.optimizer, start, start + dur)
        elif name.startswith(kinds.COLLECTIVES):
            _extend(thread.collective, start, start + dur)
        _count(self.regions, name, dur)

    def frame(self, event: "Event", start: int, dur: int) -> None:
        """A call of Python, where stacks were recorded. torch writes them behind all operators of a trace."""
        name = event.name
        if name.startswith(kinds.MODULE):
            _count(self.modules, name.removeprefix(kinds.MODULE), dur)
        self.framed = True
        thread = self.thread(event)
        self._place(thread, start)
        frames = thread.frames
        while frames and frames[-1][0] <= start:
            frames.pop()
        own = frames[-1][1] if kinds.FOREIGN.match(name) and frames else name
        own = "" if kinds.FOREIGN.match(own) else own
        frames.append((start + dur, own))
        if ("save" in name or "fsync" in name) and kinds.SAVE.search(name):
            if not thread.saves or start > thread.saves[-1]:  # no call inside another
                _count(self.saves, f"{kinds.call(name)}{f' from {own}' if own else ''}", dur)
            _extend(thread.saves, start, start + dur)

    def _place(self, thread: Thread, until: int) -> None:
        """Tell the outermost operators that began before a time where they were called from."""
        frames, starts = thread.frames, thread.starts
        while thread.cursor < len(starts) and starts[thread.cursor] < until:
            while frames and frames[-1][0] <= starts[thread.cursor]:
                frames.pop()
            entry = self.operators[thread.which[thread.cursor]]
            if frames and frames[-1][1] and (frames[-1][1] in entry.frames or len(entry.frames) < MOST_FRAMES):
                entry.frames[frames[-1][1]] = entry.frames.get(frames[-1][1], 0) + 1
            thread.cursor += 1

    def end(self) -> None:
        """After the last event."""
        for thread in self.of.values():
            if thread.frames:
                self._place(thread, 1 << 62)


def _count(of: dict[str, Work], name: str, dur: int) -> None:
    found = of.get(name)
    if found is None:
        name = name if len(of) < MOST_NAMES else MORE
        found = of.setdefault(name, Work(name))
    found.calls += 1
    found.total += dur


def _extend(times: "array[int]", start: int, end: int) -> None:
    """Add a span; where it begins inside the last one, that one grows."""
    if times and times[-2] <= start <= times[-1]:
        if end > times[-1]:
            times[-1] = end
        return
    times.append(start)
    times.append(end)
