"""Trains, and between and inside its steps saves, copies, sends and exports all it has, in every way there is.

Writes each result as a file into a folder and prints its hash: under tdbg all must be as without it, byte for byte.

usage: save_everything.py FOLDER [exports]
"""

import copy
import hashlib
import io
import multiprocessing
import pickle
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from common import make_regression, print_fact
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

FOLDER = Path(sys.argv[1])
FOLDER.mkdir(exist_ok=True)
warnings.simplefilter("error", UserWarning)  # torch warns where a hook of a tensor is lost


class OwnState(nn.Linear):
    """Hands out its tables as they are."""

    def __getstate__(self) -> Any:
        return "mine", self.__dict__

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state[1])


class OwnCopy(nn.Linear):
    """Copies attribute by attribute, as many recipes do."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "OwnCopy":
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            object.__setattr__(twin, name, copy.deepcopy(value, memo))
        return twin


class OwnReduce(nn.Linear):
    """Says itself what it is made of."""

    def __reduce__(self) -> Any:
        return rebuild_object, (type(self), [*self.__dict__.items()])


class Prompt(nn.Module):
    """Puts out a parameter as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self) -> Tensor:
        return self.weight


def rebuild_object(kind: type, items: list[Any]) -> Any:
    found = kind.__new__(kind)
    found.__dict__.update(items)
    return found


class Net(nn.Module):
    """Has hooks of its own, and saves itself while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = Prompt()
        self.parts = nn.Sequential(OwnState(8, 8), nn.Tanh(), OwnCopy(8, 8), OwnReduce(8, 8), nn.Dropout(0.1))
        self.out = nn.Linear(8, 1)
        self.tag = ""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.parts(x * self.prompt())
        if self.tag:
            save_all_ways(f"{self.tag}-inside", self)
        return self.out(hidden)


def double_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """A hook of the program's own."""
    return output * 2


def halve_gradient(grad: Tensor) -> Tensor:
    """Another, for gradients."""
    return grad * 0.5


def write_bytes(name: str, data: bytes) -> None:
    (FOLDER / name).write_bytes(data)
    print_fact("saved", name=name, bytes=len(data), sha=hashlib.sha256(data).hexdigest()[:16])


def save_to_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def pickle_to_bytes(value: Any, pickler: Any = pickle.Pickler, protocol: int = 4) -> bytes:
    """Without the storages of tensors, of which a pickle says the address, and one that is sent a name of its own."""

    class Pickler(pickler):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> str | None:
            return str(list(item.shape)) if isinstance(item, Tensor) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(value)
    return re.sub(rb"[0-9a-f]{32}", b"0" * 32, buffer.getvalue())  # cloudpickle numbers classes at random


WAYS: dict[str, Callable[[Any], bytes]] = {
    "torch": save_to_bytes,
    "pickle2": lambda value: pickle_to_bytes(value, protocol=2),
    "pickle5": lambda value: pickle_to_bytes(value, protocol=5),
    "python": lambda value: pickle_to_bytes(value, pickle._Pickler),  # type: ignore[attr-defined]  # written in Python
    "cloud": lambda value: pickle_to_bytes(value, cloudpickle.Pickler),
    "sent": lambda value: pickle_to_bytes(value, ForkingPickler),
    "deep": lambda value: pickle_to_bytes(copy.deepcopy(value)),
    "shallow": lambda value: pickle_to_bytes(copy.copy(value)),
    "vars": lambda value: pickle_to_bytes(vars(value)),
    "vars-deep": lambda value: pickle_to_bytes(copy.deepcopy(vars(value))),
}


def save_all_ways(tag: str, value: Any) -> None:
    for way, dump in WAYS.items():
        if "vars" in way and not hasattr(value, "_forward_hooks"):
            continue
        write_bytes(f"{tag}-{way}", dump(value))


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    model.out.register_forward_hook(double_output)
    handle = model.parts[0].register_forward_hook(double_output)
    ema, averaged = copy.deepcopy(model), AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = DataLoader(make_regression(64), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    save_all_ways("new-model", model)
    step = 0
    for _ in range(2):
        for x, y in data:
            step += 1
            model.tag = "step3" if step == 3 else ""
            output = model(x)
            if step in (1, 9):
                output.register_hook(halve_gradient)
            loss = nn.functional.mse_loss(output, y)
            if step == 5:
                with warnings.catch_warnings():  # of the program's own hook
                    warnings.simplefilter("ignore")
                    write_bytes("graph-output", save_to_bytes(output))
                write_bytes("graph-loss", save_to_bytes(loss.clone()))
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            averaged.update_parameters(model)
            print_fact("step", step=step, loss=loss.item())
        schedule.step()
        ema.load_state_dict(model.state_dict())
        for evaluated in (model, ema, averaged, copy.deepcopy(model)):
            evaluated.eval()
            with torch.no_grad():
                print_fact("evaluated", sum=float(evaluated(torch.ones(4, 8)).sum()))
            evaluated.train()
    objects = {"model": model, "ema": ema, "averaged": averaged, "optimizer": optimizer, "schedule": schedule}
    for name, value in {**objects, "scaler": scaler, "loader": data}.items():
        save_all_ways(f"end-{name}", value)
        if hasattr(value, "state_dict"):
            write_bytes(f"end-{name}-state", save_to_bytes(value.state_dict()))
    write_bytes("parameter", save_to_bytes(model.prompt.weight))
    write_bytes("tables", pickle.dumps([model._forward_hooks.copy(), model._forward_pre_hooks]))
    with torch.serialization.safe_globals([nn.Linear, nn.Tanh, nn.Sequential]):
        plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        plain(torch.ones(1, 8)).sum().backward()
        loaded = torch.load(io.BytesIO(save_to_bytes(plain)), weights_only=True)
    print_fact("loaded", same=torch.equal(loaded(torch.ones(1, 8)), plain(torch.ones(1, 8))))
    save_all_ways("loaded", loaded)
    handle.remove()
    save_all_ways("without-a-hook", model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print_fact("child", parameters=pool.apply(sum_parameters, (model,)))
    number = RemovableHandle(OrderedDict()).id
    print_fact("end", random=torch.get_rng_state().sum().item(), hooks_numbered=number)
    if sys.argv[2:] == ["exports"]:
        export_model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))


def sum_parameters(model: nn.Module) -> list[float]:
    return [float(parameter.detach().sum()) for parameter in model.parameters()]


def export_model(model: nn.Module) -> None:
    x = torch.ones(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(x).sum().backward()
        optimizer.step()
    model.eval()
    scripted = torch.jit.script(model)  # the order of attributes in its file is another one each time
    write_bytes("scripted", (str(scripted.inlined_graph) + scripted.code).encode())
    traced = torch.jit.trace(model, x)
    write_bytes("traced", (str(traced.inlined_graph) + traced.code).encode())
    program = torch.export.export(model, (x,))
    write_bytes("exported", str(program).encode())
    write_bytes("exported-strict", str(torch.export.export(model, (x,), strict=True)).encode())
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_bytes("exported-file", buffer.getvalue())
    symbolic = torch.fx.symbolic_trace(model)
    write_bytes("symbolic", symbolic.code.encode())
    write_bytes("symbolic-deep", save_to_bytes(copy.deepcopy(symbolic)))
    write_bytes("symbolic-sent", pickle_to_bytes(symbolic))
    write_bytes("still-hooked", save_to_bytes(model))


if __name__ == "__main__":
    main()
