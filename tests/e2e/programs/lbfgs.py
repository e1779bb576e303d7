"""LBFGS: the optimizer calls the closure as often as it likes within one step."""

import torch
from common import compute_grad_norm, make_regression, print_fact
from torch import Tensor, nn


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    x, y = make_regression(64).tensors
    for step in range(1, 7):
        seen: list[tuple[float, float]] = []  # loss and gradient norm of each evaluation

        def closure(seen: list[tuple[float, float]] = seen) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            seen.append((loss.item(), compute_grad_norm(model.parameters())))
            return loss

        returned = optimizer.step(closure).item()
        print_fact("step", step=step, loss=returned, seen=seen, micro=len(seen), lr=0.5)
    print_fact("done", steps=6)


if __name__ == "__main__":
    main()
