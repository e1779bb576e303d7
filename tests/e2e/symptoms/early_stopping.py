"""Early stopping on a loss with mode="max": it stops while the loss falls. Healthy: mode="min"."""

import sys

import torch
from torch import nn

FLAG = "EARLY_STOPPING"
CODE = "TD-S009"
SAYS = "counts an improving val_loss as no improvement"
OPTIONS = ()
RANKS = 1


class EarlyStopping:
    """Stops when a metric has not improved for some checks."""

    def __init__(self, patience: int, mode: str) -> None:
        self.patience, self.mode = patience, mode
        self.best: float | None = None
        self.counter = 0
        self.early_stop = False

    def __call__(self, val_loss: float) -> None:
        if self.best is None or (val_loss < self.best if self.mode == "min" else val_loss > self.best):
            self.best, self.counter = val_loss, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
inputs, held_out = torch.randn(128, 16), torch.randn(64, 16)
stopper = EarlyStopping(patience=4, mode="min" if "--healthy" in sys.argv else "max")
for epoch in range(12):
    for x in inputs.split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(held_out), held_out.sum(1, keepdim=True)).item()
    print(f"epoch {epoch}: validation loss {loss:.4f}")
    stopper(loss)
    if stopper.early_stop:
        break
