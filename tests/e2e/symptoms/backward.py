"""Twenty sigmoid layers in a row: the gradient vanishes before it reaches the first. Healthy: GELU and residuals."""

import sys

import torch
from torch import Tensor, nn

FLAG = "BACKWARD"
CODE = "TD-G005"
SAYS = "the gradient falls from"
OPTIONS = ()
RANKS = 1

healthy = "--healthy" in sys.argv


class Layer(nn.Module):
    """One layer, with or without a way around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.act = nn.GELU() if healthy else nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.linear(x))
        return x + out if healthy else out


torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(Layer() for _ in range(20)), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, targets = torch.randn(256, 64), torch.randint(4, (256,))
for _ in range(40):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done")
