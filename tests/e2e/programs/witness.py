"""Trains, and after each step appends its number and loss to a file with one write: a witness of what was done."""

import os
import sys

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
witness = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in range(1, int(sys.argv[2]) + 1):
    x, y = torch.randn(16, 32), torch.randint(0, 8, (16,))
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    os.write(witness, f"{step} {loss.item()!r}\n".encode())
