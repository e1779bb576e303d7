"""A second head is added after the optimizer was built: nobody updates it. Healthy: the optimizer is built last."""

import sys

import torch
from torch import Tensor, nn

FLAG = "OPTIMIZER"
CODE = "TD-S006"
SAYS = "are in no parameter group: extra.weight"
OPTIONS = ()
RANKS = 1

healthy = "--healthy" in sys.argv


class Model(nn.Module):
    """A body with a head, and room for a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.head(hidden), self.extra(hidden)


def make_adamw(model: nn.Module) -> torch.optim.Optimizer:
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=1e-3)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = make_adamw(model)
model.extra = nn.Linear(128, 2)
if healthy:
    optimizer = make_adamw(model)
for _ in range(40):
    inputs = torch.randn(256, 64)
    first, second = model(inputs)
    loss = nn.functional.cross_entropy(first, inputs[:, :4].argmax(1)) + second.sub(inputs[:, :2]).square().mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
