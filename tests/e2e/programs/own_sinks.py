"""Trains with a run of W&B, a SummaryWriter, both or neither of its own; one batch may hold a NaN.

python own_sinks.py [wandb] [explicit] [finish] [tensorboard] [nan] [crash]; the folder of TensorBoard is BOARD in the environment
"""

import os
import sys

import torch

ASKED = set(sys.argv[1:])
run = writer = None
if "wandb" in ASKED:
    import wandb

    run = wandb.init(project="own", mode="offline", name="mine", tags=["mine"], config={"lr": 0.1})
if "tensorboard" in ASKED:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(os.environ.get("BOARD", "board/one"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 31):
    batch = torch.randn(8, 4)
    if "nan" in ASKED and step == 10:
        batch[0] = float("nan")
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    if run is not None and step % 3 == 0:
        if "explicit" in ASKED:
            run.log({"loss": loss.item(), "step": step}, step=step)
        else:
            run.log({"loss": loss.item(), "step": step}, commit=False)
            run.log({"rate": 0.1})
    if writer is not None:
        writer.add_scalar("loss", loss.item(), step)
if "crash" in ASKED:
    raise RuntimeError("planted")
if run is not None and "finish" in ASKED:
    run.finish()
if writer is not None:
    writer.close()
