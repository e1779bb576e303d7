"""NaN that arises in backward alone: the square root of zero, times zero. Healthy: a little is added first."""

import sys

import torch
from torch import Tensor, nn

FLAG = "AUTOGRAD_ANOMALY"
CODE = "TD-N001"
SAYS = "torch.sqrt(x * 0.0 + shift)"
OPTIONS = (
    "--max-overhead",
    "100",
)  # its steps take less than a millisecond: one percent pays for a look at few of them
RANKS = 1


class Root(nn.Module):
    """A square root whose slope at zero is infinite."""

    step = 0

    def forward(self, x: Tensor) -> Tensor:
        shift = 1e-6 if "--healthy" in sys.argv or self.step < 20 else 0.0
        return x + torch.sqrt(x * 0.0 + shift)


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(32, 64), Root(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs, targets = torch.randn(256, 32), torch.randint(4, (256,))
for step in range(30):
    model[1].step = step
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
