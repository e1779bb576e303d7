"""The hooks of one pass: each copies what a module took or put out, at once, before anything can change it.

The first pass finds out what there is to copy; the following ones copy into buffers that are laid out as the page will
be, so that a hook is one call of ``copy_`` and the writer writes all of it at once.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.debuggers.plain import PLAIN, RAW, Note, NotPlain, Part, parts, raw
from tdbg.debuggers.pool import Full, Pool
from tdbg.debuggers.structure import Left, leaves
from tdbg.errors import TdbgError
from tdbg.pages.layout import Layout, Spec
from tdbg.probes.compiler import hide, unseen

ALIGN = 64
MAX_PLANS = 64
HOST = torch.device("cpu")
HOOK: Any = "tdbg-capture"  # in a module's own table of hooks, for one pass


class Target(NamedTuple):
    """One module to look at, and what of it."""

    path: str
    module: "weakref.ref[nn.Module]"
    kinds: tuple[str, ...]


class Form(NamedTuple):
    """What one copied tensor is like: the same in each pass of a steady program."""

    path: str
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device = HOST
    note: Note = ()

    @property
    def nbytes(self) -> int:
        """Of the copy, which holds no gaps."""
        return self.shape.numel() * self.dtype.itemsize


@dataclass
class Plan:
    """Where each tensor of a pass goes in one buffer, in the order in which they come."""

    forms: tuple[Form, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, forms: Sequence[Form]) -> "Plan":
        """Each at a multiple of 64 bytes."""
        offsets, end = [], 0
        for form in forms:
            offsets.append(end)
            end += -(-form.nbytes // ALIGN) * ALIGN
        return cls(tuple(forms), tuple(offsets), end)

    @cached_property
    def layout(self) -> Layout:
        """The same for the page."""
        return Layout.plan(
            [
                Spec(form.path, str(form.dtype).removeprefix("torch."), tuple(form.shape), dict(form.note))
                for form in self.forms
            ]
        )

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The buffer's parts as tensors of their kind."""
        return [
            buffer[offset : offset + form.nbytes].view(raw(form.dtype)).view(form.shape)
            for form, offset in zip(self.forms, self.offsets, strict=True)
        ]


class Loose(NamedTuple):
    """A tensor outside of any plan, in a buffer of its own."""

    form: Form
    buffer: Tensor


@dataclass(slots=True)
class Copied:
    """All that one pass copied: in one buffer by a plan, and single tensors where it left the plan."""

    plan: Plan | None = None
    buffer: Tensor | None = None
    filled: int = 0  # tensors of the plan that came
    loose: list[Loose] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)  # how often each module ran
    grads: dict[str, int] = field(default_factory=dict)  # how often a gradient arrived
    scalars: dict[str, Any] = field(default_factory=dict)  # what came beside the tensors: path -> plain value
    skipped: dict[str, str] = field(default_factory=dict)  # path -> why it could not be copied
    awaited: dict[str, None] = field(default_factory=dict)  # gradients that have not arrived
    events: list[Any] = field(default_factory=list)  # of devices whose copies are on their way

    @property
    def whole(self) -> bool:
        """True if the buffer is full and there is nothing else."""
        return self.plan is not None and self.filled == len(self.plan.forms) and not self.loose

    def forms(self) -> list[Form]:
        """What came, in order."""
        planned = self.plan.forms[: self.filled] if self.plan is not None else ()
        return [*planned, *(loose.form for loose in self.loose)]

    def buffers(self) -> list[Tensor]:
        """All of them, to be given back."""
        return [*([self.buffer] if self.buffer is not None else []), *(loose.buffer for loose in self.loose)]


class Tap:
    """Hooks some modules for one pass at a time and hands over copies of what they took and put out.

    Paths are ``layers.4.attn:output``; ``layers.4.attn#1:output`` for a second call in the same pass, and
    ``layers.4.attn:output.0`` for the first tensor of a tuple. Gradients arrive until `end` is called.
    Cost: one ``copy_`` a tensor and some 3 us.
    """

    def __init__(self, pool: Pool, failed: Callable[[Exception], None]) -> None:
        self.pool, self._failed = pool, failed
        self._plans: dict[Form, Plan] = {}  # by what comes first
        self._views: dict[int, tuple[Tensor, Plan, list[Tensor]]] = {}  # by id of the buffer
        self._hooked: list[nn.Module] = []
        self._copied: Copied | None = None
        self._ready: list[Tensor] = []
        self._ready_forms: tuple[Form, ...] = ()
        self._full = False
        self._thread = 0
        self._graded = True

    @property
    def running(self) -> bool:
        """True between `begin` and `end`."""
        return self._copied is not None

    def count(self) -> int:
        """How many modules carry hooks."""
        return len(self._hooked)

    def begin(
        self,
        targets: Sequence[Target],
        *,
        graded: bool = True,
        root: nn.Module | None = None,
        given: tuple[Any, Any] = ((), {}),
    ) -> None:
        """Hook them; what they carry is gone after `unhook`. graded: gradients are to be expected.

        root: the module whose call has begun already, with the arguments and keywords it was ``given``.
        """
        self._graded = graded
        self._copied, self._ready, self._full = Copied(), [], False
        self._thread = threading.get_ident()
        for target in targets:
            module = target.module()
            if module is None:
                continue
            if "input" in target.kinds and module is root:
                self.before(target, *given)
            elif "input" in target.kinds:
                module._forward_pre_hooks[HOOK] = _Before(self, target)
                module._forward_pre_hooks_with_kwargs[HOOK] = True
            hooks: Any = module._forward_hooks  # an OrderedDict
            hooks[HOOK] = _After(self, target)
            if module is root:  # before the hook that ends the pass
                hooks.move_to_end(HOOK, last=False)
            self._hooked.append(module)

    def unhook(self) -> None:
        """The forward pass is over."""
        for module in self._hooked:
            for table in (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs, module._forward_hooks):
                table.pop(HOOK, None)
        self._hooked = []

    def end(self) -> Copied | None:
        """What this pass copied; None if there was no room for it, or there was no pass."""
        self.unhook()
        copied, self._copied, self._ready = self._copied, None, []
        if copied is None:
            return None
        if self._full:
            self.release(copied)
            return None
        forms = copied.forms()
        if forms and not copied.whole:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
                self._views.clear()
            self._plans[forms[0]] = Plan.of(forms)
        for device in {form.device for form in forms} - {HOST}:
            copied.events.append(_event(device))
        return copied

    def release(self, copied: Copied) -> None:
        """Give its memory back."""
        for buffer in copied.buffers():
            self.pool.give(buffer)

    # called by the hooks

    def before(self, target: Target, args: Any, kwargs: Any) -> None:
        """A module is about to run: its inputs, before it may write into them."""
        if threading.get_ident() != self._thread:  # inference beside training is not this pass
            return
        number = self._copied.calls.get(target.path, 0) if self._copied is not None else 0
        self._take(_name(target.path, number, "input"), [*args, kwargs] if kwargs else list(args))

    def after(self, target: Target, output: Any) -> None:
        """A module has returned."""
        copied = self._copied
        if copied is None or threading.get_ident() != self._thread:
            return
        number = copied.calls.get(target.path, 0)
        copied.calls[target.path] = number + 1
        if "output" in target.kinds:
            self._take(_name(target.path, number, "output"), output)
        if "grad" in target.kinds:
            self._await_gradient(copied, _name(target.path, number, "grad"), output)

    def _await_gradient(self, copied: Copied, name: str, output: Any) -> None:
        found = [(path, leaf) for path, leaf in leaves(output, name) if isinstance(leaf, Tensor)]
        graded = [(path, tensor) for path, tensor in found if tensor.requires_grad]
        for path, tensor in graded:
            tensor.register_hook(_Gradient(self, path, copied))
            copied.awaited[path] = None
        if not graded and self._graded:
            recording = "nothing in it requires one" if torch.is_grad_enabled() else "it ran under no_grad"
            copied.skipped[name] = f"no gradient: {recording}"

    def gradient(self, path: str, of: Copied | None, grad: Tensor) -> None:
        """A gradient has arrived; one of an earlier pass is not this pass's."""
        if of is not None and of is self._copied:
            number = of.grads.get(path, 0)
            of.grads[path] = number + 1
            of.awaited.pop(path, None)
            self._take(f"{path}#{number}" if number else path, grad)

    def _take(self, name: str, value: Any) -> None:
        if self._copied is None or self._full:
            return
        try:
            if isinstance(value, Tensor):
                self._copy(name, value)
            else:
                self._take_leaves(self._copied, name, value)
        except Full:
            self._full = True
        except Exception as error:  # guard: the pass is lost, training goes on
            self._full = True
            self._failed(error)

    def _take_leaves(self, copied: Copied, name: str, value: Any) -> None:
        for path, leaf in leaves(value, name):
            if isinstance(leaf, Tensor):
                self._copy(path, leaf)
            elif isinstance(leaf, Left):
                copied.skipped[path] = leaf.why
            else:
                copied.scalars[path] = leaf

    def _copy(self, path: str, tensor: Tensor) -> None:
        copied = self._copied
        assert copied is not None
        place = copied.filled
        if place < len(self._ready):
            form = self._ready_forms[place]
            if (
                form.path == path
                and form.shape == tensor.shape
                and form.dtype is tensor.dtype
                and type(tensor) in PLAIN
                and tensor.layout is torch.strided
                and form.dtype not in RAW
            ):
                self._ready[place].copy_(tensor.detach(), non_blocking=True)
                copied.filled = place + 1
                return
        self._copy_new(copied, path, tensor)

    def _copy_new(self, copied: Copied, path: str, tensor: Tensor) -> None:
        """The first tensor of a pass, which tells the plan; one that no plan knew; one that is no plain data."""
        try:
            found = parts(tensor)
        except TdbgError:
            raise
        except Exception as error:  # guard: a tensor may refuse anything; this one is not kept, and that is said
            why = str(error) if isinstance(error, NotPlain) else f"{type(error).__name__}: {error}"[:200]
            copied.skipped[path] = why
            return
        for part in found:
            self._copy_part(copied, path, part)

    def _copy_part(self, copied: Copied, path: str, part: Part) -> None:
        form = Form(path + part.path, part.dtype, part.data.shape, part.data.device, part.note)
        plan = self._plans.get(form) if copied.plan is None and not copied.loose else None
        if plan is not None:
            copied.plan, copied.buffer = plan, self.pool.take(plan.nbytes)
            self._ready, self._ready_forms = self._views_of(copied.buffer, plan), plan.forms
        place = copied.filled
        if place < len(self._ready) and self._ready_forms[place] == form:
            self._ready[place].copy_(part.data, non_blocking=True)
            copied.filled = place + 1
            return
        buffer = self.pool.take(form.nbytes)
        copied.loose.append(Loose(form, buffer))
        if form.nbytes:
            buffer.view(raw(form.dtype)).view(form.shape).copy_(part.data, non_blocking=True)

    def _views_of(self, buffer: Tensor, plan: Plan) -> list[Tensor]:
        known = self._views.get(id(buffer))
        if known is None or known[0] is not buffer or known[1] is not plan:
            if len(self._views) >= MAX_PLANS:
                self._views.clear()
            known = self._views[id(buffer)] = (buffer, plan, plan.views(buffer))
        return known[2]


class _Before:
    """Stands before one module for one pass."""

    __slots__ = ("tap", "target")

    def __init__(self, tap: Tap, target: Target) -> None:
        self.tap, self.target = tap, target

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            unseen(self.tap.before, self.target, args, kwargs)


class _After:
    """Stands behind one module for one pass."""

    __slots__ = ("tap", "target")

    def __init__(self, tap: Tap, target: Target) -> None:
        self.tap, self.target = tap, target

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            unseen(self.tap.after, self.target, output)


class _Gradient:
    """The hook of one output's gradient; a pickled tensor must not carry it."""

    __slots__ = ("of", "path", "tap")
    __torch_unserializable__ = True

    def __init__(self, tap: Tap, path: str, of: Copied | None) -> None:
        self.tap, self.path, self.of = tap, path, of

    def __call__(self, grad: Tensor) -> None:
        self.tap.gradient(self.path, self.of, grad)


hide(_Before.__call__)
hide(_After.__call__)


def _name(path: str, number: int, kind: str) -> str:
    return f"{path}#{number}:{kind}" if number else f"{path}:{kind}"


def _event(device: torch.device) -> Any:
    """What has to happen on a device before its copies are there."""
    event = torch.Event(device.type)
    event.record(torch.accelerator.current_stream(device))
    return event
