"""The hooks of one pass: each copies what a module took or put out, at once, before anything can change it.

The first pass finds out what there is to copy; the following ones copy into buffers that are laid out as the page will
be, so that the writer writes all of it at once. As long as a pass does what the one before it did, a hook that copies
one small tensor on the host is a few comparisons and one move of its bytes (`_After`); everything else takes the longer
way of `Tap.after_module`.
"""

import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from tdbg.core.errors import TdbgError
from tdbg.core.guard import Guard, belongs_to_program
from tdbg.debuggers.plain import PLAIN, RAW, Note, NotPlain, Part, split_tensor, to_raw_dtype
from tdbg.debuggers.pool import Full, Pool
from tdbg.debuggers.structure import Left, is_number_list, iter_leaves
from tdbg.pages.format.layout import Layout, Spec
from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.own_hooks import add_gradient_hook, can_hook, post_hooks_of, pre_hooks_of, reserve_key

ALIGN = 64
MAX_PLANS = 64
HOST = torch.device("cpu")
SMALL_BYTES = 1 << 20  # moved with the interpreter held; larger ones by torch, which has threads for them
OUTPUT = ("output",)
TIMED = 32  # one pass of so many has its hooks timed
HOOK: Any = reserve_key("capture")  # in a module's own table of hooks, for one pass
NOBODY: tuple[None] = (None,)  # makers of a pass that follows no plan
STRIDED = torch.strided
# memmove, but without giving the interpreter up: who waits for it would have it for longer than the copy takes.
move = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


class Target(NamedTuple):
    """One module to look at, and what of it."""

    path: str
    module: "weakref.ref[nn.Module]"
    kinds: tuple[str, ...]


class Slot(NamedTuple):
    """Where the one tensor of a call goes, and what it has to be like to go there. address: of its first byte."""

    dtype: torch.dtype
    shape: torch.Size
    nbytes: int
    address: int


class Form(NamedTuple):
    """What one copied tensor is like: the same in each pass of a steady program."""

    path: str
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device = HOST
    note: Note = ()

    @classmethod
    def from_part(cls, path: str, part: Part) -> "Form":
        """Of one of the plain tensors that the tensor of this path is made of."""
        return cls(path + part.path, part.dtype, part.data.shape, part.data.device, part.note)

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
    makers: tuple[Target | None, ...] = ()  # of each, the target of which a call puts out this tensor and no other

    @classmethod
    def from_forms(cls, forms: Sequence[Form], makers: Sequence[Target | None] = ()) -> "Plan":
        """Each at a multiple of 64 bytes."""
        offsets, end = [], 0
        for form in forms:
            offsets.append(end)
            end += -(-form.nbytes // ALIGN) * ALIGN
        return cls(tuple(forms), tuple(offsets), end, (*makers, *[None] * (len(forms) - len(makers))))

    @cached_property
    def data_bytes(self) -> int:
        """Of the tensors, without the gaps between them."""
        return sum(form.nbytes for form in self.forms)

    @cached_property
    def rows(self) -> dict[int, list[str]]:
        """See `Copied.find_row_paths`."""
        return {}

    @cached_property
    def call_counts(self) -> dict[str, int]:
        """How often each target runs, if each of the tensors is what one call has put out; else nothing."""
        return Counter(maker.path for maker in self.makers if maker) if None not in self.makers else {}

    @cached_property
    def devices(self) -> frozenset[torch.device]:
        """Of the tensors."""
        return frozenset(form.device for form in self.forms)

    def clear_gaps(self, buffer: Tensor) -> None:
        """Zeros between the tensors: what lay in the program's memory before is not for the disk."""
        for form, offset in zip(self.forms, self.offsets, strict=True):
            end = offset + form.nbytes
            if end % ALIGN:
                buffer[end : end - end % ALIGN + ALIGN].zero_()

    def build_slots(self, buffer: Tensor) -> list[Slot | None]:
        """For each tensor that a hook may move into the buffer by itself; None behind the last."""
        start = buffer.data_ptr()
        return [
            Slot(form.dtype, form.shape, form.nbytes, start + offset) if maker is not None else None
            for form, offset, maker in zip(self.forms, self.offsets, self.makers, strict=True)
        ] + [None]

    @cached_property
    def layout(self) -> Layout:
        """The same for the page."""
        return Layout.from_specs(
            [
                Spec(form.path, str(form.dtype).removeprefix("torch."), tuple(form.shape), dict(form.note))
                for form in self.forms
            ]
        )

    def build_views(self, buffer: Tensor) -> list[Tensor]:
        """The buffer's parts as tensors of their kind."""
        return [
            buffer[offset : offset + form.nbytes].view(to_raw_dtype(form.dtype)).view(form.shape)
            for form, offset in zip(self.forms, self.offsets, strict=True)
        ]


class Loose(NamedTuple):
    """A tensor outside of any plan, in a buffer of its own."""

    form: Form
    buffer: Tensor

    @classmethod
    def copy_part(cls, form: Form, part: Part, buffer: Tensor) -> "Loose":
        """The tensor's bytes into the buffer."""
        if form.nbytes:
            buffer.view(to_raw_dtype(form.dtype)).view(form.shape).copy_(part.data, non_blocking=True)
        return cls(form, buffer)


@dataclass(slots=True)
class Copied:
    """All that one pass copied: in one buffer by a plan, and single tensors where it left the plan."""

    plan: Plan | None = None
    buffer: Tensor | None = None
    filled: int = 0  # tensors of the plan that came
    loose: list[Loose] = field(default_factory=list)
    makers: list[Target | None] = field(default_factory=list)  # of all that came, as far as they are known
    calls: dict[str, int] = field(default_factory=dict)  # how often each module ran
    grads: dict[str, int] = field(default_factory=dict)  # how often a gradient arrived
    scalars: dict[str, object] = field(default_factory=dict)  # what came beside the tensors: path -> plain value
    skipped: dict[str, str] = field(default_factory=dict)  # path -> why it could not be copied
    awaited: dict[str, None] = field(default_factory=dict)  # gradients that have not arrived
    events: list[Any] = field(default_factory=list)  # of devices whose copies are on their way
    held: int = 0  # bytes of its buffers

    @property
    def is_complete(self) -> bool:
        """True if the buffer is full and there is nothing else."""
        return self.plan is not None and self.filled == len(self.plan.forms) and not self.loose

    @property
    def data_bytes(self) -> int:
        """Of the tensors that came."""
        return (
            self.plan.data_bytes if self.plan and self.is_complete else sum(form.nbytes for form in self.list_forms())
        )

    def list_forms(self) -> Sequence[Form]:
        """What came, in order."""
        if self.plan is not None and self.is_complete:
            return self.plan.forms
        planned = self.plan.forms[: self.filled] if self.plan is not None else ()
        return [*planned, *(loose.form for loose in self.loose)]

    def last_form(self) -> Form | None:
        """What came last."""
        if self.loose:
            return self.loose[-1].form
        return self.plan.forms[self.filled - 1] if self.plan is not None and self.filled else None

    def find_row_paths(self, count: int) -> list[str]:
        """The paths of tensors whose first dimension is ``count``."""
        if self.plan is None or not self.is_complete:
            return _with_rows(self.list_forms(), count)
        if count not in self.plan.rows:
            self.plan.rows[count] = _with_rows(self.plan.forms, count)
        return self.plan.rows[count]

    def list_buffers(self) -> list[Tensor]:
        """All of them, to be given back."""
        return [*([self.buffer] if self.buffer is not None else []), *(loose.buffer for loose in self.loose)]


@dataclass(slots=True)
class Clock:
    """What hooks have cost so far. long_s: those that went the longer way. moved: tensors that went the short one, of
    which some were timed."""

    long_s: float = 0.0
    moved: int = 0
    timed: int = 0
    timed_s: float = 0.0
    taken_s: float = 0.0

    def take_s(self) -> float:
        """The seconds since the last time this was asked; those of hooks without a clock by what others took."""
        whole_s = self.long_s + (self.timed_s / self.timed * self.moved if self.timed else 0.0)
        seconds, self.taken_s = max(whole_s - self.taken_s, 0.0), max(whole_s, self.taken_s)
        return seconds


class Tap:
    """Hooks some modules for one pass at a time and hands over copies of what they took and put out.

    Paths are ``layers.4.attn:output``; ``layers.4.attn#1:output`` for a second call in the same pass, and
    ``layers.4.attn:output.0`` for the first tensor of a tuple. Gradients arrive until `end_pass` is called.
    Cost: some 3 us a tensor that is small, on the host and the one output of its module, beside torch's own 2 us of
    calling any hook; others one ``copy_`` and some 6 us.
    """

    def __init__(self, pool: Pool, failed: Callable[[BaseException], None]) -> None:
        self.pool = pool
        self.guard = Guard("capture", lambda part, error: self._give_up(error, failed))
        self._plans: dict[Form, Plan] = {}  # by what comes first
        self._views: dict[int, tuple[Tensor, Plan, list[Tensor], list[Slot | None]]] = {}  # by id of the buffer
        self._hooked: list[dict[Any, Any]] = []  # tables of hooks
        self._copied: Copied | None = None
        self._parked: list[Copied] = []  # passes that are over, but for their gradients
        self._ready: list[Tensor] = []
        self._ready_forms: tuple[Form, ...] = ()
        self._full = False
        self._passes = 0
        self._graded = True
        self.clock = Clock()
        self._made: dict[str, int] = {}  # how many tensors of this pass have this target as their maker
        self._open: dict[str, list[int]] = {}  # the calls that have begun and not ended: a module may call itself
        # What the hooks themselves look at: which tensor of the plan comes next, who is to make it, where it goes.
        self.at = 0
        self.next: Target | None = None
        self.makers: Sequence[Target | None] = NOBODY
        self.slots: list[Slot | None] = []
        self.thread = 0

    def _give_up(self, error: BaseException, failed: Callable[[BaseException], None]) -> None:
        """The guard's report: this pass is lost, and there is no further one."""
        self._full, self.makers, self.next = True, NOBODY, None
        self.remove_hooks()
        failed(error)

    @property
    def running(self) -> bool:
        """True between `begin_pass` and `end_pass`."""
        return self._copied is not None

    @property
    def awaits_gradients(self) -> bool:
        """True while the pass that runs has to have gradients that have not come."""
        return self._copied is not None and bool(self._copied.awaited)

    def count_hooks(self) -> int:
        """How many hooks are placed."""
        return len(self._hooked)

    def begin_pass(
        self,
        targets: Sequence[Target],
        *,
        graded: bool = True,
        root: nn.Module | None = None,
        given: tuple[object, object] = ((), {}),
    ) -> None:
        """Hook them; what they carry is gone after `remove_hooks`. graded: gradients are to be expected.

        root: the module whose call has begun already, with the arguments and keywords it was ``given``.
        """
        self._graded = graded
        self._copied, self._ready, self._full, self._made, self._open = Copied(), [], False, {}, {}
        self.at, self.next, self.makers, self.thread = 0, None, NOBODY, get_ident()
        self._passes += 1
        after = _TimedAfter if self._passes % TIMED == 0 else _After
        for target in targets:
            module = target.module()
            if module is None or not can_hook(module):
                continue
            if "input" in target.kinds and module is root:
                self.before_module(target, *given)
            elif "input" in target.kinds:
                before, with_kwargs = pre_hooks_of(module)
                before[HOOK], with_kwargs[HOOK] = _Before(self, target), True
                self._hooked += (before, with_kwargs)
            hooks = post_hooks_of(module)
            hooks[HOOK] = after(self, target)
            if module is root:  # before the hook that ends the pass
                hooks.move_to_end(HOOK, last=False)
            self._hooked.append(hooks)

    def remove_hooks(self) -> None:
        """The forward pass is over."""
        for table in self._hooked:
            table.pop(HOOK, None)
        self._hooked = []

    def end_pass(self, *, parked: bool = False) -> Copied | None:
        """What this pass copied; None if there was no room for it, or there was no pass.

        parked: it is to be handed to `unpark` later, and gradients of it are taken until then.
        """
        self.remove_hooks()
        self._settle_last()
        copied, self._copied, self._ready, self.next = self._copied, None, [], None
        if copied is None:
            return None
        if self._full:
            self.release_buffers(copied)
            return None
        forms = copied.list_forms()
        if forms and not copied.is_complete:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
                self._views.clear()
            self._plans[forms[0]] = Plan.from_forms(forms, copied.makers)
        self._parked.append(copied)
        if not parked:
            self.unpark(copied)
        return copied

    def unpark(self, copied: Copied) -> None:
        """What comes for this pass from now on is too late."""
        self._parked = [other for other in self._parked if other is not copied]
        devices = (
            copied.plan.devices if copied.plan and copied.is_complete else {form.device for form in copied.list_forms()}
        )
        copied.events += [_record_event(device) for device in devices - {HOST}]

    def release_buffers(self, copied: Copied) -> None:
        """Give its memory back."""
        for buffer in copied.list_buffers():
            self.pool.return_buffer(buffer)

    # called by the hooks

    def before_module(self, target: Target, args: Any, kwargs: object) -> None:
        """A module is about to run: its inputs, before it may write into them."""
        if get_ident() != self.thread:  # inference beside training is not this pass
            return
        begun = perf_counter()
        self._count_moved()
        running = self._open.setdefault(target.path, [])
        number = len(running) + (self._copied.calls.get(target.path, 0) if self._copied is not None else 0)
        running.append(number)
        self._copy_value(_format_name(target.path, number, "input"), [*args, kwargs] if kwargs else list(args))
        self._resync_plan()
        self.clock.long_s += perf_counter() - begun

    def copy_entry(self, name: str, value: object) -> None:
        """Something that belongs to the pass and is no module's: its batch, or what the root returned."""
        begun = perf_counter()
        self._count_moved()
        if is_number_list(value) and self._copied is not None:
            self._copied.scalars[name] = value
        else:
            self._copy_value(name, value)
        self._resync_plan()
        self.clock.long_s += perf_counter() - begun

    @property
    def current(self) -> Copied | None:
        """The pass that runs."""
        return self._copied

    def copy_late(self, copied: Copied, name: str, value: object) -> None:
        """As `copy_entry`, for a pass that may be over but for what it waits for."""
        if copied is self._copied:
            self.copy_entry(name, value)
            return
        if not self._is_parked(copied):
            return  # it was handed over, to make room: a thread writes it
        if is_number_list(value):
            copied.scalars[name] = value
            return
        for path, leaf in iter_leaves(value, name):
            if isinstance(leaf, Tensor):
                self._take_late(copied, path, leaf)
            elif isinstance(leaf, Left):
                copied.skipped[path] = leaf.why
            else:
                copied.scalars[path] = leaf

    def after_module(self, target: Target, output: object) -> None:
        """A module has returned."""
        if get_ident() != self.thread:
            return
        begun = perf_counter()
        self._count_moved()
        copied = self._copied
        if copied is None:
            return
        count, running = copied.calls.get(target.path, 0), self._open.get(target.path)
        copied.calls[target.path] = count + 1
        number = running.pop() if running else count
        if "output" in target.kinds:
            before = copied.filled + len(copied.loose)
            self._copy_value(_format_name(target.path, number, "output"), output)
            self._know_maker(copied, target, output, number, copied.filled + len(copied.loose) - before)
        if "grad" in target.kinds:
            self._await_gradient(copied, _format_name(target.path, number, "grad"), output)
        self._resync_plan()
        self.clock.long_s += perf_counter() - begun

    def _know_maker(self, copied: Copied, target: Target, output: object, number: int, count: int) -> None:
        """If the ``count`` tensors that a call has brought are one that the hook could move by itself, note so."""
        if target.kinds != OUTPUT:
            return
        form = copied.last_form() if count == 1 and type(output) is Tensor else None
        if form is None:
            self.makers = NOBODY  # the calls of this pass can no longer be told from the tensors that came
        elif number == self._made.get(target.path, 0) and _is_movable(form):
            self._made[target.path] = number + 1
            copied.makers[-1] = target

    def _count_moved(self) -> None:
        """Count what the hooks have moved by themselves since the last time."""
        copied = self._copied
        if copied is None or copied.filled == self.at or copied.plan is None:
            return
        moved = copied.plan.makers[copied.filled : self.at]
        self.clock.moved += len(moved)
        copied.makers += moved
        for target in moved:
            assert target is not None
            copied.calls[target.path] = self._made[target.path] = copied.calls.get(target.path, 0) + 1
        copied.filled = self.at

    def _settle_last(self) -> None:
        """As `_count_moved`, at the end of a pass."""
        copied = self._copied
        plan = copied.plan if copied is not None and not copied.loose else None
        if (
            copied is not None
            and plan is not None
            and copied.filled == 1
            and self.at == len(plan.forms)
            and plan.call_counts
        ):
            self.clock.moved += self.at - 1
            copied.filled, copied.calls = self.at, plan.call_counts  # what was the same all the way need not be counted
        else:
            self._count_moved()

    def _resync_plan(self) -> None:
        self.at = at = self._copied.filled if self._copied is not None else 0
        self.next = self.makers[at] if at < len(self.makers) else None

    def _await_gradient(self, copied: Copied, name: str, output: object) -> None:
        found = [(path, leaf) for path, leaf in iter_leaves(output, name) if isinstance(leaf, Tensor)]
        graded = [(path, tensor) for path, tensor in found if tensor.requires_grad]
        for path, tensor in graded:
            add_gradient_hook(tensor, _Gradient(self, path, copied), purpose=f"capture of {path}")
            copied.awaited[path] = None
        if not graded and self._graded:
            recording = "no tensor in it requires grad" if torch.is_grad_enabled() else "it ran under no_grad"
            copied.skipped[name] = f"no gradient: {recording}"

    def record_gradient(self, path: str, of: Copied | None, grad: Tensor) -> None:
        """A gradient has arrived, of the pass that runs or of one that is parked; others are not waited for."""
        is_current = of is not None and of is self._copied
        if of is None or not (is_current or self._is_parked(of)):
            return
        begun = perf_counter()
        number = of.grads.get(path, 0)
        of.grads[path] = number + 1
        name = f"{path}#{number}" if number else path
        if is_current:
            self._count_moved()
            self._copy_value(name, grad)
            self._resync_plan()
            of.awaited.pop(path, None)
        elif self._take_late(of, name, grad):
            of.awaited.pop(path, None)
        self.clock.long_s += perf_counter() - begun

    def _take_late(self, copied: Copied, name: str, grad: Tensor) -> bool:
        """For a pass that is parked: the plan is another pass's by now. False if it came too late after all."""
        try:
            for part in self._parts_of(copied, name, grad):
                form = Form.from_part(name, part)
                buffer = self._take_buffer(copied, form.nbytes)
                if not self._is_parked(copied):  # while room was waited for it was handed over, to make some
                    self.pool.return_buffer(buffer)
                    return False
                copied.loose.append(Loose.copy_part(form, part, buffer))
        except Full:
            copied.skipped[name] = "the memory for copies was full"
        return True

    def _is_parked(self, copied: Copied) -> bool:
        return any(copied is parked for parked in self._parked)

    def _copy_value(self, name: str, value: object) -> None:
        if self._copied is None or self._full:
            return
        try:
            if type(value) is Tensor:  # not isinstance: an object of the program's may have a say in that
                self._copy_tensor(name, value)
            else:
                self._take_leaves(self._copied, name, value)
        except Full:
            self._full, self.makers = True, NOBODY

    def _take_leaves(self, copied: Copied, name: str, value: object) -> None:
        for path, leaf in iter_leaves(value, name):
            if isinstance(leaf, Tensor):
                self._copy_tensor(path, leaf)
            elif isinstance(leaf, Left):
                copied.skipped[path] = leaf.why
            else:
                copied.scalars[path] = leaf

    def _copy_tensor(self, path: str, tensor: Tensor) -> None:
        copied = self._copied
        assert copied is not None
        place = copied.filled
        if place < len(self._ready):
            form = self._ready_forms[place]
            if (
                form.path == path
                and form.shape == tensor.shape
                and form.dtype is tensor.dtype
                and form.device == tensor.device
                and type(tensor) in PLAIN
                and tensor.layout is torch.strided
                and form.dtype not in RAW
            ):
                self._ready[place].copy_(tensor.detach(), non_blocking=True)
                copied.filled = place + 1
                copied.makers.append(None)
                return
        self._copy_new(copied, path, tensor)

    def _copy_new(self, copied: Copied, path: str, tensor: Tensor) -> None:
        """The first tensor of a pass, which tells the plan; one that no plan knew; one that is no plain data."""
        for part in self._parts_of(copied, path, tensor):
            self._copy_part(copied, path, part)

    @staticmethod
    def _parts_of(copied: Copied, path: str, tensor: Tensor) -> Sequence[Part]:
        """The plain tensors that this one is made of; none, and a word on it, where it cannot be kept."""
        try:
            return split_tensor(tensor)
        except BaseException as error:  # guard: a tensor may refuse anything; this one is not kept, and that is said
            if isinstance(error, TdbgError) or belongs_to_program(error):
                raise
            why = str(error) if isinstance(error, NotPlain) else f"{type(error).__name__}: {error}"[:200]
            copied.skipped[path] = why
            return ()

    def _copy_part(self, copied: Copied, path: str, part: Part) -> None:
        form = Form.from_part(path, part)
        plan = self._plans.get(form) if copied.plan is None and not copied.loose else None
        if plan is not None:
            copied.plan, copied.buffer = plan, self._take_buffer(copied, plan.nbytes)
            self._ready, self.slots = self._views_of(copied.buffer, plan)
            self._ready_forms, self.makers = plan.forms, (*plan.makers, None)
        place = copied.filled
        if place < len(self._ready) and self._ready_forms[place] == form:
            self._ready[place].copy_(part.data, non_blocking=True)
            copied.filled = place + 1
            copied.makers.append(None)
            return
        self._ready, self.makers = [], NOBODY  # this pass goes another way than the last one: what comes stays in order
        copied.loose.append(Loose.copy_part(form, part, self._take_buffer(copied, form.nbytes)))
        copied.makers.append(None)

    def _take_buffer(self, copied: Copied, size: int) -> Tensor:
        buffer = self.pool.take_buffer(size, copied.held)
        copied.held += size
        return buffer

    def _views_of(self, buffer: Tensor, plan: Plan) -> tuple[list[Tensor], list[Slot | None]]:
        known = self._views.get(id(buffer))
        if known is None or known[0] is not buffer or known[1] is not plan:
            if len(self._views) >= MAX_PLANS:
                self._views.clear()
            known = self._views[id(buffer)] = (buffer, plan, plan.build_views(buffer), plan.build_slots(buffer))
            plan.clear_gaps(buffer)
        return known[2:]


class _Before:
    """Stands before one module for one pass."""

    __slots__ = ("tap", "target")

    def __init__(self, tap: Tap, target: Target) -> None:
        self.tap, self.target = tap, target

    def __call__(self, module: nn.Module, args: object, kwargs: object) -> None:
        if not torch.compiler.is_compiling():
            call_outside_compiler(self.tap.guard.call_guarded, self.tap.before_module, self.target, args, kwargs)


class _After:
    """Stands behind one module for one pass."""

    __slots__ = ("tap", "target")

    def __init__(self, tap: Tap, target: Target) -> None:
        self.tap, self.target = tap, target

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        if is_dynamo_compiling():  # the cheapest one that the compiler knows; the longer way asks the other one
            return
        tap = self.tap
        # The usual case, without a call of anything that is written in Python.
        if tap.next is self.target and type(output) is Tensor and get_ident() == tap.thread:
            dtype, shape, nbytes, address = tap.slots[tap.at]  # type: ignore[misc]  # there is one, as there is a maker
            if (
                output.dtype is dtype
                and output.shape == shape
                and output.is_cpu
                and output.layout is STRIDED
                and output.is_contiguous()
                and not output.is_neg()
            ):
                try:
                    source = output.data_ptr()
                except RuntimeError:  # a wrapper of another tensor
                    pass
                else:
                    move(address, source, nbytes)
                    tap.at = at = tap.at + 1
                    tap.next = tap.makers[at]
                    return
        if not torch.compiler.is_compiling():
            call_outside_compiler(tap.guard.call_guarded, tap.after_module, self.target, output)


class _TimedAfter(_After):
    """The same with a clock, in one pass of some."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        if torch.compiler.is_compiling():
            return
        clock, at, begun = self.tap.clock, self.tap.at, perf_counter()
        call_outside_compiler(_After.__call__, self, module, args, output)
        if self.tap.next is not None and self.tap.at == at + 1:
            clock.timed += 1
            clock.timed_s += perf_counter() - begun


class _Gradient:
    """The hook of one output's gradient; a pickled tensor must not carry it."""

    __slots__ = ("of", "path", "tap")
    __torch_unserializable__ = True

    def __init__(self, tap: Tap, path: str, of: Copied | None) -> None:
        self.tap, self.path, self.of = tap, path, of

    def __call__(self, grad: Tensor | None) -> None:
        if grad is not None:
            self.tap.guard.call_guarded(self.tap.record_gradient, self.path, self.of, grad)


hide_from_compiler(_Before.__call__)
hide_from_compiler(_After.__call__)
hide_from_compiler(_TimedAfter.__call__)


def _with_rows(forms: Sequence[Form], count: int) -> list[str]:
    return [form.path for form in forms if form.shape[:1] == (count,)]


def _is_movable(form: Form) -> bool:
    """True if its bytes can be moved as they lie, and quickly."""
    plain = not form.note and form.dtype not in RAW and not form.dtype.is_complex
    return plain and form.device == HOST and 0 < form.nbytes <= SMALL_BYTES


def _format_name(path: str, number: int, kind: str) -> str:
    return f"{path}#{number}:{kind}" if number else f"{path}:{kind}"


def _record_event(device: torch.device) -> object:
    """What has to happen on a device before its copies are there."""
    event = torch.Event(device.type)
    event.record(torch.accelerator.current_stream(device))
    return event
