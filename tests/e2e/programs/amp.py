"""Mixed precision with a GradScaler that starts too high and grows: a few steps overflow and are skipped."""

import math

import torch
from common import compute_grad_norm, make_regression, print_fact
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=8)
    x_all, y_all = make_regression(16 * 16).tensors
    for step in range(1, 17):
        piece = slice(16 * (step - 1), 16 * step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x_all[piece])
        loss = nn.functional.mse_loss(out.float(), y_all[piece])
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = compute_grad_norm(model.parameters())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        skipped = scaler.get_scale() < scale
        print_fact(
            "step",
            step=step,
            loss=loss.item(),
            norm=norm if math.isfinite(norm) else None,
            scale=scale,
            skipped=skipped,
        )
    print_fact("done", steps=16)


if __name__ == "__main__":
    main()
