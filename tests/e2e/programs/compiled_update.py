"""A GradScaler whose optimizer steps in compiled code; at step 20 the gradients overflow, and the update is skipped.

usage: compiled_update.py method|function|train    (compiled: optimizer.step, a function that calls scaler.step, a
whole step of training)
"""

import math
import sys

import torch
from common import make_regression, print_fact
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters

STEPS = 32
OVERFLOWS = 20


def list_tdbg_frames() -> list[str]:
    """Functions of tdbg that the compiler has made frames of."""
    codes = [ref() for ref in convert_frame.input_codes.seen]
    return sorted(code.co_name for code in codes if code is not None and "/tdbg/" in code.co_filename)


def main() -> None:
    form = sys.argv[1]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)

    def update_weights() -> None:
        scaler.step(optimizer)

    def train_step(x_BF: torch.Tensor, y_BC: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x_BF), y_BC)
        scaler.scale(loss).backward()
        update_weights()
        return loss

    if form == "method":
        optimizer.step = torch.compile(optimizer.step, backend="eager")  # type: ignore[method-assign]
    elif form == "function":
        update_weights = torch.compile(update_weights, backend="eager")
    elif form == "train":
        train_step = torch.compile(train_step, backend="eager")
    x_all, y_all = make_regression(16 * STEPS).tensors
    for step in range(1, STEPS + 1):
        piece = slice(16 * (step - 1), 16 * step)
        before, scale = model[0].weight.detach().clone(), scaler.get_scale()
        loss = train_step(x_all[piece] * (math.inf if step == OVERFLOWS else 1.0), y_all[piece])
        scaler.update()
        skipped = torch.equal(before, model[0].weight)
        print_fact("step", step=step, loss=loss.item(), scale=scale, skipped=skipped)
    print_fact(
        "compile",
        graphs=counters["stats"].get("unique_graphs", 0),
        calls=counters["stats"].get("calls_captured", 0),
        breaks=sum(counters["graph_break"].values()),
        frames_of_tdbg=list_tdbg_frames(),
    )
    print_fact("done", steps=STEPS)


if __name__ == "__main__":
    main()
