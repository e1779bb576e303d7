"""Which evaluation calls draw random numbers, and whether a dropout function is what draws them."""

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

from tdbg.core.guard import Guard
from tdbg.runtime.code_places import program_line
from tdbg.runtime.patches import Patches
from tdbg.runtime.random_states import device_states
from tdbg.runtime.rerun import Call
from tdbg.runtime.root_search import is_anything_compiled
from tdbg.runtime.torch_hooks import iter_targets

MAX_LOOKS = 8  # calls of one pass that are compared
ATTENTION = "scaled_dot_product_attention"


class RandomDraws:
    """The calls of one evaluation pass that leave the random generators in another state than they found them.

    A call that drew is evidence by itself, but no fault: sampling on purpose draws as well. So in the calls after the
    first one that drew, torch's dropout functions are stood in front of, from the call's beginning to its end. Where
    something was compiled they are left alone.
    Cost: 10 us a compared call; 100 us more in those where the functions are watched.
    """

    def __init__(self, guard: Guard) -> None:
        self.looked = self.drew = 0
        self.function = self.line = ""  # the dropout that drew, and the line of the program that called it
        self._guard = guard
        self._thread = 0  # that makes the call: others may train meanwhile
        self._patches = Patches()

    def begin_call(self) -> None:
        """A call begins whose random states are known."""
        self.end_watch()  # of a call that raised
        if self.drew and not self.function and self.looked < MAX_LOOKS and not is_anything_compiled():
            self._thread = get_ident()
            for owner, name in iter_targets("dropout"):
                self._patches.wrap_attribute(owner, name, self._wrap_dropout)

    def end_call(self, call: Call) -> None:
        """It has returned."""
        self.end_watch()
        if self.looked >= MAX_LOOKS or call.rng is None:
            return
        self.looked += 1
        self.drew += _has_drawn(call)

    def end_watch(self) -> None:
        """Put the functions back."""
        if len(self._patches):
            self._patches.restore()

    def _wrap_dropout(self, original: Callable[..., object]) -> Callable[..., object]:
        name = getattr(original, "__name__", "").rstrip("_")

        def dropout(*args: Any, **kwargs: Any) -> object:
            if not torch.compiler.is_compiling() and not self.function and get_ident() == self._thread:
                self._guard.call_guarded(self._watch_function, name, args, kwargs)
            return original(*args, **kwargs)

        return dropout

    def _watch_function(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attends = name == ATTENTION
        share = args[4] if attends and len(args) > 4 else kwargs.get("dropout_p", 0.0) if attends else args[1]
        if isinstance(share, float | int) and share > 0 and (attends or args[2]):
            self.function, self.line = name, program_line(sys._getframe(2))


def _has_drawn(call: Call) -> bool:
    if call.rng is not None and not torch.equal(call.rng, torch.get_rng_state()):
        return True
    after = device_states()
    return any(key in after and not torch.equal(state, after[key]) for key, state in call.device_rng.items())
