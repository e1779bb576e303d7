"""A cosine over the number of epochs that steps after every batch. Healthy: its length counts batches."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FLAG = "SCHEDULING"
CODE = "TD-S005"
SAYS = "was over after"
OPTIONS = ()
RANKS = 1

healthy = "--healthy" in sys.argv
EPOCHS = 4

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(40 * 64, 64)
loader = DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
length = EPOCHS * len(loader) if healthy else EPOCHS
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)
for _ in range(EPOCHS):
    for batch, labels in loader:
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cosine.step()
print("done")
