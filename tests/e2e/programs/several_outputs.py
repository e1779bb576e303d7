"""A model with a module whose operation has several outputs, of which the loss uses one.

usage: several_outputs.py KIND USED [--fault]

KIND: how the module makes its outputs. USED: first or last. --fault: at step 40 of 45 the backward pass makes a NaN, in
the module "root". Shapes: B batch, C channels.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

STEPS, FAULTY_STEP, CHANNELS = 45, 40, 8


class Halves(Function):
    """Two outputs of one node of the user's own."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_BC: Tensor) -> tuple[Tensor, Tensor]:
        return x_BC[:, :4].clone(), x_BC[:, 4:].clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        return torch.cat(grads, -1)


class Sparing(Function):
    """Two outputs of one node, which is not handed zeros for what was not used."""

    @staticmethod
    def forward(ctx: FunctionCtx, x_BC: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x_BC[:, :4].clone(), x_BC[:, 4:].clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> Tensor:
        zeros = torch.zeros(len(next(grad for grad in grads if grad is not None)), 4)
        return torch.cat([zeros if grad is None else grad for grad in grads], -1)


KINDS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "chunk": lambda x_BC: x_BC.chunk(2, -1),
    "split": lambda x_BC: x_BC.split([4, 4], -1),
    "unsafe-chunk": lambda x_BC: x_BC.unsafe_chunk(2, -1),
    "unbind": lambda x_BC: x_BC.view(len(x_BC), 2, 4).unbind(1),
    "var-mean": lambda x_BC: torch.var_mean(x_BC.view(-1, 2, 4), 1),
    "function": lambda x_BC: Halves.apply(x_BC),
    "sparing-function": lambda x_BC: Sparing.apply(x_BC),
    "nested": lambda x_BC: {"pair": x_BC.chunk(2, -1)}["pair"],
}


class Several(nn.Module):
    """A layer without children that returns all outputs of the operation."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(CHANNELS, CHANNELS))
        self.kind = kind

    def forward(self, x_BC: Tensor) -> Sequence[Tensor]:
        return KINDS[self.kind](x_BC @ self.weight)


class Root(nn.Module):
    """The identity; while ``ill`` its derivative is NaN."""

    ill = False

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.0 * torch.sqrt(0.0 * x) if self.ill else x + 0.0


class Net(nn.Module):
    """The layer, the module of the fault, and a head."""

    def __init__(self, kind: str, used: int) -> None:
        super().__init__()
        self.several, self.root, self.head, self.used = Several(kind), Root(), nn.Linear(4, 1), used

    def forward(self, x_BC: Tensor) -> Tensor:
        out: Tensor = self.head(self.root(self.several(x_BC)[self.used]))
        return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("used", choices=("first", "last"))
    parser.add_argument("--fault", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    net = Net(options.kind, 0 if options.used == "first" else -1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(1, STEPS + 1):
        net.root.ill = options.fault and step == FAULTY_STEP
        x_BC = torch.randn(16, CHANNELS)
        loss = (net(x_BC) - x_BC[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
