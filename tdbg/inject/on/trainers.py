"""Trainers that know how far they mean to go: Hugging Face's and Lightning's say so in a Plan event."""

import functools
from typing import Any

from tdbg.core.events import Plan
from tdbg.core.frames import without_own_frames
from tdbg.inject.agent import get_agent
from tdbg.inject.foreign_patches import replace_function


def arrive(module: object) -> None:
    """Called when one of the watched modules has been imported."""
    if hasattr(module, "CallbackHandler"):
        _install_plan_hook(module.CallbackHandler, "on_train_begin", _hugging_face)
    if hasattr(module, "_FitLoop"):
        _install_plan_hook(module._FitLoop, "on_run_start", _build_lightning_plan)


def _install_plan_hook(owner: object, name: str, plan_of: Any) -> None:
    original, me = getattr(owner, name), get_agent()
    guard = me.get_guard("plan")

    def record_plan(*args: object) -> None:
        plan = plan_of(*args)
        me.emit_as_rank(plan)
        if me.feed is not None:
            me.feed.record_plan(plan)

    @functools.wraps(original)
    @without_own_frames
    def call_with_plan(*args: object, **kwargs: object) -> object:
        guard.call_guarded(record_plan, *args)
        return original(*args, **kwargs)

    replace_function("trainers", owner, name, call_with_plan)


def _hugging_face(handler: object, arguments: Any, state: Any, *rest: object) -> Plan:
    left = int(state.max_steps) - int(state.global_step)  # a resumed run has done some of them
    return Plan(steps=left, epochs=float(arguments.num_train_epochs), source="transformers.Trainer")


def _build_lightning_plan(loop: Any, *rest: object) -> Plan:
    trainer, steps = loop.trainer, None
    batches = getattr(loop, "max_batches", None)
    if trainer.max_steps and trainer.max_steps > 0:
        steps = trainer.max_steps
    if trainer.max_epochs and trainer.max_epochs > 0 and isinstance(batches, int):
        per_epoch = -(-batches // trainer.accumulate_grad_batches)
        steps = min(steps or per_epoch * trainer.max_epochs, per_epoch * trainer.max_epochs)
    return Plan(steps=steps, epochs=trainer.max_epochs, source="lightning.Trainer")
