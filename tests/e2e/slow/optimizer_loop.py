"""An optimizer of one's own that goes through the parameters in Python; --healthy torch's, fused."""

import sys

import torch
from torch import nn

CODE = "TD-P111"
SAYS = "small operations"
OPTIONS = ()
RANKS = 1

LAYERS = 24


class Own(torch.optim.Optimizer):
    """Adam, a parameter at a time."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["mean"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                parameter.addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-group["lr"])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 4))
    healthy = "--healthy" in sys.argv
    parameters = model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True) if healthy else Own(parameters, lr=1e-3)
    for _ in range(8):
        inputs = torch.randn(64, 256)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
        optimizer.step()
    print("done")


if __name__ == "__main__":
    main()
