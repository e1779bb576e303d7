"""Weights saved from DataParallel are loaded with strict=False: no key fits. Healthy: the prefix is taken off."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

FLAG = "CHECKPOINT"
CODE = "TD-C010"
SAYS = "carry the prefix module."
OPTIONS = ()
RANKS = 1


def make_network() -> nn.Sequential:
    """A small classifier."""
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))


torch.manual_seed(0)
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "pretrained.pt"
    torch.save({"model": nn.DataParallel(make_network()).state_dict(), "epoch": 3}, path)
    weights = torch.load(path)["model"]
if "--healthy" in sys.argv:
    weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
model = make_network()
model.load_state_dict(weights, strict=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs, targets = torch.randn(256, 16), torch.randint(4, (256,))
for _ in range(40):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
print("done")
