"""Evaluation without model.eval(): batch normalisation learns from it. Healthy: it is called, and train() after it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FLAG = "VALIDATION"
CODE = "TD-C012"
SAYS = "1 dropout layer and 1 batch norm layer active"
OPTIONS = ()
RANKS = 1

HEALTHY = "--healthy" in sys.argv


def make_loader(samples: int) -> DataLoader:
    """Batches of a linear map."""
    inputs = torch.randn(samples, 16)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
training, validation = make_loader(128), make_loader(64)
for epoch in range(3):
    for x, y in training:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if HEALTHY:
        model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.mse_loss(model(x), y).item() for x, y in validation) / len(validation)
    model.train()
    print(f"epoch {epoch}: validation loss {loss:.4f}")
