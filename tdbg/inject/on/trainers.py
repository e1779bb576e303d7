"""Trainers that know how far they mean to go: Hugging Face's and Lightning's say so in a Plan event."""

import functools
from typing import Any

from tdbg.core.events import Plan
from tdbg.core.frames import without_own_frames
from tdbg.inject.agent import agent


def arrive(module: object) -> None:
    """Called when one of the watched modules has been imported."""
    if hasattr(module, "CallbackHandler"):
        _wrap(module.CallbackHandler, "on_train_begin", _hugging_face)
    if hasattr(module, "_FitLoop"):
        _wrap(module._FitLoop, "on_run_start", _lightning)


def _wrap(owner: object, name: str, plan_of: Any) -> None:
    original, me = getattr(owner, name), agent()
    guard = me.guard("plan")

    def tell(*args: object) -> None:
        plan = plan_of(*args)
        me.emit_as_rank(plan)
        if me.feed is not None:
            me.feed.planned(plan)

    @functools.wraps(original)
    @without_own_frames
    def told(*args: object, **kwargs: object) -> object:
        guard.call(tell, *args)
        return original(*args, **kwargs)

    setattr(owner, name, told)


def _hugging_face(handler: object, arguments: Any, state: Any, *rest: object) -> Plan:
    left = int(state.max_steps) - int(state.global_step)  # a resumed run has done some of them
    return Plan(steps=left, epochs=float(arguments.num_train_epochs), source="transformers.Trainer")


def _lightning(loop: Any, *rest: object) -> Plan:
    trainer, steps = loop.trainer, None
    batches = getattr(loop, "max_batches", None)
    if trainer.max_steps and trainer.max_steps > 0:
        steps = trainer.max_steps
    if trainer.max_epochs and trainer.max_epochs > 0 and isinstance(batches, int):
        per_epoch = -(-batches // trainer.accumulate_grad_batches)
        steps = min(steps or per_epoch * trainer.max_epochs, per_epoch * trainer.max_epochs)
    return Plan(steps=steps, epochs=trainer.max_epochs, source="lightning.Trainer")
