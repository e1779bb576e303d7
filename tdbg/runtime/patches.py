"""Functions of torch and of the program's libraries that tdbg stands in front of, each restorable."""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from tdbg.core.frames import pass_over, without_own_frames

Result = TypeVar("Result")  # of what is replaced
BELOW = "_tdbg_below"  # on a wrapper that could not be taken away, since another lay above it: what it replaced


class Patches:
    """Attribute replacements that know what they replaced."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str, object, object, bool]] = []

    def wrap_attribute(
        self,
        owner: object,
        name: str,
        make: Callable[[Callable[..., Result]], Callable[..., object]],
        *,
        drops_frames: bool = False,
    ) -> None:
        """Replace ``owner.name`` by ``make(original)``, keeping its name and docstring; nothing if there is none.

        No traceback shows that something stands in between. drops_frames: the wrapper sees to that itself, which saves a
        call where every microsecond counts.
        Of a class method ``original`` takes the class as its first argument, as a plain method takes the object.
        """
        from tdbg.runtime.compiler import hide_from_compiler  # needs torch, which a program may not have loaded yet

        held = inspect.getattr_static(owner, name, None)
        if held is None and isinstance(owner, ModuleType):  # _VF of torch looks its functions up when asked
            held = getattr(owner, name, None)
        if held is None:
            return
        wraps_in = type(held) if isinstance(held, staticmethod | classmethod) else None
        original = held.__func__ if wraps_in else getattr(owner, name)
        made = hide_from_compiler(pass_over(make(original)))
        if not drops_frames:
            made = without_own_frames(made, native=_is_native(original))
        wrapper = functools.wraps(original)(hide_from_compiler(made))
        vars(wrapper).pop(BELOW, None)  # `wraps` copies it from a wrapper that is gone
        placed = wraps_in(wrapper) if wraps_in else wrapper
        inherited = isinstance(owner, type | ModuleType) and name not in vars(owner)
        setattr(owner, name, placed)
        self._done.append((owner, name, held, placed, inherited))

    def remember(self, owner: object, name: str, held: object, *, inherited: bool = False) -> None:
        """What stands there now was put there instead of ``held``. inherited: the owner itself had none of that name."""
        self._done.append((owner, name, held, inspect.getattr_static(owner, name), inherited))

    def restore(self) -> None:
        """Put back every original that nobody has replaced since; a wrapper that has to stay must do nothing.

        One that stays because another of ours lies above it goes with that one.
        """
        for owner, name, held, placed, inherited in reversed(self._done):
            if inspect.getattr_static(owner, name, None) is not placed:
                vars(placed)[BELOW] = held, inherited
                continue
            while BELOW in getattr(held, "__dict__", ()):
                held, inherited = vars(held)[BELOW]
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, held)
        self._done.clear()

    def __len__(self) -> int:
        return len(self._done)


def _is_native(function: object) -> bool:
    """True for a function that is not written in Python, and so has no frame in a traceback."""
    return inspect.isroutine(function) and not inspect.isfunction(function)
