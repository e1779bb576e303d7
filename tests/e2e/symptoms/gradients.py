"""Ten sigmoid layers in a row: the gradients of the first ones vanish. Healthy: GELU, normalised."""

import sys

import torch
from torch import nn

FLAG = "GRADIENTS"
CODE = "TD-G002"
SAYS = "gradients vanish in"
OPTIONS = ()
RANKS = 1

healthy = "--healthy" in sys.argv
WIDTH = 128


def make_layer() -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH), *([nn.LayerNorm(WIDTH), nn.GELU()] if healthy else [nn.Sigmoid()])]


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(part for _ in range(10) for part in make_layer()), nn.Linear(WIDTH, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(40):
    inputs, targets = torch.randn(1024, WIDTH), torch.randint(4, (1024,))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("done")
