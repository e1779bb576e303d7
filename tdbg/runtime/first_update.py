"""`--preflight`: the process ends at its first update, whatever has become of the probe that makes the trials."""

import functools
from collections.abc import Callable, Mapping, Sequence

from torch.optim import Optimizer

from tdbg.runtime.compiler import hide, unseen
from tdbg.runtime.monitor import Monitor
from tdbg.runtime.torch_hooks import hook_all, targets


def end_first_update(monitor: Monitor, end: Callable[[], None]) -> None:
    """Set hooks on the updates of all optimizers that belong to no probe.

    They stand behind those of the monitor, where the probe ends the process. What comes here is an update that the probe
    does not see, or takes for one whose closure computes the loss, or has failed before.
    """

    def end_here() -> None:
        try:
            probe = monitor.probe("preflight")
            if probe is not None:
                probe.guard.call(probe.carry_out)  # it ends the process
            monitor.become_rank_now()
        finally:
            end()

    def after(optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if not monitor.optimizers.is_rehearsal(optimizer):
            unseen(end_here)

    def before(optimizer: Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if not any(map(callable, (*args, *kwargs.values()))):  # one with a closure ends in its backward pass, or after
            after(optimizer, args, kwargs)

    for table, hook in (("before-update", before), ("after-update", after)):
        # A compiled update is not left alone: the compiler has to break its graph here, and call the hook.
        hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        hook_all(table, hide(hook))
    for owner, name in targets("compile"):
        setattr(owner, name, _leave_updates(getattr(owner, name)))


def _leave_updates(original: Callable[..., object]) -> Callable[..., object]:
    """``torch.compile`` that gives back an optimizer's ``step`` as it is: with ``fullgraph`` no break is possible."""

    @functools.wraps(original)
    def compile(model: object = None, *args: object, **kwargs: object) -> object:
        if isinstance(getattr(model, "__self__", None), Optimizer):
            return model
        return original(model, *args, **kwargs)

    return hide(compile)
