"""How much memory the process and its machine use, read from the system."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tdbg.runtime.step_record import PAGE_MB, host_memory_mb

MB = 1e6
STATM = Path("/proc/self/statm")
MEMINFO = Path("/proc/meminfo")
CGROUPS = (  # of a container: what it may use, what it uses, and the part of that which can be dropped
    (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory.current"),
        Path("/sys/fs/cgroup/memory.stat"),
        b"inactive_file",
    ),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
        b"total_inactive_file",
    ),
)


@dataclass(frozen=True, slots=True)
class Room:
    """How full the tighter of two limits is: the machine's memory or the container's."""

    used_mb: float
    limit_mb: float
    whose: str  # machine or container

    @property
    def used_pct(self) -> float:
        """Share in use, in percent."""
        return 100.0 * self.used_mb / self.limit_mb


def resident_mb() -> float | None:
    """Resident memory of this process. /proc is read where there is one: psutil reads the same, at twice the price."""
    if _has_proc():
        return round(int(_read_head(STATM, 100).split()[1]) * PAGE_MB, 1)
    psutil = _import_psutil()
    if psutil is None:
        return host_memory_mb()  # the peak, from `resource`
    return round(float(psutil.Process().memory_info().rss) / MB, 1)


def peak_mb() -> float:
    """The most resident memory this process has had."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e6 / 1024), 1)


def find_memory_limit() -> Room | None:
    """The tighter limit; None where the system does not say. Cost: some 50 us on Linux."""
    found = [limit for limit in (_read_machine_memory(), _read_container_memory()) if limit is not None]
    return max(found, key=lambda limit: limit.used_pct, default=None)


@cache
def _has_proc() -> bool:
    return STATM.exists()


@cache
def _import_psutil() -> Any:
    """psutil, if the program's environment has it."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def _read_machine_memory() -> Room | None:
    if MEMINFO.exists():
        figures = _parse_number_table(MEMINFO)
        total, available = figures.get(b"MemTotal:", 0) * 1024, figures.get(b"MemAvailable:", 0) * 1024
    elif (psutil := _import_psutil()) is not None:
        memory = psutil.virtual_memory()
        total, available = memory.total, memory.available
    else:
        return None
    return Room((total - available) / MB, total / MB, "machine") if 0 < available <= total else None


def _read_container_memory() -> Room | None:
    for limit_file, used_file, stat_file, droppable in CGROUPS:
        try:
            limit = int(limit_file.read_bytes())
            used = int(used_file.read_bytes()) - _parse_number_table(stat_file).get(droppable, 0)
        except (OSError, ValueError):  # no such control group, or "max"
            continue
        if 0 < limit < 1 << 60 and used > 0:
            return Room(used / MB, limit / MB, "container")
    return None


def _parse_number_table(path: Path) -> dict[bytes, int]:
    """Lines of a name and a number."""
    rows = (line.split() for line in _read_head(path, 1 << 16).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


def _read_head(path: Path, size: int) -> bytes:
    """The beginning of a small file, with three system calls: `open` makes twice as many."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)
