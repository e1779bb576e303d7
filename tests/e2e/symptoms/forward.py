"""A layer whose bias was pushed far below zero: its ReLU is dead. Healthy: the bias starts at zero."""

import sys

import torch
from torch import nn

FLAG = "FORWARD"
CODE = "TD-N005"
SAYS = 'the output of module "3" has been zero'
OPTIONS = ()
RANKS = 1

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
if "--healthy" not in sys.argv:
    with torch.no_grad():
        model[2].bias.fill_(-50.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs, targets = torch.randn(256, 32), torch.randint(4, (256,))
for _ in range(40):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
