"""Every function of torch that tdbg stands in front of, and every table of hooks that it enters: what, and what for.

Nothing else in tdbg replaces a part of torch. Who wants to be told asks for a place by its name (`Probe.patch_at`,
`Probe.for_each_function`); each subscriber has a wrapper of its own, which its `Patches` take away when it is detached, in any order.
Hooks on single modules and tensors are set by `own_hooks`, which keeps them out of whatever the program saves.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torch.nn.modules import module as module_registry
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizer_registry
from torch.utils.hooks import RemovableHandle

from tdbg.runtime.own_hooks import HookHandle, add_global_hook
from tdbg.runtime.torch_compat import (
    FSDP_GROUP,
    FUNCTIONAL_COLLECTIVES,
    batch_iterator,
    batch_iterators,
    fetchers,
    global_hooks,
    script_makers,
    worker_iterator,
)

Target = tuple[object, str]  # who holds a function, and its name there
ANY = "*"  # in a path: the subscriber names the function


class Place(NamedTuple):
    """Functions of torch that are the same moment of a program.

    paths: ``module:name`` or ``module:Class.name``; a module may be loaded later than tdbg, or never. found: what is
    told by no path.
    """

    why: str
    paths: tuple[str, ...] = ()
    found: Callable[[], list[Target]] | None = None


def _build_scheduler_finder(name: str) -> Callable[[], list[Target]]:
    """The classes of schedulers that define a method themselves."""

    def find_classes() -> list[Target]:
        classes = [value for value in vars(lr_scheduler).values() if isinstance(value, type)]
        known = dict.fromkeys(cls for cls in classes if issubclass(cls, lr_scheduler.LRScheduler))
        return [(cls, name) for cls in known if name in vars(cls)]

    return find_classes


def _build_class_finder(kinds: Iterable[object], name: str) -> Callable[[], list[Target]]:
    """A method of classes of torch's that have no public name, as far as this torch has them."""
    return lambda: [(kind, name) for kind in kinds if kind is not None]


# Below `torch.nn.functional`, where its functions and the criteria of torch.nn end up: its own functions stay as they
# are for torch.compile, torch.jit, torch.fx, pickle, and for whoever has imported one by name.
_LOSSES = (
    *(
        f"torch:_C._nn.{name}"
        for name in (
            *("cross_entropy_loss", "nll_loss_nd", "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss"),
            *("huber_loss", "multi_margin_loss", "multilabel_margin_loss", "soft_margin_loss"),
        )
    ),
    *(
        f"torch:{name}"
        for name in (
            *("binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "margin_ranking_loss"),
            *("hinge_embedding_loss", "cosine_embedding_loss"),
        )
    ),
)
# Below `torch.nn.functional` again, but attention, which ends there.
_DROPOUTS = (
    *(
        f"torch:_VF.{name}{suffix}"
        for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
        for suffix in ("", "_")
    ),
    "torch.nn.functional:scaled_dot_product_attention",
)
_PROFILE, _SCALER, _DCP = "torch.autograd.profiler:profile", "torch.amp:GradScaler", "torch.distributed.checkpoint"

PLACES: dict[str, Place] = {
    # a step of training
    "backward": Place("losses, a rank's own gradients, what a backward pass raises", ("torch.autograd:backward",)),
    "clip_grad_norm_": Place(
        "the gradients' norm before clipping",
        ("torch.nn.utils:clip_grad_norm_", "torch.nn.utils.clip_grad:clip_grad_norm_"),
    ),
    "optimizer-cleared": Place("whether and when gradients are cleared", ("torch.optim:Optimizer.zero_grad",)),
    "module-cleared": Place("gradients that the model clears", ("torch.nn:Module.zero_grad",)),
    "checkpointed": Place("layers that run again in backward", ("torch.utils.checkpoint:checkpoint",)),
    "fsdp-reduce": Place(
        "a rank's own gradients, before FSDP2 reduces them", (f"{FSDP_GROUP}:FSDPParamGroup.post_backward",)
    ),
    "loss-computed": Place("targets and weights of losses that eager code computes", _LOSSES),
    "dropout": Place("dropout that is at work in evaluation", _DROPOUTS),
    "custom-function": Place("functions with a backward of their own", ("torch.autograd.function:Function.apply",)),
    # construction
    "optimizer-made": Place("the optimizers of the program", ("torch.optim:Optimizer.__init__",)),
    "module-copied": Place("root modules that were copied or loaded", ("torch.nn:Module.__setstate__",)),
    "module-compiled": Place("hooks that must be there before, or only after", ("torch.nn:Module.compile",)),
    "compile": Place("the first torch.compile: methods of tensors are left alone from then on", ("torch:compile",)),
    "script": Place("torch.jit refuses modules that have hooks of tdbg's", found=script_makers),
    "ddp-made": Place("models that DDP wraps", ("torch.nn.parallel:DistributedDataParallel.__init__",)),
    # mixed precision
    "scale": Place("the loss before scaling", (f"{_SCALER}.scale",)),
    "unscale": Place("gradients as they are without the scale", (f"{_SCALER}.unscale_",)),
    "scaler-step": Place("updates that GradScaler skips", (f"{_SCALER}.step",)),
    "scaler-update": Place("the course of the scale", (f"{_SCALER}.update",)),
    # learning rates
    "scheduler-made": Place("schedulers and what they begin with", found=_build_scheduler_finder("__init__")),
    "scheduler-loaded": Place("schedulers that are resumed", found=_build_scheduler_finder("load_state_dict")),
    "scheduler-stepped": Place(
        # Inside `LRScheduler.step`, not in front of it: torch's own warning about the order of calls names the caller's
        # line, which must stay the program's.
        "the rates that a scheduler sets",
        ("torch.optim.lr_scheduler:_enable_get_lr_call.__exit__",),
    ),
    "plateau-made": Place(
        "schedulers that wait for a metric", ("torch.optim.lr_scheduler:ReduceLROnPlateau.__init__",)
    ),
    "plateau-stepped": Place("the metric they are given", ("torch.optim.lr_scheduler:ReduceLROnPlateau.step",)),
    # data
    "loader-made": Place("DataLoaders and how they are set up", ("torch.utils.data:DataLoader.__init__",)),
    "loader-iterated": Place("a pass over a loader, as a span", ("torch.utils.data:DataLoader.__iter__",)),
    "pass-begins": Place("the time of a pass's beginning", found=_build_class_finder((batch_iterator,), "__init__")),
    "batch": Place(
        "batches, and how long the program waits for them", found=_build_class_finder((batch_iterator,), "__next__")
    ),
    "batch-asked-for": Place("how far ahead workers are", found=_build_class_finder((batch_iterator,), "_next_index")),
    "batch-failed": Place(
        "what a dataset or a worker raises", found=_build_class_finder(batch_iterators, "_next_data")
    ),
    "fetch": Place("transforms, in the process that runs them", found=_build_class_finder(fetchers, "fetch")),
    "workers-begin": Place("transforms in workers", found=_build_class_finder((worker_iterator,), "__init__")),
    # files
    "save": Place("what is saved, where, how long it takes", ("torch:save",)),
    "load": Place("what is loaded", ("torch:load",)),
    "mapped": Place("files that are mapped into tensors", ("torch:from_file", "torch:UntypedStorage.from_file")),
    "script-saved": Place(
        "scripted modules that are saved", ("torch.jit:save", "torch.jit:RecursiveScriptModule.save")
    ),
    "sharded-save": Place(
        "checkpoints of several ranks",
        tuple(f"{_DCP}{module}:{name}" for module in ("", ".state_dict_saver") for name in ("save", "async_save")),
    ),
    "sharded-load": Place("sharded checkpoints that are loaded", (f"{_DCP}:load", f"{_DCP}.state_dict_loader:load")),
    "module-loaded": Place("weights that are resumed", ("torch.nn:Module.load_state_dict",)),
    "optimizer-loaded": Place("states of optimizers that are resumed", ("torch.optim:Optimizer.load_state_dict",)),
    # ranks
    "collective": Place("the order of collectives, and who waits in one", (f"torch.distributed:{ANY}",)),
    "functional-collective": Place(
        "the order of functional collectives (DTensor, FSDP2)", (f"{FUNCTIONAL_COLLECTIVES}:{ANY}",)
    ),
    "group-made": Place("process groups", ("torch.distributed:init_process_group",)),
    "group-destroyed": Place("process groups that are destroyed", ("torch.distributed:destroy_process_group",)),
    "stage-made": Place(
        "pipelines, whose stages wait for one another",
        ("torch.distributed.pipelining.stage:_PipelineStageBase.__init__",),
    ),
    "join": Place("uneven inputs, where ranks differ on purpose", ("torch.distributed.algorithms.join:Join.__init__",)),
    # profiling and details
    "profile-prepared": Place("a profiler of the program's own", (f"{_PROFILE}._prepare_trace",)),
    "profile-begins": Place("the start of a recording: tdbg pauses", (f"{_PROFILE}._start_trace",)),
    "profile-ends": Place("the end of a recording: tdbg resumes", (f"{_PROFILE}.__exit__",)),
    "profile-written": Place("traces that the program writes", (f"{_PROFILE}.export_chrome_trace",)),
    "tensor-method": Place("copies between devices, and waits for one", (f"torch:Tensor.{ANY}",)),
    "attention": Place(
        "weights and inputs of attention, which fused paths keep from hooks",
        (
            "torch.nn.functional:multi_head_attention_forward",
            "torch:_native_multi_head_attention",
            "torch:_transformer_encoder_layer_fwd",
        ),
    ),
}

# Tables of hooks for all modules or all optimizers: what for, and how torch registers one
TABLES: dict[str, tuple[str, Callable[..., RemovableHandle]]] = {
    "before-update": ("updates, before the weights change", optimizer_registry.register_optimizer_step_pre_hook),
    "after-update": ("updates, counted as steps", optimizer_registry.register_optimizer_step_post_hook),
    "before-call": (
        "calls of any module: the first without gradients",
        module_registry.register_module_forward_pre_hook,
    ),
    "parameter-registered": ("models that are built", module_registry.register_module_parameter_registration_hook),
    "child-registered": ("models that are built of others", module_registry.register_module_module_registration_hook),
}


def modules_of(place: str) -> list[str]:
    """The modules that have to be loaded for the paths of a place, each once."""
    return list(dict.fromkeys(path.partition(":")[0] for path in PLACES[place].paths))


def iter_targets(place: str, module: str = "", name: str = "") -> Iterator[Target]:
    """What stands at a place as far as it is loaded and this torch has it.

    module: in this one alone. name: of the function, where a path leaves it open.
    """
    asked = PLACES[place]
    if asked.found is not None:
        yield from asked.found()
    for path in asked.paths:
        where, _, held = path.partition(":")
        owner = sys.modules.get(where) if module in ("", where) else None
        *classes, function = held.replace(ANY, name or ANY).split(".")
        for one in classes:
            owner = getattr(owner, one, None)
        if owner is not None and callable(getattr(owner, function, None)):
            yield owner, function


def hook_all(table: str, hook: Callable[..., object]) -> HookHandle | RemovableHandle:
    """Have ``hook`` called as the others of one of torch's `TABLES`; the result has ``remove()``."""
    held = global_hooks.get(table)
    return add_global_hook(held, hook) if held is not None else TABLES[table][1](hook)
