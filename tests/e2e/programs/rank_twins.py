"""What is healthy and looks like a fault of rank_faults.py: for each of them a twin."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from hangs import LoopLeft, StepOver, compute_long, evaluate_long, save_long
from rank_job import AT, EXTRA_MS, FEATURES, Job, count_up
from slow_ranks import save_checkpoint

SOON_S, LONG_S = 2.0, 6.0  # less than the limit of the table, and twice the limit

# once, before step 20


def sleep_soon(job: Job) -> None:
    if job.is_guilty:
        time.sleep(SOON_S)


def lock_soon(job: Job) -> None:
    """Another thread gives the lock back."""
    if job.is_guilty:
        lock = threading.Lock()
        lock.acquire()
        threading.Timer(SOON_S, lock.release).start()
        lock.acquire()


def load_soon(job: Job) -> None:
    job.data.extra_s = SOON_S * job.is_guilty


def save_for_long(job: Job) -> None:
    if job.is_guilty:
        save_long(LONG_S)


def compute_for_long(job: Job) -> None:
    if job.is_guilty:
        compute_long(LONG_S)


def evaluate_for_long(job: Job) -> None:
    if job.is_guilty:
        evaluate_long(LONG_S)


def skip_together(job: Job) -> None:
    raise StepOver


def leave_together(job: Job) -> None:
    raise LoopLeft


def call_in_order(job: Job) -> None:
    """Two collectives, one after the other; one rank comes late to both."""
    if job.is_guilty:
        time.sleep(0.3)
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(4), 0)


def gather_other_sizes(job: Job) -> None:
    """Objects of another size on each rank, which is allowed."""
    found: list[object] = [None] * job.world
    dist.all_gather_object(found, "x" * (100_000 if job.is_guilty else 4))


def sum_in_groups(job: Job) -> None:
    dist.all_reduce(torch.ones(4), group=job.group)
    dist.all_reduce(torch.ones(4))


def pause_together(job: Job) -> None:
    time.sleep(LONG_S)


def exit_together(job: Job) -> None:
    dist.barrier()
    os._exit(0)


def run_helper(job: Job) -> None:
    """A program that this rank asks something ends with 1, as `nvidia-smi` does where there is no driver."""
    if job.is_guilty:
        subprocess.run([sys.executable, "-c", "raise SystemExit(1)"], check=False)


def catch_error(job: Job) -> None:
    if job.is_guilty:
        with contextlib.suppress(ValueError):
            int("no number")


def kill_helper(job: Job) -> None:
    if job.is_guilty:
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        time.sleep(0.3)
        helper.kill()
        helper.wait()


def crash_helper(job: Job) -> None:
    if job.is_guilty:
        crash = f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})"
        subprocess.run([sys.executable, "-c", crash], check=False)


def allocate_less(job: Job) -> None:
    """As programs do that look for the largest batch that fits."""
    if job.is_guilty:
        try:
            torch.empty(2**50, dtype=torch.uint8)
        except RuntimeError:
            torch.empty(2**20, dtype=torch.uint8)


def use_memory_once(job: Job) -> None:
    if job.is_guilty:
        torch.ones(300_000_000, dtype=torch.uint8).sum()


def be_nice(job: Job) -> None:
    """All ranks make way for others, and there is nobody else."""
    os.nice(5)


def start_idle_threads(job: Job) -> None:
    if job.is_guilty:
        for _ in range(8):
            threading.Thread(target=time.sleep, args=(3600.0,), daemon=True).start()


# every step from step 20 on


def all_slow(job: Job, step: int) -> None:
    job.body.extra_ms = EXTRA_MS


def all_grow(job: Job, step: int) -> None:
    """As sequences do that get longer in the course of the run."""
    job.body.extra_ms = 0.4 * (step - AT)


def slow_in_turns(job: Job, step: int) -> None:
    job.body.extra_ms = EXTRA_MS * (step % job.world == job.rank)


def refill_in_turns(job: Job, step: int) -> None:
    """Now and then a rank opens its next file."""
    is_due = step % 25 == 0 and step // 25 % job.world == job.rank
    job.data.extra_s = 2 * EXTRA_MS / 1e3 * is_due


def save_shards(job: Job, step: int) -> None:
    """Each rank saves its own part."""
    if step % 5 == 0:
        save_checkpoint(job.body, 2 * EXTRA_MS)


def log_on_one(job: Job, step: int) -> None:
    """What a rank does besides, too little to matter."""
    if job.is_guilty and step % 25 == 0:
        time.sleep(0.03)


def work_more_on_all(job: Job, step: int) -> None:
    """A pool of each rank that has as much to do as the others'."""
    thread = threading.Thread(target=count_up, args=(50_000,))
    thread.start()
    thread.join()


def validate_alike(job: Job, step: int) -> None:
    """All ranks evaluate on the same rows."""
    if step % 20 == 0:
        job.body.eval()
        rows_BF = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            job.body(rows_BF)
        job.body.train()


ONCE: dict[str, Callable[[Job], None]] = {
    "naps": sleep_soon,
    "locks": lock_soon,
    "loads": load_soon,
    "saves": save_for_long,
    "computes": compute_for_long,
    "evaluates": evaluate_for_long,
    "skips": skip_together,
    "leaves": leave_together,
    "orders": call_in_order,
    "gathers": gather_other_sizes,
    "groups": sum_in_groups,
    "pauses": pause_together,
    "quits": exit_together,
    "helper": run_helper,
    "catches": catch_error,
    "kills": kill_helper,
    "crashes": crash_helper,
    "retries": allocate_less,
    "peaks": use_memory_once,
    "all-nice": be_nice,
    "idlers": start_idle_threads,
}
LASTING: dict[str, Callable[[Job, int], None]] = {
    "all-slow": all_slow,
    "all-grow": all_grow,
    "in-turns": slow_in_turns,
    "refills": refill_in_turns,
    "shards": save_shards,
    "logs": log_on_one,
    "pools-alike": work_more_on_all,
    "validates": validate_alike,
}
