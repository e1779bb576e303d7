"""Two ranks that train slowly until a file named `stop` is there: what the pages follow. `poison` puts a NaN into a batch."""

import logging
import os
import time
from pathlib import Path

import torch
from torch import distributed, nn

STEP_S = 0.1
MOST_STEPS = 3000

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")
distributed.init_process_group("gloo")
torch.manual_seed(distributed.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(MOST_STEPS):
    x = torch.randn(8, 8)
    if Path("poison").exists() and distributed.get_rank() == 1:
        x[2, 3] = float("nan")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()
    optimizer.step()
    log.info("step %d loss %.4f", step + 1, loss.item())
    is_over = torch.tensor(float(Path("stop").exists()))
    distributed.all_reduce(is_over, distributed.ReduceOp.MAX)  # all ranks stop at the same step
    if is_over:
        break
    time.sleep(STEP_S)
distributed.destroy_process_group()
log.warning("rank %s is done", os.environ["RANK"])
