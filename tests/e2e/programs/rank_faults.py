"""Data-parallel training on gloo in which, from step 20 on, one rank is at fault; or healthy, in a way that looks alike.

rank_faults.py KIND [--rank RANK] [--by torchrun|spawn|fabric|accelerate] [--nprocs N] [--steps N]

KIND: a fault of this file, or what is healthy in rank_twins.py. RANK (1) is at fault. --by: who starts the ranks; torchrun
and accelerate already have. Without a fault a step takes some 12 milliseconds, or 27 where it needs CPU time. Where a fault
begins, RANK prints a line. A line that a fault is to be named with has a comment that says so.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import rank_twins
import torch
import torch.distributed as dist
from common import leave_group, print_fact
from hangs import LoopLeft, StepOver, fall_asleep, read_pipe, wait_for_lock
from rank_job import AT, BATCH, EXTRA_MS, STEP_MS, Block, Job, Samples
from slow_ranks import average_by_hand, burn_time, save_checkpoint
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

PAUSE_S = 20.0
LOOPS = 600_000  # of counting: some 20 milliseconds of a CPU, so that other load of the machine matters less
STEPS, STEPS_OF_CPU_TIME = 120, 50
FILLED_MB, BLOCK_MB = 400, 50
BUSY_THREADS = 8
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US, QUOTA_US = 100_000, 10_000
TRAINED = threading.Event()
# A neighbour on one CPU, for as long as the process lives that started it.
NEIGHBOUR = """import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    sum(range(10_000))
"""


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
        lambda: dist.all_reduce(torch.ones(4)),  # planted: order
        lambda: dist.broadcast(torch.ones(4), 0),  # planted: order
    ]
    for call in reversed(calls) if job.is_guilty else calls:
        call()


def sum_other_shape(job: Job) -> None:
    dist.all_reduce(torch.ones(400_000 if job.is_guilty else 4))  # planted: shape


def sum_in_other_group(job: Job) -> None:
    dist.all_reduce(torch.ones(4), group=job.group if job.is_guilty else None)  # planted: group


def pause_once(job: Job) -> None:
    if job.is_guilty:
        time.sleep(PAUSE_S)  # planted: pause


def exit_quietly(job: Job) -> None:
    if job.is_guilty:
        os._exit(0)


def exit_with_error(job: Job) -> None:
    if job.is_guilty:
        sys.exit(1)


def raise_error(job: Job) -> None:
    if job.is_guilty:
        raise ValueError("planted")  # planted: raise


def kill_itself(job: Job) -> None:
    if job.is_guilty:
        os.kill(os.getpid(), signal.SIGKILL)


def crash_natively(job: Job) -> None:
    if job.is_guilty:
        os.kill(os.getpid(), signal.SIGSEGV)  # planted: segfault


def run_out_of_memory(job: Job) -> None:
    if job.is_guilty:
        torch.empty(2**50, dtype=torch.uint8)  # planted: memory


# slowness that begins once, and lasts


def give_way(job: Job) -> None:
    """From now on this rank shares its CPU with a neighbour that comes first."""
    if job.is_guilty:
        cpus = sorted(os.sched_getaffinity(0))
        cpu = cpus[job.rank % len(cpus)]
        subprocess.Popen([sys.executable, "-I", "-S", "-c", NEIGHBOUR, str(cpu)])  # before this rank is nice
        os.sched_setaffinity(0, {cpu})
        os.nice(6)


def limit_cpu(job: Job) -> None:
    """From now on this rank may use a tenth of a CPU. The control group is removed by whoever runs the table."""
    if job.is_guilty:
        folder = CPU_GROUPS / f"tdbg-table-{os.getpid()}"
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        (folder / "cgroup.procs").write_text(str(os.getpid()))


def fill_memory(job: Job) -> None:
    """Memory fills up, and the process is killed: by itself, in the place of the kernel, which would need a control group."""
    if job.is_guilty:
        kept = [torch.ones(BLOCK_MB * 10**6, dtype=torch.uint8) for _ in range(FILLED_MB // BLOCK_MB)]
        print_fact("filled", mb=BLOCK_MB * len(kept))
        os.kill(os.getpid(), signal.SIGKILL)


def multiply() -> None:
    """Keep a processor busy outside of Python."""
    matrix = torch.randn(400, 400)
    while not TRAINED.is_set():
        matrix = nn.functional.normalize(matrix @ matrix)


def start_pool(job: Job) -> None:
    """A pool as large as the machine, on a rank that is bound to one CPU."""
    if job.is_guilty:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[job.rank % len(cpus)]})
        for _ in range(BUSY_THREADS):
            threading.Thread(target=multiply, daemon=True).start()


# faults of many steps: called before every step from step 20 on


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
    "oom-kill": fill_memory,
    "nice": give_way,
    "quota": limit_cpu,
    "pool": start_pool,
    **rank_twins.ONCE,
}
LASTING: dict[str, Callable[[Job, int], None]] = {
    "slow-data": slow_loader,
    "slow-forward": slow_forward,
    "growing": slow_growing,
    "checkpoints": slow_checkpoints,
    "threads": busy_threads,
    **rank_twins.LASTING,
}
SILENT = ("loader", "weights", "data", "hooks", "seeds", "same-noise")  # from the start
SILENT_TWINS = ("none", "own-head", "accumulates", "by-hand", "own-noise")
OF_CPU_TIME = ("nice", "quota", "pool", "all-nice", "pools-alike")  # a step's work needs CPU time
BY_HAND = ("seeds", "by-hand")  # gradients are averaged by the program
NOISY = ("same-noise", "own-noise")


Wrap = Callable[[nn.Module], nn.Module]
NoSync = Callable[[nn.Module], contextlib.AbstractContextManager[None]]


def make_body(options: argparse.Namespace, *, is_guilty: bool) -> Block:
    torch.manual_seed(1 if options.kind == "seeds" and is_guilty else 0)
    body = Block()
    body.loops = LOOPS * (options.kind in OF_CPU_TIME)
    if options.kind == "own-head":  # a part of the model that each rank has for itself
        names = ["layers.2.weight", "layers.2.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(body, names)
        nn.init.constant_(body.layers[2].bias, dist.get_rank())  # type: ignore[arg-type]
    return body


def make_job(options: argparse.Namespace, wrap: Wrap, no_sync: NoSync) -> Job:
    rank, world = dist.get_rank(), dist.get_world_size()
    is_guilty = rank == options.rank
    body = make_body(options, is_guilty=is_guilty)
    data = Samples(BATCH * options.steps, 0 if options.kind == "data" else rank, noisy=options.kind in NOISY)
    if options.kind == "loader" and is_guilty:
        data.stuck_at = BATCH * (AT - 1)
    model = body if options.kind in BY_HAND else wrap(body)
    if options.kind == "weights" and is_guilty:
        nn.init.constant_(body.layers[0].weight, 0.01)  # type: ignore[arg-type]
    torch.manual_seed(rank if options.kind == "own-noise" else 0)
    return Job(rank, world, is_guilty, body, model, data, dist.new_group(), lambda: no_sync(model))


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
        if options.kind == "loads" and step > AT:
            job.data.extra_s = 0.0
        take_step(options.kind, job, optimizer, backward, x_BF)
        if job.is_guilty and step == AT - 1:
            print_fact("fault", rank=job.rank)
    TRAINED.set()
    dist.barrier()  # planted: skip, leave
    print_fact("done", rank=job.rank)


def take_step(
    kind: str, job: Job, optimizer: torch.optim.Optimizer, backward: Callable[[Tensor], object], x_BF: Tensor
) -> None:
    called = job.body if kind == "hooks" else job.model  # a step that goes around DDP
    optimizer.zero_grad()
    for part_BF in x_BF.chunk(2) if kind == "accumulates" else [x_BF]:
        is_first = kind == "accumulates" and part_BF.data_ptr() == x_BF.data_ptr()
        with job.no_sync() if is_first else contextlib.nullcontext():
            backward(nn.functional.cross_entropy(called(part_BF), part_BF[:, :4].argmax(1)))
    if kind in BY_HAND:
        average_by_hand(job.body)
    optimizer.step()
    burn_time(STEP_MS / 2)


def run_training(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = make_job(options, DistributedDataParallel, lambda model: model.no_sync())  # type: ignore[operator]
    train(options, job, Tensor.backward)
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
    job = make_job(options, fabric.setup_module, fabric.no_backward_sync)
    train(options, job, Tensor.backward if options.kind in BY_HAND else fabric.backward)
    leave_group()


def run_with_accelerate(options: argparse.Namespace) -> None:
    from accelerate import Accelerator

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    job = make_job(options, accelerator.prepare_model, accelerator.no_sync)
    train(options, job, Tensor.backward if options.kind in BY_HAND else accelerator.backward)
    leave_group()


RUN_BY = {"torchrun": run_training, "fabric": run_with_fabric, "accelerate": run_with_accelerate}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=(*ONCE, *LASTING, *SILENT, *SILENT_TWINS))
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--by", choices=(*RUN_BY, "spawn"), default="torchrun")
    parser.add_argument("--nprocs", type=int, default=2)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    options.steps = options.steps or (STEPS_OF_CPU_TIME if options.kind in OF_CPU_TIME else STEPS)
    if options.by in RUN_BY:
        RUN_BY[options.by](options)
    else:
        os.environ["MASTER_PORT"] = str(29500 + os.getpid() % 2000)
        multiprocessing.spawn(run_rank, (options,), nprocs=options.nprocs)


if __name__ == "__main__":
    main()
