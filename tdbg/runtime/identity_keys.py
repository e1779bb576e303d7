"""A dictionary whose keys are held weakly and told apart by identity: a module may define ``__eq__`` and ``__hash__``."""

import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _IdentityRef(weakref.ref[K]):
    """A weak reference that equals those to the very same object, while it lives."""

    __slots__ = ("identity",)

    def __init__(self, key: K, callback: Callable[["_IdentityRef[K]"], object] | None = None) -> None:
        super().__init__(key, callback)  # type: ignore[call-arg]
        self.identity = id(key)

    def __hash__(self) -> int:
        return self.identity

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        mine = self()
        return mine is not None and isinstance(other, _IdentityRef) and mine is other()


class IdentityKeys(MutableMapping[K, V]):
    """As `weakref.WeakKeyDictionary`, but no method of a key is ever called.

    To go through it while other threads add keys is safe: the keys are those of that moment.
    """

    def __init__(self) -> None:
        self._held: dict[_IdentityRef[K], V] = {}
        held = weakref.ref(self)

        def discard_dead_key(reference: _IdentityRef[K]) -> None:
            keeper = held()
            if keeper is not None:
                keeper._held.pop(reference, None)

        self._forget = discard_dead_key

    def __getitem__(self, key: K) -> V:
        return self._held[_IdentityRef(key)]

    def __setitem__(self, key: K, value: V) -> None:
        self._held[_IdentityRef(key, self._forget)] = value

    def __delitem__(self, key: K) -> None:
        del self._held[_IdentityRef(key)]

    def __contains__(self, key: object) -> bool:
        return _IdentityRef(key) in self._held

    def __iter__(self) -> Iterator[K]:
        return iter([key for key in (reference() for reference in list(self._held)) if key is not None])

    def __len__(self) -> int:
        return len(self._held)
