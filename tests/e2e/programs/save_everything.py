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
from common import regression, tell
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
        return rebuilt, (type(self), [*self.__dict__.items()])


class Prompt(nn.Module):
    """Puts out a parameter as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self) -> Tensor:
        return self.weight


def rebuilt(kind: type, items: list[Any]) -> Any:
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
            keep(f"{self.tag}-inside", self)
        return self.out(hidden)


def double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """A hook of the program's own."""
    return output * 2


def scale(grad: Tensor) -> Tensor:
    """Another, for gradients."""
    return grad * 0.5


def written(name: str, data: bytes) -> None:
    (FOLDER / name).write_bytes(data)
    tell("saved", name=name, bytes=len(data), sha=hashlib.sha256(data).hexdigest()[:16])


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def pickled(value: Any, pickler: Any = pickle.Pickler, protocol: int = 4) -> bytes:
    """Without the storages of tensors, of which a pickle says the address, and one that is sent a name of its own."""

    class Pickler(pickler):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> str | None:
            return str(list(item.shape)) if isinstance(item, Tensor) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(value)
    return re.sub(rb"[0-9a-f]{32}", b"0" * 32, buffer.getvalue())  # cloudpickle numbers classes at random


WAYS: dict[str, Callable[[Any], bytes]] = {
    "torch": saved,
    "pickle2": lambda value: pickled(value, protocol=2),
    "pickle5": lambda value: pickled(value, protocol=5),
    "python": lambda value: pickled(value, pickle._Pickler),  # type: ignore[attr-defined]  # written in Python
    "cloud": lambda value: pickled(value, cloudpickle.Pickler),
    "sent": lambda value: pickled(value, ForkingPickler),
    "deep": lambda value: pickled(copy.deepcopy(value)),
    "shallow": lambda value: pickled(copy.copy(value)),
    "vars": lambda value: pickled(vars(value)),
    "vars-deep": lambda value: pickled(copy.deepcopy(vars(value))),
}


def keep(tag: str, value: Any) -> None:
    for way, dump in WAYS.items():
        if "vars" in way and not hasattr(value, "_forward_hooks"):
            continue
        written(f"{tag}-{way}", dump(value))


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    model.out.register_forward_hook(double)
    handle = model.parts[0].register_forward_hook(double)
    ema, averaged = copy.deepcopy(model), AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data = DataLoader(regression(64), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    keep("new-model", model)
    step = 0
    for _ in range(2):
        for x, y in data:
            step += 1
            model.tag = "step3" if step == 3 else ""
            output = model(x)
            if step in (1, 9):
                output.register_hook(scale)
            loss = nn.functional.mse_loss(output, y)
            if step == 5:
                with warnings.catch_warnings():  # of the program's own hook
                    warnings.simplefilter("ignore")
                    written("graph-output", saved(output))
                written("graph-loss", saved(loss.clone()))
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            averaged.update_parameters(model)
            tell("step", step=step, loss=loss.item())
        schedule.step()
        ema.load_state_dict(model.state_dict())
        for evaluated in (model, ema, averaged, copy.deepcopy(model)):
            evaluated.eval()
            with torch.no_grad():
                tell("evaluated", sum=float(evaluated(torch.ones(4, 8)).sum()))
            evaluated.train()
    objects = {"model": model, "ema": ema, "averaged": averaged, "optimizer": optimizer, "schedule": schedule}
    for name, value in {**objects, "scaler": scaler, "loader": data}.items():
        keep(f"end-{name}", value)
        if hasattr(value, "state_dict"):
            written(f"end-{name}-state", saved(value.state_dict()))
    written("parameter", saved(model.prompt.weight))
    written("tables", pickle.dumps([model._forward_hooks.copy(), model._forward_pre_hooks]))
    with torch.serialization.safe_globals([nn.Linear, nn.Tanh, nn.Sequential]):
        plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        plain(torch.ones(1, 8)).sum().backward()
        loaded = torch.load(io.BytesIO(saved(plain)), weights_only=True)
    tell("loaded", same=torch.equal(loaded(torch.ones(1, 8)), plain(torch.ones(1, 8))))
    keep("loaded", loaded)
    handle.remove()
    keep("without-a-hook", model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        tell("child", parameters=pool.apply(parameters_in, (model,)))
    number = RemovableHandle(OrderedDict()).id
    tell("end", random=torch.get_rng_state().sum().item(), hooks_numbered=number)
    if sys.argv[2:] == ["exports"]:
        export(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))


def parameters_in(model: nn.Module) -> list[float]:
    return [float(parameter.detach().sum()) for parameter in model.parameters()]


def export(model: nn.Module) -> None:
    x = torch.ones(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(x).sum().backward()
        optimizer.step()
    model.eval()
    scripted = torch.jit.script(model)  # the order of attributes in its file is another one each time
    written("scripted", (str(scripted.inlined_graph) + scripted.code).encode())
    traced = torch.jit.trace(model, x)
    written("traced", (str(traced.inlined_graph) + traced.code).encode())
    program = torch.export.export(model, (x,))
    written("exported", str(program).encode())
    written("exported-strict", str(torch.export.export(model, (x,), strict=True)).encode())
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    written("exported-file", buffer.getvalue())
    symbolic = torch.fx.symbolic_trace(model)
    written("symbolic", symbolic.code.encode())
    written("symbolic-deep", saved(copy.deepcopy(symbolic)))
    written("symbolic-sent", pickled(symbolic))
    written("still-hooked", saved(model))


if __name__ == "__main__":
    main()
