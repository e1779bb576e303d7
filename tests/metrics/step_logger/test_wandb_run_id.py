"""One id of the W&B run for all ranks."""

import re
import subprocess
import sys

import pytest
from metrics.rows_of import run_program

from tdbg.core.errors import TdbgError
from tdbg.metrics.step_logger.wandb_run_id import shared_run_id

RANK = """
import os, sys, torch.distributed as dist
from tdbg.metrics.step_logger.wandb_run_id import shared_run_id
dist.init_process_group("gloo")
first, second = shared_run_id(), shared_run_id()
with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as file:
    file.write(f"{first} {second} {shared_run_id('saved')}")
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo's threads abort a process now and then that shuts Python down: see leave_group of e2e/programs/common.py
"""


def test_two_ranks_of_gloo_have_one_id(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(RANK)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([sys.executable, *torchrun, program, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    one, other = ((tmp_path / str(rank)).read_text().split() for rank in (0, 1))
    assert one == other and one[2] == "saved"
    assert one[0] != one[1] and all(re.fullmatch("[a-z0-9]{8}", word) for word in one[:2])


def test_a_rank_that_never_comes_is_told(tmp_path):
    code = """
import sys
from datetime import timedelta
import torch.distributed as dist
from tdbg.core.errors import TdbgError
from tdbg.metrics.step_logger import wandb_run_id
store = dist.FileStore(sys.argv[1], 2)
try: wandb_run_id._share_through_store(store, 1, 0.5)
except TdbgError as error: print(error, error.hint)
"""
    done = run_program(code, tmp_path / "store")
    assert "rank 0 did not share the W&B run id" in done.stdout and "every rank" in done.stdout, done.stderr


def test_alone_it_is_new_and_the_environment_is_heeded(monkeypatch):
    for name in ("WANDB_RUN_ID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert shared_run_id() != shared_run_id()
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert shared_run_id() == "mine" and shared_run_id("saved") == "saved"


def test_several_ranks_without_a_group_cannot_agree(monkeypatch):
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TdbgError, match="no process group"):
        shared_run_id()
