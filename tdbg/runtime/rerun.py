"""Locating the first NaN or Inf: the kept batch runs once more, under hooks, while the weights are intact.

The run goes through the user's own module without its DDP wrapper and through `torch.autograd.grad`, so
it issues no collective, adds nothing to any ``.grad`` and fires no reducer. RNG, buffers, autocast and
output are put back; what a forward does to the world besides (an attribute it sets, a generator or file of
its own) happens once more. What cannot be repeated that way (FSDP shards, SyncBatchNorm) is refused by name.
"""

import contextlib
import io
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.core.guard import Guard
from tdbg.runtime import tensors
from tdbg.runtime.own_hooks import HookHandle, add_gradient_hook, add_post_hook, add_pre_hook, can_hook
from tdbg.runtime.random_states import (
    DeviceStates,
    current_device_state,
    device_states,
    same_random_states,
    set_device_states,
)
from tdbg.runtime.rerun_alone import CollectiveMet, no_collectives
from tdbg.runtime.root_modules import Names, unwrap_module
from tdbg.runtime.tensors import Bad, find_bad_values, first_bad, is_sharded, iter_tensors, name_argument, read_version
from tdbg.runtime.torch_compat import in_transform, is_dynamo_loaded, unseen_by_subclasses, with_subclass

MAX_OUTPUTS = 16
SMALL_BYTES = 64_000_000
SMALL_DEVICE_BYTES = 16_000_000  # a thousandth of what a small device has
COMPUTED = "that input was computed before the call, in a part of the model that could not be run again"
REFUSED = ("FSDPModule", "FullyShardedDataParallel", "SyncBatchNorm", "PipelineStage")


@dataclass(slots=True)
class Call:
    """One call of a root module as it was made: enough to make it again."""

    module: "weakref.ref[nn.Module]"
    args: tuple[object, ...]
    kwargs: dict[str, object]
    versions: list[int] | None  # None: not taken
    rng: Tensor | None
    device_rng: DeviceStates
    autocast: tuple[str, torch.dtype] | None
    graded: bool
    output_grads: dict[int, Tensor] = field(default_factory=dict)
    samples: int | None = None
    outputs: list[Tensor] = field(default_factory=list)  # what it returned, where that is small and on the host

    @classmethod
    def capture_call(cls, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> "Call | None":
        """Keep references (no copies) to the arguments, and the state of the random generators.

        None for a call on tensors that hold no data: meta and fake tensors, functorch's batched ones.
        """
        if in_transform():
            return None
        taken = [tensor for _, tensor in iter_tensors((args, kwargs))]
        if any(tensor.is_meta or type(tensor).__name__ == "FakeTensor" for tensor in taken):
            return None
        device = next((tensor.device.type for tensor in taken if tensor.device.type != "cpu"), "cpu")
        mode = None
        for kind in ("cpu", device):
            if torch.is_autocast_enabled(kind):
                mode = (kind, torch.get_autocast_dtype(kind))
        return cls(
            module=weakref.ref(module),
            args=args,
            kwargs=kwargs,
            versions=[read_version(tensor) for tensor in taken],
            rng=torch.get_rng_state(),
            device_rng=device_states(),
            autocast=mode,
            graded=torch.is_grad_enabled(),
            samples=next((tensor.size(0) for tensor in taken if tensor.dim() > 0), None),
        )

    @classmethod
    def capture_lightweight(
        cls, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], *, random_state: bool = True
    ) -> "Call":
        """As little as a second run needs, for steps between samples: about 2 us.

        random_state: keep that of the host, which is most of the cost; without it dropout draws another mask.
        """
        kind = next((kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)), "")
        mode = (kind, torch.get_autocast_dtype(kind)) if kind else None
        rng = torch.get_rng_state() if random_state else None
        device_rng = current_device_state() if random_state else {}
        return cls(weakref.ref(module), args, kwargs, None, rng, device_rng, mode, graded=True)

    def watch_outputs(self, output: object, *, on_device: bool) -> None:
        """Keep small outputs, and the gradients that will arrive at them (references again).

        Such a gradient then lives until the update instead of until it has been used. On an accelerator that could cost
        the memory of a whole batch of logits: there only small ones are kept, unless on_device says otherwise.
        """
        for index, (_, tensor) in enumerate(iter_tensors(output)):
            if index >= MAX_OUTPUTS:
                break
            on_host = tensors.on_host(tensor)
            small = tensors.count_bytes(tensor) <= (SMALL_BYTES if on_host else SMALL_DEVICE_BYTES)
            if not (on_device or on_host or small):
                continue
            if small:
                self.outputs.append(tensor.detach())
            if tensor.requires_grad and tensor.grad_fn is not None:
                add_gradient_hook(tensor, _Keep(self.output_grads, index))

    def is_small(self, limit_bytes: int = SMALL_BYTES) -> bool:
        """True if keeping the arguments for one more step costs no memory worth speaking of."""
        return sum(tensors.count_bytes(tensor) for _, tensor in iter_tensors((self.args, self.kwargs))) <= limit_bytes

    def holds_memory(self) -> bool:
        """True if keeping several such calls would keep graphs alive, or much memory of an accelerator."""
        taken = [tensor for _, tensor in iter_tensors((self.args, self.kwargs))]
        if any(tensor.grad_fn is not None for tensor in taken):
            return True
        return not all(map(tensors.on_host, taken)) and not self.is_small()

    def clean_arguments(self) -> tuple[Any, Any]:
        """The same arguments with zeros in the place of what is not finite."""
        return replace_nonfinite(self.args), replace_nonfinite(self.kwargs)

    def has_changed_arguments(self) -> bool:
        """True if an argument was written to since the call."""
        if self.versions is None:
            return False
        return [read_version(tensor) for _, tensor in iter_tensors((self.args, self.kwargs))] != self.versions


GUARD = Guard("output gradients")


class _Keep:
    """A tensor hook that keeps the gradient and returns nothing."""

    __slots__ = ("index", "into")
    __torch_unserializable__ = True  # torch.save of such an output says nothing of our hook

    def __init__(self, into: dict[int, Tensor], index: int) -> None:
        self.into, self.index = into, index

    def __call__(self, grad: Tensor | None) -> None:
        if grad is not None:
            GUARD.call_guarded(self._keep_gradient, grad)

    def _keep_gradient(self, grad: Tensor) -> None:
        self.into[self.index] = grad.detach()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the program."""

    name: str  # aten.sqrt, or SqrtBackward0 in backward
    where: str = ""  # file:line of the program's own code
    code: str = ""  # that line


@dataclass(slots=True)
class Located:
    """Where the first non-finite value came from, as far as could be seen."""

    phase: str  # input, forward, loss, backward, gradient, optimizer; empty: not reproduced
    module: str = ""
    module_class: str = ""
    parameter: str = ""
    tensor: str = ""
    bad: Bad | None = None
    note: str = ""
    operation: Operation | None = None
    fed_bad: bool = False  # what entered the module in the forward pass was not finite
    call: Call | None = None  # whose forward or backward pass was not finite
    shared: bool = False  # other ranks have a part in the forward pass, which therefore was not run again

    @property
    def found(self) -> bool:
        """True if the re-run showed it."""
        return bool(self.phase)


def explain_refusal(root: nn.Module) -> str:
    """Why this root cannot be run again without side effects; empty if it can."""
    for module in unwrap_module(root).modules():
        for cls in type(module).__mro__:
            if cls.__name__ in REFUSED:
                return f"{cls.__name__} runs collectives of its own, so the batch was not run again"
    if any(is_sharded(parameter) for parameter in root.parameters()):
        return "parameters are sharded tensors, so the batch was not run again"
    return ""


@contextlib.contextmanager
def muted_output() -> Iterator[None]:
    """What this thread prints inside is not printed: a forward that prints must not print twice."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Muted(out), _Muted(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


@contextlib.contextmanager
def as_before(call: Call, root: nn.Module) -> Iterator[None]:
    """The surroundings of the original call; everything is put back afterwards."""
    buffers: list[tuple[nn.Module, str, Tensor]] = []
    try:
        _lend_buffers(root, buffers)
        with contextlib.ExitStack() as stack:
            stack.enter_context(muted_output())
            stack.enter_context(same_random_states())
            _draw_as(call)
            if is_dynamo_loaded():
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if call.autocast:
                stack.enter_context(torch.autocast(call.autocast[0], dtype=call.autocast[1], cache_enabled=False))
            stack.enter_context(_followed_checkpoints())
            stack.enter_context(no_collectives())
            stack.enter_context(with_subclass())  # a guard of ours has set them aside
            yield
    finally:
        for owner, name, buffer in buffers:
            owner._buffers[name] = buffer


def _draw_as(call: Call) -> None:
    """Have the second run draw the numbers of the first, where the states were kept."""
    if call.rng is not None:
        torch.set_rng_state(call.rng)
    set_device_states(call.device_rng)


@contextlib.contextmanager
def _followed_checkpoints() -> Iterator[None]:
    """Let the gradient pass through reentrant checkpoints, which refuse `torch.autograd.grad`, as through the others.

    Both kinds are as sparing of memory. Without checkpoints the second run might not fit where the first one did.
    """
    known = sys.modules.get("torch.utils.checkpoint")
    kind: Any = getattr(known, "CheckpointFunction", None)
    if known is None or kind is None:
        yield
        return
    checkpoint = known.checkpoint
    own = "apply" in vars(kind)  # somebody else's patch
    before = kind.apply

    def checkpoint_non_reentrant(function: Callable[..., object], preserve_rng_state: bool, *args: object) -> Any:
        return checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, determinism_check="none"
        )

    kind.apply = staticmethod(checkpoint_non_reentrant)
    try:
        yield
    finally:
        if own:
            kind.apply = before
        else:
            del kind.apply


class _Muted(io.TextIOBase):
    """stdout without what this thread prints; other threads go on as before."""

    def __init__(self, out: Any) -> None:
        self.out, self.thread = out, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self.thread else int(self.out.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)


def _lend_buffers(root: nn.Module, originals: list[tuple[nn.Module, str, Tensor]]) -> None:
    """Put copies in the place of all buffers; lists the originals, which autograd may have saved.

    Restoring values in place would not do: it raises the version of a tensor that the pending backward
    pass needs unchanged.
    """
    for module in root.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                copy = _with_class_of(buffer, buffer.detach().clone())
                originals.append((module, name, buffer))
                module._buffers[name] = copy


def _with_class_of(original: Tensor, made: Tensor) -> Tensor:
    """What was made of a tensor, as the class that its ``__torch_function__`` would have given it."""
    if type(made) is not Tensor or type(original) in (Tensor, nn.Parameter):
        return made
    made = made.as_subclass(type(original))
    vars(made).update((name, value) for name, value in vars(original).items() if name != "_is_param")
    return made


@dataclass(slots=True)
class _Visit:
    """One call of one module during the re-run."""

    module: nn.Module
    order: int
    depth: int
    parent: "_Visit | None"
    grad_outputs: list[bool] = field(default_factory=list)  # True: finite
    grad_inputs: list[bool] = field(default_factory=list)
    fed_bad: bool = False  # what entered it in the forward pass was not finite
    bad_grad: tuple[str, Bad] | None = None
    bad_parameter: tuple[str, Bad] | None = None


class _Tracer:
    """Hooks on every module of a root for one forward run."""

    def __init__(self, root: nn.Module, names: Names, *, backward: bool) -> None:
        self.root = root
        self.names = names
        self.backward = backward
        self.stack: list[_Visit] = []
        self.visits: list[_Visit] = []
        self.strong: Located | None = None
        self.weak: Located | None = None
        self.takers: list[nn.Module] = [root]  # the first module without others inside that is given a bad value
        self.masks: list[tuple[Tensor, Located]] = []  # outputs that hold -inf, and which modules have made them
        self.done = False  # the forward pass is: what runs now is a checkpoint that computes again

    @contextlib.contextmanager
    def attach_hooks(self) -> Iterator[None]:
        handles: list[HookHandle] = []
        try:
            for module in self.root.modules():
                if isinstance(module, torch.jit.ScriptModule) or not can_hook(module):
                    continue
                handles.append(add_pre_hook(module, self._enter_module, first=True, with_kwargs=True))
                handles.append(add_post_hook(module, self._leave_module))
            yield
        finally:
            for handle in handles:
                handle.remove()

    @unseen_by_subclasses
    def _enter_module(self, module: nn.Module, args: object, kwargs: object) -> None:
        if self.done:
            return
        parent = self.stack[-1] if self.stack else None
        visit = _Visit(module=module, order=len(self.visits), depth=len(self.stack), parent=parent)
        self.visits.append(visit)
        if self.backward:
            found = first_bad((args, kwargs))
            visit.fed_bad = found is not None and not found[1].only_minus_inf
            self._hook_input_gradients(visit, (args, kwargs))
        elif parent is not None and (self.strong is None or not self.takers):
            entered = first_bad((args, kwargs))
            if entered and not self.takers and not entered[1].only_minus_inf and not module._modules:
                self.takers.append(module)
            if entered and self.strong is None:
                located, is_mask = self._record_bad_value(
                    parent.module, "forward", f"made before {self._resolve_path(module)}", entered[1]
                )
                if is_mask and self._find_mask((args, kwargs)) is None:
                    self.masks += [(tensor, located) for _, tensor in iter_tensors((args, kwargs))]
        self.stack.append(visit)

    @unseen_by_subclasses
    def _leave_module(self, module: nn.Module, args: object, output: object) -> None:
        if self.done:
            return
        while self.stack:
            visit = self.stack.pop()
            if visit.module is module:
                break
        else:
            return
        if self.backward:
            self._hook_output_gradients(visit, output)
        elif self.strong is None:
            found = first_bad(output)
            if found:
                located, is_mask = self._record_bad_value(module, "forward", "output", found[1])
                if is_mask:
                    source = self._find_mask(args) or located  # one that only hands it on has not made it
                    self.masks += [(tensor, source) for _, tensor in iter_tensors(output)]
                else:
                    self.strong = self._find_minus_inf(module, args) or located

    def _find_minus_inf(self, module: nn.Module, args: object) -> Located | None:
        """Where the -inf comes from that a layer with weights got as its input: no mask, as no such layer takes one."""
        given = args[0] if isinstance(args, tuple) and args else None
        is_layer = bool(module._parameters) and not module._modules
        bad = find_bad_values(given) if is_layer and isinstance(given, Tensor) else None
        if bad is None or not bad.only_minus_inf:
            return None
        return self._find_mask(given)

    def _find_mask(self, given: object) -> Located | None:
        """Which module has made the -inf in one of these tensors, if that was seen."""
        tensors = [tensor for _, tensor in iter_tensors(given)]
        return next((made for known, made in self.masks if any(known is one for one in tensors)), None)

    def _record_bad_value(self, module: nn.Module, phase: str, tensor: str, bad: Bad) -> tuple[Located, bool]:
        """Keep a bad value; returns its place, and True if it may be a mask for softmax, which looks like this on purpose."""
        located = Located(phase, self._resolve_path(module), type(module).__name__, tensor=tensor, bad=bad)
        trained = any(True for _ in module.parameters(recurse=False))
        is_mask = bad.only_minus_inf and not trained
        if is_mask:
            self.weak = self.weak or located
        else:
            self.strong = located
        return located, is_mask

    def _resolve_path(self, module: nn.Module) -> str:
        return self.names.modules.get(id(module), "") or type(module).__name__

    def _hook_input_gradients(self, visit: _Visit, arguments: tuple[object, object]) -> None:
        for path, tensor in iter_tensors(arguments):
            if tensor.requires_grad:
                name = name_argument(path)
                add_gradient_hook(tensor, partial(self._record_gradient, visit, visit.grad_inputs, name))

    def _hook_output_gradients(self, visit: _Visit, value: object) -> None:
        for name, tensor in iter_tensors(value):
            if tensor.requires_grad and tensor.grad_fn is not None:
                add_gradient_hook(tensor, partial(self._record_gradient, visit, visit.grad_outputs, name))

    @unseen_by_subclasses
    def _record_gradient(self, visit: _Visit, into: list[bool], name: str, grad: Tensor | None) -> None:
        if grad is None:
            return
        bad = find_bad_values(grad)
        into.append(bad is None)
        if bad and into is visit.grad_inputs and visit.bad_grad is None:
            visit.bad_grad = name, bad


def locate_forward(calls: list[Call], names: Names) -> Located:
    """Run the kept calls again and name the first module whose output is not finite.

    Returns phase "input" when the batch itself is bad, "optimizer" when the module's own weights are,
    "loss" when all modules are finite, and no phase when nothing could be seen.
    """
    for call in calls:
        located = _forward_once(call, names)
        if located.found or located.note:
            located.call = call
            return located
    return Located("loss", note="every module's output is finite: it arises in the loss, outside the model")


def _forward_once(call: Call, names: Names) -> Located:
    root = call.module()
    if root is None:
        return Located("", note="the model is gone")
    why = explain_refusal(root)
    bad_input = _bad_input(call, root, names)
    if why:
        return bad_input or Located("", note=why, shared=True)
    if call.has_changed_arguments():
        return bad_input or Located("", note="the batch was changed in place after the forward pass")
    takers: list[nn.Module] = []
    try:
        located = _trace_forward(call, unwrap_module(root), call.args, call.kwargs, names, takers)
    except CollectiveMet as met:
        return bad_input or Located("", note=str(met), shared=True)
    if located is not None and bad_input is not None:  # a NaN that the model masks is no fault: try without it
        located = _trace_forward(call, unwrap_module(root), *call.clean_arguments(), names)
        located = located or _name_taker(bad_input, takers, names)
    return located or Located("")


def _name_taker(bad_input: Located, takers: list[nn.Module], names: Names) -> Located:
    """The batch as the place, with the module that takes the bad values in; without one where the model itself does."""
    if bad_input.phase == "input":
        first = next(iter(takers), None)
        bad_input.module = names.modules.get(id(first), "") if first is not None else ""
        bad_input.module_class = type(first).__name__ if first is not None else ""
    return bad_input


def is_finite_without(
    call: Call, argument: Tensor, rows: Sequence[int], names: Names, *, backward: bool = False
) -> bool:
    """True if the call is finite once another row of one argument has taken the place of these rows.

    Runs the batch once more: for after a fault has been located. backward: its gradients as well.
    """
    root = call.module()
    spare = next((row for row in range(len(argument)) if row not in rows), None)
    if root is None or spare is None or call.has_changed_arguments():
        return False
    changed = argument.detach().clone()
    changed[list(rows)] = changed[spare].clone()
    args, kwargs = (_replace_tensor(value, argument, changed) for value in (call.args, call.kwargs))
    if first_bad((args, kwargs)) is not None:
        return False
    inner = unwrap_module(root)
    if backward:
        return not _trace_backward(replace(call, args=args, kwargs=kwargs, versions=None), inner, names).found
    return not _trace_forward(call, inner, args, kwargs, names)


def _replace_tensor(value: Any, old: Tensor, new: Tensor) -> Any:
    """The same arguments with one tensor in the place of another."""
    if value is old:
        return new
    if isinstance(value, Mapping):
        return {name: _replace_tensor(item, old, new) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace_tensor(item, old, new) for item in value)
    return value


def _trace_forward(
    call: Call,
    root: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    names: Names,
    takers: list[nn.Module] | None = None,
) -> Located | None:
    """Where the first bad value is made. takers: gets the first module without others inside that is given one."""
    tracer = _Tracer(root, names, backward=False)
    tracer.takers = takers if takers is not None else [root]
    try:
        with as_before(call, root), tracer.attach_hooks(), torch.set_grad_enabled(call.graded):
            root(*args, **kwargs)
    except CollectiveMet:
        if tracer.strong is None:
            raise
    located = tracer.strong or tracer.weak
    return _blame_weights(located, root, names) if located is not None else None


def _bad_input(call: Call, root: nn.Module, names: Names) -> Located | None:
    """The batch as the place, with the name of the first module that takes it in, if it is not finite."""
    found = first_bad((call.args, call.kwargs))
    if found is None or found[1].only_minus_inf:
        return None
    module, module_class = _first_leaf(unwrap_module(root), names)
    tensor = f"input {name_argument(found[0])}"
    if _is_computed((call.args, call.kwargs), found[0]):
        return Located("forward", tensor=f"{tensor} of {module or module_class}", bad=found[1], note=COMPUTED)
    return Located("input", module, module_class, tensor=tensor, bad=found[1])


def _is_computed(given: object, path: str) -> bool:
    """True if the tensor at a path was made by operations of this step."""
    return any(tensor.grad_fn is not None for at, tensor in iter_tensors(given) if at == path)


def replace_nonfinite(value: Any) -> Any:
    """The same arguments with zeros in the place of what is not finite; masks of -inf stay."""
    if isinstance(value, Tensor):
        bad = find_bad_values(value)
        if not bad or bad.only_minus_inf:
            return value
        return _with_class_of(value, torch.nan_to_num(value.detach(), 0.0, 0.0, 0.0))
    if isinstance(value, Mapping):
        return {name: replace_nonfinite(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(replace_nonfinite, value))
    return value


def _first_leaf(root: nn.Module, names: Names) -> tuple[str, str]:
    for module in root.modules():
        if not any(True for _ in module.children()):
            return names.modules.get(id(module), ""), type(module).__name__
    return "", type(root).__name__


def _blame_weights(located: Located, root: nn.Module, names: Names) -> Located:
    """If the module's own weights are not finite, an earlier update made them so."""
    for module in root.modules():
        if (names.modules.get(id(module)) or type(module).__name__) == located.module:
            for name, parameter in module.named_parameters(recurse=False):
                bad = find_bad_values(parameter)
                if bad:
                    full = names.parameters.get(id(parameter), name)
                    located.phase, located.parameter, located.tensor, located.bad = "optimizer", full, "weight", bad
                    located.note = "the weights were already bad: an earlier update wrote them"
                    return located
    return located


def locate_backward(calls: list[Call], names: Names) -> Located:
    """Run forward and backward of the kept calls again and name the module that turned a gradient bad."""
    missed = []
    for call in calls:
        located = _backward_once(call, names)
        if located.found:
            located.call = call
            return located
        missed.append(located)
    return next((located for located in missed if located.note), Located(""))


def _backward_once(call: Call, names: Names) -> Located:
    root = call.module()
    if root is None:
        return Located("", note="the model is gone")
    for grad in call.output_grads.values():
        bad = find_bad_values(grad)
        if bad:
            return Located(
                "backward",
                "",
                "",
                tensor="gradient of the model's output",
                bad=bad,
                note="it arises in the loss, outside the model",
            )
    why = explain_refusal(root)
    if why or call.has_changed_arguments():
        note = why or "the batch was changed in place after the forward pass"
        return Located("", note=note, shared=bool(why))
    try:
        located = _trace_backward(call, unwrap_module(root), names)
    except CollectiveMet as met:
        return Located("", note=str(met), shared=True)
    if located.fed_bad:  # its gradient is bad since something before it was: saturated, so that the loss was finite
        before = _forward_once(call, names)
        located = before if before.found else located
    elif located.found:
        located = _blame_weights(located, unwrap_module(root), names)
    if not call.output_grads:
        ones = "the gradient at the model's output was not kept at this step: the second run began with ones"
        located.note = located.note or ones
    return located


def _trace_backward(call: Call, inner: nn.Module, names: Names) -> Located:
    tracer = _Tracer(inner, names, backward=True)
    parameters = [parameter for parameter in inner.parameters() if parameter.requires_grad]
    with as_before(call, inner), tracer.attach_hooks(), torch.enable_grad():
        output = inner(*call.args, **call.kwargs)
        tracer.done = True
        pairs = output_pairs(call, output)
        if not pairs:
            return Located("", note="no gradient of the model's output could be followed")
        grads = torch.autograd.grad(
            [tensor for tensor, _ in pairs], parameters, [grad for _, grad in pairs], allow_unused=True
        )
    return _find_culprit(tracer, dict(zip(map(id, parameters), grads, strict=True)), names)


@unseen_by_subclasses
def output_pairs(call: Call, output: object) -> list[tuple[Tensor, Tensor]]:
    """The outputs of a second run with the gradients that arrived at them in the first (ones if none was kept)."""
    outputs = [tensor for _, tensor in iter_tensors(output)][:MAX_OUTPUTS]
    pairs = [(outputs[index], grad) for index, grad in call.output_grads.items() if index < len(outputs)]
    if not call.output_grads:
        pairs = [(tensor, torch.ones_like(tensor)) for tensor in outputs if tensor.is_floating_point()]
    return [(tensor, grad) for tensor, grad in pairs if tensor.requires_grad and tensor.shape == grad.shape]


def _find_culprit(tracer: _Tracer, grads: dict[int, Tensor | None], names: Names) -> Located:
    """The deepest module whose incoming gradient was finite and whose outgoing one was not."""
    best: _Visit | None = None
    for visit in tracer.visits:
        for name, parameter in visit.module.named_parameters(recurse=False):
            grad = grads.get(id(parameter))
            bad = find_bad_values(grad) if grad is not None else None
            if bad:
                visit.bad_parameter = names.parameters.get(id(parameter), name), bad
                break
        if not all(visit.grad_outputs) or not (visit.bad_grad or visit.bad_parameter):
            continue
        # Later in forward order is earlier in backward; a child comes after its parent in that order.
        best = visit
    if best is None:
        return Located("")
    path = names.modules.get(id(best.module), "") or type(best.module).__name__
    kind = type(best.module).__name__
    if best.bad_grad:
        name, bad = best.bad_grad
        where = Located("backward", path, kind, tensor=f"gradient of input {name}", bad=bad)
    else:
        assert best.bad_parameter is not None
        parameter_name, bad = best.bad_parameter
        where = Located("gradient", path, kind, parameter=parameter_name, tensor="gradient", bad=bad)
    where.fed_bad = best.fed_bad
    return where
