"""A plain loop: two epochs, a DataLoader with two workers, a schedule, clipping."""

import torch
from common import make_regression, print_fact
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(make_regression(48), batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            lr = optimizer.param_groups[0]["lr"]
            optimizer.step()
            schedule.step()
            step += 1
            print_fact("step", step=step, epoch=epoch, loss=loss.item(), norm=norm.item(), lr=lr, samples=len(x))
    names = [name for name, _ in model.named_parameters()]
    print_fact("done", steps=step, parameters=names)


if __name__ == "__main__":
    main()
