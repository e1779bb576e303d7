"""Every step appends a loss with its graph, some 4 MB of activations, to a list. Healthy: only its value is kept."""

import sys

import torch
from torch import nn

FLAG = "MEMORY"
CODE = "TD-M001"
SAYS = "held by a list"
OPTIONS = ()
RANKS = 1

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(512, 256), torch.randint(10, (512,))
history: list[torch.Tensor | float] = []
for _ in range(90):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    after = nn.functional.cross_entropy(model(inputs), targets)
    history.append(after.item() if "--healthy" in sys.argv else after)
print("done")
