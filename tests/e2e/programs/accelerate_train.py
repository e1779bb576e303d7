"""An Accelerate script with gradient accumulation and clipping, for ``accelerate launch``."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from common import make_regression, print_fact
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(make_regression(64), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, losses = 0, []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            rank = accelerator.process_index
            print_fact("step", rank=rank, step=step, loss=sum(losses) / 2, norm=norm.item(), micro=len(losses))
            losses = []
    accelerator.end_training()
    print_fact("done", rank=accelerator.process_index, steps=step)


if __name__ == "__main__":
    main()
