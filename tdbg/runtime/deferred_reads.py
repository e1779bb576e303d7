"""Values on an accelerator, read one step late with one copy, so that nothing waits for the device."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tdbg.core.events import Step
from tdbg.runtime.tensors import to_local_part

Then = Callable[[list[float], Step | None], None]


class LateReads:
    """Collects small device tensors during a step; one copy carries them to the host.

    The copy is started when the step ends and read when the next one does: by then it has long
    arrived. Values go to the functions that asked for them, with the record they belong to.
    """

    def __init__(self) -> None:
        self._asked: list[tuple[Tensor, Then]] = []
        self._flying: list[tuple[int, Then]] = []
        self._host: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        self.waited_s = 0.0  # since somebody last asked

    @property
    def waiting(self) -> bool:
        """True if something was asked for in this step."""
        return bool(self._asked)

    def request_read(self, values: Tensor, then: Then, *, first: bool = False) -> None:
        """Have ``values`` (1-D, any device) read with the next copy; the first is told before the others."""
        self._asked.insert(0 if first else len(self._asked), (values, then))

    def start_copy(self) -> None:
        """Start the one copy of everything asked for in this step."""
        asked, self._asked = self._asked, []  # whatever happens, they are not asked for again
        device = asked[0][0].device
        parts = [to_local_part(values).to(device=device, dtype=torch.float32, non_blocking=True) for values, _ in asked]
        joined = torch.cat(parts)
        self._flying = [(part.numel(), then) for part, (_, then) in zip(parts, asked, strict=True)]
        if device.type == "cuda":
            self._host = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
            self._host.copy_(joined, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        else:  # mps and others: the copy waits for the device, which has finished this step by then
            self._host, self._arrived = joined, None

    def deliver_values(self, record: Step | None) -> None:
        """Hand the values of the previous step to those who asked."""
        if self._host is None:
            return
        if self._arrived is not None:
            begun = time.perf_counter()
            self._arrived.synchronize()  # a whole step old: the host waits only where it is further ahead
            self.waited_s += time.perf_counter() - begun
        values = self._host.tolist()
        flying, self._host, self._flying = self._flying, None, []
        for count, then in flying:
            then(values[:count], record)
            values = values[count:]


def read_soon(values: Tensor, patience_s: float) -> list[float] | None:
    """What a CUDA device has worked out within so many seconds, or None if it is further behind. Some 20 us besides."""
    if values.device.type != "cuda":
        return None
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(values.device))
    until = time.perf_counter() + patience_s
    while not arrived.query():
        if time.perf_counter() > until:
            return None
    found: list[float] = host.tolist()
    return found


def device_idle() -> bool:
    """True unless an accelerator still has work: then waiting for a batch costs nothing."""
    if not torch.cuda.is_initialized():
        return True
    try:
        return bool(torch.cuda.current_stream().query())
    except RuntimeError:  # an error of the program's own kernels
        return True
