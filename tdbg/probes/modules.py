"""One look at all modules of a step: hooks that are there for one forward pass, and figures read with one copy.

Between looks no module carries a hook of ours. What a hook computes stays on the device, as one number or a
small sample a tensor; all of it is read together when the step ends.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.events import Step
from tdbg.probes import tensors
from tdbg.probes.compiler import hide, unseen
from tdbg.probes.roots import clean_path, unwrapped
from tdbg.probes.spread import sampled, spread
from tdbg.probes.tensors import checkable, local

if TYPE_CHECKING:
    from tdbg.probes import Probe
    from tdbg.probes.monitor import Monitor

# Under this key a hook stands in a module's own table for one pass: registering and removing it by torch's
# handles would cost 10 us a module.
HOOK: Any = "tdbg"
KIND = "modules"  # the name of this work in the budget
LARGE = 65_536  # elements; of larger tensors a norm is estimated from
PART = 4096  # elements, where nobody asks for all of them
FIGURES = ("mean", "std", "min", "max", "zero_share")


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
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    numel: int
    training: bool
    graded: bool  # its output wants a gradient
    calls: int = 1
    rms: float | None = None  # root mean square of the output; inf or nan where it overflowed or is not finite
    grad_norm: float | None = None  # L2 norm of the gradient that arrived at the output
    sample: dict[str, float] = field(default_factory=dict)  # FIGURES over at most SAMPLE elements

    @property
    def path(self) -> str:
        """Where the module stands; empty for the root."""
        return self.place.path

    @property
    def leaf(self) -> bool:
        """True if it has no modules inside."""
        return self.place.leaf


@dataclass(slots=True)
class Wish:
    """What one probe wants to know of modules."""

    backward: bool = False
    sample: bool = False
    exact: bool = False  # norms of all elements, also of large tensors
    force_eager: bool = False  # look inside compiled models too, by running such steps uncompiled


class ModuleLook:
    """Looks at the modules below the first root that runs in a step, when a probe wants it and it is affordable.

    ``seen`` is in the order of the forward pass; ``step`` is the step it speaks of.
    Reads:  the first tensor of each module's output; the gradient that arrives there, if a probe wants it.
    Cost:   two hooks and one reduction a module (some 15 us), on the steps that are looked at. Of outputs above
            65,536 elements a sample of 4,096 is read unless a probe wants exact norms.
    Limits: modules inside a compiled model only where a probe forces eager; further calls of a module are counted.
    """

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor
        self.step = 0
        self.seen: list[Seen] = []
        self._wishes: dict[str, Wish] = {}
        self._hooked: list[nn.Module] = []
        self._rows: dict[int, Seen] = {}  # by id of the module, alive while the step runs
        self._numbers: list[Figure] = []
        self._samples: list[tuple[Tensor, Seen]] = []
        self._last: tuple[Any, Seen] | None = None
        self._running = False
        self._spent_s = self._entered_s = 0.0
        self._stance: Any = None
        self._wish = Wish()

    # who wants it

    def want(self, probe: "Probe", wish: Wish) -> None:
        """Have this probe's ``modules_seen`` called with every look."""
        self._wishes[probe.name] = wish
        self._join_wishes()

    def forget(self, probe: "Probe") -> None:
        """The probe is gone."""
        self._wishes.pop(probe.name, None)
        self._join_wishes()

    def _join_wishes(self) -> None:
        wishes = self._wishes.values()
        self._wish = Wish(
            backward=any(wish.backward for wish in wishes),
            sample=any(wish.sample for wish in wishes),
            exact=any(wish.exact for wish in wishes),
            force_eager=any(wish.force_eager for wish in wishes),
        )

    @property
    def wanted(self) -> bool:
        """True if any probe asks for it."""
        return bool(self._wishes)

    def count(self) -> int:
        """How many hooks are in place (0 between looks)."""
        return len(self._hooked)

    # the forward pass

    def begin(self, root: nn.Module) -> None:
        """A root is about to run with gradients: hook its modules, if this step is to be looked at."""
        if not self._wishes or self.step == self.monitor.step + 1:
            return
        if not self.monitor.may(KIND):
            return
        begun = time.perf_counter()
        self._clear()
        self._running, self.step = True, self.monitor.step + 1
        compiled = _compiled_parts(root)
        if compiled and self._wish.force_eager:
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()
            compiled = set()
        elif compiled:
            self.monitor.note(
                "modules-compiled",
                "modules inside a compiled model are not looked at: --flag FORWARD runs such steps eagerly",
            )
        for path, module in unwrapped(root).named_modules():
            if id(module) not in compiled and not isinstance(module, torch.jit.ScriptModule):
                module._forward_hooks[HOOK] = _Hook(self, self._place(path, module))
                self._hooked.append(module)
        self._entered_s = time.perf_counter() - begun  # booked by the caller, as are those of `end` and `finish`
        self._spent_s = 0.0

    def _place(self, path: str, module: nn.Module) -> Place:
        trainable = any(p is not None and p.requires_grad for p in module._parameters.values())
        return Place(clean_path(path), type(module).__name__, not module._modules, trainable)

    def end(self) -> None:
        """The root has returned: take the hooks away; gradients still arrive."""
        if not self._running:
            return
        begun = time.perf_counter()
        self._unhook()
        self._running = False
        self._entered_s += time.perf_counter() - begun

    def _unhook(self) -> None:
        for module in self._hooked:
            module._forward_hooks.pop(HOOK, None)
        self._hooked = []
        stance, self._stance = self._stance, None
        if stance is not None:
            with contextlib.suppress(RuntimeError):
                stance.__exit__(None, None, None)

    def output(self, module: nn.Module, place: Place, output: Any) -> None:
        """A module returned; called by its hook."""
        begun = time.perf_counter()
        try:
            self._take(module, place, output)
        except Exception as error:  # guard: no further look, training as before
            self._wishes.clear()
            self._unhook()
            self.monitor.failed(KIND, error)
        self._spent_s += time.perf_counter() - begun

    def _take(self, module: nn.Module, place: Place, output: Any) -> None:
        known = self._rows.get(id(module))
        if known is not None:
            known.calls += 1
            return
        tensor = output if isinstance(output, Tensor) else next((t for _, t in tensors.walk(output)), None)
        if tensor is None:
            return
        row = Seen(
            place, tensor.shape, tensor.dtype, tensor.device, tensor.numel(), module.training, tensor.requires_grad
        )
        self._rows[id(module)] = row
        self.seen.append(row)
        if not checkable(tensor):
            return
        if self._last is not None and self._last[0] is tensor:  # a container returns what its last child returned
            row.sample = self._last[1].sample  # filled in place later
            self._numbers += [item._replace(row=row) for item in self._numbers[-1:] if item.row is self._last[1]]
        else:
            data = local(tensor.detach())
            self._numbers.append(Figure(row, "rms", *_norm(data, self._wish.exact)))
            if self._wish.sample:
                self._samples.append((sampled(data), row))
        self._last = tensor, row
        if self._wish.backward and tensor.requires_grad:
            tensor.register_hook(_GradientHook(self, row, self.step))

    def gradient(self, row: Seen, step: int, grad: Tensor) -> None:
        """A gradient arrived at a module's output; called by its hook."""
        begun = time.perf_counter()
        try:
            if step == self.step and not self.monitor.rerunning and checkable(grad):
                self._numbers.append(Figure(row, "grad_norm", *_norm(local(grad.detach()), self._wish.exact)))
        except Exception as error:  # guard
            self._wishes.clear()
            self.monitor.failed(KIND, error)
        self._spent_s += time.perf_counter() - begun

    # the end of the step

    def finish(self) -> None:
        """The step has ended: read the figures (on a device with the step's one copy) and tell the probes."""
        if not self.seen or self.step != self.monitor.step:
            self._clear()
            return
        begun = time.perf_counter()
        self._unhook()
        numbers, samples, seen, step = self._numbers, self._samples, self.seen, self.step
        self._rows, self._numbers, self._samples, self._last = {}, [], [], None
        if not numbers:
            self._tell()
        else:
            device = numbers[0].value.device
            parts = [torch.stack([number.value.to(device) for number in numbers])]
            if samples:
                parts.append(_figures(torch.stack([sample.to(device) for sample, _ in samples])).flatten())
            values = torch.cat(parts)
            fill = _Fill([number._replace(value=None) for number in numbers], [row for _, row in samples])
            if tensors.on_host(values):
                fill(values.tolist())
                self._tell()
            else:
                self.monitor.read_late(values, self._later(fill, seen, step))
        self.monitor.budget.spend(KIND, self._spent_s)
        self._entered_s += time.perf_counter() - begun
        self.monitor.budget.learn(KIND, self._spent_s + self._entered_s, extra=True)

    def _later(self, fill: "_Fill", seen: list[Seen], step: int) -> Callable[[list[float], Step | None], None]:
        def arrived(values: list[float], record: Step | None) -> None:
            fill(values)
            now = self.seen, self.step
            self.seen, self.step = seen, step
            try:
                self._tell()
            finally:
                self.seen, self.step = now

        return arrived

    def _tell(self) -> None:
        self.monitor.tell("modules_seen", self)

    def _clear(self) -> None:
        self._unhook()
        self._running = False
        self.seen, self._rows, self._numbers, self._samples, self._last = [], {}, [], [], None

    def forked(self) -> None:
        """In a forked child: the running step was the parent's; who wants to look still does."""
        self._clear()
        self.step = 0

    def detach(self) -> None:
        """Take every hook away."""
        self._clear()
        self._wishes.clear()


class _Hook:
    """The forward hook of one module."""

    __slots__ = ("look", "place")

    def __init__(self, look: ModuleLook, place: Place) -> None:
        self.look, self.place = look, place

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and not self.look.monitor.rerunning:
            unseen(self.look.output, module, self.place, output)


hide(_Hook.__call__)


class _GradientHook:
    """The hook of one output's gradient; a pickled tensor must not carry it."""

    __slots__ = ("look", "row", "step")
    __torch_unserializable__ = True

    def __init__(self, look: ModuleLook, row: Seen, step: int) -> None:
        self.look, self.row, self.step = look, row, step

    def __call__(self, grad: Tensor) -> None:
        self.look.gradient(self.row, self.step, grad)


class _Fill:
    """Puts the values that were read into the rows they belong to."""

    def __init__(self, numbers: "list[Figure]", sampled: list[Seen]) -> None:
        self.numbers, self.sampled = numbers, sampled

    def __call__(self, values: list[float]) -> None:
        for (row, name, _, share), value in zip(self.numbers, values, strict=False):
            if name == "rms":
                row.rms = value / max(row.numel * share, 1.0) ** 0.5
            else:
                row.grad_norm = value / share**0.5
        rest = values[len(self.numbers) :]
        for index, row in enumerate(self.sampled):
            row.sample.update(zip(FIGURES, rest[index * len(FIGURES) :], strict=False))


class Figure(NamedTuple):
    """A norm on its way: whose, which, the 0-d float32 tensor, and the share of the elements it is of."""

    row: Seen
    name: str
    value: Any
    share: float


def _norm(data: Tensor, exact: bool) -> tuple[Tensor, float]:
    """The L2 norm as a 0-d float32 tensor, and the share of the elements it was taken of.

    Of all it is finite where all elements are (and none is above 1e19). A large tensor is only sampled unless
    ``exact``: of 262,144 elements that takes 6 us instead of 31.
    """
    if data.is_complex():
        data = torch.view_as_real(data)
    share = 1.0
    part = spread(data, PART) if not exact and data.numel() > LARGE else None
    if part is not None:
        share, data = PART / data.numel(), part
    if data.element_size() in (1, 8):  # fp8 has few operators; the norm of float64 will not come as float32
        data = data.to(torch.float32)
    norm: Tensor = torch.linalg.vector_norm(data, dtype=torch.float32)
    return norm, share


def _figures(rows: Tensor) -> Tensor:
    """FIGURES of each row of samples."""
    low, high = torch.aminmax(rows, dim=1)
    return torch.stack([rows.mean(1), rows.std(1), low, high, (rows == 0).float().mean(1)], dim=1)


def _compiled_parts(root: nn.Module) -> set[int]:
    """The modules that run inside a compiled region, by id."""
    found: set[int] = set()
    for module in root.modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            found.update(id(inner) for inner in module.modules())
    return found
