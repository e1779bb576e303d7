"""fp16 autocast of a loss that is a mean over many pixels, without a GradScaler. Healthy: with one."""

import sys

import torch
from torch import nn

FLAG = "AMP"
CODE = "TD-A003"
SAYS = "no GradScaler"
OPTIONS = ()
RANKS = 1

healthy = "--healthy" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=healthy)
for _ in range(40):
    inputs = torch.randn(256, 64)
    with torch.autocast("cpu", dtype=torch.float16):
        outputs = model(inputs)
    loss = (outputs.float() - inputs.flip(1)).square().sum() / (256 * 1024 * 1024)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print("done")
