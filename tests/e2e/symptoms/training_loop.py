"""zero_grad() was forgotten: each update uses the sum of all gradients so far. Healthy: it is called."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FLAG = "TRAINING_LOOP"
CODE = "TD-C013"
SAYS = "SGD never resets its gradients"
OPTIONS = ()
RANKS = 1

HEALTHY = "--healthy" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
inputs = torch.randn(256, 16)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, shuffle=True)
for _ in range(3):
    for x, y in loader:
        if HEALTHY:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
print("done")
