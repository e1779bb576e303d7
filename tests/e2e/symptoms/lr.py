"""The scheduler steps before the optimizer, so the first rate is never used. Healthy: the other way round."""

import sys

import torch
from torch import nn

FLAG = "LR"
CODE = "TD-S003"
SAYS = "the rate 0.1 was never used"
OPTIONS = ()
RANKS = 1

healthy = "--healthy" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
for _ in range(40):
    inputs = torch.randn(256, 64)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    if not healthy:
        scheduler.step()
    optimizer.step()
    if healthy:
        scheduler.step()
print("done")
