"""A compiled training that recompiles at each step, breaks its graph, cannot be compiled, or does all well.

usage: compile_limits.py recompile|break|fail|well|dynamic
"""

import sys

import torch
from torch import Tensor, nn

KIND = sys.argv[1]
STEPS = 14


class Model(nn.Module):
    """Two layers, and between them what makes a compiler give up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)
        self.label = ""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if KIND == "break":
            print("forward")
        if KIND == "recompile":
            hidden = hidden * len(self.label)
        return self.second(hidden)


def refuse_graph(graph: object, inputs: object) -> object:
    """A backend that fails."""
    raise RuntimeError("planted: no such backend")


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    if KIND == "fail":
        torch._dynamo.config.suppress_errors = True
    compiled = torch.compile(model, backend=refuse_graph if KIND == "fail" else "aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        model.label += "x"
        size = 4 + step if KIND == "dynamic" else 4
        loss = compiled(torch.randn(size, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    counters = torch._dynamo.utils.counters
    print("graphs", counters["stats"]["unique_graphs"], "frames", counters["frames"]["total"])


if __name__ == "__main__":
    main()
