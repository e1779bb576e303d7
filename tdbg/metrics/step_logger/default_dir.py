"""Where this process keeps its metrics, if somebody said so: `tdbg run` does, by the folder of the rank."""

from collections.abc import Callable
from pathlib import Path

FOLDER: list[Callable[[], Path]] = []  # the last one holds


def metrics_dir(rank: int) -> Path:
    """The folder of this rank: that of the run under `tdbg run`, else ``metrics/rank0000``."""
    return FOLDER[-1]() if FOLDER else Path("metrics") / f"rank{rank:04d}"
