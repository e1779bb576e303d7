"""Steps of a fraction of a millisecond, in one of which the loss is NaN, or in none: shortest_steps.py STEPS [STEP]."""

import sys

import torch
from torch import nn

steps, bad = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(1, steps + 1):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if step == bad:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
