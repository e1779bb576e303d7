"""The threads of the program: operators with their own time, and what part of a step each thread is in."""

from array import array
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
MORE = "(more)"


class Thread:
    """One thread while it passes by: what is open now, and its outermost operators as start, end, start, end, ..."""

    __slots__ = ("asks", "backward", "collective", "frames", "key", "loader", "open", "optimizer", "outer", "seen")

    def __init__(self, key: tuple[int | str, int | str]) -> None:
        self.key = key
        self.open: list[tuple[int, Operator, int]] = []  # end, operator, start
        self.frames: list[tuple[int, str]] = []  # end, the innermost line of the program
        self.seen = 0
        self.outer, self.backward, self.collective, self.loader, self.optimizer, self.asks = (
            array("q") for _ in range(6)
        )


class Threads:
    """All threads. Events of a thread and category must come in the order of their start; ``disorder`` counts others."""

    def __init__(self) -> None:
        self.of: dict[tuple[int | str, int | str], Thread] = {}
        self.operators: dict[tuple[str, bytes], Operator] = {}
        self.regions: dict[str, Work] = {}
        self.modules: dict[str, Work] = {}
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
        entry = self.operators.get((name, dims)) or self._new(name, dims)
        stack = thread.open
        while stack and (stack[-1][0] <= start or stack[-1][2] > start):
            stack.pop()
        if stack:
            end, parent, _ = stack[-1]
            parent.own -= dur if start + dur <= end else end - start
        else:
            self._outermost(thread, entry, start, start + dur)
        entry.calls += 1
        entry.total += dur
        entry.own += dur
        stack.append((start + dur, entry, start))
        if name in WAITING:
            self._asked(thread, entry, start, start + dur)

    def _new(self, name: str, dims: bytes) -> Operator:
        if dims and len(self.operators) >= MOST:
            dims = b""
        key = (name, dims)
        if key not in self.operators:
            self.shaped = self.shaped or bool(dims)
            text = "".join(dims.decode("utf-8", "replace").split()).replace(",", ", ")
            self.operators[key] = Operator(name, f"{text[:-1]}..." if len(dims) == CUT else text)
        return self.operators[key]

    def _outermost(self, thread: Thread, entry: Operator, start: int, end: int) -> None:
        if entry.name.startswith(kinds.AUTOGRAD):
            times = thread.backward
        else:
            times = thread.collective if entry.name.startswith(kinds.COLLECTIVES) else thread.outer
        _extend(times, start, end)
        if thread.frames:
            self._framed(thread, entry, start)

    def _asked(self, thread: Thread, entry: Operator, start: int, end: int) -> None:
        """The program asks for a value: on an accelerator it waits for it."""
        if len(thread.open) > 1 and thread.open[-2][1].name in WAITING:
            return
        _extend(thread.asks, start, end)
        if thread.frames and len(thread.open) > 1:
            self._framed(thread, entry, start)

    def _framed(self, thread: Thread, entry: Operator, start: int) -> None:
        frames = thread.frames
        while frames and frames[-1][0] <= start:
            frames.pop()
        if frames and frames[-1][1] and (frames[-1][1] in entry.frames or len(entry.frames) < MOST_FRAMES):
            entry.frames[frames[-1][1]] = entry.frames.get(frames[-1][1], 0) + 1

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
        """A call of Python, where stacks were recorded."""
        name = event.name
        if name.startswith(kinds.MODULE):
            _count(self.modules, name.removeprefix(kinds.MODULE), dur)
        self.framed = True
        frames = self.thread(event).frames
        while frames and frames[-1][0] <= start:
            frames.pop()
        own = frames[-1][1] if kinds.FOREIGN.match(name) and frames else name
        frames.append((start + dur, "" if kinds.FOREIGN.match(own) else own))


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
