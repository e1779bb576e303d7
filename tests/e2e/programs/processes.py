"""Two DDP ranks started by the program itself: ``spawn`` (mp.spawn), ``fork`` or ``forkserver``."""

import os
import sys
import tempfile

import ddp
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import leave_group


def run_rank(rank: int, world: int, meeting: str) -> None:
    """One rank; it learns its number from an argument, not from the environment."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    ddp.train_rank(rank, world, steps=6)
    leave_group()


def main() -> None:
    method, world = sys.argv[1], 2
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        if method == "spawn":
            mp.spawn(run_rank, args=(world, meeting), nprocs=world)
            return
        context = mp.get_context(method)
        children = [context.Process(target=run_rank, args=(rank, world, meeting)) for rank in range(world)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        sys.exit(max(child.exitcode or 0 for child in children))


if __name__ == "__main__":
    main()
