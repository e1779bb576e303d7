"""Hooks sit on root modules only, and leave no trace in copies, pickles and compiled programs."""

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from .conftest import Watch

Start = Callable[..., Watch]


def hooked(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if module._forward_hooks]


def test_only_the_root_carries_hooks(watch: Start) -> None:
    watch()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    assert hooked(model) == [""]
    outer = nn.ModuleDict({"inner": model})
    assert hooked(outer) == [""]


def test_a_whole_model_saved_loads_where_there_is_no_tdbg(watch: Start, tmp_path: Path) -> None:
    watch()
    model = nn.Sequential(nn.Linear(4, 2))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"tdbg" not in buffer.getvalue()
    path = tmp_path / "model.pt"
    path.write_bytes(buffer.getvalue())
    code = (
        "import sys, torch; sys.modules['tdbg'] = None\n"
        f"model = torch.load({str(path)!r}, weights_only=False)\n"
        "print(model(torch.ones(3, 4)).shape, model(input=torch.ones(3, 4)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "torch.Size([3, 2]) torch.Size([3, 2])", done.stderr


def test_a_copy_works_and_is_seen(watch: Start) -> None:
    seen = watch()
    twin = copy.deepcopy(nn.Sequential(nn.Linear(4, 2)))
    with torch.no_grad():
        twin(torch.ones(3, 4))
    assert len(seen.evals) == 1


def test_scripting_a_hooked_model_works(watch: Start) -> None:
    watch()
    model = nn.Sequential(nn.Linear(4, 2))
    scripted = torch.jit.script(model)
    assert scripted(torch.ones(3, 4)).shape == (3, 2)
    assert hooked(model) == [""]


def test_an_unpickled_model_is_adopted(watch: Start) -> None:
    buffer = io.BytesIO()
    torch.save(nn.Sequential(nn.Linear(4, 2)), buffer)
    buffer.seek(0)
    seen = watch()
    model = torch.load(buffer, weights_only=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert seen.steps[-1].samples == 3
    assert seen.monitor.probe("gradient-norms")._param_names == ["0.weight", "0.bias"]
