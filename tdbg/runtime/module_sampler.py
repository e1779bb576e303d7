"""One look at all modules of a step: hooks that are there for one forward pass, and figures read with one copy.

Between looks no module carries a hook of ours. What a hook computes stays on the device, as one number or a
small sample a tensor; all of it is read together when the step ends.
"""

import contextlib
import itertools
import math
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from tdbg.core.events import Step
from tdbg.core.guard import Guard
from tdbg.runtime import tensors
from tdbg.runtime.budget import ALWAYS_STEPS
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler, is_inside_region
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.own_hooks import add_gradient_hook, can_hook, post_hooks_of, reserve_key
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.sampling import SAMPLE, spread_of, stack_samples
from tdbg.runtime.tensors import is_checkable, local_elements
from tdbg.runtime.torch_compat import compiled_call_of, in_backward

if TYPE_CHECKING:
    from tdbg.runtime.budget import Budget
    from tdbg.runtime.deferred_reads import Then
    from tdbg.runtime.dispatcher import ProbeDispatcher
    from tdbg.runtime.listener import Listener


class SampledRun(Protocol):
    """The monitor, as far as a sampler of modules knows it."""

    budget: "Budget"
    dispatcher: "ProbeDispatcher"
    rerunning: bool
    step: int

    def should_sample(self, kind: str) -> bool: ...
    def note(self, code: str, text: str, /) -> None: ...
    def handle_failure(self, probe: "Listener | str", error: BaseException, /) -> None: ...
    def read_late(self, values: Tensor, then: "Then") -> None: ...


# Under this key a hook stands in a module's own table for one pass: registering and removing it by torch's
# handles would cost 10 us a module.
HOOK: Any = reserve_key("look")
# The names of this work in the budget: a look at all modules, and one at those whose turn it is.
WHOLE = "all modules"
PARTLY = "modules in turn"
IN_TURN = 6  # modules a look, besides the first and the last layer
STRIDE = 2  # steps from look to look where a level alone asks, and not just for some steps
WHOLE_EVERY = 64  # looks: a model may be rebuilt, or take another path
LARGE = 16_384  # elements; of larger tensors a norm is estimated from
# A hook that computes runs with a cold cache, 25 us each; so it only keeps the tensor, and all are worked on together.
HELD_BYTES = 4 << 20  # a larger tensor is worked on at once, when the time that takes is small against its own
HELD_ALL_BYTES = 64 << 20
MAX_OUTPUTS = 8  # tensors of one output
FIGURES = ("mean", "std", "min", "max", "zero_share")
NOTHING = torch.empty(0)
NO_SHAPE, HOST = torch.Size(), torch.device("cpu")


class Place(NamedTuple):
    """What a look knows of a module before it runs."""

    path: str
    module_class: str
    leaf: bool
    trainable: bool  # has parameters of its own that want a gradient


@dataclass(slots=True)
class Seen:
    """One module's output in the step that was looked at."""

    place: Place
    training: bool
    shape: torch.Size = NO_SHAPE
    dtype: torch.dtype = torch.float32
    device: torch.device = HOST
    numel: int = 0
    graded: bool = False  # its output wants a gradient
    reached: bool = False  # a gradient arrived there
    calls: int = 1
    rms: float | None = None  # root mean square of the output; inf or nan where it overflowed or is not finite
    grad_norm: float | None = None  # L2 norm of the gradient that arrived at the output
    sample: dict[str, float] = field(default_factory=dict)  # FIGURES over at most SAMPLE elements

    def describe_output(self, tensor: Tensor) -> None:
        """Take over what the output is like."""
        self.shape, self.dtype, self.device = tensors.shape_of(tensor), tensor.dtype, tensor.device
        self.numel, self.graded = tensor.numel(), tensor.requires_grad

    def add_gradient_norm(self, norm: float) -> None:
        """Keep the largest: several backward passes may reach one output, as with a penalty on a gradient."""
        known = self.grad_norm
        if known is None or (not math.isnan(known) and not norm <= known):
            self.grad_norm = norm

    @property
    def path(self) -> str:
        """Where the module stands; empty for the root."""
        return self.place.path

    @property
    def leaf(self) -> bool:
        """True if it has no modules inside."""
        return self.place.leaf


class Taken(NamedTuple):
    """What a hook kept of a module's output, or of the gradient there."""

    row: Seen
    tensor: Tensor
    version: int


class Last(NamedTuple):
    """The output worked on last; not kept alive, as it may be large."""

    row: Seen
    tensor: "weakref.ref[Tensor]"
    version: int


class Figures(NamedTuple):
    """Figures on their way: a 1-D float32 tensor, and of each value whose it is, its name, and what to multiply by."""

    values: Tensor
    whose: list[tuple[Seen, str, float]]

    def __call__(self, values: list[float]) -> None:
        """Put what was read where it belongs."""
        for (row, name, factor), value in zip(self.whose, values, strict=True):
            if name in FIGURES:
                row.sample[name] = value
            elif name == "grad_norm":
                row.add_gradient_norm(value * factor)
            elif name:
                setattr(row, name, value * factor)


@dataclass(slots=True)
class SampleRequest:
    """What one probe wants to know of modules."""

    backward: bool = False
    sample: bool = False
    every: bool = False  # every module in each look, instead of some in turn
    stride: int = 1  # steps from look to look
    exact: bool = False  # norms of all elements, also of large tensors
    force_eager: bool = False  # look inside compiled models too, by running such steps uncompiled


@dataclass(slots=True)
class Tour:
    """The modules of a root in the order in which they ran, and where the looks in turn have got to."""

    stops: list[tuple["weakref.ref[nn.Module]", Place]]
    ends: tuple[int, ...] = ()  # the first and the last layer: in every look, for the flow between them
    looks: int = 0
    root_compiled: bool = False  # by `module.compile()`; the root is no stop, as its hook is called after the pass

    @property
    def turns(self) -> int:
        """So many looks go round once."""
        return -(-len(self.stops) // IN_TURN)

    @property
    def turn_number(self) -> int:
        """Whose turn it is, from 1."""
        return self.looks % self.turns + 1

    @property
    def compiled(self) -> bool:
        """True if a module has been compiled since: a hook of ours there would have it compiled anew."""
        return any(_is_compiled(module()) for module, _ in self.stops)

    @property
    def fresh(self) -> bool:
        """True if it is likely to be the model as it is now."""
        return self.looks % WHOLE_EVERY != 0

    def select_turn(self) -> list[tuple[nn.Module, Place]]:
        """The modules of this turn, evenly spread over the model."""
        first = self.looks % self.turns
        return self._select_alive(sorted({*range(first, len(self.stops), self.turns), *self.ends}))

    def select_all(self) -> list[tuple[nn.Module, Place]]:
        """All modules."""
        return self._select_alive(range(len(self.stops)))

    def _select_alive(self, chosen: Iterable[int]) -> list[tuple[nn.Module, Place]]:
        self.looks += 1
        found = [(self.stops[index][0](), self.stops[index][1]) for index in chosen]
        return [(module, place) for module, place in found if module is not None]


class ModuleSampler:
    """Looks at the modules below the first root that runs in a step, when a probe wants it and it is affordable.

    ``seen`` is in the order of the forward pass; ``step`` is the step it speaks of. A look is at every module if a
    probe wants that (``turn`` is 0 then), and at the first of a root; else six and the first and last layer have
    their turn. Where a level alone asks, and not just for some steps, it is at every other step.
    Reads:  the first tensor of each module's output; the gradient that arrives there, if a probe wants it.
    Cost:   two hooks and one reduction a module (some 15 us), on the steps that are looked at. Of outputs above
            16,384 elements a sample of 1,024 is read unless a probe wants exact norms.
    Limits: modules inside a compiled model only where a probe forces eager; further calls of a module are counted.
    """

    def __init__(self, monitor: SampledRun) -> None:
        self.monitor = monitor
        self.guard = Guard("modules", self._give_up)
        self.step = 0
        self.turn = self.turns = 0
        self.seen: list[Seen] = []
        self._tours: IdentityKeys[nn.Module, Tour] = IdentityKeys()
        self._known: IdentityKeys[nn.Module, Tour] = IdentityKeys()  # every module of a root
        self._last_root: weakref.ref[nn.Module] | None = None
        self._wishes: dict[str, SampleRequest] = {}
        self._hooked: list[nn.Module] = []
        self._rows: dict[int, Seen] = {}  # by id of the module, alive while the step runs
        self._taken: list[Taken] = []
        self._grads: list[Taken] = []
        self._held_bytes = 0
        self._changed_in_place: set[str] = set()  # modules whose output a later one writes into
        self._looked_at: list[nn.Module] = []
        self._figures: list[Figures] = []
        self._twins: list[tuple[Seen, Seen]] = []  # a container, and the child whose output it returned
        self._last: Last | None = None
        self._running = False
        self.ends_in_backward = False  # an optimizer steps as soon as its gradient is there: others are still to come
        self._spent_s = self._entered_s = 0.0
        self._stance: AbstractContextManager[object] | None = None
        self._wish = SampleRequest()

    # who wants it

    def request(self, probe: "Listener", wish: SampleRequest) -> None:
        """Have this probe's ``modules_seen`` called with every look."""
        self._wishes[probe.name] = wish
        self._join_wishes()

    def withdraw_request(self, probe: "Listener") -> None:
        """The probe is gone."""
        self._wishes.pop(probe.name, None)
        self._join_wishes()

    def _join_wishes(self) -> None:
        wishes = self._wishes.values()
        if self._wish.force_eager != any(wish.force_eager for wish in wishes):
            self._known.clear()  # it depends on that which modules can be looked at
            self._tours.clear()
        self._wish = SampleRequest(
            backward=any(wish.backward for wish in wishes),
            sample=any(wish.sample for wish in wishes),
            every=any(wish.every for wish in wishes),
            stride=min((wish.stride for wish in wishes), default=1),
            exact=any(wish.exact for wish in wishes),
            force_eager=any(wish.force_eager for wish in wishes),
        )

    @property
    def wanted(self) -> bool:
        """True if any probe asks for it."""
        return bool(self._wishes)

    @property
    def kind(self) -> str:
        """The name in the budget of the look that is likely to come next."""
        root = self._last_root() if self._last_root is not None else None
        return WHOLE if root is None or self._should_sample_all(root) else PARTLY

    def _should_sample_all(self, root: nn.Module) -> bool:
        """True if the next look at this root is at all of its modules."""
        tour = self._tours.get(root)
        return self._wish.every or tour is None or not tour.fresh

    def _drop_compiled(self, root: nn.Module) -> None:
        """Forget what is known of a root one of whose modules has been compiled since."""
        for known in (self._tours, self._known):
            if root in known and (known[root].compiled or known[root].root_compiled != _is_compiled(root)):
                del known[root]

    def describe_turn(self) -> dict[str, Any]:
        """Which turn this look is, for an observation; nothing where it is at all modules."""
        return {"turn": self.turn, "turns": self.turns} if self.turn else {}

    def count_hooks(self) -> int:
        """How many hooks are in place (0 between looks)."""
        return len(self._hooked)

    # the forward pass

    def begin_pass(self, root: nn.Module) -> None:
        """A root is about to run with gradients: hook its modules, if this step is to be looked at."""
        self.give_up_pass()  # of a root that never returned
        step = self.monitor.step + 1
        if not self._wishes or self.step == step or (step > ALWAYS_STEPS and step % self._wish.stride):
            return
        if is_inside_region() and not self._wish.force_eager:
            self._note_compiled()  # with a hook on them, the compiler makes graphs of modules that it leaves alone
            return
        if not self.monitor.should_sample(WHOLE if self._should_sample_all(root) else PARTLY):
            return
        begun = time.perf_counter()
        self._drop_compiled(root)
        whole = self._should_sample_all(root)
        self._reset_pass()
        self._running, self.step = True, step
        self._last_root = weakref.ref(root)
        if whole:
            self.turn = self.turns = 0
            chosen = self._all_of(root)
        else:
            tour = self._tours[root]
            self.turn, self.turns = tour.turn_number, tour.turns
            chosen = tour.select_turn()
        for module, place in chosen:
            post_hooks_of(module)[HOOK] = _Hook(self, place)
            self._hooked.append(module)
        self._looked_at = self._hooked
        self._entered_s = (
            time.perf_counter() - begun
        )  # booked by the caller, as are those of `end_pass` and `finish_step`
        self._spent_s = 0.0

    def _all_of(self, root: nn.Module) -> list[tuple[nn.Module, Place]]:
        """Every module that can be looked at; known from earlier looks for a while, as asking each takes 5 us."""
        known = self._known.get(root)
        if known is not None and known.fresh:
            return known.select_all()
        compiled = _compiled_parts(root)
        if compiled and self._wish.force_eager:
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()
            compiled = set()
        elif compiled:
            self._note_compiled()
        found = [
            (module, self._describe_module(path, module))
            for path, module in unwrap_module(root).named_modules()
            if id(module) not in compiled and not isinstance(module, torch.jit.ScriptModule) and can_hook(module)
        ]
        if self._stance is None:
            stops = [(weakref.ref(module), place) for module, place in found]
            self._known[root] = Tour(stops, looks=1, root_compiled=_is_compiled(root))
        return found

    def _note_compiled(self) -> None:
        self.monitor.note(
            "modules-compiled",
            "modules inside a compiled model are not recorded: --flag FORWARD runs such steps eagerly",
        )

    def _describe_module(self, path: str, module: nn.Module) -> Place:
        trainable = any(p is not None and p.requires_grad for p in module._parameters.values())
        return Place(clean_path(path), type(module).__name__, not module._modules, trainable)

    def end_pass(self) -> None:
        """The root has returned: take the hooks away; gradients still arrive."""
        self.guard.call_guarded(self._finish_pass)

    def give_up_pass(self, raising: nn.Module | None = None) -> None:
        """Forget the pass that runs, if there is one: its root has raised, and the step may yet be looked at.

        raising: a module whose hooks torch goes through just now; the hook there stays until the next pass or step, and for no
            copy, pickle or compilation.
        """
        if self._running:
            stays = [module for module in self._hooked if module is raising]
            self._hooked = [module for module in self._hooked if module is not raising]
            self._reset_pass()
            self._hooked, self.step = stays, 0

    def before_compile(self) -> None:
        """A module is about to be compiled: a hook that stayed after a raise would be traced in, and be gone later."""
        if not self._running:
            self._remove_hooks()

    def _finish_pass(self) -> None:
        if not self._running:
            return
        begun = time.perf_counter()
        self._remove_hooks()
        self._running = False
        try:
            taken, self._taken = self._taken, []
            self._work_on(taken)
            self._held_bytes = 0
            if not self.turn and not self._wish.every:
                self._plan_tour()
            self._looked_at = []
        finally:
            self._entered_s += time.perf_counter() - begun

    def _plan_tour(self) -> None:
        """All modules have been seen: from now on, some at a time, in the order in which they ran."""
        root = self._last_root() if self._last_root is not None else None
        modules = {id(module): module for module in self._looked_at}
        seen = [(modules[key], row) for key, row in self._rows.items() if key in modules]  # not DataParallel's replicas
        stops = [(weakref.ref(module), row.place) for module, row in seen]
        layers = [index for index, (_, row) in enumerate(seen) if row.leaf and row.graded]
        if root is not None and len(stops) > IN_TURN:
            before = self._tours.get(root)
            looks = before.looks if before is not None else 0
            self._tours[root] = Tour(stops, tuple(layers[:1] + layers[-1:]), looks + 1, _is_compiled(root))

    def _remove_hooks(self) -> None:
        for module in self._hooked:
            post_hooks_of(module).pop(HOOK, None)
        self._hooked = []
        stance, self._stance = self._stance, None
        if stance is not None:
            with contextlib.suppress(RuntimeError):
                stance.__exit__(None, None, None)

    def record_output(self, module: nn.Module, place: Place, output: object) -> None:
        """A module returned; called by its hook."""
        if not self.step:  # the pass was given up
            return
        begun = time.perf_counter()
        try:
            self._take_output(module, place, output)
        finally:
            self._spent_s += time.perf_counter() - begun

    def _give_up(self, part: str, error: BaseException) -> None:
        """The guard's report: no further look, training as before."""
        self._wishes.clear()
        self._remove_hooks()
        self.monitor.handle_failure(part, error)

    def _take_output(self, module: nn.Module, place: Place, output: object) -> None:
        known = self._rows.get(id(module))
        if known is not None:
            known.calls += 1
            return
        if type(output) is Tensor:
            tensor, others = output, []
        else:
            found = [tensor for _, tensor in itertools.islice(tensors.iter_tensors(output), MAX_OUTPUTS)]
            if not found:
                return
            tensor, others = found[0], found[1:]
        row = self._rows[id(module)] = Seen(place, module.training)
        self.seen.append(row)
        if self._wish.backward and place.leaf:
            self._await_gradients(row, others)
        # The root's own hook comes after the end of the pass. Whoever asked for exact figures wants them of the first
        # look too, when it is not known yet into which outputs later modules write.
        at_once = self._wish.exact or not self._running or place.path in self._changed_in_place
        if not at_once and self._may_hold(tensor):
            self._taken.append(Taken(row, tensor, tensors.read_version(tensor)))
        else:
            self._work_on([Taken(row, tensor, tensors.read_version(tensor))])

    def _await_gradients(self, row: Seen, others: list[Tensor]) -> None:
        """A gradient at any output reaches a module: of a recurrent layer a loss may use the last state alone."""
        for tensor in others:
            if is_checkable(tensor) and tensor.requires_grad:
                hook = _GradientHook(self, row, self.step, reaches_alone=True)
                add_gradient_hook(tensor, hook, purpose=f"gradient at {row.path}")

    def _may_hold(self, tensor: Tensor) -> bool:
        """True if this tensor can be kept for a while, at no great cost of memory."""
        size = tensor.nbytes if tensor.layout == torch.strided else HELD_BYTES
        if size >= HELD_BYTES or self._held_bytes + size > HELD_ALL_BYTES:
            return False
        self._held_bytes += size
        return True

    def _work_on(self, taken: list[Taken]) -> None:
        """Describe outputs, have their gradients come here, and compute their figures."""
        found: list[tuple[Seen, Tensor]] = []
        for row, tensor, version in taken:
            row.describe_output(tensor)
            if not is_checkable(tensor):
                continue
            if (
                tensors.read_version(tensor) != version
            ):  # a later module wrote into it: next time it is worked on at once
                self._changed_in_place.add(row.path)
                continue
            last = self._last
            if last is not None and last.tensor() is tensor and last.version == version:
                row.sample = last.row.sample  # a container returns what its last child returned; filled in place later
                self._twins.append((row, last.row))
            else:
                found.append((row, local_elements(tensor.detach())))
                self._last = Last(row, weakref.ref(tensor), version)
                if self._wish.backward and tensor.requires_grad:
                    add_gradient_hook(tensor, _GradientHook(self, row, self.step), purpose=f"gradient at {row.path}")
        for rows, data in _by_device(found):
            rows_NS = stack_samples(data) if self._wish.sample else None
            self._figures += _compute_norms("rms", rows, data, exact=self._wish.exact, rows_NS=rows_NS)
            if rows_NS is not None:
                self._figures.append(_compute_sample_stats(rows, rows_NS))

    def record_gradient(self, row: Seen, step: int, grad: Tensor | None, *, reaches_alone: bool) -> None:
        """A gradient arrived at a module's output; called by its hook. reaches_alone: its norm does not count."""
        begun = time.perf_counter()
        try:
            if grad is not None and step == self.step and not self.monitor.rerunning and is_checkable(grad):
                row.reached = True
                if reaches_alone:
                    pass
                elif self._may_hold(grad):
                    self._grads.append(Taken(row, grad, tensors.read_version(grad)))
                else:
                    for rows, data in _by_device([(row, local_elements(grad.detach()))]):
                        self._figures += _compute_norms("grad_norm", rows, data, exact=self._wish.exact)
        finally:
            self._spent_s += time.perf_counter() - begun

    # the end of the step

    def finish_step(self) -> None:
        """The step has ended: read the figures (on a device with the step's one copy) and tell the probes."""
        if not self.seen or self.step != self.monitor.step:
            self._reset_pass()
            return
        begun = time.perf_counter()
        self._remove_hooks()
        self.ends_in_backward = in_backward()
        intact = [(row, grad) for row, grad, version in self._grads if tensors.read_version(grad) == version]
        grads = [(row, local_elements(grad.detach())) for row, grad in intact]
        figures = self._figures
        for rows, data in _by_device(grads):
            figures += _compute_norms("grad_norm", rows, data, exact=self._wish.exact)
        twins, seen, step = self._twins, self.seen, self.step
        self._release_tensors()
        if not figures:
            self._notify_probes()
        else:
            devices = [part.values.device for part in figures]
            device = next((found for found in devices if found.type != "cpu"), devices[0])
            values = torch.cat([part.values.to(device, non_blocking=True) for part in figures])
            fill = _Fill(figures, twins)
            if tensors.on_host(values):
                fill(values.tolist())
                self._notify_probes()
            else:
                self.monitor.read_late(values, self._build_late_callback(fill, seen, step, (self.turn, self.turns)))
        self.monitor.budget.charge("modules", self._spent_s)
        self._entered_s += time.perf_counter() - begun
        kind = PARTLY if self.turn else WHOLE
        self.monitor.budget.record_cost(kind, self._spent_s + self._entered_s, extra=True)

    def _build_late_callback(
        self, fill: "_Fill", seen: list[Seen], step: int, turns: tuple[int, int]
    ) -> Callable[[list[float], Step | None], None]:
        def deliver_late_values(values: list[float], record: Step | None) -> None:
            fill(values)
            now = self.seen, self.step, self.turn, self.turns
            self.seen, self.step, (self.turn, self.turns) = seen, step, turns
            try:
                self._notify_probes()
            finally:
                self.seen, self.step, self.turn, self.turns = now

        return deliver_late_values

    def _notify_probes(self) -> None:
        self.monitor.dispatcher.dispatch("modules_seen", self)

    def _reset_pass(self) -> None:
        self._remove_hooks()
        self._running = False
        self.seen = []
        self._release_tensors()

    def _release_tensors(self) -> None:
        """Let go of the step's tensors."""
        self._rows, self._figures, self._twins = {}, [], []
        self._taken, self._grads, self._looked_at, self._last, self._held_bytes = [], [], [], None, 0

    def forked(self) -> None:
        """In a forked child: the running step was the parent's; who wants to look still does."""
        self._reset_pass()
        self._tours.clear()
        self._known.clear()
        self.step = 0

    def detach(self) -> None:
        """Take every hook away."""
        self._reset_pass()
        self._wishes.clear()


class _Hook:
    """The forward hook of one module."""

    __slots__ = ("look", "place")

    def __init__(self, look: ModuleSampler, place: Place) -> None:
        self.look, self.place = look, place

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if not torch.compiler.is_compiling() and not self.look.monitor.rerunning:
            call_outside_compiler(self.look.guard.call_guarded, self.look.record_output, module, self.place, output)


hide_from_compiler(_Hook.__call__)


class _GradientHook:
    """The hook of one output's gradient; a pickled tensor must not carry it."""

    __slots__ = ("look", "reaches_alone", "row", "step")
    __torch_unserializable__ = True

    def __init__(self, look: ModuleSampler, row: Seen, step: int, *, reaches_alone: bool = False) -> None:
        self.look, self.row, self.step, self.reaches_alone = look, row, step, reaches_alone

    def __call__(self, grad: Tensor | None) -> None:
        self.look.guard.call_guarded(
            self.look.record_gradient, self.row, self.step, grad, reaches_alone=self.reaches_alone
        )


class _Fill:
    """Puts the values that were read into the rows they belong to."""

    def __init__(self, figures: list[Figures], twins: list[tuple[Seen, Seen]]) -> None:
        self.figures = [(part.values.numel(), part._replace(values=NOTHING)) for part in figures]
        self.twins = twins

    def __call__(self, values: list[float]) -> None:
        start = 0
        for count, part in self.figures:
            part(values[start : start + count])
            start += count
        for row, child in self.twins:
            row.rms, row.grad_norm, row.reached = child.rms, child.grad_norm, child.reached


def _by_device(found: list[tuple[Seen, Tensor]]) -> list[tuple[list[Seen], list[Tensor]]]:
    """Rows and data, those of one device together."""
    groups: dict[torch.device, tuple[list[Seen], list[Tensor]]] = {}
    for row, data in found:
        if not data.numel():  # this rank's shard is empty
            continue
        rows, group = groups.setdefault(data.device, ([], []))
        rows.append(row)
        group.append(data)
    return list(groups.values())


def _compute_norms(
    name: str, rows: list[Seen], found: list[Tensor], *, exact: bool, rows_NS: Tensor | None = None
) -> list[Figures]:
    """The L2 norm of each, of data on one device; ``rms``: by the root of the number of elements.

    rows_NS: a sample of each, if there is one already.

    Of all elements it is finite where they are (and none is above 1e19). Unless ``exact``, that of a large tensor is
    estimated from a sample, which takes 5 us instead of 15 and more.
    """
    large = [] if exact else [index for index, data in enumerate(found) if data.numel() > LARGE]
    estimated = set(large)
    small = [index for index in range(len(found)) if index not in estimated]
    figures = []
    if small:
        norms_S = tensors.compute_norms([found[index] for index in small])
        whose = [(rows[i], name, found[i].numel() ** -0.5 if name == "rms" else 1.0) for i in small]
        figures.append(Figures(norms_S, whose))
    if large:
        # With a sample of each the norms of all are taken: choosing rows on a device would wait for it.
        taken = large if rows_NS is None else list(range(len(found)))
        rows_LS = stack_samples([found[index] for index in large]) if rows_NS is None else rows_NS
        norms_L = torch.linalg.vector_norm(rows_LS, dim=1)
        each = SAMPLE**-0.5
        factors = {i: each * (1.0 if name == "rms" else found[i].numel() ** 0.5) for i in large}
        whose = [(rows[i], name if i in factors else "", factors.get(i, 0.0)) for i in taken]
        figures.append(Figures(norms_L, whose))
    return figures


def _compute_sample_stats(rows: list[Seen], rows_NS: Tensor) -> Figures:
    """FIGURES of the sample of each."""
    mean_N, norm_N = rows_NS.mean(1), torch.linalg.vector_norm(rows_NS, dim=1)
    zero_N = (rows_NS == 0).sum(1) / SAMPLE
    # amin and amax take half the time of aminmax
    columns = [mean_N, spread_of(norm_N, mean_N), rows_NS.amin(1), rows_NS.amax(1), zero_N]
    return Figures(torch.stack(columns, dim=1).flatten(), [(row, name, 1.0) for row in rows for name in FIGURES])


def _is_compiled(module: nn.Module | None) -> bool:
    """True after ``module.compile()``."""
    return module is not None and compiled_call_of(module) is not None


def _compiled_parts(root: nn.Module) -> set[int]:
    """The modules that run inside a compiled region, by id."""
    found: set[int] = set()
    for module in root.modules():
        if type(module).__name__ == "OptimizedModule" or compiled_call_of(module) is not None:
            found.update(id(inner) for inner in module.modules())
    return found
