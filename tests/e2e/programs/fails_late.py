"""Fails after the opening steps, in no function, and has functions of C called at exit: no frame of Python is below.

What it holds writes when Python has thrown away most of its modules.
"""

import atexit
import builtins
import sys
import traceback

import torch


class Held:
    """Writes when it goes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self, print: object = print, stream: object = sys.stderr) -> None:
        assert callable(print)
        print(self.name, file=stream)


model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).square().sum().backward()
    optimizer.step()
atexit.register(print, "accuracy 0.5")
atexit.register(sys.stderr.write, "written at exit\n")
atexit.register(traceback.print_exception, ValueError("printed at exit"))
atexit.register(torch.ones(2).cpu)
held = Held("held by the program")
builtins.held = Held("held by builtins")  # type: ignore[attr-defined]
raise ValueError("planted")
