"""Evaluation alone: no optimizer, no gradient, twelve calls of the model."""

import torch
from common import make_regression, print_fact
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)).eval()
    calls = 0
    with torch.no_grad():
        for x, y in DataLoader(make_regression(90), batch_size=8):
            loss = nn.functional.mse_loss(model(x), y)
            calls += 1
            print_fact("call", call=calls, loss=loss.item(), samples=len(x))
    print_fact("done", calls=calls)


if __name__ == "__main__":
    main()
