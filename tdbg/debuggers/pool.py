"""Host memory that copies wait in until they are written: bounded by bytes, handed out in buffers that are used again."""

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tdbg.core.errors import TdbgError

RING_BYTES = 256_000_000
PATIENCE_S = 60.0  # of a training step for a disk that does not take what is captured
KEPT = 4  # free buffers of one size


class Full(Exception):
    """There is no room, and the policy is not to wait."""


class Pool:
    """Buffers of uint8 on the host, at most so many bytes of them at a time.

    What one pass copies may be larger than the whole pool: then it is alone in it. Freed buffers of a size that was
    asked for lately are kept, so that a steady program takes no new memory from the system, which would cost more than
    the copy.

    policy: ``block`` waits for room, ``drop`` does not, ``sample`` as drop, and whoever asks should ask more rarely.
    relieve: called where there is no room: whoever holds buffers for later hands them over to be written. It may wait for
        a thread that gives buffers back.
    """

    def __init__(self, limit_bytes: int = RING_BYTES, policy: str = "block") -> None:
        self.limit_bytes, self.policy = limit_bytes, policy
        self._alive: Callable[[], bool] = lambda: True
        self.relieve: Callable[[], None] = lambda: None
        self.used_bytes = 0
        self.waited_s = 0.0
        self._free: dict[int, list[Tensor]] = {}
        self._free_bytes = 0
        self._changed = threading.Condition()
        self._relieving = threading.RLock()  # hooks of gradients run in a thread for each device

    def set_alive_check(self, alive: Callable[[], bool]) -> None:
        """alive: False once nobody will free anything any more."""
        self._alive = alive

    def take_buffer(self, size: int, held: int = 0) -> Tensor:
        """A buffer of ``size`` bytes; `Full` where there is no room and none is waited for.

        held: bytes that the asker has already for the same pass, and frees only when it has all: they are not waited
        for. Raises TdbgError if room does not come within a minute, or whoever frees it is gone.
        """
        with self._changed:
            self._acquire_room(size, held)
            kept = self._free.get(size)
            if kept:
                self._free_bytes -= size
                return kept.pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_initialized())

    def reserve_bytes(self, size: int) -> None:
        """Count ``size`` bytes of memory from elsewhere among those handed out; raises as `take_buffer`."""
        with self._changed:
            self._acquire_room(size)

    def release_bytes(self, size: int) -> None:
        """Such memory is gone."""
        with self._changed:
            self.used_bytes -= size
            self._changed.notify_all()

    def _acquire_room(self, size: int, held: int = 0) -> None:
        if not self._has_room(size, held):
            self._wait_for_room(size, held)
        self.used_bytes += size

    def _has_room(self, size: int, held: int) -> bool:
        if self.used_bytes > held and self.used_bytes + size > self.limit_bytes:
            return False
        over = self.used_bytes + self._free_bytes + size - self.limit_bytes
        if over > 0 and not self._free.get(size):  # what is kept for others must make room
            self._free.clear()
            self._free_bytes = 0
        return True

    def _wait_for_room(self, size: int, held: int) -> None:
        self._changed.release()  # whoever gives buffers back needs it
        try:
            with self._relieving:
                self.relieve()
        finally:
            self._changed.acquire()
        if self.policy != "block":
            raise Full
        begun = time.monotonic()
        while not self._has_room(size, held):
            self._changed.wait(0.2)
            if not self._alive():
                raise TdbgError("the captured data cannot be written", "see the reason above; nothing more is captured")
            if time.monotonic() - begun > PATIENCE_S:
                raise TdbgError(
                    f"the disk has accepted no captured data for {PATIENCE_S:.0f} s",
                    "capture less, or use --capture-policy drop",
                )
        self.waited_s += time.monotonic() - begun

    def return_buffer(self, buffer: Tensor) -> None:
        """The buffer is free again."""
        size = buffer.numel()
        with self._changed:
            self.used_bytes -= size
            kept = self._free.setdefault(size, [])
            if len(kept) < KEPT and self.used_bytes + self._free_bytes + size <= self.limit_bytes:
                kept.append(buffer)
                self._free_bytes += size
            self._changed.notify_all()

    @property
    def crowded(self) -> bool:
        """True if more than half of the room is taken."""
        return 2 * self.used_bytes > self.limit_bytes
