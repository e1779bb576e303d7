"""A training under tdbg in which one private name of torch cannot be found by it. Prints what tdbg made of it, as JSON.

argv: the names, each of which is tried in a process of its own, forked once torch is imported; or ``--list`` for all.
"""

import builtins
import importlib
import importlib.util
import json
import os
import sys
from typing import Any

import torch
from torch import nn


def fork_for_each(names: list[str]) -> str:
    """Return in a child for each name, one after the other; the parent ends with the first exit code that is not 0."""
    importlib.import_module("torch._inductor.standalone_compile")  # as each child does, which takes most of its time
    for name in names:
        child = os.fork()
        if child == 0:
            return name
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"without {name}: exit code {code}")
    sys.exit()


HIDDEN = sys.argv[1] if len(sys.argv) == 2 else fork_for_each(sys.argv[1:])


def load_without(name: str) -> Any:
    """tdbg's module of names, with a ``getattr`` that does not find the last part of one."""
    spec = importlib.util.find_spec("tdbg.runtime.torch_compat")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)

    def find_but_one(owner: Any, part: str, *default: Any) -> Any:
        if part == name.rpartition(".")[2] or name == "--list":
            return default[0]
        return builtins.getattr(owner, part, *default)

    module.getattr = find_but_one
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compat = load_without(HIDDEN)
if HIDDEN == "--list":
    print(json.dumps(list(compat.MISSING)))  # nothing was found
    sys.exit()

from tdbg.api.performance import profile_model_performance  # noqa: E402
from tdbg.api.watching import start_session, stop_session  # noqa: E402
from tdbg.core.errors import TdbgError  # noqa: E402

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
profiled = refused = ""
try:
    profiled = profile_model_performance(model, [torch.ones(2, 4)] * 4, 2)["trace"]
except TdbgError as error:
    refused = str(error)
session = start_session("context", "extreme", modules=[model])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_of = nn.MSELoss()
rows: Any = torch.randn(24, 4)
loader: Any = torch.utils.data.DataLoader(rows, batch_size=2)
for number, x in enumerate(loader):
    if number == 8:
        x = x * float("nan")
    optimizer.zero_grad()
    loss = loss_of(model(x), torch.zeros(2, 2))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
torch.jit.script(model)
steps = session.monitor.step
stop_session(session)
assert session.memory is not None
events: list[Any] = list(session.memory.events)
print(
    json.dumps(
        {
            "goes_off": compat.MISSING[HIDDEN],
            "notes": [text for text in session.memory.list_notes() if text.startswith("this torch has no")],
            "failed": [event.probe for event in events if event.TYPE == "probe_off"],
            "steps": steps,
            "profiled": profiled,
            "refused": refused,
            "first_bad": next(event.step for event in events if event.TYPE == "nonfinite"),
        }
    )
)
