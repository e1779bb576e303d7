"""The threads of the program: operators with their own time, and what part of a step each thread is in."""

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from tdbg.traces import kinds
from tdbg.traces.calls import FRAME, MODULE, OPERATOR, SPAN, THREAD, Calls, Node
from tdbg.traces.flops import CONVOLUTION, per_call
from tdbg.traces.summary import Operator, Work

if TYPE_CHECKING:
    from tdbg.traces.stream import Args, Event

MOST = 20_000  # operators by name and shapes; then by name alone
CUT = 256  # letters of shapes
MOST_NAMES = 4_000  # names of regions, and of modules
MOST_FRAMES = 8  # lines of the program that one operator is called from
WAITING = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
MORE = "(more)"


class Thread:
    """One thread while it passes by: what is open now, and its outermost operators as start, end, start, end, ..."""

    __slots__ = (
        *("asks", "backward", "called", "collective", "cursor", "ends", "frames", "key", "loader", "noted", "open"),
        *("optimizer", "outer", "path", "seen", "spans", "starts", "which"),
    )

    def __init__(self, key: tuple[int | str, int | str], called: Node, noted: Node) -> None:
        self.key = key
        self.called, self.noted = called, noted  # all of it, by Python and by operators
        self.open: list[tuple[int, Operator, int, Node]] = []  # end, operator, start
        self.spans: list[tuple[int, Node]] = []  # end
        self.path: list[tuple[int, Node]] = []  # end; frames of the program and modules
        self.frames: list[tuple[int, str]] = []  # end, the innermost line of the program
        self.seen = 0
        self.starts, self.ends, self.which = array("q"), array("q"), array("l")  # each outermost operator, by number
        self.cursor = 0  # of them, how many are known to be called from where
        self.outer, self.backward, self.collective, self.loader, self.optimizer, self.asks = (
            array("q") for _ in range(6)
        )


class Threads:
    """All threads. Events of a thread and category must come in the order of their start; ``disorder`` counts others."""

    def __init__(self) -> None:
        self.of: dict[tuple[int | str, int | str], Thread] = {}
        self.operators: list[Operator] = []
        self._known: dict[tuple[str, bytes], tuple[Operator, int]] = {}
        self.regions: dict[str, Work] = {}
        self.modules: dict[str, Work] = {}
        self.steps: list[tuple[int, int, int, Thread]] = []  # number, start, end
        self.disorder = 0
        self.framed = False
        self.shaped = False
        self.nested, self.stacked = Calls(), Calls()
        self._each: list[int] = []  # floating-point operations of a call, by number

    def thread(self, event: "Event") -> Thread:
        """The thread of an event."""
        key = (event.pid, event.tid)
        found = self.of.get(key)
        if found is None:
            name = f"thread {event.tid}"
            called, noted = (tree.below(tree.root, name, THREAD) for tree in (self.stacked, self.nested))
            found = self.of[key] = Thread(key, called, noted)
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
        if name == CONVOLUTION and args is not None:
            dims += bytes(args.concrete)[:CUT]  # strides: how much it has to do
        entry, number = self._known.get((name, dims)) or self._new(name, dims, args)
        stack = thread.open
        while stack and (stack[-1][0] <= start or stack[-1][2] > start):
            stack.pop()
        if stack:
            end, parent, _, above = stack[-1]
            parent.own -= dur if start + dur <= end else end - start
        else:
            self._outermost(thread, number, start, start + dur)
            above = _innermost(thread.spans, start) or thread.noted
        entry.calls += 1
        entry.total += dur
        entry.own += dur
        node = above.below.get(name) or self.nested.below(above, name, OPERATOR)
        node.calls += 1
        node.total += dur
        stack.append((start + dur, entry, start, node))
        if name in WAITING:  # the program asks for a value: on an accelerator it waits for it
            _extend(thread.asks, start, start + dur)

    def _new(self, name: str, dims: bytes, args: "Args | None") -> tuple[Operator, int]:
        if dims and len(self.operators) >= MOST:
            dims = b""
        if (name, dims) not in self._known:
            self.shaped = self.shaped or bool(dims)
            shapes = bytes(args.dims)[:CUT] if args is not None and dims else b""
            text = "".join(shapes.decode("utf-8", "replace").split()).replace(",", ", ")
            self._known[name, dims] = (
                Operator(name, f"{text[:-1]}..." if len(shapes) == CUT else text),
                len(self._known),
            )
            self.operators.append(self._known[name, dims][0])
            self._each.append(per_call(name, bytes(args.dims), bytes(args.concrete)) if args and dims else 0)
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
        if not thread.open or thread.open[-1][0] <= start:
            self._nest(thread, name, start, dur)

    def _nest(self, thread: Thread, name: str, start: int, dur: int) -> None:
        node = self.nested.below(_innermost(thread.spans, start) or thread.noted, name, SPAN)
        node.calls += 1
        node.total += dur
        thread.spans.append((start + dur, node))

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
        foreign = kinds.FOREIGN.match(name)
        own = frames[-1][1] if foreign and frames else name
        frames.append((start + dur, "" if kinds.FOREIGN.match(own) else own))
        if not foreign or name.startswith(kinds.MODULE):
            kind = MODULE if foreign else FRAME
            node = self.stacked.below(_innermost(thread.path, start) or thread.called, name, kind)
            node.calls += 1
            node.total += dur
            thread.path.append((start + dur, node))

    def _place(self, thread: Thread, until: int) -> None:
        """Tell the outermost operators that began before a time where they were called from."""
        frames, starts = thread.frames, thread.starts
        while thread.cursor < len(starts) and starts[thread.cursor] < until:
            while frames and frames[-1][0] <= starts[thread.cursor]:
                frames.pop()
            at = thread.cursor
            entry = self.operators[thread.which[at]]
            above = _innermost(thread.path, starts[at]) or thread.called
            node = self.stacked.below(above, entry.name, OPERATOR)
            node.calls += 1
            node.total += thread.ends[at] - starts[at]
            if frames and frames[-1][1] and (frames[-1][1] in entry.frames or len(entry.frames) < MOST_FRAMES):
                entry.frames[frames[-1][1]] = entry.frames.get(frames[-1][1], 0) + 1
            thread.cursor += 1

    def end(self) -> None:
        """After the last event."""
        for _, _, _, main in self.steps[:1]:
            main.called.name = main.noted.name = "the program's thread"
        for thread in self.of.values():
            if self.framed:
                self._place(thread, 1 << 62)
            for node in (thread.called, thread.noted):
                node.total = sum(below.total for below in node.below.values())
        for operator, each in zip(self.operators, self._each, strict=True):
            operator.flops = operator.calls * each


def _innermost(opened: list[tuple[int, Node]], time: int) -> Node | None:
    """What is open at a time; what has ended by then is forgotten."""
    while opened and opened[-1][0] <= time:
        opened.pop()
    return opened[-1][1] if opened else None


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
