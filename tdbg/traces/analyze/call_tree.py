"""A tree of calls of bounded size, summed while the events of a trace stream by."""

import heapq
import itertools
from collections.abc import Iterator

from tdbg.traces.summary import Flame

MOST = 20_000  # nodes while they grow
KEPT = 4_000  # nodes of a summary
DEEP = 120  # calls within calls
LETTERS = 400  # of a name

# What a node stands for.
FRAME, MODULE, OPERATOR, SPAN, THREAD = "f", "m", "o", "s", "t"


class Node:
    """All calls of one name from one place."""

    __slots__ = ("below", "calls", "depth", "kind", "name", "total")

    def __init__(self, name: str, kind: str, depth: int) -> None:
        self.name, self.kind, self.depth = name, kind, depth
        self.calls = self.total = 0
        self.below: dict[str, Node] = {}


class Calls:
    """One tree. What finds no room in it counts as its caller's own time: ``lost`` has those calls."""

    def __init__(self) -> None:
        self.root = Node("", THREAD, 0)
        self.lost = Node("", THREAD, DEEP)
        self.size = 0

    def get_or_add_child(self, parent: Node, name: str, kind: str) -> Node:
        """The node of this name below another one; a new one if there is room."""
        found = parent.below.get(name)
        return found if found is not None else self._add_child(parent, name, kind)

    def _add_child(self, parent: Node, name: str, kind: str) -> Node:
        if self.size >= MOST or parent.depth >= DEEP:
            return self.lost
        self.size += 1
        node = parent.below[name] = Node(name[:LETTERS], kind, parent.depth + 1)
        return node

    def build_flame(self, kind: str) -> Flame:
        """What is kept of it: the nodes with most time, each with those above it."""
        kept, numbers = Flame(kind, cut=self.lost.calls), {"": 0}
        kept.names.append("")
        waiting: list[tuple[int, int, int, Node]] = []  # minus its time, its place among all, its parent's number
        places = itertools.count()
        _push_children(waiting, self.root, -1, places)
        while waiting and len(kept.parents) < KEPT:
            _, _, parent, node = heapq.heappop(waiting)
            if node.name not in numbers:
                numbers[node.name] = len(kept.names)
                kept.names.append(node.name)
            kept.which.append(numbers[node.name])
            kept.parents.append(parent)
            kept.kinds += node.kind
            kept.calls.append(node.calls)
            kept.totals.append(node.total)
            _push_children(waiting, node, len(kept.parents) - 1, places)
        kept.cut += sum(node.calls for *_, node in waiting)
        return kept


def _push_children(waiting: list[tuple[int, int, int, Node]], node: Node, number: int, places: Iterator[int]) -> None:
    for below in node.below.values():
        heapq.heappush(waiting, (-below.total, next(places), number, below))
