"""The threads of the program: operators with their own time, and the part of a step each thread is in."""

from array import array
from bisect import bisect_right
from collections import deque
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from tdbg.traces.analyze.call_tree import FRAME, MODULE, OPERATOR, SPAN, THREAD, Calls, Node
from tdbg.traces.analyze.flops import CONVOLUTION, per_call
from tdbg.traces.analyze.span_nesting import Sums, find_parents, list_call_chain
from tdbg.traces.analyze.summary_figures import MAIN
from tdbg.traces.analyze.time_spans import Spans, union_spans
from tdbg.traces.parse import event_names
from tdbg.traces.summary import Operator, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.traces.analyze.span_nesting import Numbers
    from tdbg.traces.parse.event_stream import Args, Event

MOST = 20_000  # operators by name and shapes; then by name alone; of twice as many all others are one
CUT = 256  # letters of shapes
MOST_NAMES = 4_000  # names of regions, and of modules
MOST_STEPS = 10_000
MOST_THREADS = 1_000  # what the others do is told as that of one
MOST_OPEN = 10_000  # calls within calls, from one batch to the next
FOREVER = 1 << 62  # ns
MOST_FRAMES = 8  # lines of the program that one operator is called from
WAITING = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
ASKS, ZEROES, UPDATES = 1, 2, 3  # the program asks for a value, and on an accelerator waits for it; clears; updates
ZEROING = ("aten::zero_", "aten::_foreach_zero_")
MORE = "(more)"


class Thread:
    """One thread while it passes by: what is open now, its outermost operators, and spans as start, end, start, ..."""

    __slots__ = (
        *(
            "asks",
            "called",
            "collective",
            "coming",
            "cursor",
            "ends",
            "frames",
            "key",
            "loaded",
            "loader",
            "nodes",
            "noted",
        ),
        *("open", "optimizer", "path", "saves", "seen", "spans", "starts", "stepping", "updates", "which", "zeroing"),
    )

    def __init__(self, key: tuple[int | str, int | str], called: Node, noted: Node) -> None:
        self.key = key
        self.called, self.noted = called, noted  # all of it, by Python and by operators
        self.open: list[tuple[int, int, int]] = []  # start, end and number of operators; the outermost first
        self.nodes: list[Node] = []  # of those
        self.coming: deque[tuple[int, int, str]] = deque()  # start, end, name of spans that no operator is behind yet
        self.spans: list[tuple[int, Node]] = []  # end; spans that are open
        self.path: list[tuple[int, Node]] = []  # end; frames of the program and modules
        self.frames: list[tuple[int, str]] = []  # end, the innermost line of the program
        self.seen = 0
        self.starts, self.ends, self.which = array("q"), array("q"), array("q")  # each outermost operator, by number
        self.loaded = 0  # until when it has waited for a batch
        self.cursor = 0  # of them, how many are known to be called from where
        self.collective, self.loader, self.optimizer = (array("q") for _ in range(3))
        self.asks, self.saves, self.zeroing, self.stepping = (array("q") for _ in range(4))
        self.updates = array("q")  # number, start, end, ...: what may be an update of a parameter


class Threads:
    """All threads. Operators of a thread should come in the order of their start; ``disorder`` counts others.

    trees: also which operator called which.
    """

    def __init__(self, trees: bool = True) -> None:
        self.of: dict[tuple[int | str, int | str], Thread] = {}
        self.operators: list[Operator] = []
        self._known: dict[tuple[str, bytes], int] = {}
        self._calls, self._total, self._own = Sums(), Sums(), Sums()
        self._parts: list[str] = []  # of each operator, what its time is where nobody called it
        self._of_part: dict[str, Any] = {}  # of each part, which operators are of it
        self._noted: list[int] = []  # of each, whether its spans are kept
        self._marks = np.zeros(0, np.int64)  # the same as an array
        self.regions: dict[str, Work] = {}
        self.modules: dict[str, Work] = {}
        self.saves: dict[str, Work] = {}
        self.loads: dict[str, Work] = {}
        self.steps: list[tuple[int, int, int, Thread]] = []  # number, start, end
        self.marked = 0  # steps, those that found no room with them
        self.seen = 0  # operators
        self.disorder = 0
        self.last_step: int | None = None  # the window of `tdbg profile` ends with it
        self.until = (
            FOREVER  # its end: what comes after, the end of the window and a step that broke off, is not counted
        )
        self.framed = False
        self.shaped = False
        self.trees = trees
        self.nested, self.stacked = Calls(), Calls()
        self._each: list[int] = []  # floating-point operations of a call, by number

    def get_thread(self, event: "Event") -> Thread:
        """The thread of an event."""
        return self._get_thread_by_key((event.pid, event.tid))

    def _get_thread_by_key(self, key: tuple[int | str, int | str]) -> Thread:
        found = self.of.get(key)
        if found is None:
            if len(self.of) >= MOST_THREADS:
                key = ("", MORE)
            name = f"thread {key[1]}"
            called, noted = (tree.get_or_add_child(tree.root, name, THREAD) for tree in (self.stacked, self.nested))
            found = self.of.setdefault(key, Thread(key, called, noted))
        return found

    def add_operators(self, events: "Sequence[Event]", starts: "Numbers", durs: "Numbers") -> None:
        """Spans of category cpu_op. starts, durs: theirs, in ns. A trace has a million: about 1 us each."""
        if self.until < FOREVER:
            for which in (starts < self.until, starts >= self.until):
                some = list(compress(events, which))
                if some:
                    self._add_spans(some, starts[which], durs[which])
        else:
            self._add_spans(events, starts, durs)

    def _add_spans(self, events: "Sequence[Event]", starts: "Numbers", durs: "Numbers") -> None:
        """Some of them: all within the steps, or none."""
        self.seen += len(events)
        keys = [
            (
                one.name,
                b""
                if one.args is None
                else _build_shape_key(one.args)
                if one.name == CONVOLUTION
                else bytes(one.args.dims)[:CUT],
            )
            for one in events
        ]
        known: list[Any] = list(map(self._known.get, keys))
        if None in known:
            known = [
                self._add_operator(*key, one.args) if number is None else number
                for key, number, one in zip(keys, known, events, strict=True)
            ]
        numbers = np.array(known, np.int64)
        if starts[0] < self.until:
            self._calls.add_values(numbers, 1)
            self._total.add_values(numbers, durs)
            self._own.add_values(numbers, durs)
        places = [(one.pid, one.tid) for one in events]
        threads = dict.fromkeys(places)
        if len(threads) == 1:
            self._nest_operators(self.get_thread(events[0]), numbers, starts, durs)
            return
        of: dict[Thread, list[int]] = {}
        rows = {key: of.setdefault(self._get_thread_by_key(key), []) for key in threads}
        for at, place in enumerate(places):
            rows[place].append(at)
        for thread, which in of.items():
            self._nest_operators(thread, numbers[which], starts[which], durs[which])

    def _nest_operators(self, thread: Thread, numbers: "Numbers", starts: "Numbers", durs: "Numbers") -> None:
        """Those of one thread: who called whom, and what nobody called."""
        late = int(np.count_nonzero(starts[1:] < starts[:-1])) + (int(starts[0]) < thread.seen)
        self.disorder += late
        if late:
            order = np.lexsort((-durs, starts))
            numbers, starts, durs = numbers[order], starts[order], durs[order]
        thread.seen = int(starts[-1])
        counts = bool(starts[0] < self.until)
        if len(self._marks) < len(self._noted):
            self._marks = np.array(self._noted)
        noted = self._marks[numbers]
        if counts and noted.any():
            spans = np.column_stack((starts, starts + durs))
            thread.asks.frombytes(spans[noted == ASKS].tobytes())
            thread.zeroing.frombytes(spans[noted == ZEROES].tobytes())
            thread.updates.frombytes(np.column_stack((numbers, spans))[noted == UPDATES].tobytes())
        still = [one[0] <= starts[0] < one[1] for one in thread.open]
        before = list(compress(thread.open, still))
        opened = np.array(before, np.int64).reshape(-1, 3)
        starts = np.concatenate((opened[:, 0], starts))
        ends = np.concatenate((opened[:, 1], starts[len(before) :] + durs))
        numbers = np.concatenate((opened[:, 2], numbers))
        callers = find_parents(starts, ends)
        called = callers >= 0
        called[: len(before)] = False
        above = callers[called]
        if counts:
            self._own.add_values(numbers[above], starts[called] - np.minimum(ends[called], ends[above]))
        outermost = callers < 0
        outermost[: len(before)] = False
        for kept, found in ((thread.starts, starts), (thread.ends, ends), (thread.which, numbers)):
            kept.frombytes(found[outermost].tobytes())
        last = list_call_chain(callers, len(starts) - 1)[-MOST_OPEN:]
        thread.open = [(int(starts[at]), int(ends[at]), int(numbers[at])) for at in last]
        if self.trees and not counts:
            thread.nodes = [thread.noted] * len(thread.open)
        elif self.trees:
            nodes = list(compress(thread.nodes, still))
            self._attach_nodes(thread, nodes, numbers, starts, ends, callers)
            thread.nodes = [nodes[at] for at in last]

    def _attach_nodes(
        self,
        thread: Thread,
        nodes: list[Node],
        numbers: "Numbers",
        starts: "Numbers",
        ends: "Numbers",
        callers: "Numbers",
    ) -> None:
        """Give each operator its node in the tree. nodes: of those that were open; of all when it returns."""
        tree, operators, known = self.nested, self.operators, len(nodes)
        reach = int(ends[:known].max(initial=0))  # of the last outermost one
        columns = (one[known:].tolist() for one in (numbers, starts, ends, callers))
        for number, start, end, caller in zip(*columns, strict=True):
            if caller < 0:
                self._open_spans(thread, start, reach)
                above, reach = _find_innermost(thread.spans, start) or thread.noted, end
            else:
                above = nodes[caller]
            name = operators[number].name
            node = above.below.get(name) or tree.get_or_add_child(above, name, OPERATOR)
            node.calls += 1
            node.total += end - start
            nodes.append(node)

    def _open_spans(self, thread: Thread, until: int, reach: int = 0) -> None:
        """Give spans that begin by a time their nodes; not those within an operator, whose time is its already."""
        coming = thread.coming
        while coming and coming[0][0] <= until:
            start, end, name = coming.popleft()
            if start < reach:
                continue
            node = self.nested.get_or_add_child(_find_innermost(thread.spans, start) or thread.noted, name, SPAN)
            node.calls += 1
            node.total += end - start
            thread.spans.append((end, node))

    def _add_operator(self, name: str, dims: bytes, args: "Args | None") -> int:
        if len(self.operators) >= MOST:
            name, dims = name if len(self.operators) < 2 * MOST or (name, b"") in self._known else MORE, b""
        if (name, dims) not in self._known:
            self.shaped = self.shaped or bool(dims)
            shapes = bytes(args.dims)[:CUT] if args is not None and dims else b""
            text = "".join(shapes.decode("utf-8", "replace").split()).replace(",", ", ")
            self._each.append(per_call(name, bytes(args.dims), bytes(args.concrete)) if args and dims else 0)
            self._known[name, dims] = len(self.operators)
            self.operators.append(Operator(name, f"{text[:-1]}..." if len(shapes) == CUT else text))
            backward = name.startswith(event_names.AUTOGRAD)
            collective = not backward and name.startswith(event_names.COLLECTIVES)
            self._parts.append(
                event_names.BACKWARD if backward else event_names.COMMUNICATION if collective else event_names.FORWARD
            )
            self._noted.append(_classify_operator(name))
        return self._known[name, dims]

    def get_part_spans(self, thread: Thread, part: str) -> Spans:
        """When a thread was in outermost operators of one part: forward, backward or communication."""
        if not thread.which:
            return union_spans(thread.collective) if part == event_names.COMMUNICATION else union_spans([])
        which = np.frombuffer(thread.which, np.int64)
        of = self._of_part.get(part)
        if of is None or len(of) < len(self._parts):
            of = self._of_part[part] = np.array([one == part for one in self._parts])
        mask = of[which]
        starts, ends = (np.frombuffer(one, np.int64) for one in (thread.starts, thread.ends))
        found = union_spans(np.column_stack((starts, ends))[mask].reshape(-1))
        return found | union_spans(thread.collective) if part == event_names.COMMUNICATION else found

    def collect_updates(self) -> list[Work]:
        """Arithmetic inside of ``Optimizer.step``, by name: on one tensor in place, or on many together."""
        calls, total, count = Sums(), Sums(), len(self.operators)
        for thread in self.of.values():
            every = np.array(thread.updates, np.int64).reshape(-1, 3)
            every = every[union_spans(thread.stepping).contains_times(every[:, 1])]
            calls.add_values(every[:, 0], 1)
            total.add_values(every[:, 0], every[:, 2] - every[:, 1])
        found: dict[str, Work] = {}
        for one, called, time in zip(
            self.operators, calls.get_first_sums(count), total.get_first_sums(count), strict=True
        ):
            if called:
                kind = "loop" if one.name in event_names.ELEMENTWISE else "together"
                work = found.setdefault(one.name, Work(one.name, kind))
                work.calls += called
                work.total += time
        return list(found.values())

    def find_outermost_operator(self, thread: Thread, time: int) -> str:
        """The outermost operator that was open at a time; empty for none."""
        at = bisect_right(thread.starts, time) - 1
        return self.operators[thread.which[at]].name if at >= 0 and thread.ends[at] >= time else ""

    def add_annotation(self, event: "Event", start: int, dur: int) -> None:
        """A span that the program, torch or a library named."""
        name = event.name
        thread = self.get_thread(event)
        step = event_names.STEP.fullmatch(name)
        if step:
            if len(self.steps) < MOST_STEPS:
                self.steps.append((int(step[1]), start, start + dur, thread))
            self.marked += 1
            if self.until == FOREVER and int(step[1]) == self.last_step:
                self.until = start + dur
            return
        if name.startswith(event_names.LOADER):
            _append_span(thread.loader, start, start + dur)
        elif name.startswith(event_names.OPTIMIZERS):
            _append_span(thread.optimizer, start, start + dur)
            if name.startswith(event_names.OPTIMIZERS[0]):
                _append_span(thread.stepping, start, start + dur)
        elif name.startswith(event_names.COLLECTIVES):
            _append_span(thread.collective, start, start + dur)
        elif name.startswith(event_names.SAVES):
            if start < self.until and (not thread.saves or start > thread.saves[-1]):  # no save inside another
                _count_call(self.saves, name.removeprefix(event_names.SAVES), min(dur, self.until - start))
            _append_span(thread.saves, start, start + dur)
        if start >= self.until:
            return
        dur = min(dur, self.until - start)  # the window is closed within the last Optimizer.step
        _count_call(self.regions, name, dur)
        if not self.trees:
            return
        thread.coming.append((start, start + dur, name))
        if len(thread.coming) > MOST_OPEN:
            self._open_spans(thread, start)

    def add_frame(self, event: "Event", start: int, dur: int) -> None:
        """A call of Python, where stacks were recorded. torch writes them behind all operators of a trace."""
        self.framed = True
        if start >= self.until:
            return
        name, dur = event.name, min(dur, self.until - start)
        if name.startswith(event_names.MODULE):
            _count_call(self.modules, name.removeprefix(event_names.MODULE), dur)
        thread = self.get_thread(event)
        self._assign_callers(thread, start)
        frames = thread.frames
        while frames and frames[-1][0] <= start:
            frames.pop()
        foreign = event_names.FOREIGN.match(name)
        own = frames[-1][1] if foreign and frames else name
        own = "" if event_names.FOREIGN.match(own) else own
        frames.append((start + dur, own))
        if not foreign or name.startswith(event_names.MODULE):
            kind = MODULE if foreign else FRAME
            node = self.stacked.get_or_add_child(_find_innermost(thread.path, start) or thread.called, name, kind)
            node.calls += 1
            node.total += dur
            thread.path.append((start + dur, node))
        if ("save" in name or "fsync" in name) and event_names.SAVE.search(name):
            if not thread.saves or start > thread.saves[-1]:  # no call inside another
                _count_call(self.saves, f"{event_names.short_frame(name)}{f' from {own}' if own else ''}", dur)
            _append_span(thread.saves, start, start + dur)
        elif own and "dataloader" in name and event_names.NEXT_BATCH.search(name) and start >= thread.loaded:
            _count_call(self.loads, own, dur)
            thread.loaded = start + dur

    def _assign_callers(self, thread: Thread, until: int) -> None:
        """Tell the outermost operators that began before a time where they were called from."""
        frames, starts = thread.frames, thread.starts
        while thread.cursor < len(starts) and starts[thread.cursor] < until:
            while frames and frames[-1][0] <= starts[thread.cursor]:
                frames.pop()
            at = thread.cursor
            entry = self.operators[thread.which[at]]
            above = _find_innermost(thread.path, starts[at]) or thread.called
            node = self.stacked.get_or_add_child(above, entry.name, OPERATOR)
            node.calls += 1
            node.total += thread.ends[at] - starts[at]
            if frames and frames[-1][1] and (frames[-1][1] in entry.frames or len(entry.frames) < MOST_FRAMES):
                entry.frames[frames[-1][1]] = entry.frames.get(frames[-1][1], 0) + 1
            thread.cursor += 1

    def finalize_totals(self) -> None:
        """After the last event."""
        count = len(self.operators)
        sums = (self._calls.get_first_sums(count), self._total.get_first_sums(count), self._own.get_first_sums(count))
        for operator, calls, total, own in zip(self.operators, *sums, strict=True):
            operator.calls, operator.total, operator.own = calls, total, own
        for operator, each in zip(self.operators, self._each, strict=True):
            operator.flops = operator.calls * each
        for _, _, _, main in self.steps[:1]:
            main.called.name = main.noted.name = MAIN
        for thread in self.of.values():
            self._open_spans(thread, FOREVER, max(thread.ends[-1:], default=0))
            if self.framed:
                self._assign_callers(thread, self.until)
            for node in (thread.called, thread.noted):
                node.total = sum(below.total for below in node.below.values())


def _classify_operator(name: str) -> int:
    """What an operator is noted for, if it is."""
    if name in WAITING:
        return ASKS
    if name in ZEROING:
        return ZEROES
    return UPDATES if name in event_names.ELEMENTWISE or name.startswith(event_names.TOGETHER) else 0


def _build_shape_key(args: "Args") -> bytes:
    """Shapes of a convolution and its strides: both tell how much it has to do."""
    return bytes(args.dims)[:CUT] + bytes(args.concrete)[:CUT]


def _find_innermost(opened: list[tuple[int, Node]], time: int) -> Node | None:
    """What is open at a time; what has ended by then is forgotten."""
    while opened and opened[-1][0] <= time:
        opened.pop()
    return opened[-1][1] if opened else None


def _count_call(of: dict[str, Work], name: str, dur: int) -> None:
    found = of.get(name)
    if found is None:
        name = name if len(of) < MOST_NAMES else MORE
        found = of.setdefault(name, Work(name))
    found.calls += 1
    found.total += dur


def _append_span(times: "array[int]", start: int, end: int) -> None:
    """Add a span; where it begins inside the last one, that one grows."""
    if times and times[-2] <= start <= times[-1]:
        if end > times[-1]:
            times[-1] = end
        return
    times.append(start)
    times.append(end)
