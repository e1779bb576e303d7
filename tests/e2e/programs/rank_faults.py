"""Data-parallel training on gloo in which, from step 20 on, one rank is at fault; or healthy, in a way that looks alike.

rank_faults.py KIND [--rank RANK] [--by torchrun|spawn|fabric] [--nprocs N] [--steps N]

KIND: a name of FAULTS or HEALTHY. RANK (1) is at fault. --by: who starts the ranks; torchrun already has. Without a fault
a step takes some 12 milliseconds. Shapes: B batch, F features.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from common import leave_group, print_fact
from hangs import LoopLeft, StepOver, compute_long, evaluate_long, fall_asleep, read_pipe, save_long, wait_for_lock
from slow_ranks import burn_time, save_checkpoint
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

AT, FEATURES, BATCH = 20, 16, 8
STEP_MS, EXTRA_MS, PAUSE_S = 10.0, 40.0, 20.0


class Samples(Dataset[Tensor]):
    """Random rows, other ones on each rank; reading one can take longer, or for ever."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self.extra_s, self.stuck_at = 0.0, -1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        parent = os.getppid()
        while index == self.stuck_at and os.getppid() == parent:
            time.sleep(0.2)
        time.sleep(self.extra_s / BATCH)
        return torch.randn(FEATURES, generator=torch.Generator().manual_seed(index + 10**6 * self.seed))


class Block(nn.Module):
    """A layer that can take longer."""

    extra_ms = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x_BF: Tensor) -> Tensor:
        burn_time(STEP_MS / 2 + self.extra_ms)
        out: Tensor = self.layers(x_BF)
        return out


@dataclass
class Job:
    """What a rank trains with."""

    rank: int
    world: int
    is_guilty: bool
    body: Block
    model: nn.Module
    data: Samples
    group: "dist.ProcessGroup"  # of all ranks, beside the world's


# faults of one step: called by every rank at step 20, before it


def sleep_for_ever(job: Job) -> None:
    if job.is_guilty:
        fall_asleep(0.0)


def lock_for_ever(job: Job) -> None:
    if job.is_guilty:
        wait_for_lock(0.0)


def read_for_ever(job: Job) -> None:
    if job.is_guilty:
        read_pipe(0.0)


def skip_step(job: Job) -> None:
    if job.is_guilty:
        raise StepOver


def leave_loop(job: Job) -> None:
    if job.is_guilty:
        raise LoopLeft


def swap_order(job: Job) -> None:
    """A sum and a broadcast; the guilty rank has them the other way round."""
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(4)),
        lambda: dist.broadcast(torch.ones(4), 0),
    ]
    for call in reversed(calls) if job.is_guilty else calls:
        call()


def sum_other_shape(job: Job) -> None:
    dist.all_reduce(torch.ones(400_000 if job.is_guilty else 4))


def sum_in_other_group(job: Job) -> None:
    dist.all_reduce(torch.ones(4), group=job.group if job.is_guilty else None)


def pause_once(job: Job) -> None:
    if job.is_guilty:
        time.sleep(PAUSE_S)


def exit_quietly(job: Job) -> None:
    if job.is_guilty:
        os._exit(0)


def exit_with_error(job: Job) -> None:
    if job.is_guilty:
        sys.exit(1)


def raise_error(job: Job) -> None:
    if job.is_guilty:
        raise ValueError("planted")


def kill_itself(job: Job) -> None:
    if job.is_guilty:
        os.kill(os.getpid(), signal.SIGKILL)


def crash_natively(job: Job) -> None:
    if job.is_guilty:
        os.kill(os.getpid(), signal.SIGSEGV)


def run_out_of_memory(job: Job) -> None:
    if job.is_guilty:
        torch.empty(2**50, dtype=torch.uint8)


# faults that last: called before every step from step 20 on


def slow_loader(job: Job, step: int) -> None:
    job.data.extra_s = EXTRA_MS / 1e3 * job.is_guilty


def slow_forward(job: Job, step: int) -> None:
    job.body.extra_ms = EXTRA_MS * job.is_guilty


def slow_growing(job: Job, step: int) -> None:
    job.body.extra_ms = 1.5 * (step - AT) * job.is_guilty


def slow_checkpoints(job: Job, step: int) -> None:
    if job.is_guilty and step % 5 == 0:
        save_checkpoint(job.body, 8 * EXTRA_MS)


def busy_threads(job: Job, step: int) -> None:
    """Threads of Python that want the interpreter as well."""
    if job.is_guilty and step == AT:
        for _ in range(2):
            threading.Thread(target=burn_time, args=(1e9,), daemon=True).start()


# what is healthy, and looks alike


def save_for_long(job: Job) -> None:
    if job.is_guilty:
        save_long(6.0)


def compute_for_long(job: Job) -> None:
    if job.is_guilty:
        compute_long(6.0)


def evaluate_for_long(job: Job) -> None:
    if job.is_guilty:
        evaluate_long(6.0)


def all_slow(job: Job, step: int) -> None:
    job.body.extra_ms = EXTRA_MS


def slow_in_turns(job: Job, step: int) -> None:
    job.body.extra_ms = EXTRA_MS * (step % job.world == job.rank)


def log_on_one(job: Job, step: int) -> None:
    """What a rank does besides, too little to matter."""
    if job.is_guilty and step % 25 == 0:
        time.sleep(0.03)


ONCE: dict[str, Callable[[Job], None]] = {
    "sleep": sleep_for_ever,
    "lock": lock_for_ever,
    "disk": read_for_ever,
    "skip": skip_step,
    "leave": leave_loop,
    "order": swap_order,
    "shape": sum_other_shape,
    "group": sum_in_other_group,
    "pause": pause_once,
    "exit-0": exit_quietly,
    "exit-1": exit_with_error,
    "raise": raise_error,
    "kill": kill_itself,
    "segfault": crash_natively,
    "memory": run_out_of_memory,
    "saves": save_for_long,
    "computes": compute_for_long,
    "evaluates": evaluate_for_long,
}
LASTING: dict[str, Callable[[Job, int], None]] = {
    "slow-data": slow_loader,
    "slow-forward": slow_forward,
    "growing": slow_growing,
    "checkpoints": slow_checkpoints,
    "threads": busy_threads,
    "all-slow": all_slow,
    "in-turns": slow_in_turns,
    "logs": log_on_one,
}
SILENT = ("loader", "weights", "data", "hooks")
HEALTHY = ("none", "saves", "computes", "evaluates", "all-slow", "in-turns", "logs")


def make_job(options: argparse.Namespace, wrap: Callable[[nn.Module], nn.Module]) -> Job:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    body, is_guilty = Block(), rank == options.rank
    data = Samples(BATCH * options.steps, 0 if options.kind == "data" else rank)
    if options.kind == "loader" and is_guilty:
        data.stuck_at = BATCH * (AT - 1)
    model = wrap(body)
    if options.kind == "weights" and is_guilty:
        nn.init.constant_(body.layers[0].weight, 0.01)  # type: ignore[arg-type]
    return Job(rank, world, is_guilty, body, model, data, dist.new_group())


def train(options: argparse.Namespace, job: Job, backward: Callable[[Tensor], object]) -> None:
    optimizer = torch.optim.SGD(job.model.parameters(), 0.05)
    once, lasting = ONCE.get(options.kind), LASTING.get(options.kind)
    for step, x_BF in enumerate(DataLoader(job.data, batch_size=BATCH), 1):
        try:
            if once is not None and step == AT:
                once(job)
        except StepOver:
            continue
        except LoopLeft:
            break
        if lasting is not None and step >= AT:
            lasting(job, step)
        called = job.body if options.kind == "hooks" else job.model  # a step that goes around DDP
        loss = nn.functional.cross_entropy(called(x_BF), x_BF[:, :4].argmax(1))
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        burn_time(STEP_MS / 2)
    dist.barrier()
    print_fact("done", rank=job.rank)


def run_training(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options, make_job(options, DistributedDataParallel), Tensor.backward)
    leave_group()


def run_rank(rank: int, options: argparse.Namespace) -> None:
    """One rank that `torch.multiprocessing` started."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(options.nprocs), MASTER_ADDR="127.0.0.1")
    run_training(options)


def run_with_fabric(options: argparse.Namespace) -> None:
    from lightning.fabric import Fabric

    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=options.nprocs, strategy="ddp")
    fabric.launch()
    train(options, make_job(options, fabric.setup_module), fabric.backward)
    leave_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=(*ONCE, *LASTING, *SILENT, "none"))
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--by", choices=("torchrun", "spawn", "fabric"), default="torchrun")
    parser.add_argument("--nprocs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    if options.by == "torchrun":
        run_training(options)
    elif options.by == "fabric":
        run_with_fabric(options)
    else:
        os.environ["MASTER_PORT"] = str(29500 + os.getpid() % 2000)
        multiprocessing.spawn(run_rank, (options,), nprocs=options.nprocs)


if __name__ == "__main__":
    main()
