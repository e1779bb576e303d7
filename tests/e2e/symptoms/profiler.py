"""A training that is over before the window that is to be profiled. Healthy: it goes on long enough."""

import sys

import torch
from torch import nn

FLAG = "PROFILER"
CODE = "TD-P004"
SAYS = "20 steps seen, but the next window ends at step 32"
OPTIONS = ("--flag", "PROFILER=30:32")
RANKS = 1

healthy = "--healthy" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40 if healthy else 20):
    inputs = torch.randn(256, 64)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
