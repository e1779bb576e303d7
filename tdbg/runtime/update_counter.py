"""Steps of which nothing is seen but the update: what a loop of half a millisecond can afford."""

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

from torch.optim import Optimizer

from tdbg.runtime.compiler import hide_from_compiler, trace_as_nothing
from tdbg.runtime.own_hooks import HookHandle
from tdbg.runtime.state import State

CLOCK_STEPS = 8  # so many are counted from one look at the clock to the next; a power of two


class Place(NamedTuple):
    """Where a hook of each update stands in one of torch's tables."""

    table: dict[str, Any]
    key: str
    usual: object
    counting: object  # what stands there while updates are counted


class UpdateCounter:
    """Counts some updates of one optimizer with a single hook in the place of two, and keeps `State` up to date.

    In a loop of half a millisecond the usual hooks cost 4 us a step even if each returns at once, as the program has
    driven them out of the caches; this one costs 1 to 2 us. The way there and back is as dear as some steps, so it is
    for several in a row.

    done: called after the last of the updates, or when it is late. strange: called with any other optimizer, and with this
    one in another thread.
    """

    def __init__(self, state: State, done: Callable[[], None], strange: Callable[[Optimizer], None]) -> None:
        self._places: list[Place] = []
        self._steps = 0
        main: Optimizer | None = None
        left, end, thread = 0, 0.0, 0

        @trace_as_nothing
        def count_update(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            nonlocal left
            if optimizer is main and get_ident() == thread:
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
            before, main, left, end, thread = left, optimizer, steps, until, get_ident()
            return before

        self._count_update, self._expect = count_update, expect

    def prepare(self, handles: tuple[HookHandle, HookHandle], hooks: tuple[object, object]) -> None:
        """The hooks before and after each update, as they stand in torch's tables."""
        counting = _do_nothing, self._count_update
        self._places = [
            Place(table, key, usual, one)
            for handle, usual, one in zip(handles, hooks, counting, strict=True)
            for table, key in handle.list_places()
        ]

    @hide_from_compiler
    def start(self, optimizer: Optimizer, steps: int, until: float) -> bool:
        """Count the next updates of an optimizer, ``steps`` at most; False if that cannot be done here."""
        for table, key, usual, counting in self._places:  # which a program may have saved while updates were counted
            if table.get(key) not in (usual, counting):
                return False
        self._steps = steps
        self._expect(optimizer, steps, until)
        for table, key, _, counting in self._places:  # a value is replaced, also while torch goes through the table
            table[key] = counting
        return bool(self._places)

    @hide_from_compiler
    def stop(self) -> int:
        """Put the usual hooks back; return how many updates were counted. Again, it does no more than was left to do."""
        for table, key, usual, counting in self._places:
            if table.get(key) is counting:
                table[key] = usual
        steps, self._steps = self._steps, 0
        return max(steps - self._expect(None, 0, 0.0), 0)


@trace_as_nothing
def _do_nothing(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Before an update that is counted after it."""
