"""Two ranks whose first attempt ends by an exception of rank 1, or by SIGKILL; in the second, which goes on from step 20, a
loss is NaN or none.

usage: restarted.py [RANK_OF_NAN [kill]]
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
bad_rank = int(sys.argv[1]) if len(sys.argv) > 1 else -1
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1 + 20 * attempt, 61):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if attempt == 0 and step == 25 and dist.get_rank() == 1 and "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == 0 and step == 25 and dist.get_rank() == 1:
        raise RuntimeError("the node is gone")
    if attempt == 1 and step == 40 and dist.get_rank() == bad_rank:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
