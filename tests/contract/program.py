"""A small training with all that a run directory can hold: what `record.py` records."""

import argparse
import logging
import os
import signal
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--nan-at", type=int, default=-1)
parser.add_argument("--kill-at", type=int, default=-1)
parser.add_argument("--pause-at", type=int, default=-1)
parser.add_argument("--bad-rank", type=int, default=0)
parser.add_argument("--save", default="")
parser.add_argument("--resume", default="")
parser.add_argument("--debug-null-masking", action="store_true")
args = parser.parse_args()

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
log = logging.getLogger("train")
torch.manual_seed(0)
ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


class Net(nn.Module):
    """An encoder and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each class."""
        return self.head(self.encoder(x))


model: nn.Module = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
first = 0
if args.resume:
    state = torch.load(args.resume, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
data = torch.utils.data.TensorDataset(torch.randn(512, 8), torch.randint(0, 3, (512,)))
loader = iter(torch.utils.data.DataLoader(data, batch_size=8))
for step in range(first, first + args.steps):
    x, y = next(loader)
    if step == args.nan_at and rank == args.bad_rank:
        x[2, 3] = float("nan")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
    if args.debug_null_masking:
        log.debug("[DEBUG_NULL_MASKING] %d of %d kept", int((y > 0).sum()), len(y))
    if step % 10 == 9:
        log.info("step %d loss %.4f", step, loss.item())
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(torch.randn(8, 8))
        model.train()
    if step == args.kill_at and rank == args.bad_rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == args.pause_at:
        open("paused", "w").close()
        time.sleep(600)
if args.save:
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": first + args.steps}, args.save
    )
if ranks > 1:
    torch.distributed.destroy_process_group()
log.warning("done at step %d", first + args.steps)
