"""The gradients of this rank alone, looked at after each backward, before they are reduced over the ranks.

After the reduction every rank holds the same NaN, and one step later every rank has it in its weights: only here can a
rank know that a value is its own. DDP copies the reduced gradients back in a final callback of the backward pass; ours
is queued before it and sees what this rank made. FSDP2 reduces group by group, so the look stands before each group.
Where gradients are reduced in place while backward runs (buckets as views), each is looked at as it is accumulated.
"""

import math
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from tdbg.core.guard import Guard
from tdbg.runtime import tensors
from tdbg.runtime.alarm import Alarm
from tdbg.runtime.budget import ALWAYS_STEPS, Budget
from tdbg.runtime.compiler import hide_from_compiler
from tdbg.runtime.dispatcher import ProbeDispatcher
from tdbg.runtime.optimizers import Optimizers
from tdbg.runtime.own_hooks import HookHandle, add_accumulation_hook, add_gradient_hook
from tdbg.runtime.rerun_alone import count_ranks
from tdbg.runtime.root_modules import Names
from tdbg.runtime.root_search import RootSearch
from tdbg.runtime.state import State
from tdbg.runtime.tensors import Bad, find_bad_values, is_sharded, to_local_part
from tdbg.runtime.torch_compat import after_backward, compiles_backward

# These reduce gradients in place as they arrive, in ways nobody here can see.
UNSEEN_REDUCERS = ("horovod", "deepspeed")
LARGEST_SHARE = 0.1  # of a step's time: above it, ranks look at every second, fourth, ... step
CREEP = 1.05  # so fast does the usual cost follow looks that were dearer
FIRST_BUCKET_BYTES = 1 << 20  # DDP's first bucket; a model that fits into it is reduced at once


Of = TypeVar("Of")  # what is read


@dataclass(slots=True)
class _Own:
    """A gradient of this rank that is not finite."""

    name: str
    bad: Bad


class LocalGradients:
    """Says which gradients of this rank are not finite, before anybody else's could have made them so.

    Only where there are several ranks: it looks after every backward, its cost is counted and not left to sampling.
    Under GradScaler an Inf is the scaler's business. Values on an accelerator are not read: that would wait for it.
    strict: the user named a budget, and where it is used up nothing is looked at.
    """

    def __init__(
        self,
        state: State,
        budget: Budget,
        dispatcher: ProbeDispatcher,
        optimizers: Optimizers,
        search: RootSearch,
        alarm: Alarm,
        *,
        strict: bool,
    ) -> None:
        self._state = state
        self._budget = budget
        self._dispatcher = dispatcher
        self._optimizers = optimizers
        self._search = search
        self._alarm = alarm
        self._strict = strict
        self._guard = Guard("local-gradients", dispatcher.handle_failure)
        self.finite_at = 0  # the last step after whose backward all of this rank's own gradients were finite
        self._parameters: list[weakref.ref[Tensor]] = []  # the program may let its model go
        self._key: tuple[object, ...] = ()
        self._views = False  # DDP reduces them in place
        self._each: list[HookHandle] = []  # handles of the hooks on single parameters
        self._last_arrived: weakref.ref[Tensor] | None = None  # while it is being learnt which that is
        self._one_bucket = False  # all gradients are reduced together, when the last of them is there
        self._running = False  # a backward that is looked at
        self._read_s = 0.0
        self._usual_s = 0.0  # what a look costs, unmoved by single ones that the machine held up
        self._seen = 0  # gradients looked at in this backward
        self._own: list[_Own] = []

    @property
    def ranks(self) -> int:
        """How many ranks reduce with this one; known before the first step ends."""
        if self._state.world_size > 1:
            return self._state.world_size
        return self._state.world_size if self._state.step else count_ranks()

    # around a backward

    def begin_backward(self, losses: object) -> HookHandle | None:
        """Backward is about to run: have its gradients looked at. Returns what `end_backward` takes, None for no look."""
        begun = time.perf_counter()
        handle = self._guard.call_guarded(self._start_watch, losses, begun)
        self._budget.spend_on_checks("local_gradients", time.perf_counter() - begun)
        return handle

    def _start_watch(self, losses: object, begun: float) -> HookHandle | None:
        if not self._is_due(begun):
            return None
        root = _first_graded(losses)
        if root is None:
            return None
        self._select_parameters()
        self._own, self._seen, self._read_s, self._running = [], 0, 0.0, True
        self._last_arrived = None
        return add_gradient_hook(root, self._backward_begun)

    def end_backward(self, handle: HookHandle, returned: bool) -> None:
        """Backward is over; the update has not begun, so the weights are those of the forward pass."""
        begun = time.perf_counter()
        self._running = False
        handle.remove()
        self._guard.call_guarded(self._finish_watch, returned)
        seconds = self._read_s + time.perf_counter() - begun
        if self._read_s > 0.0:
            self._usual_s = min(self._read_s, self._usual_s * CREEP or self._read_s)
        self._budget.spend_on_checks("local_gradients", seconds)

    def _finish_watch(self, returned: bool) -> None:
        if self._own:
            own, self._own = self._own, []
            if returned:
                self._alarm.bad_local(self._in_order(own))
        elif returned and self._seen:
            if self._last_arrived is not None:
                self._settle_hooks(self._last_arrived())
            self.finite_at = self._state.step + 1

    def _is_due(self, now: float) -> bool:
        state = self._state
        if state.bad_seen or state.quiet or state.scaling or self.ranks < 2:
            return False
        if self._strict and self._budget.own_s + self._budget.checked_s > self._budget.earned_s(now):
            return False
        if compiles_backward() or any(name in sys.modules for name in UNSEEN_REDUCERS):
            return False
        step = state.step + 1
        step_s = (now - self._budget.start) / step
        return step <= ALWAYS_STEPS or step % self._budget.stride_of(self._usual_s, LARGEST_SHARE * step_s) == 0

    # what is looked at

    def _select_parameters(self) -> None:
        """The parameters whose gradients count, anew when an optimizer comes or changes its groups."""
        key = tuple(
            (id(optimizer), *((len(held := group["params"]), *map(id, held[:1])) for group in optimizer.param_groups))
            for optimizer in self._optimizers
        )
        if key == self._key:
            return
        self.detach()
        self._key = key
        held = {id(p): p for optimizer in self._optimizers for g in optimizer.param_groups for p in g["params"]}
        looked_at = [p for p in held.values() if not is_sharded(p) and tensors.on_host(p)]
        self._parameters = [weakref.ref(p) for p in looked_at]
        roots = self._search.trained_roots()
        viewing = [root for root in roots if getattr(root, "gradient_as_bucket_view", False) is True]
        self._views = bool(viewing)
        room = min([FIRST_BUCKET_BYTES, *(getattr(root, "bucket_bytes_cap", 0) for root in viewing)])
        self._one_bucket = sum(p.nbytes for p in looked_at) <= room
        if self._views and self.ranks > 1:
            self._each = [add_accumulation_hook(p, self._on_gradient_accumulated) for p in looked_at if p.requires_grad]

    def detach(self) -> None:
        """Take the hooks on single parameters away."""
        self._key = ()
        for handle in self._each:
            handle.remove()
        self._each = []

    def __len__(self) -> int:
        return len(self._each)

    @hide_from_compiler
    def _backward_begun(self, grad: Tensor | None) -> None:
        """The first gradient of a backward pass is there: ours is the first of its final callbacks."""
        if self._running:
            self._guard.call_guarded(after_backward, self._backward_done)

    @hide_from_compiler
    def _backward_done(self) -> None:
        """All gradients of this rank are there, and DDP has not copied the reduced ones back."""
        if self._running and not self._views:
            self._guard.call_guarded(self._look_timed, self._read_all, None)

    @hide_from_compiler
    def _on_gradient_accumulated(self, parameter: Tensor) -> None:
        """One gradient is there, and no reducer has had it."""
        if not self._running:
            return
        if self._one_bucket:
            self._last_arrived = weakref.ref(parameter)
        self._guard.call_guarded(self._look_timed, self._read_gradients, [parameter])

    @hide_from_compiler
    def _last_accumulated(self, parameter: Tensor) -> None:
        """The last gradient of the only bucket is there: its reduction comes next."""
        if self._running:
            self._guard.call_guarded(self._look_timed, self._read_all, None)

    def group_ready(self, group: object) -> None:
        """FSDP2 is about to reduce the gradients of one group of parameters."""
        if self._running:
            self._guard.call_guarded(self._look_timed, self._read_group, group)

    def _look_timed(self, read: Callable[[Of], None], of: Of) -> None:
        begun = time.perf_counter()
        try:
            with torch.no_grad():
                read(of)
        finally:
            self._read_s += time.perf_counter() - begun

    def _settle_hooks(self, last: Tensor | None) -> None:
        """Where all gradients are reduced together, one hook on the last to arrive does for all."""
        self._last_arrived = None
        if last is not None:
            for handle in self._each:
                handle.remove()
            self._each = [add_accumulation_hook(last, self._last_accumulated)]

    def _read_all(self, _: None) -> None:
        self._read_gradients([p for ref in self._parameters if (p := ref()) is not None])

    def _read_group(self, group: object) -> None:
        found = list(_unsharded_gradients(group))
        self._look_at([grad for _, grad in found], [parameter for parameter, _ in found])

    def _read_gradients(self, parameters: list[Tensor]) -> None:
        graded = [(grad, p) for p in parameters if (grad := p.grad) is not None]
        self._look_at([grad for grad, _ in graded], [p for _, p in graded])

    def _look_at(self, grads: list[Tensor], parameters: list[Tensor]) -> None:
        if not grads:
            return
        values = [to_local_part(grad) for grad in grads]
        if not all(map(tensors.on_host, values)):
            return
        self._seen += len(values)
        if math.isfinite(_sum_of(values)):
            return
        for grad, parameter in zip(grads, parameters, strict=True):
            bad = find_bad_values(grad)
            if bad is not None:
                self._own.append(_Own(self._name_of(parameter), bad))

    def _in_order(self, own: list[_Own]) -> list[tuple[str, Bad]]:
        """In the order of the model's parameters, whatever order they were reduced in."""
        order = {name: place for place, name in enumerate(self._resolve_names().parameters.values())}
        return [(one.name, one.bad) for one in sorted(own, key=lambda one: order.get(one.name, len(order)))]

    def _resolve_names(self) -> Names:
        gradients = self._dispatcher.find_probe("gradient-norms")
        return gradients.model_names if gradients is not None else Names(self._search.trained_roots())

    def _name_of(self, parameter: Tensor) -> str:
        shape = "x".join(map(str, parameter.shape)) or "scalar"
        return self._resolve_names().parameters.get(id(parameter), f"parameter[{shape}]")


def _unsharded_gradients(group: object) -> Iterator[tuple[Any, Tensor]]:
    """The (sharded) parameters of a group of FSDP2 with the whole gradients of this rank; none while it accumulates."""
    for held in getattr(group, "fsdp_params", ()):
        accumulated = getattr(held, "unsharded_accumulated_grad", None)
        unsharded = getattr(held, "_unsharded_param", None)
        for grad in (accumulated, unsharded.grad if unsharded is not None else None):
            if grad is not None:
                yield getattr(held, "sharded_param", unsharded), grad


def _sum_of(values: list[Tensor]) -> float:
    """A number that is not finite if any element is not (and now and then, by overflow, if all are)."""
    if len(values) == 1:
        return float(values[0].sum())
    return float(tensors.compute_norms(values).sum())


def _first_graded(losses: Any) -> Tensor | None:
    """The tensor whose gradient is the first of the backward pass that is about to run."""
    found = (losses,) if isinstance(losses, Tensor) else losses
    return next((loss for loss in found if isinstance(loss, Tensor) and loss.requires_grad), None)
