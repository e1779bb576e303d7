"""Who this process is before it has taken a step: a rank, a launcher, or a child of either."""

import os
import sys

from tdbg.core.rundir import env_rank
from tdbg.inject.children import LAUNCHERS


def rank_of_process() -> int | None:
    """The rank, where a process group or a launcher says so, 0 for a program that runs alone; None where it is open."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    if is_launcher():
        return None
    rank = env_rank(os.environ)
    return 0 if rank is None and not is_child() else rank


def is_ray_process() -> bool:
    """True in what Ray starts for an actor or a task: trainers, but also Ray's own controllers, which are no rank."""
    return "ray" in sys.modules and os.path.basename(sys.argv[0] if sys.argv else "") == "default_worker.py"


def is_child() -> bool:
    """True in what multiprocessing started: loader workers and spawned ranks."""
    known = sys.modules.get("multiprocessing.process")
    return known is not None and known.parent_process() is not None


def is_launcher() -> bool:
    """True in a process that starts ranks and is none: what it raises follows from how they ended.

    A forked rank has the modules of its launcher.
    """
    loaded = any(name in sys.modules for name in LAUNCHERS)
    return loaded and "TORCHELASTIC_RUN_ID" not in os.environ and not is_child()
