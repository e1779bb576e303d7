"""Steps of which nothing is seen but the update: what a loop of half a millisecond can afford."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from torch.optim import Optimizer

from tdbg.runtime.compiler import hide_from_compiler, trace_as_nothing
from tdbg.runtime.own_hooks import HookHandle
from tdbg.runtime.patches import Patch, Patches
from tdbg.runtime.state import State

HOOKS = 2  # before an update and after it: the first of the places


class Place(NamedTuple):
    """Where an entry into tdbg stands: an item of one of torch's tables of hooks, or of a module's names."""

    table: dict[str, Any]
    key: str
    usual: object
    counting: object  # what stands there while updates are counted
    patch: Patch | None = None


class UpdateCounter:
    """Counts some updates of one optimizer with a single hook; every other entry of a step into tdbg is away meanwhile.

    In such a loop the usual entries cost 8 us a step even if each returns at once, as the program has driven them out of
    the caches; this hook costs 1 to 2 us, and the way there and back 20 to 30 us, so it is for some steps in a row.
    ``State.step`` is right at any time, ``State.updates`` when it has ended.

    done: called after the last of the updates. strange: called with an optimizer that is another one.
    """

    def __init__(self, state: State, done: Callable[[], None], strange: Callable[[Optimizer], None]) -> None:
        self._list_places: Callable[[], list[Place]] = list
        self._patches: Patches | None = None
        self._places: list[Place] = []
        self._changed: list[Place] = []
        self._steps = 0
        main: Optimizer | None = None
        left = 0

        @trace_as_nothing
        def count_update(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            nonlocal left
            if optimizer is main:
                state.step += 1
                left -= 1
                if left <= 0:
                    done()
            else:
                strange(optimizer)

        @hide_from_compiler
        def expect(optimizer: Optimizer | None, steps: int) -> int:
            """Count these from now on; return how many of those before did not come."""
            nonlocal main, left
            before, main, left = left, optimizer, steps
            return before

        self._count_update, self._expect = count_update, expect

    def prepare(
        self,
        handles: tuple[HookHandle, HookHandle],
        hooks: tuple[object, object],
        patches: Patches,
        names: Collection[str] = (),
    ) -> None:
        """The hooks before and after each update, and the names of functions that are torch's own while it counts."""
        counting = _do_nothing, self._count_update
        of_hooks = [
            Place(table, key, usual, one)
            for handle, usual, one in zip(handles, hooks, counting, strict=True)
            for table, key in handle.list_places()
        ]
        self._list_places = lambda: [
            *of_hooks,
            *(Place(vars(one.owner), one.name, one.placed, one.held, one) for one in patches.list_patches(names)),
        ]
        self._patches, self._places = patches, self._list_places()

    @hide_from_compiler
    def start(self, optimizer: Optimizer, steps: int) -> bool:
        """Count the next updates of an optimizer, ``steps`` at most; False if that cannot be done here."""
        self._steps = steps
        self._expect(optimizer, steps)
        # What somebody has placed over ours stays, and ours below it returns at once.
        places = self._places
        changed = [place for place in places if place[0].get(place[1]) is place[2]]
        if len(changed) < HOOKS or changed[HOOKS - 1] is not places[HOOKS - 1]:
            return False  # torch has no such tables, or the hooks have been taken away
        for table, key, _, counting, _ in changed:
            table[key] = counting
        self._changed = changed
        return True

    @hide_from_compiler
    def stop(self) -> int:
        """Put everything back; return how many updates were counted."""
        left = self._expect(None, 0)
        covered = None
        changed, self._changed = self._changed, []
        for table, key, usual, counting, patch in changed:
            if table.get(key) is counting:
                table[key] = usual
            elif patch is not None:
                covered = [*(covered or ()), patch]
        if covered is not None and self._patches is not None:
            for patch in covered:  # somebody has placed his over an original while ours was away
                self._patches.make_again(patch)
            self._places = self._list_places()
        return self._steps - left


@trace_as_nothing
def _do_nothing(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Before an update that is counted after it."""
