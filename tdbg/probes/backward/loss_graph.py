"""What a loss is computed from: one bounded walk over the graph of autograd that it is sent backward with."""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from tdbg.core.observations.backward import GraphFault, LossGraph
from tdbg.runtime.torch_compat import output_shape, saved_dim

MAX_NODES = 512  # from the loss on; 2 us each
MAX_HOPS = 16  # past casts and changes of shape
MAX_SHOWN = 8
NLL = ("NllLossBackward0", "NllLoss2DBackward0")
POINTWISE = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0")  # their loss functions broadcast
REDUCTIONS = ("MeanBackward0", "SumBackward0")
ELEMENTWISE = (
    *("PowBackward0", "AbsBackward0", "NegBackward0", "SqrtBackward0", "MulBackward0", "DivBackward0"),
    *("LogBackward0", "Log1PBackward0", "CoshBackward0", "ClampBackward0", "ClampMinBackward0", "ToCopyBackward0"),
)
SCALINGS = ("MulBackward0", "DivBackward0", "ToCopyBackward0")  # of a loss, by a constant
NEGATION = "NegBackward0"
CASTS = ("ToCopyBackward0", "CloneBackward0", "AliasBackward0", "_DDPSinkBackward")
RESHAPES = (
    *("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "PermuteBackward0"),
    *("TBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "SliceBackward0", "SelectBackward0"),
    "IndexBackward0",
)
# From (N, 1) to (N) and back: where these stand before a difference, a table of all pairs may be meant.
MAKES_COLUMNS = (
    *("UnsqueezeBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0"),
    *("TBackward0", "PermuteBackward0", "ExpandBackward0"),
)
FLATTENS = ("SqueezeBackward0", "SqueezeBackward1", "SelectBackward0", "ViewBackward0", "ReshapeAliasBackward0")
MEAN = 1  # of torch's numbers for reductions


class _Edge(NamedTuple):
    """One output of an operation: the node of its backward, and which output."""

    node: Any
    number: int

    @property
    def name(self) -> str:
        return str(self.node.name())

    @property
    def shape(self) -> tuple[int, ...]:
        """() also where it is not known."""
        return output_shape(self.node, self.number) or ()

    def list_inputs(self) -> "list[_Edge | None]":
        return [None if node is None else _Edge(node, number) for node, number in self.node.next_functions]

    def find_input(self, index: int = 0) -> "_Edge | None":
        """What the operation got as one of its inputs; None where that needs no gradient."""
        inputs = self.list_inputs()
        return inputs[index] if index < len(inputs) else None


def read_loss_graph(loss: Tensor) -> LossGraph:
    """What the loss comes from. Nothing of the graph is held after it, and no saved tensor is read.

    A saved tensor may be unpacked by a hook of the program's, which would run code of its own.
    """
    root = _Edge(loss.grad_fn, loss.output_nr)
    faults: list[GraphFault] = []
    for edge in _walk_graph(root):
        found = _find_fault(edge)
        if found is not None and found not in faults:
            faults.append(found)
    names: list[str] = []
    below: _Edge | None = root
    while below is not None and len(names) < MAX_SHOWN:
        names.append(_operation_name(below))
        below = below.find_input()
    classes, is_negated = _count_classes(root)
    return LossGraph(operations=names, classes=classes, negated=is_negated or None, faults=faults[:MAX_SHOWN])


def _walk_graph(root: _Edge) -> Iterator[_Edge]:
    """The operations from the loss on, the nearest first."""
    seen, waiting = {root.node}, deque([root])
    while waiting:
        edge = waiting.popleft()
        yield edge
        for below in edge.list_inputs():
            if below is not None and below.node not in seen and len(seen) < MAX_NODES:
                seen.add(below.node)
                waiting.append(below)


def _skip_operations(edge: _Edge | None, names: tuple[str, ...]) -> _Edge | None:
    """The first operation, going back from here, that does more than these do."""
    for _ in range(MAX_HOPS):
        if edge is None or edge.name not in names:
            return edge
        at = edge.number if edge.name == "_DDPSinkBackward" else 0
        edge = edge.find_input(at)
    return None


def _find_fault(edge: _Edge) -> GraphFault | None:
    name = edge.name
    if name == "LogSoftmaxBackward0":
        return _find_activation(edge, ("SoftmaxBackward0",))
    if name == "BinaryCrossEntropyWithLogitsBackward0":
        return _find_activation(edge, ("SigmoidBackward0", "SoftmaxBackward0"))
    if name in NLL:
        return _find_misplaced_softmax(edge)
    if name in POINTWISE:
        return _find_batch_softmax(edge) or _find_broadcast(edge, edge.find_input())
    if name == "BinaryCrossEntropyBackward0":
        return _find_batch_softmax(edge)
    if name in REDUCTIONS:
        return _find_difference(edge)
    return None


def _find_activation(edge: _Edge, names: tuple[str, ...]) -> GraphFault | None:
    """An activation that the loss function applies itself."""
    below = _skip_operations(edge.find_input(), (*CASTS, *RESHAPES))
    if below is None or below.name not in names:
        return None
    return _make_fault("twice", edge, below)


def _find_misplaced_softmax(edge: _Edge) -> GraphFault | None:
    """A softmax over another dimension than that of the classes, or without a logarithm."""
    below = _skip_operations(edge.find_input(), CASTS)
    if below is not None and below.name == "LogBackward0":
        below = _skip_operations(below.find_input(), CASTS)
    elif below is not None and below.name == "SoftmaxBackward0":
        return _make_fault("probabilities", edge, below)
    if below is None or below.name not in ("LogSoftmaxBackward0", "SoftmaxBackward0") or len(below.shape) < 2:
        return None
    return _make_fault("batch", edge, below) if saved_dim(below.node) == 0 else None


def _find_batch_softmax(edge: _Edge) -> GraphFault | None:
    """A softmax over the rows of what a linear layer puts out, straight into a loss."""
    below = _skip_operations(edge.find_input(), CASTS)
    if below is None or below.name != "SoftmaxBackward0" or len(below.shape) != 2 or min(below.shape) < 2:
        return None
    layer = _skip_operations(below.find_input(), CASTS)
    if layer is None or layer.name != "AddmmBackward0" or saved_dim(below.node) != 0:
        return None
    return _make_fault("batch", edge, below)


def _find_difference(edge: _Edge) -> GraphFault | None:
    """Under a mean or sum over everything: a difference that broadcasting has made a square of."""
    below = edge.find_input()
    square = below.shape if below is not None else ()
    if edge.shape or len(square) != 2 or square[0] != square[1] or square[0] < 2:
        return None
    for _ in range(MAX_HOPS):
        if below is None or below.shape != square:
            return None
        if below.name == "SubBackward0":
            graded = [one for one in below.list_inputs() if one is not None]
            return _find_broadcast(below, graded[0]) if len(graded) == 1 else None
        if below.name not in ELEMENTWISE or len([one for one in below.list_inputs() if one is not None]) != 1:
            return None
        below = next(one for one in below.list_inputs() if one is not None)
    return None


def _find_broadcast(edge: _Edge, given: _Edge | None) -> GraphFault | None:
    """(N, 1) and (N) made (N, N). The other operand needs no gradient, and so has no node to tell its shape."""
    is_function = edge.name in POINTWISE
    square = given.shape if is_function and given is not None else edge.shape
    if given is not None and given.name == "ExpandBackward0":
        given, is_function = given.find_input(), True
    if given is None or len(square) != 2 or square[0] != square[1] or square[0] < 2:
        return None
    count = square[0]
    if given.shape not in ((count, 1), (count,)):
        return None
    certain = is_function or given.name not in MAKES_COLUMNS
    if not is_function and given.shape == (count,):
        before = given.find_input() if given.name in FLATTENS else None
        certain = before is not None and before.shape == (count, 1)
    return {**_make_fault("broadcast", edge, given), "into": list(square), "certain": certain}


def _make_fault(kind: str, edge: _Edge, given: _Edge) -> GraphFault:
    return {
        "kind": kind,
        "loss": _operation_name(edge),
        "given": _operation_name(given),
        "shape": list(given.shape),
        "certain": True,
    }


def _count_classes(root: _Edge) -> tuple[int | None, bool]:
    """Over how many classes a mean cross-entropy is, which the loss is as a whole, but for a constant factor and its
    sign; and whether that is turned.
    """
    edge: _Edge | None = root
    is_negated = False
    while edge is not None and edge.name in (*SCALINGS, NEGATION):
        is_negated ^= edge.name == NEGATION
        graded = [one for one in edge.list_inputs() if one is not None]
        edge = graded[0] if len(graded) == 1 else None
    if edge is None or edge.name not in NLL or getattr(edge.node, "_saved_reduction", None) != MEAN:
        return None, False
    below = _skip_operations(edge.find_input(), (*CASTS, *RESHAPES))
    if below is None or below.name != "LogSoftmaxBackward0":
        return None, False
    dim = saved_dim(below.node)
    return (below.shape[dim], is_negated) if dim is not None else (None, False)


def _operation_name(edge: _Edge) -> str:
    """``SoftmaxBackward0`` as the operation is called: ``Softmax``."""
    return edge.name.rpartition("::")[2].rpartition("Backward")[0] or edge.name.rpartition("::")[2]
