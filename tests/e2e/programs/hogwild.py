"""Two processes that train one shared model without a process group, and a parent that evaluates it.

usage: hogwild.py fork|spawn|forkserver during|after, which is when the parent evaluates.
"""

import os
import sys
import time

import torch
import torch.multiprocessing as mp
from common import make_regression, print_fact
from torch import nn

STEPS = (12, 20)


def evaluate_model(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(make_regression(16).tensors[0])


def train_model(model: nn.Module, steps: int) -> None:
    """One process: its own batches and optimizer, the parameters of all."""
    torch.set_num_threads(1)
    torch.manual_seed(steps)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = make_regression(16).tensors
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(0.02)
    print_fact("trained", pid=os.getpid(), steps=steps)


def main() -> None:
    method, when = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 1).share_memory()
    context = mp.get_context(method)
    children = [context.Process(target=train_model, args=(model, steps)) for steps in STEPS]
    for child in children:
        child.start()
    calls = 0
    while any(child.is_alive() for child in children):
        if when == "during":
            evaluate_model(model)
            calls += 1
        time.sleep(0.05)
    for child in children:
        child.join()
    while calls < 3:
        evaluate_model(model)
        calls += 1
    print_fact("evaluated", pid=os.getpid(), calls=calls)
    sys.exit(max(child.exitcode or 0 for child in children))


if __name__ == "__main__":
    main()
