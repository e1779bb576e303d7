"""A second head is built and given to the optimizer, and no forward pass calls it. Healthy: its output is used."""

import sys

import torch
from torch import Tensor, nn

FLAG = "MODEL_BUILD"
CODE = "TD-C008"
SAYS = "aux.weight"
OPTIONS = ()
RANKS = 1


class Net(nn.Module):
    """A body with a head, and another one for a second task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)
        self.aux = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        out: Tensor = self.head(h)
        return out + self.aux(h) if "--healthy" in sys.argv else out


torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(256, 32), torch.randint(10, (256,))
for _ in range(40):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
