"""The floating-point operations of what runs inside a ``with``, by torch's own formulas."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from tdbg.core.guard import guarded
from tdbg.runtime.torch_compat import DispatchMode


class FlopCount(DispatchMode):
    """Counts matrix products, convolutions and attention, forward and backward; a multiply-add is two operations.

    by_operator: operator -> operations. What runs inside a compiled region is not seen. Values are not changed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_operator: Counter[str] = Counter()

    @property
    def total_flops(self) -> int:
        """All of them."""
        return self.by_operator.total()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in flop_registry and func is not torch.ops.prim.device.default:
            with self:  # an operator that inference mode did not take apart
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        result = func(*args, **kwargs)
        formula: Callable[..., int] | None = flop_registry.get(packet)
        if formula is not None:
            self.by_operator[str(packet)] += 0  # also where the formula fails
            with guarded("a formula that does not know these arguments: the count is a lower bound"):
                self.by_operator[str(packet)] += int(formula(*args, **kwargs, out_val=result))
        return result
