"""Two ranks that average their metrics in the order of a dictionary, and rank 1 fills it the other way round.

Collectives meet by their order, not by name: the loss of one rank is added to the count of the other. Both have
eight bytes, so nothing fails and nothing hangs; the figures are wrong. ``--healthy`` goes through the names sorted.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
from common import leave_group, make_regression

FLAG = "DISTRIBUTED"
CODE = "TD-R005"
SAYS = "all_reduce int64[1] where rank 0 called all_reduce float64[1]"
OPTIONS = ()
RANKS = 2

STEPS = 12


def make_metrics(loss: Tensor, samples: int) -> dict[str, Tensor]:
    """What a step is to be judged by; each rank fills it as its data comes."""
    found = {"loss": loss.detach().double().reshape(1), "samples": torch.tensor([samples])}
    return dict(reversed(found.items())) if dist.get_rank() == 1 else found


def main() -> None:
    healthy = "--healthy" in sys.argv
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x_all, y_all = make_regression(16 * STEPS, seed=dist.get_rank()).tensors
    for step in range(STEPS):
        piece = slice(16 * step, 16 * step + 16)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x_all[piece]), y_all[piece])
        loss.backward()
        metrics = make_metrics(loss, samples=16)
        for name in sorted(metrics) if healthy else metrics:
            dist.all_reduce(metrics[name])
        optimizer.step()
    leave_group()


if __name__ == "__main__":
    main()
