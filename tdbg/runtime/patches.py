"""Functions of torch and of the program's libraries that tdbg stands in front of, each restorable."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from tdbg.core.frames import without_own_frames

Result = TypeVar("Result")  # of what is replaced
BELOW = "_tdbg_below"  # on a wrapper that could not be taken away, since another lay above it: what it replaced


class Patch(NamedTuple):
    """One replacement, and how it was made."""

    owner: object
    name: str
    held: object  # before it
    placed: object
    inherited: bool
    make: Callable[[Callable[..., Any]], Callable[..., object]]
    drops_frames: bool


class Patches:
    """Attribute replacements that know what they replaced."""

    def __init__(self) -> None:
        self._done: list[Patch] = []

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
        made = make(original)
        if not drops_frames:
            made = without_own_frames(made, native=_is_native(original))
        wrapper = functools.wraps(original)(hide_from_compiler(made))
        vars(wrapper).pop(BELOW, None)  # `wraps` copies it from a wrapper that is gone
        placed = wraps_in(wrapper) if wraps_in else wrapper
        inherited = isinstance(owner, type | ModuleType) and name not in vars(owner)
        setattr(owner, name, placed)
        self._done.append(Patch(owner, name, held, placed, inherited, make, drops_frames))

    def iter_patches(self, names: Collection[str]) -> Iterator[Patch]:
        """Those of functions of these names, in the order in which they were made."""
        return (patch for patch in self._done if patch.name in names)

    def restore(self) -> None:
        """Put back every original that nobody has replaced since; a wrapper that has to stay must do nothing.

        One that stays because another of ours lies above it goes with that one.
        """
        for owner, name, held, placed, inherited, *_ in reversed(self._done):
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


class LiftedPatches:
    """Patches of functions in modules that are taken away for a moment, again and again: some 100 ns each."""

    def __init__(self, patches: Patches, names: Collection[str]) -> None:
        self._patches = patches
        self._names = names
        self._places = self._list_places()
        self._lifted: list[tuple[dict[str, object], Patch]] = []

    def _list_places(self) -> list[tuple[dict[str, object], Patch]]:
        return [
            (vars(patch.owner), patch)
            for patch in self._patches.iter_patches(self._names)
            if isinstance(patch.owner, ModuleType)
        ]

    def lift(self) -> None:
        """Put the originals back, where nobody else has replaced ours since."""
        for held, patch in self._places:
            if held.get(patch.name) is patch.placed:
                held[patch.name] = patch.held
                self._lifted.append((held, patch))

    def put_back(self) -> None:
        """Place ours again; on top of what was placed over an original meanwhile."""
        lifted, self._lifted = self._lifted, []
        is_changed = False
        for held, patch in lifted:
            if held.get(patch.name) is patch.held:
                held[patch.name] = patch.placed
            else:
                self._patches.wrap_attribute(patch.owner, patch.name, patch.make, drops_frames=patch.drops_frames)
                is_changed = True
        if is_changed:
            self._places = self._list_places()


def _is_native(function: object) -> bool:
    """True for a function that is not written in Python, and so has no frame in a traceback."""
    return inspect.isroutine(function) and not inspect.isfunction(function)
