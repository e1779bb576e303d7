"""Share one W&B run id with all ranks, through the store of the process group, on any backend.

No collective is issued and no accelerator is touched: rank 0 writes the id under a name, the others read it there.
"""

import os
import secrets
import sys
from datetime import timedelta
from typing import Any

from tdbg.core.errors import TdbgError

ENV = "WANDB_RUN_ID"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TIMEOUT_S = 120.0
_times = 0  # that this process asked: each asking has a name of its own in the store


def new_id() -> str:
    """An id of 8 letters, as W&B makes them."""
    return "".join(secrets.choice(LETTERS) for _ in range(8))


def shared_run_id(saved: str | None = None, *, timeout_s: float = TIMEOUT_S) -> str:
    """The id that all ranks use: that of the checkpoint, else of ``WANDB_RUN_ID``, else a new one of rank 0.

    saved: what the checkpoint brought. Every rank has to call it, in the same order as other calls of it. Raises
    TdbgError where several ranks cannot agree: no process group yet, or a rank that does not come within the time.
    """
    given = saved or os.environ.get(ENV)
    if given:
        return given
    store, rank, world = _resolve_process_group()
    if world == 1:
        return new_id()
    if store is None:
        what = f"{world} ranks need one W&B run id, but there is no process group to share it"
        raise TdbgError(what, f"call it after torch.distributed.init_process_group, or set {ENV}")
    return _share_through_store(store, rank, timeout_s)


def _share_through_store(store: Any, rank: int, timeout_s: float) -> str:
    global _times
    _times += 1
    name = f"tdbg/metrics/run_id/{_times}"
    if rank == 0:
        made = new_id()
        store.set(name, made)
        return made
    try:
        store.wait([name], timedelta(seconds=timeout_s))
        return bytes(store.get(name)).decode()
    except RuntimeError as error:  # DistStoreError: the time is over, or rank 0 is gone
        what = f"rank 0 did not share the W&B run id within {timeout_s:g} s: {str(error).splitlines()[0]}"
        raise TdbgError(what, "create the logger on every rank, or pass run_id") from None


def _resolve_process_group() -> tuple[object, int, int]:
    """The store of the process group, rank and world size."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        get_store = getattr(distributed.distributed_c10d, "_get_default_store", None)  # no public name yet
        return get_store() if get_store is not None else None, distributed.get_rank(), distributed.get_world_size()
    return None, int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
