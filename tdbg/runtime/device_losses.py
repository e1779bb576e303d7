"""Losses on a CUDA device, read before the update that would use their gradients, and without keeping the device idle."""

import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

MAX_FLYING = 256  # losses that a device has not come to; of what is beyond them the record tells, a step later
FIRST_REST_STEPS, LONGEST_REST_STEPS = 8, 1024


def can_copy(tensor: Tensor) -> bool:
    """True for a tensor whose numbers `Copy` brings to the host without a wait."""
    return tensor.device.type == "cuda"


class Copy:
    """One number on its way from a CUDA device to the host. Cost: some 10 us, of which nothing waits."""

    def __init__(self) -> None:
        self._host = torch.empty((), dtype=torch.float32, pin_memory=True)
        self._arrived = torch.cuda.Event()

    def start_copy(self, loss: Tensor) -> None:
        """Start to copy the number, on the stream that computes it."""
        self._host.copy_(loss.reshape(()), non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(loss.device))

    def has_arrived(self) -> bool:
        """True if reading it waits for nothing."""
        return bool(self._arrived.query())

    def wait_for_value(self) -> float:
        """The number, once it is there."""
        self._arrived.synchronize()
        return float(self._host)


class Mark:
    """The end of what a device has been given so far."""

    def __init__(self, device: torch.device) -> None:
        self._passed = torch.cuda.Event()
        self._passed.record(torch.cuda.current_stream(device))

    def is_passed(self) -> bool:
        """True if the device has come to it."""
        return bool(self._passed.query())


class DeviceLosses:
    """Starts the copy of each loss as its backward begins, and has the values before the optimizer's update.

    By then the copy has arrived wherever the host is slower than the device. Where it is not, waiting for the loss costs
    nothing as a rule: the whole backward pass is queued behind it. Whether that holds is looked at as the next forward
    pass begins: if the device has run out of work by then, the wait may be why, and no loss is waited for in the next
    8 steps, or twice as many each time in a row that it turns out so, up to 1,024.
    """

    def __init__(self, make_copy: Callable[[], Copy] = Copy, mark_end: Callable[[torch.device], Mark] = Mark) -> None:
        self._make_copy, self._mark_end = make_copy, mark_end
        self._flying: deque[Copy] = deque()  # of this step
        self._given_up: deque[Copy] = deque()  # of earlier ones
        self._free: list[Copy] = []
        self._device = torch.device("cuda")
        self.waited_s = 0.0  # in the last call of `receive_losses`
        self._waited = False  # for a loss of this step
        self._end: Mark | None = None  # of an update whose loss was waited for
        self._rest_until = 0  # no loss of a step before this one is waited for
        self._next_rest_steps = FIRST_REST_STEPS

    def send_loss(self, loss: Tensor) -> None:
        """The backward pass of a loss (one number) is about to begin."""
        if loss.device != self._device:  # one event serves one device
            self._device, self._free = loss.device, []
            self._flying.clear()
            self._given_up.clear()
        while self._given_up and self._given_up[0].has_arrived():  # to make memory for others is dear
            self._free.append(self._given_up.popleft())
        if len(self._flying) + len(self._given_up) >= MAX_FLYING:
            return
        copy = self._free.pop() if self._free else self._make_copy()
        copy.start_copy(loss)
        self._flying.append(copy)

    def receive_losses(self, step: int) -> list[float]:
        """The losses sent since the last time in the step, as far as they are there or may be waited for."""
        values = []
        self.waited_s = 0.0
        while self._flying:
            copy = self._flying[0]
            if copy.has_arrived():
                values.append(copy.wait_for_value())
            elif step < self._rest_until:
                break
            else:
                begun, self._waited = time.perf_counter(), True
                values.append(copy.wait_for_value())
                self.waited_s += time.perf_counter() - begun
            self._free.append(self._flying.popleft())
        return values

    def end_step(self) -> None:
        """The update is queued."""
        self._given_up.extend(self._flying)
        self._flying.clear()
        if self._waited:
            self._waited, self._end = False, self._mark_end(self._device)

    def begin_forward(self, step: int) -> None:
        """The forward pass of a step is about to be queued."""
        if self._end is None:
            return
        if self._end.is_passed():
            self._rest_until = step + self._next_rest_steps
            self._next_rest_steps = min(2 * self._next_rest_steps, LONGEST_REST_STEPS)
        else:
            self._next_rest_steps = FIRST_REST_STEPS
        self._end = None
