"""A plain loop with evaluation after each epoch, `tdbg.metric`, and a SummaryWriter if a folder is given."""

import sys

import torch
from common import compute_grad_norm, make_regression, print_fact
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

import tdbg


def main() -> None:
    torch.manual_seed(0)
    writer = SummaryWriter(sys.argv[1]) if len(sys.argv) > 1 else None
    train, val = DataLoader(make_regression(48), batch_size=8), DataLoader(make_regression(20, seed=1), batch_size=8)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    body, head = model[0].parameters(), model[2].parameters()
    optimizer = torch.optim.AdamW([{"params": body, "lr": 1e-2}, {"params": head, "lr": 1e-3}])
    step = 0
    for epoch in range(3):
        for x, y in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            norm = compute_grad_norm(model.parameters())
            optimizer.step()
            step += 1
            print_fact("step", step=step, epoch=epoch, loss=loss.item(), norm=norm)
            if writer is not None:
                writer.add_scalar("loss", loss, step)
                writer.add_scalar("norm", norm, step)
                writer.add_scalars("pair", {"a": step, "b": 2 * step}, step)
        with torch.no_grad():
            total = sum(nn.functional.mse_loss(model(x), y, reduction="sum").item() for x, y in val)
        tdbg.metric("val_loss", total / 20)
        tdbg.metric("val/bad", float("nan"))
        print_fact("val", step=step, loss=total / 20)
    print_fact("done", steps=step)


if __name__ == "__main__":
    main()
