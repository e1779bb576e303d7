"""A cable between two network namespaces that can be made slow: its packets go through a thread of this process."""

import fcntl
import os
import select
import struct
import threading
import time
from collections import deque

TUNSETIFF = 0x400454CA
PACKETS_ALONE = 0x0001 | 0x1000  # IFF_TUN without a header of its own
LARGEST = 65_536
LOOK_EVERY_S = 0.2


def open_interface(name: str) -> int:
    """A network interface whose packets are read from this file, and written to it."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", name.encode(), PACKETS_ALONE))
    return handle


class SlowCable:
    """Carries packets between two interfaces, at first at once; `slow_down` delays each, and limits the rate."""

    def __init__(self, names: tuple[str, str]) -> None:
        one, other = map(open_interface, names)
        self._other_end = {one: other, other: one}
        self._delay_s, self._bytes_per_s, self._free_at = 0.0, float("inf"), 0.0
        self._waiting: deque[tuple[float, int, bytes]] = deque()
        self._is_cut = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def slow_down(self, delay_s: float, bytes_per_s: float) -> None:
        """From now on, delay each packet by this time, one way, and limit the rate of all packets together."""
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s

    def remove(self) -> None:
        """Take both interfaces away."""
        self._is_cut.set()
        self._thread.join()
        for end in self._other_end:
            os.close(end)

    def _carry(self) -> None:
        while not self._is_cut.is_set():
            left_s = self._waiting[0][0] - time.monotonic() if self._waiting else LOOK_EVERY_S
            ready, _, _ = select.select(list(self._other_end), [], [], min(max(left_s, 0.0), LOOK_EVERY_S))
            for end in ready:
                self._take_packet(end)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, end, packet = self._waiting.popleft()
                _write_packet(end, packet)

    def _take_packet(self, end: int) -> None:
        packet = _read_packet(end)
        self._free_at = max(self._free_at, time.monotonic()) + len(packet) / self._bytes_per_s
        self._waiting.append((self._free_at + self._delay_s, self._other_end[end], packet))


def _read_packet(end: int) -> bytes:
    try:
        return os.read(end, LARGEST)
    except OSError:  # the interface is down, or its namespace is gone
        time.sleep(0.01)
        return b""


def _write_packet(end: int, packet: bytes) -> None:
    try:
        os.write(end, packet)
    except OSError:  # as a cable, it says nothing of a packet that does not arrive
        return
