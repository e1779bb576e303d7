"""`--preflight`: the process ends at its first update, whatever has become of the probe that makes the trials."""

import functools
from collections.abc import Callable, Mapping, Sequence

from torch.optim import Optimizer

from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler
from tdbg.runtime.monitor import Monitor
from tdbg.runtime.torch_hooks import hook_all, iter_targets


def end_first_update(monitor: Monitor, end: Callable[[], None]) -> None:
    """Set hooks on the updates of all optimizers that belong to no probe.

    They stand behind those of the monitor, where the probe ends the process. What comes here is an update that the probe
    does not see, or takes for one whose closure computes the loss, or has failed before.
    """

    def end_here() -> None:
        try:
            probe = monitor.find_probe("preflight")
            if probe is not None:
                probe.guard.call_guarded(probe.carry_out)  # it ends the process
            monitor.become_rank_now()
        finally:
            end()

    def hook_after_update(optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if not monitor.optimizers.is_rehearsal(optimizer):
            call_outside_compiler(end_here)

    def hook_before_update(optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if not any(map(callable, (*args, *kwargs.values()))):  # one with a closure ends in its backward pass, or after
            hook_after_update(optimizer, args, kwargs)

    for table, hook in (("before-update", hook_before_update), ("after-update", hook_after_update)):
        # A compiled update is not left alone: the compiler has to break its graph here, and call the hook.
        hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        hook_all(table, hide_from_compiler(hook))
    for owner, name in iter_targets("compile"):
        setattr(owner, name, _leave_updates(getattr(owner, name)))


def _leave_updates(original: Callable[..., object]) -> Callable[..., object]:
    """``torch.compile`` that gives back an optimizer's ``step`` as it is: with ``fullgraph`` no break is possible."""

    @functools.wraps(original)
    def compile(model: object = None, *args: object, **kwargs: object) -> object:
        if isinstance(getattr(model, "__self__", None), Optimizer):
            return model
        return original(model, *args, **kwargs)

    return hide_from_compiler(compile)
