"""LOSS.GRADNORM_MEMORY: memory through GradNorm's extra passes, tensor by tensor, and whether it comes back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor

from tdbg.probes.loss.report import Report

FLAG = "LOSS.GRADNORM_MEMORY"


@dataclass(slots=True, kw_only=True)
class GradNormMemory(Report):
    """Memory through one GradNorm update."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "PASS"

    parts: list[dict[str, Any]] = field(default_factory=list)


class MemoryWatch:
    """What `gradnorm_memory` returns: a context manager around GradNorm's extra passes.

    report: after the block, while the flag is on; else None.
    """

    report: GradNormMemory | None = None

    def __enter__(self) -> "MemoryWatch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def mark(self, part: str, tensors: Mapping[str, Tensor | Iterable[Tensor | None] | None] | None = None) -> None:
        """A part of the update is over: ``re-forward``, ``gradients of task family``.

        tensors: what it made, by name; told with their bytes.
        """


def gradnorm_memory(
    *,
    device: torch.device | str | None = None,
    accumulation: int = 1,
    name: str = "gradnorm",
    always: bool = False,
) -> MemoryWatch:
    """Watch memory through GradNorm's re-forward and its gradients: ``with gradnorm_memory() as memory: ...``.

        with loss.gradnorm_memory(accumulation=4) as memory:
            outputs = model(x)
            memory.mark("re-forward")
            grads = torch.autograd.grad(losses["family"], shared, retain_graph=True)
            memory.mark("gradients of family", {"grads": grads})

    Each part is told with the bytes that it saved for backward (tensor by tensor: shape, dtype, operation), what is
    allocated after it and the peak; at the end what stays.
    device: whose memory; of an accelerator its allocator's figures, on the host the bytes of live tensors.
    accumulation: micro-batches to an update; told is what it means if the graphs of all are kept.
    name: of this GradNorm, if there are several: what stays is compared from update to update under it.
    Findings: TD-L017 memory that stays grew in 5 updates in a row (`forget` begins anew).
    Cost: off 1 us. On: 1 us per saved tensor and, on the host, a walk over live objects (5 to 50 ms) at either end.
    Source: Chen et al. 2018 (the extra backward per task).
    """
    raise NotImplementedError
