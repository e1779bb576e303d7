"""A second pass of a model inside a run: only where it leaves no trace, else a word on why not."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.debuggers.hooks import is_compiled
from tdbg.runtime.own_hooks import has_foreign_hooks
from tdbg.runtime.rerun import explain_refusal, muted_output
from tdbg.runtime.rerun_alone import no_collectives
from tdbg.runtime.root_modules import unwrap_module

if TYPE_CHECKING:
    from tdbg.runtime.rerun import Call


def explain_obstacle(module: nn.Module, call: "Call") -> str:
    """Why the model of this call must not run a second time; empty if it may."""
    refusal = explain_refusal(module)  # first: a sharded model has hooks, too
    if refusal:
        return refusal
    for path, part in unwrap_module(module).named_modules():
        if has_foreign_hooks(part):
            return f"{path or 'the model'} has hooks of the program, which would run twice"
    if any(is_compiled(part) for part in module.modules()):
        return "the model is compiled (torch.compile)"
    return "the model changes its inputs in place" if call.has_changed_arguments() else ""


@contextlib.contextmanager
def without_trace(module: nn.Module) -> Iterator[None]:
    """What the model prints, sets on its modules and draws from generators of its own inside is undone.

    `CollectiveMet` where it is about to communicate with other ranks, before anything is sent.
    """
    before = [(part, dict(vars(part))) for part in module.modules()]
    generators = [(value, value.get_state()) for _, held in before for value in held.values() if _is_generator(value)]
    try:
        with muted_output(), no_collectives():
            yield
    finally:
        for part, held in before:
            _restore_attributes(vars(part), held)
        for generator, state in generators:
            generator.set_state(state)


def _is_generator(value: object) -> bool:
    return isinstance(value, torch.Generator)


def _restore_attributes(now: dict[str, Any], held: dict[str, Any]) -> None:
    """The same objects under the same names, in the same order."""
    if list(now) != list(held) or any(now[name] is not held[name] for name in held):
        now.clear()
        now.update(held)
