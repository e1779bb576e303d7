"""Fails after the opening steps, in no function, and has functions of C called at exit: no frame of Python is below."""

import atexit
import sys
import traceback

import torch

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
raise ValueError("planted")
