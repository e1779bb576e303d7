"""Steps of which nothing is seen but the update: what a loop of half a millisecond can afford."""

from collections.abc import Callable

from torch.optim import Optimizer

from tdbg.runtime.compiler import trace_as_nothing
from tdbg.runtime.own_hooks import HookHandle
from tdbg.runtime.patches import LiftedPatches
from tdbg.runtime.state import State

UpdateHook = Callable[[Optimizer, tuple[object, ...], dict[str, object]], None]


class UpdateCounter:
    """Counts some updates of one optimizer with a single hook; every other entry of a step into tdbg is away meanwhile.

    In such a loop the usual entries cost 8 us a step even if each returns at once, as the program has driven them out of
    the caches; this hook costs 1 to 2 us. ``State.step`` is right at any time, ``State.updates`` when it has ended.

    done: called after the last of the updates. strange: called with an optimizer that is another one.
    """

    def __init__(self, state: State, done: Callable[[], None], strange: Callable[[Optimizer], None]) -> None:
        self._handles: tuple[HookHandle, HookHandle] | None = None
        self._hooks: tuple[UpdateHook, UpdateHook] | None = None
        self._lifted: LiftedPatches | None = None
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

        def expect(optimizer: Optimizer | None, steps: int) -> int:
            """Count these from now on; return how many of those before did not come."""
            nonlocal main, left
            before, main, left = left, optimizer, steps
            return before

        self._count_update, self._expect = count_update, expect

    def prepare(
        self, handles: tuple[HookHandle, HookHandle], hooks: tuple[UpdateHook, UpdateHook], lifted: LiftedPatches
    ) -> None:
        """The hooks before and after each update, and the patches that are to be away while it counts."""
        self._handles, self._hooks, self._lifted = handles, hooks, lifted

    def start(self, optimizer: Optimizer, steps: int) -> bool:
        """Count the next updates of an optimizer, ``steps`` at most; False if that cannot be done here."""
        if self._handles is None or self._lifted is None:
            return False
        before, after = self._handles
        self._steps = steps
        self._expect(optimizer, steps)
        before.replace_hook(_do_nothing)
        after.replace_hook(self._count_update)
        self._lifted.lift()
        return True

    def stop(self) -> int:
        """Put everything back; return how many updates were counted."""
        left = self._expect(None, 0)
        if self._handles is not None and self._hooks is not None and self._lifted is not None:
            for handle, hook in zip(self._handles, self._hooks, strict=True):
                handle.replace_hook(hook)
            self._lifted.put_back()
        return self._steps - left


@trace_as_nothing
def _do_nothing(optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Before an update that is counted after it."""
