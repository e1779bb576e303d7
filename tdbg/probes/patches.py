"""Functions of torch that tdbg stands in front of, each restorable."""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Attribute replacements that know what they replaced."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by ``make(original)``, keeping its name and docstring."""
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapper = functools.wraps(original)(make(original))
        setattr(owner, name, wrapper)
        self._done.append((owner, name, original, wrapper))

    def restore(self) -> None:
        """Put back every original that nobody has replaced since."""
        for owner, name, original, wrapper in reversed(self._done):
            if getattr(owner, name, None) is wrapper:
                setattr(owner, name, original)
        self._done.clear()

    def __len__(self) -> int:
        return len(self._done)
