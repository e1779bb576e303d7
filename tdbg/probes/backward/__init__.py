"""BACKWARD: how much gradient reaches each module."""

import math
from typing import Any

from torch import Tensor

from tdbg.core.events import number
from tdbg.core.observations.backward import LossGraph, ModuleGradients
from tdbg.probes import PROBES, Probe
from tdbg.probes.backward.loss_graph import read_loss_graph
from tdbg.probes.forward import round_number
from tdbg.runtime.compiler import is_capturing
from tdbg.runtime.listener import LATER_STEPS
from tdbg.runtime.module_sampler import STRIDE, ModuleSampler, SampleRequest, Seen

MAX_NAMES = 8
GRAPH_STEPS = 3  # the first ones of the run, and of each later look, in which the graphs of losses are looked at
MAX_GRAPHS = 12
GRAPHS = "loss-graphs"  # the work that their cost is remembered by


@PROBES.add
class Backward(Probe):
    """The L2 norm of the gradient at each module's output: the flow from the loss back to the first layer.

    Reads:  the gradient that arrives at the output of every module, on steps that are sampled (`ModuleSampler`); in
            the first 3 steps, of the run and of each later look, the graph of each loss that is sent backward, at
            most 512 nodes of it.
    Emits:  one line and one observation a looked-at step; the names once, and again when they change. Without the
            flag at every other step; below level extreme, the first and the last layer and six modules in turn.
            LOSS for each kind of loss: the operations it comes from.
    Cost:   one reduction a module; at most 1 ms a graph, 12 times.
    Limits: with GradScaler the norms are divided by the scale of the step. A module whose output needs no
            gradient has none; compiled models are run eagerly on those steps, with the flag.
    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural
            networks", section 4: back-propagated gradients layer by layer.
    """

    name = "backward"
    levels = ("advanced", "extreme")
    comes_back = LATER_STEPS
    observations = (ModuleGradients, LossGraph)

    def attach(self) -> None:
        self._keys: dict[int, tuple[str, ...]] = {}  # by turn
        self._graphs = 0  # looked at
        self._kinds: set[str] = set()  # of losses
        begin = self.monitor.step if self.monitor.inspection.is_repeat_open else 0
        self._graphs_until = begin + GRAPH_STEPS
        if self.monitor.step < self._graphs_until:
            self.patch_at("backward", before=self._backward_begins)

    def forked(self) -> None:
        self._graphs, self._kinds, self._graphs_until = 0, set(), GRAPH_STEPS

    def _backward_begins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Before the graph is freed. The loss may be that of any model of the program."""
        if self.monitor.step >= self._graphs_until or self._graphs >= MAX_GRAPHS:
            self.patches.restore()
            return
        loss = args[0] if args else kwargs.get("tensors")
        if type(loss) is not Tensor or loss.numel() != 1 or loss.grad_fn is None or is_capturing():
            return
        if not self.should_sample(GRAPHS):
            return
        self._graphs += 1
        with self.work(GRAPHS):
            seen = read_loss_graph(loss)
        kind = seen.text()
        if kind not in self._kinds:
            self._kinds.add(kind)
            seen.suffix = f"_{len(self._kinds)}" if len(self._kinds) > 1 else ""
            self.emit(seen, step=self.monitor.step + 1)

    def changed(self) -> None:
        asked = bool(self.flags)
        every = asked or self.monitor.settings.level == "extreme"
        stride = STRIDE if self.by_level_alone and not self.monitor.level_overrides.temporary else 1
        self.monitor.modules.request(
            self, SampleRequest(backward=True, every=every, stride=stride, exact=asked, force_eager=asked)
        )

    def detach(self) -> None:
        self.monitor.modules.withdraw_request(self)
        super().detach()

    def modules_seen(self, look: ModuleSampler) -> None:
        if look.ends_in_backward:
            self.unavailable("an optimizer steps inside the backward pass, before every gradient has arrived")
            return
        scaler = self.monitor.find_probe("loss-scaler")
        scale = (scaler.scale_now() if scaler is not None else None) or 1.0
        rows = look.seen
        flows = [None if row.grad_norm is None else row.grad_norm / scale for row in rows]
        reached = [(row, flow) for row, flow in zip(rows, flows, strict=True) if flow is not None and row.leaf]
        if not reached:
            self.unavailable("no gradient arrived at any module's output")
            return
        bad = [row.path for row, flow in reached if not math.isfinite(flow)]
        unreached = [row.path for row in rows if row.leaf and row.place.trainable and row.graded and not row.reached]
        (first, first_flow), (last, last_flow) = reached[0], reached[-1]
        vanishes = math.isfinite(last_flow) and first_flow < self.threshold("ratio") * last_flow
        seen = ModuleGradients(
            flow=[round_number(flow) for flow in flows],
            first=number(first_flow),
            last=number(last_flow),
            first_module=first.path,
            last_module=last.path,
            **look.describe_turn(),
            **self._build_module_names(rows, look.turn),
            vanishes=vanishes or None,
            bad=bad[:MAX_NAMES] or None,
            bad_count=len(bad),
            unreached=unreached[:MAX_NAMES] or None,
        )
        self.emit(seen, step=look.step)

    def _build_module_names(self, rows: list[Seen], turn: int) -> dict[str, Any]:
        key = tuple(row.path for row in rows)
        if key == self._keys.get(turn):
            return {}
        self._keys[turn] = key
        return {"modules": list(key)}
