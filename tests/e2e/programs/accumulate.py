"""Gradient accumulation by hand: four micro-batches a step, the last group of an epoch is smaller."""

import torch
from common import make_regression, print_fact
from torch import nn
from torch.utils.data import DataLoader

MICRO = 4


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = DataLoader(make_regression(72), batch_size=4)
    step = 0
    for epoch in range(2):
        total, count = 0.0, 0
        for number, (x, y) in enumerate(loader, start=1):
            loss = nn.functional.mse_loss(model(x), y) / MICRO
            loss.backward()
            total, count = total + loss.item(), count + 1
            if number % MICRO == 0 or number == len(loader):
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                print_fact("step", step=step, epoch=epoch, loss=total, micro=count, norm=norm, samples=4 * count)
                total, count = 0.0, 0
    print_fact("done", steps=step)


if __name__ == "__main__":
    main()
