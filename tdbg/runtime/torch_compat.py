"""Every private name of torch that tdbg looks up, each optional (`torch_hooks` has paths to some functions): where one is missing, one feature goes off and says so.

`MISSING` tells which, with what goes off for it; the monitor notes each, for the report. All are looked up once, when this is
imported, in what ``import torch`` has loaded; what torch loads later is looked up when it is used.
"""

import functools
import re
import sys
import threading
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
LIMIT_REACHED = re.compile(r"(?i)(recompile|cache).?(size.?)?limit|CacheLimitExceeded")
MISSING: dict[str, str] = {}  # name -> what goes off


def _resolve_name(path: str, goes_off: str) -> Any:
    """The object of that name below torch, or None, which is remembered."""
    module, names = "torch", path.split(".")
    while len(names) > 1 and f"{module}.{names[0]}" in sys.modules:  # a package may hide its modules' names
        module = f"{module}.{names.pop(0)}"
    found: Any = sys.modules[module]
    for name in names:
        found = getattr(found, name, None)
        if found is None:
            MISSING[f"torch.{path}"] = goes_off
            return None
    return found


# What must be left alone: transforms of torch.func, layers that run again in a backward pass

_is_wrapped = _resolve_name(
    "_C._functorch.is_functorch_wrapped_tensor", "tensors inside torch.func are recognised only when reading them fails"
)
_transform = _resolve_name(
    "_C._functorch.peek_interpreter_stack", "calls inside torch.func are watched like other calls"
)
_graph_task = _resolve_name(
    "_C._current_graph_task_id", "debuggers see a checkpointed layer a second time, during backward"
)


def is_transformed(tensor: Tensor) -> bool:
    """True for a tensor inside a transform of torch.func, which has no values of its own."""
    return _is_wrapped is not None and bool(_is_wrapped(tensor))


def in_transform() -> bool:
    """True inside a transform of torch.func."""
    return _transform is not None and _transform() is not None


def in_backward() -> bool:
    """True in this thread while autograd runs a backward pass in it."""
    return _graph_task is not None and _graph_task() != -1


# Hooks and modes

# torch's tables of what is called for all modules or all optimizers, by `torch_hooks.TABLES`
_numbered = (
    "hooks on all modules or optimizers are registered by torch's public functions, which changes its hook numbers"
)
global_hooks = {
    name: _resolve_name(path, _numbered)
    for name, path in (
        ("before-update", "optim.optimizer._global_optimizer_pre_hooks"),
        ("after-update", "optim.optimizer._global_optimizer_post_hooks"),
        ("before-call", "nn.modules.module._global_forward_pre_hooks"),
        ("parameter-registered", "nn.modules.module._global_parameter_registration_hooks"),
        ("child-registered", "nn.modules.module._global_module_registration_hooks"),
    )
}
_queue = _resolve_name(
    "autograd.Variable._execution_engine.queue_callback", "a rank's own gradients are not seen before DDP reduces them"
)
_subclass_observed = "`__torch_function__` of the program's own tensor subclasses also sees what tdbg does"
_no_subclass = _resolve_name("_C.DisableTorchFunctionSubclass", _subclass_observed)
_subclass = _resolve_name("_C._EnableTorchFunction", _subclass_observed)
_observed = "modes of the program's own (FlopCounterMode and the like) also see what tdbg does"
_function_modes = _resolve_name("_C._len_torch_function_stack", _observed)
_function_mode_at = _resolve_name("_C._get_function_stack_at", _observed)
_pop_function_mode = _resolve_name("_C._pop_torch_function_stack", _observed)
_push_function_mode = _resolve_name("_C._push_on_torch_function_stack", _observed)
_dispatch_modes = _resolve_name("_C._len_torch_dispatch_stack", _observed)
_dispatch_mode_at = _resolve_name("_C._get_dispatch_stack_at", _observed)
_pop_dispatch_mode = _resolve_name("_C._pop_torch_dispatch_stack", _observed)
_push_dispatch_mode = _resolve_name("_C._push_on_torch_dispatch_stack", _observed)
_device_contexts: set[type] = set()  # the class of `torch.device` as a mode, once one was met: torch loads it late
can_set_modes_aside = _observed not in MISSING.values()
# How many there are in this thread, those that set the default device among them: what costs least to ask.
count_function_modes: Callable[[], int] = _function_modes or int
count_dispatch_modes: Callable[[], int] = _dispatch_modes or int
_jit = _resolve_name("jit._recursive", "modules nested inside TorchScript modules keep tdbg's hooks")


class _NoMode:
    """What stands for a mode where torch has none: nothing that runs inside is seen."""

    def __enter__(self) -> "_NoMode":
        return self

    def __exit__(self, *error: object) -> None:
        return None


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

    DispatchMode = TorchDispatchMode
else:
    _unseen = "operators are not seen: none is named or counted, and no batch is run again in a job of several ranks"
    DispatchMode = _resolve_name("utils._python_dispatch.TorchDispatchMode", _unseen) or _NoMode
sees_operators = not issubclass(DispatchMode, _NoMode)


def after_backward(callback: Callable[[], None]) -> None:
    """Have ``callback`` called at the end of the backward pass that runs now in this thread."""
    if _queue is not None:
        _queue(callback)


def without_subclass() -> AbstractContextManager[object]:
    """Inside it the ``__torch_function__`` of tensors is not called; ``__torch_dispatch__`` is."""
    return _no_subclass() if _no_subclass is not None else nullcontext()


# The same for guarded work, and torch's own class: that has 90 ns, a look for subclasses would have more. Where a second
# run of a batch could not have them back, they stay.
subclasses_aside: Callable[[], AbstractContextManager[object]] = (
    nullcontext if _no_subclass is None or _subclass is None else _no_subclass
)


def with_subclass() -> AbstractContextManager[object]:
    """Inside it the ``__torch_function__`` of tensors is called, also below a guard: what runs is the program's."""
    return _subclass() if _subclass is not None else nullcontext()


def unseen_by_subclasses(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function of ours that runs among the program's own, and is to call no ``__torch_function__`` of tensors."""

    @functools.wraps(function)
    def call_without_subclass(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with without_subclass():
            return function(*args, **kwargs)

    return call_without_subclass


def _sets_default_device(mode: object) -> bool:
    kind = type(mode)
    if kind in _device_contexts:
        return True
    if kind.__name__ == "DeviceContext" and kind.__module__ == "torch.utils._device":
        _device_contexts.add(kind)
        return True
    return False


class _Modes(NamedTuple):
    """The modes in force in a thread, the outermost first."""

    functions: list[object]
    dispatches: list[object]

    @classmethod
    def in_force(cls) -> "_Modes":
        return cls(
            [_function_mode_at(place) for place in range(_function_modes())],
            [_dispatch_mode_at(place) for place in range(_dispatch_modes())],
        )

    def put_in_force(self) -> None:
        """Replace those in force. What a signal handler raises meanwhile is passed on when all is done."""
        try:
            self._push_modes()
        except BaseException:
            self._push_modes()
            raise

    def _push_modes(self) -> None:
        while _dispatch_modes():
            _pop_dispatch_mode(None)
        while _function_modes():
            _pop_function_mode()
        for mode in self.functions:
            _push_function_mode(mode)
        for mode in self.dispatches:
            _push_dispatch_mode(mode)


class _Aside(threading.local):
    """The modes of the program's that a guard has set aside in this thread."""

    modes: _Modes | None = None


_aside = _Aside()


class _ModesAside:
    """Inside it no mode of the program's is in force but the default device; a mode left entered there stays.

    Nor is a tensor subclass of the program's. To leave it a second time puts the same back, and nothing where it was
    never entered.
    """

    _program: _Modes | None = None

    def __enter__(self) -> None:
        program = _Modes.in_force()
        self._own = _Modes([mode for mode in program.functions if _sets_default_device(mode)], [])
        self._left: _Modes | None = None
        self._subclasses = without_subclass()
        self._program = _aside.modes = program  # from here on there is something to put back
        try:
            self._subclasses.__enter__()
            self._own.put_in_force()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._restore_modes()
        except BaseException:  # a signal handler of the program: first all is as it was
            self._restore_modes()
            raise

    def _restore_modes(self) -> None:
        if self._program is None:
            return
        self._subclasses.__exit__(None, None, None)
        _aside.modes = None
        if self._left is None:
            now = _Modes.in_force()
            known = {id(mode) for mode in (*self._program.functions, *self._program.dispatches)}
            self._left = _Modes(*([mode for mode in modes if id(mode) not in known] for modes in now))
        functions, dispatches = self._left
        _Modes(self._program.functions + functions, self._program.dispatches + dispatches).put_in_force()


def modes_set_aside() -> list[str]:
    """The classes of the modes that a guard of this thread has set aside, for what is told of a second run."""
    modes = _aside.modes
    found = [] if modes is None else [*modes.functions, *modes.dispatches]
    return [type(mode).__name__ for mode in found if not _sets_default_device(mode)]


def active_modes() -> _ModesAside | None:
    """What sets the modes aside that are in force in this thread and would observe tdbg's work; None if none is."""
    if not can_set_modes_aside:
        return None
    if _dispatch_modes():
        return _ModesAside()
    count = _function_modes()
    if not count or (count == 1 and _sets_default_device(_function_mode_at(0))):
        return None
    if all(_sets_default_device(_function_mode_at(place)) for place in range(count)):
        return None
    return _ModesAside()


def script_makers() -> list[tuple[Any, str]]:
    """Where the functions stand that make TorchScript of their first argument."""
    if _jit is not None:
        return [(_jit, "create_script_module")]  # for all of those below
    return [(torch.jit, "script"), (torch.jit, "trace"), (torch.jit, "trace_module")]


# Functions of torch that are known by identity

_script_table = _resolve_name(
    "jit._builtins._get_builtin_table", "torch.jit.script cannot script losses that tdbg observes"
)


def register_wrapper(original: object, wrapper: object) -> None:
    """Have torch.jit take a wrapper for the function that it stands in front of; torch.compile too, once that is loaded.

    torch.compile loads its table by name, and so may have met either of the two.
    """
    if _script_table is not None:
        table = _script_table()
        if id(original) in table:
            table[id(wrapper)] = table[id(original)]
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    known: dict[Any, Any] = getattr(rules, "get_torch_obj_rule_map", dict)()
    for one, other in ((original, wrapper), (wrapper, original)):
        if one in known:
            known.setdefault(other, known[one])


def unregister_wrapper(original: object, wrapper: object) -> None:
    """The wrapper goes: its place in memory may be another function's."""
    register_wrapper(original, wrapper)
    if _script_table is not None:
        _script_table().pop(id(wrapper), None)


# Calls of modules

_module_call = _resolve_name(
    "nn.Module._call_impl", "the traceback of a forward pass that fails shows the functions of hooks"
)
MODULE_CALL: CodeType | None = getattr(_module_call, "__code__", None)  # what runs where a module is called


def call_module(module: torch.nn.Module) -> None:
    """Call a module by way of `MODULE_CALL`, without whatever stands in front of it."""
    if _module_call is not None:
        _module_call(module)


def compiled_call_of(module: torch.nn.Module) -> Callable[..., object] | None:
    """What ``module.compile()`` has put in the place of the module's call; None without it, and in a torch that has no such."""
    found: Callable[..., object] | None = getattr(module, "_compiled_call_impl", None)
    return found


def set_compiled_call(module: torch.nn.Module, call: Callable[..., object] | None) -> None:
    """Replace what `compiled_call_of` found."""
    module._compiled_call_impl = call


# Mixed precision


def scale_of(scaler: object) -> Tensor | None:
    """The scale of a GradScaler, on its device; None before its first use."""
    found = getattr(scaler, "_scale", None)
    return found if isinstance(found, Tensor) else None


def found_inf_of(scaler: object, optimizer: object) -> list[Tensor]:
    """What a GradScaler has found in the gradients of an optimizer, a tensor for each device: not 0 is bad."""
    states = getattr(scaler, "_per_optimizer_states", {})
    return list(states.get(id(optimizer), {}).get("found_inf_per_device", {}).values())


# Kinds, and what runs now

is_tracing: Callable[[], bool] = (
    _resolve_name("jit.is_tracing", "tdbg also watches calls while torch.jit traces them") or bool
)
_loss = _resolve_name("nn.modules.loss._Loss", "losses are recognised by name, not by class")
LOSSES: tuple[type, ...] = (_loss,) if _loss is not None else ()
_batch_norm = _resolve_name("nn.modules.batchnorm._BatchNorm", "batch norm is recognised by its public classes alone")
_public_norms = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)
BATCH_NORMS: tuple[type[torch.nn.Module], ...] = (_batch_norm,) if _batch_norm is not None else _public_norms


# Nodes of a graph of autograd

_outputs = _resolve_name("autograd.graph.Node._input_metadata", "what a loss is computed from is not looked at")


def output_shape(node: Any, number: int) -> tuple[int, ...] | None:
    """The shape of an output of the operation that a node is the backward of; None where it cannot be told."""
    if _outputs is None or number >= len(node._input_metadata):
        return None
    metadata = node._input_metadata[number]
    return None if getattr(metadata, "is_nested_tensor", False) else tuple(metadata.shape)


def saved_dim(node: Any) -> int | None:
    """The dimension that an operation such as softmax worked along, counted from the first where its shape is known."""
    dim, shape = getattr(node, "_saved_dim", None), output_shape(node, 0)
    if not isinstance(dim, int) or not shape:
        return None
    return (dim - (1 << 64) if dim >= 1 << 63 else dim) % len(shape)


def saved_target(node: Any) -> Tensor | None:
    """The targets that a cross-entropy over classes was given, until its graph is freed."""
    if type(node).__name__ not in ("NllLossBackward0", "NllLoss2DBackward0"):
        return None
    return getattr(node, "_saved_target", None)


# Norms of many tensors at once

_foreach_norm = _resolve_name("_foreach_norm", "norms are taken one by one, which costs more")


def norms_of(found: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """The 2-norm of each tensor, one tensor without dimensions each. Cost: few kernels, or one each if torch cannot."""
    if not found:
        return []
    if _foreach_norm is not None:
        return list(_foreach_norm(list(found), 2, dtype) if dtype is not None else _foreach_norm(list(found)))
    return [torch.linalg.vector_norm(one, dtype=dtype) for one in found]


# What graphs keep for backward

# `data` reads without unpacking, which would run a checkpointed block again. Where it is missing (torch 2.6, 2.9) the report
# of LOSS.GRADNORM_MEMORY says so: no note in every run for one flag.
shows_saved_tensors = hasattr(getattr(torch._C._autograd, "SavedTensor", None), "data")


# The frame of each optimizer's step, in which its hooks run

_hook_step = _resolve_name(
    "optim.optimizer.Optimizer.profile_hook_step",
    "after an update that raised, those of other optimizers are not counted",
)
_update_code: CodeType | None = getattr(_hook_step(is_transformed), "__code__", None) if _hook_step else None


def is_update_nested() -> bool:
    """True in the hook of an optimizer's step that runs inside the step of another one. Cost: 1 us in 30 frames."""
    frame, steps = sys._getframe(1), 0
    while frame.f_back is not None and steps < 2:
        frame = frame.f_back
        steps += frame.f_code is _update_code
    return steps != 1  # none at all: somebody else calls the hooks


# The compiler

_eval_frame = _resolve_name("_C._dynamo.eval_frame", "torch.compile may count frames of tdbg")
set_eval_frame: Callable[[Any], object] | None = getattr(_eval_frame, "set_eval_frame", None)


def _code_skipper() -> Callable[[CodeType], None] | None:
    """What has the compiler make no frame of a code object. Newer torch: none of this code, those it calls as ever."""
    if _eval_frame is None:
        return None
    skip: Callable[[CodeType], None] | None = getattr(_eval_frame, "skip_code", None)
    set_strategy = getattr(_eval_frame, "set_code_exec_strategy", None)
    if skip is not None or set_strategy is None:
        return skip
    action, strategy_of = (getattr(_eval_frame, name, None) for name in ("_FrameAction", "_FrameExecStrategy"))
    if action is None or strategy_of is None:
        return None
    strategy = strategy_of(action.SKIP, action.DEFAULT)
    return lambda code: set_strategy(code, strategy)


skip_code = _code_skipper()
# An attribute of a function, under which the compiler looks for another one to trace in its place. Where torch has no such,
# nothing looks: the function itself is traced.
TRACED_INSTEAD = "_torchdynamo_inline"


def is_dynamo_loaded() -> bool:
    """True once something has loaded torch's compiler."""
    return "torch._dynamo" in sys.modules


def compiles_backward() -> bool:
    """True while torch compiles whole backward passes, which takes no callbacks."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


def compiler_count(group: str, name: str) -> int:
    """One of Dynamo's counters; 0 where nothing was compiled."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return int(counters[group][name]) if counters is not None else 0


class CompilerFailure(NamedTuple):
    """A frame that Dynamo gave up compiling. where: the function and its line, as far as that is known."""

    kind: str  # the class of the exception
    reason: str
    where: str


def graph_breaks() -> dict[str, int]:
    """Why Dynamo has ended graphs early, with how often."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return {str(reason): int(count) for reason, count in dict(counters["graph_break"]).items()} if counters else {}


def compiler_failures() -> list[CompilerFailure]:
    """The frames that Dynamo gave up, of the last 64 it compiled, oldest first; a frame without tensors is none."""
    read = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
    compiled: list[Any] = list(read()) if read is not None else []
    places = {
        _frame_of(one): f"{one.co_name} ({one.co_filename}:{one.co_firstlineno})" for one in compiled if one.co_name
    }
    found: list[CompilerFailure] = []
    for one in compiled:
        if not one.fail_type or one.fail_type == "SkipFrame":
            continue
        is_limit = LIMIT_REACHED.search(f"{one.fail_type} {one.fail_reason}") is not None
        reason = getattr(one, "recompile_reason", None) if is_limit else None
        failure = CompilerFailure(
            kind="limit" if is_limit else str(one.fail_type),
            reason=str(reason or one.fail_reason),
            where=places.get(_frame_of(one), "") or _line_of(one),
        )
        found.append(failure)
    return found


def list_compilations() -> list[tuple[float, float]]:
    """When each of the last 64 compilations began (time.time), and how many seconds it took; oldest first."""
    read = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", None)
    timed = [
        (getattr(one, "start_time_us", None), getattr(one, "duration_us", None))
        for one in (list(read()) if read is not None else ())
    ]
    return sorted((began / 1e6, took / 1e6) for began, took in timed if began and took)


def _frame_of(metrics: Any) -> str:
    """What is the same for all compilations of a function: the first half of ``3/1``."""
    return str(getattr(metrics, "compile_id", None) or getattr(metrics, "frame_key", "")).partition("/")[0]


def _line_of(metrics: Any) -> str:
    file = getattr(metrics, "fail_user_frame_filename", None)
    return f"{file}:{metrics.fail_user_frame_lineno}" if file else ""


# The profiler and CUDA's allocator

_profiler_enabled = _resolve_name(
    "_C._autograd._profiler_enabled", "tdbg's own work appears in traces of the program's profiler"
)
_record_function = _resolve_name(
    "_C._autograd._enable_record_function", "a forked child keeps recording for the profiler"
)
kineto_profile = _resolve_name("profiler.profiler._KinetoProfile", "no window of the profiler is recorded")
_record_history = _resolve_name("cuda.memory._record_memory_history", "a window has no history of CUDA's allocator")
_memory_snapshot = _resolve_name("cuda.memory._snapshot", "no snapshot of CUDA's allocator is taken")


def is_profiled() -> bool:
    """True while any profiler of torch records in this thread."""
    return _profiler_enabled is not None and bool(_profiler_enabled())


def record_functions(on: bool) -> None:
    """Have torch tell profilers of what runs in this thread, or not."""
    if _record_function is not None:
        _record_function(on)


def record_memory_history(max_entries: int) -> None:
    """Have CUDA's allocator keep its last steps, with Python's stack; none: no longer. Raises RuntimeError if it cannot."""
    if _record_history is None:
        return
    if max_entries:
        _record_history("all", context="all", stacks="python", max_entries=max_entries)
    else:
        _record_history(enabled=None)


def is_memory_history_recorded() -> bool:
    """True if the program has switched the history on; False where this torch cannot tell."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(ask()) if ask is not None else False


def memory_snapshot() -> dict[str, Any]:
    """Segments and history of CUDA's allocator, as torch gives them. Raises RuntimeError if it cannot."""
    return dict(_memory_snapshot()) if _memory_snapshot is not None else {}


# Loaders


class BatchIterator(Protocol):
    """A pass over a DataLoader: what torch's two iterators have in common, as far as probes read it."""

    _auto_collation: bool
    _collate_fn: Callable[..., object]
    _dataset: object
    _drop_last: bool
    _index_sampler: Sized
    _num_workers: int
    _num_yielded: int
    _persistent_workers: bool
    _pin_memory: bool
    _prefetch_factor: int
    _sampler_iter: object


batch_iterator = _resolve_name(
    "utils.data.dataloader._BaseDataLoaderIter", "batches and the time of the loader are not seen"
)
worker_iterator = _resolve_name(
    "utils.data.dataloader._MultiProcessingDataLoaderIter",
    "transforms in workers are not timed, and what workers raise is not seen",
)
_alone = _resolve_name("utils.data.dataloader._SingleProcessDataLoaderIter", "what a dataset raises is not seen")
batch_iterators = (_alone, worker_iterator)
_fetchers = "utils.data._utils.fetch"
fetchers: tuple[Any, ...] = tuple(
    found
    for kind in ("_MapDatasetFetcher", "_IterableDatasetFetcher")
    if (found := _resolve_name(f"{_fetchers}.{kind}", "transforms are not timed")) is not None
)


# Distributed, and devices that torch does not know by name

FSDP_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"  # the module of FSDPParamGroup, loaded by FSDP2
FUNCTIONAL_COLLECTIVES = "torch.distributed._functional_collectives"
FLIGHT_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # JSON: nothing of it is unpickled
_third_backend = _resolve_name(
    "_C._get_privateuse1_backend_name",
    "the random state of a third-party device is not restored after a second run of a batch",
)


def flight_dumps() -> list[Callable[..., str]]:
    """What reads the flight recorder of collectives, as far as this torch has one."""
    c10d = getattr(torch._C, "_distributed_c10d", None)
    return [dump for name in FLIGHT_DUMPS if (dump := getattr(c10d, name, None)) is not None]


def backend_timeout(group: Any, device: torch.device) -> timedelta | None:
    """The timeout that a process group's backend was set up with; None where it cannot be asked."""
    try:
        found = group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):  # another torch, another backend
        return None
    return found if isinstance(found, timedelta) else None


def ddp_figures(model: object) -> dict[str, Any]:
    """What DistributedDataParallel logs of its own work; empty where this torch does not say."""
    read = getattr(model, "_get_ddp_logging_data", dict)
    return dict(read())


def third_backend() -> str:
    """The name that a device from outside torch was registered under, if any."""
    return str(_third_backend()) if _third_backend is not None else ""


def smallest_group() -> int | None:
    """How many ranks the smallest process group has; None where this torch does not say."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        return min(map(len, world.pg_group_ranks.values()), default=None)  # type: ignore[union-attr]
    except (AttributeError, TypeError):  # another torch
        return None


def count_groups() -> int | None:
    """How many process groups there are; None where this torch does not say."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        return len(world.pg_group_ranks)  # type: ignore[union-attr]
    except (AttributeError, TypeError):  # another torch
        return None


def list_parameters_of_fsdp2(module: Any) -> list[Any]:
    """The parameters that FSDP2 (`fully_shard`) shards at this module, sharded; none where this torch does not say."""
    try:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
        return [one.sharded_param for group in groups for one in group.fsdp_params]
    except AttributeError:  # another torch
        return []


def group_members(name: str) -> list[int]:
    """The ranks of the process group that torch knows by this name; empty where this torch does not say."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        for group, members in list(world.pg_group_ranks.items()):  # type: ignore[union-attr]
            if group.group_name == name:
                return sorted(members)
    except (AttributeError, TypeError, RuntimeError):  # another torch
        pass
    return []
