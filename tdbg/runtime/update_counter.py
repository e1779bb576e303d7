"""Steps of which nothing is seen but the update: what a loop of half a millisecond can afford."""

import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TypeAlias

from torch.optim import Optimizer

from tdbg.runtime.compiler import hide_from_compiler, trace_as_nothing
from tdbg.runtime.state import State

CLOCK_STEPS = 8  # so many are counted from one look at the clock to the next; a power of two
Hook: TypeAlias = Callable[[Optimizer, tuple[object, ...], dict[str, object]], None]


@hide_from_compiler
def _name_none() -> None:
    """Where nothing is counted."""


class UpdateCounter:
    """Counts some updates of one optimizer instead of calling the usual hooks, and keeps `State` up to date.

    In a loop of half a millisecond the usual hooks cost 4 us a step even if each returns at once, as the program has
    driven them out of the caches; these touch less, and cost 1 to 2 us. They stay in torch's tables until tdbg is
    detached, because what was compiled with an optimizer's hooks would be compiled again if they changed. The optimizer
    is not kept alive.

    hook_before_update, hook_after_update: of each update of any optimizer. before, after: the usual hooks.
    done: called after the last of the updates, or after the first one past the time that was given. strange: called
    after an update of any other optimizer, or of this one in another thread.
    """

    hook_before_update: Hook
    hook_after_update: Hook

    def __init__(
        self, state: State, before: Hook, after: Hook, done: Callable[[], None], strange: Callable[[Optimizer], None]
    ) -> None:
        self._steps = 0
        main: Callable[[], Optimizer | None] = _name_none
        left, end, thread = 0, 0.0, 0

        @trace_as_nothing
        def hook_before_update(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if left <= 0:
                before(optimizer, args, kwargs)

        @trace_as_nothing
        def hook_after_update(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            nonlocal left
            if left <= 0:
                after(optimizer, args, kwargs)
            elif optimizer is main() and get_ident() == thread:
                state.step += 1
                state.updates += 1
                left -= 1
                if left <= 0 or (left % CLOCK_STEPS == 0 and time.perf_counter() >= end):
                    done()
            else:
                strange(optimizer)

        @hide_from_compiler
        def expect(optimizer: Optimizer | None, steps: int, until: float) -> int:
            """Count these from now on; return how many of those before did not come."""
            nonlocal main, left, end, thread
            missing = left
            main = _name_none if optimizer is None else weakref.ref(optimizer)
            end, thread, left = until, get_ident(), steps
            return missing

        self.hook_before_update, self.hook_after_update, self._expect = hook_before_update, hook_after_update, expect

    @hide_from_compiler
    def start(self, optimizer: Optimizer, steps: int, until: float) -> None:
        """Count the next updates of an optimizer, ``steps`` at most, until a time."""
        self._steps = steps
        self._expect(optimizer, steps, until)

    @hide_from_compiler
    def stop(self) -> int:
        """Call the usual hooks again; return how many updates were counted."""
        steps, self._steps = self._steps, 0
        return max(steps - self._expect(None, 0, 0.0), 0)
