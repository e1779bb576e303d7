"""No collective while a batch is run again on one rank alone: it would meet another one's of a rank that goes on."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tdbg.runtime.torch_compat import DispatchMode, sees_operators

NAMESPACES = frozenset(("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "symm_mem"))


class CollectiveMet(Exception):
    """The program was about to communicate, in a second run that other ranks have no part in."""

    def __init__(self, operation: str = "") -> None:
        super().__init__(
            f"it communicates with other ranks ({operation}), so the batch was not run again to its end"
            if operation
            else "the batch was not run again: this torch does not let tdbg see whether the model communicates"
        )


class _Refusing(DispatchMode):
    """Raises before a collective is issued."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if getattr(func, "namespace", "") in NAMESPACES:
            raise CollectiveMet(str(func).removesuffix(".default"))
        return func(*args, **(kwargs or {}))


def count_ranks() -> int:
    """How many ranks this process trains with, without making a group."""
    dist: Any = sys.modules.get("torch.distributed")
    return int(dist.get_world_size()) if dist is not None and dist.is_available() and dist.is_initialized() else 1


@contextlib.contextmanager
def no_collectives() -> Iterator[None]:
    """Within it, whatever would communicate raises `CollectiveMet`; without other ranks it does nothing."""
    if count_ranks() < 2:
        yield
        return
    if not sees_operators:
        raise CollectiveMet
    with _Refusing():  # type: ignore[no-untyped-call]
        yield
