"""The last value of each of the program's own metrics, for conditions such as ``metric.accuracy < 0.5``."""

import os

MAX_NAMES = 1000

LAST: dict[str, float] = {}


def keep(name: str, value: float) -> bool:
    """Remember the value; False where there are too many names for a new one."""
    if name not in LAST and len(LAST) >= MAX_NAMES:
        return False
    LAST[name] = value
    return True


os.register_at_fork(after_in_child=LAST.clear)  # a worker's condition must not hang on its parent's values
