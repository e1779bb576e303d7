"""A scale made from a float64 array is one parameter among float32 ones. Healthy: it is made as float32."""

import sys

import torch
from torch import Tensor, nn

FLAG = "DEVICE"
CODE = "TD-C007"
SAYS = "head.scale is in float64"
OPTIONS = ()
RANKS = 1


class Head(nn.Module):
    """A linear layer whose outputs are scaled by class priors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        priors = torch.tensor([0.1] * 10, dtype=torch.float64)
        self.scale = nn.Parameter(priors.float() if "--healthy" in sys.argv else priors)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


class Net(nn.Module):
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.head = Head()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
inputs, targets = torch.randn(256, 32), torch.randint(10, (256,))
for _ in range(40):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
