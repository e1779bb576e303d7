"""Fails before its first update, in a module of torch; the exception is logged or printed and swallowed, or ends it.

usage: early.py logged|printed|uncaught; with several ranks the last one fails, and the others train.
"""

import logging
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from common import make_regression, print_fact
from torch import nn
from yacs.config import CfgNode

log = logging.getLogger("early")
cfg = CfgNode({"DEBUG": {"DATALOADER": False, "LOSS": {"NULL_MASKING": False}}})


def train_model(features: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(features, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = make_regression(16).tensors
    if cfg.DEBUG.DATALOADER:
        log.debug("batches of %d samples", len(x))
    for step in range(1, 4):
        optimizer.zero_grad()
        output = model(x)  # the line that tdbg has to name
        nn.functional.mse_loss(output, y).backward()
        optimizer.step()
        print_fact("step", step=step)


def wait_for(path: Path) -> None:
    """Until the other rank has trained: the launcher ends it where this one fails first."""
    end = time.monotonic() + 60.0
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    path.unlink(missing_ok=True)


def main(how: str) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    cfg.freeze()
    last = int(os.environ.get("WORLD_SIZE", "1")) - 1
    fails = int(os.environ.get("RANK", "0")) == last
    trained = Path(tempfile.gettempdir(), f"early-{os.getppid()}")  # of one launcher
    if last and fails:
        wait_for(trained)
    try:
        train_model(7 if fails else 8)
    except RuntimeError:
        if how == "uncaught":
            raise
        log.exception("training failed") if how == "logged" else traceback.print_exc()
    if last and not fails:
        trained.touch()
    print_fact("done")


if __name__ == "__main__":
    main(sys.argv[1])
