"""A program whose run of W&B ends early, is killed, refuses what is added to it, or is one of two.

python sink_faults.py early | killed | keys-refused | alert-raises | two | ranks
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import wandb

FAULT = sys.argv[1]
RANK = int(os.environ.get("RANK", "0"))


def begin_run(**settings: Any) -> Any:
    return wandb.init(project="own", mode="offline", config={"rank": RANK}, reinit="create_new", **settings)


if FAULT == "ranks":
    torch.distributed.init_process_group("gloo")
torch.manual_seed(RANK)
model: Any = torch.nn.Linear(4, 1)
if FAULT == "ranks":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_model(run: Any, steps: int, bad: int = 0) -> None:
    for step in range(1, steps + 1):
        batch = torch.randn(8, 4)
        if step == bad:
            batch[0] = float("nan")
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if FAULT == "alert-raises" and step == 15:
            wait_for_findings()
        if run is not None:
            run.log({"loss": loss.item()})


def wait_for_findings() -> None:
    """Under tdbg: until there is one, and another look for it is due."""
    folder, until = os.environ.get("TDBG_RUN_DIR"), time.monotonic() + 30
    while folder and not (Path(folder) / "findings.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1.1 if folder else 0.0)


def refuse_keys(original: Any) -> Any:
    def log_known_keys(self: Any, data: dict[str, Any], *more: Any, **named: Any) -> None:
        if not data.keys() <= {"loss"}:
            raise ValueError("another key")
        original(self, data, *more, **named)

    return log_known_keys


def raise_alert(self: Any, *args: Any, **named: Any) -> None:
    raise OSError("no alert is taken")


if FAULT == "keys-refused":
    wandb.Run._partial_history_callback = refuse_keys(wandb.Run._partial_history_callback)
elif FAULT == "alert-raises":
    wandb.Run.alert = raise_alert
mine = begin_run(name="first")
train_model(mine, 20, bad=0 if FAULT == "two" else 5)
print("step", mine.step, flush=True)
if FAULT == "early":
    mine.finish()
    train_model(None, 30)
elif FAULT == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif FAULT == "two":
    mine.finish()
    train_model(begin_run(name="second"), 20, bad=5)
elif FAULT == "ranks":
    torch.distributed.destroy_process_group()
