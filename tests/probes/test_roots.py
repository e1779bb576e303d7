"""Hooks sit on root modules only, and leave no trace in copies, pickles and compiled programs."""

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .conftest import Watch

Start = Callable[..., Watch]


def list_hooked(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if module._forward_hooks]


def test_only_the_root_carries_hooks(start_watch: Start) -> None:
    start_watch()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    assert list_hooked(model) == [""]
    outer = nn.ModuleDict({"inner": model})
    assert list_hooked(outer) == [""]


def test_a_whole_model_saved_loads_where_there_is_no_tdbg(start_watch: Start, tmp_path: Path) -> None:
    start_watch()
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


def test_a_copy_works_and_is_seen(start_watch: Start) -> None:
    seen = start_watch()
    twin = copy.deepcopy(nn.Sequential(nn.Linear(4, 2)))
    with torch.no_grad():
        twin(torch.ones(3, 4))
    assert len(seen.eval_steps) == 1


def test_scripting_a_hooked_model_works(start_watch: Start) -> None:
    start_watch()
    model = nn.Sequential(nn.Linear(4, 2))
    scripted = torch.jit.script(model)
    assert scripted(torch.ones(3, 4)).shape == (3, 2)
    assert list_hooked(model) == [""]


def test_an_unpickled_model_is_adopted(start_watch: Start) -> None:
    buffer = io.BytesIO()
    torch.save(nn.Sequential(nn.Linear(4, 2)), buffer)
    buffer.seek(0)
    seen = start_watch()
    model = torch.load(buffer, weights_only=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert seen.train_steps[-1].samples == 3
    assert seen.monitor.find_probe("gradient-norms")._param_names == ["0.weight", "0.bias"]


def test_copies_carry_no_hook_once_tdbg_is_gone(start_watch: Start) -> None:
    """Deep copies are roots of their own, shallow ones share the tables of hooks of their originals, as in torch."""
    seen = start_watch()
    model = nn.Sequential(nn.Linear(4, 2))
    deep, shallow = copy.deepcopy(model), copy.copy(model)
    outer = nn.ModuleDict({"part": copy.deepcopy(model), "shared": copy.copy(model)})
    assert [list_hooked(one) for one in (model, deep, shallow, outer, copy.deepcopy(outer))] == [[""]] * 3 + [
        ["", "shared"]
    ] + [[""]]
    assert seen.monitor.roots.count_hooked() >= 3
    seen.monitor.detach()
    for one in (model, deep, shallow, outer):
        tables = [vars(module)[name] for module in one.modules() for name in vars(module) if name.endswith("_hooks")]
        noted = [module._forward_pre_hooks_with_kwargs for module in one.modules()]
        noted += [module._forward_hooks_always_called for module in one.modules()]
        assert not any(tables) and not any(noted)


def test_hooks_of_ours_take_none_of_torchs_numbers(start_watch: Start) -> None:
    before = RemovableHandle.next_id
    start_watch(level="extreme")
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert RemovableHandle.next_id == before


def test_a_parameter_that_a_module_returns_gathers_no_hooks(start_watch: Start) -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self) -> torch.Tensor:
            return self.weight

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.out = Prompt(), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x * self.prompt())

    seen = start_watch(level="extreme", max_overhead=100.0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert seen.train_steps and len(model.prompt.weight._backward_hooks or {}) <= 1


def test_a_module_with_tables_of_its_own_is_left_alone(start_watch: Start) -> None:
    """tdbg leaves its hooks out of an OrderedDict when that is pickled; a plain dict would be saved with them."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.__dict__["_forward_hooks"] = {}
            self.part = nn.Linear(4, 1)

    seen = start_watch()
    model = Plain()
    assert not model._forward_hooks and not model._forward_pre_hooks and not seen.failures
