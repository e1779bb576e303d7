"""torch.compile in each of its forms; at the end the counts of graphs, frames and breaks are printed.

usage: compiled.py whole|block|fullgraph|loss|method [BACKEND]
"""

import sys

import torch
from common import compute_grad_norm, make_tokens, print_fact
from torch import Tensor, nn
from torch._dynamo.utils import counters


class Block(nn.Module):
    """A residual perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 64)
        self.proj = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.proj(nn.functional.gelu(self.fc(self.norm(x))))


class Net(nn.Module):
    """An embedding, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def compute_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy over all positions."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def main() -> None:
    form = sys.argv[1]
    backend = sys.argv[2] if len(sys.argv) > 2 else "eager"
    torch.manual_seed(0)
    model = Net()
    called: nn.Module = model
    criterion = compute_loss
    if form == "whole":
        called = torch.compile(model, backend=backend)
    elif form == "fullgraph":
        called = torch.compile(model, backend=backend, fullgraph=True)
    elif form == "method":
        model.compile(backend=backend)
    elif form == "block":
        model.blocks = nn.ModuleList(torch.compile(block, backend=backend) for block in model.blocks)
    elif form == "loss":
        criterion = torch.compile(compute_loss, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = make_tokens(8 * 12, 9, 20)
    for step in range(1, 13):
        batch = data[8 * (step - 1) : 8 * step]
        optimizer.zero_grad()
        loss = criterion(called(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        norm = compute_grad_norm(model.parameters())
        optimizer.step()
        print_fact("step", step=step, loss=loss.item(), norm=norm, lr=0.1)
    print_fact(
        "compile",
        graphs=counters["stats"].get("unique_graphs", 0),
        calls=counters["stats"].get("calls_captured", 0),
        frames=counters["frames"].get("total", 0),
        frames_ok=counters["frames"].get("ok", 0),
        breaks=sum(counters["graph_break"].values()),
    )
    print_fact("done", steps=12)


if __name__ == "__main__":
    main()
