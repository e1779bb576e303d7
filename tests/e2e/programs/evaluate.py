"""Evaluation alone: no optimizer, no gradient, twelve calls of the model."""

import torch
from common import regression, tell
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)).eval()
    calls = 0
    with torch.no_grad():
        for x, y in DataLoader(regression(90), batch_size=8):
            loss = nn.functional.mse_loss(model(x), y)
            calls += 1
            tell("call", call=calls, loss=loss.item(), samples=len(x))
    tell("done", calls=calls)


if __name__ == "__main__":
    main()
