"""Validation is sent with the epoch as its step, training with the step: all of it but the first is dropped.

wandb takes steps in rising order only. ``--healthy`` gives both the same step. The real wandb, offline.
"""

import os
import sys
import tempfile

import torch
import wandb
from torch import nn

FLAG = "WANDB_METRICS"
CODE = "TD-C017"
SAYS = "val/loss"
OPTIONS = ()
RANKS = 1

EPOCHS, BATCHES = 4, 6

healthy = "--healthy" in sys.argv
folder = tempfile.TemporaryDirectory(prefix="wandb-", ignore_cleanup_errors=True)
os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=folder.name)
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x_all, weight = torch.randn(64 * BATCHES, 8), torch.randn(8, 1)
y_all = x_all @ weight

wandb.init(project="symptom", settings=wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True))
step = 0
for epoch in range(EPOCHS):
    for x_batch, y_batch in zip(x_all.split(64), y_all.split(64), strict=True):
        loss = nn.functional.mse_loss(model(x_batch), y_batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        wandb.log({"train/loss": loss.item(), "epoch": epoch}, step=step)
    with torch.no_grad():
        val_loss = nn.functional.mse_loss(model(x_all), y_all)
    wandb.log({"val/loss": val_loss.item()}, step=step if healthy else epoch)
wandb.finish()
print("done")
