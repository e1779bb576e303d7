"""Trains with objects that raise whatever is done with them but what this program does; prints its losses.

argv: a seed for the order of the cases and for what they raise, then the places to take (by default all of them).
"""

import itertools
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

NAMES = ("__eq__", "__bool__", "__len__", "__repr__", "__str__", "__iter__", "__getitem__", "__contains__", "__float__")
choose = random.Random(int(sys.argv[1]))


def make_fault() -> Any:
    """What is raised: an exception of some kind, or never-ending recursion."""
    kind = choose.choice(
        (RuntimeError, AttributeError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, None)
    )

    def raise_fault(*args: Any, **kwargs: Any) -> Any:
        if kind is None:
            return raise_fault(*args, **kwargs)
        raise kind("touched")

    return raise_fault


def getattr_that_raises(self: Any, name: str) -> Any:
    if name.startswith("__") and name != "__array_interface__":
        raise AttributeError(name)  # Python itself asks for these
    return make_fault()()


def make_touchy_class(base: type, *more: str) -> type:
    """A class whose objects raise in ``more`` and in everything of NAMES."""
    body: dict[str, Any] = {name: make_fault() for name in (*NAMES, *more)}
    if base is object:
        body |= {"__getattr__": getattr_that_raises}
    return type("Touchy", (base,), {"__hash__": lambda self: 1, **body})


def with_class(kind: type) -> type:
    """The same with a ``__class__`` that raises: what isinstance asks."""
    return type("Classy", (kind,), {"__class__": property(make_fault())})


class Endless(Mapping):
    """Items without end."""

    def __getitem__(self, key: Any) -> Any:
        return 1

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 1 << 40


class Anything:
    """As a mock: every attribute is another of its kind."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args: Any) -> Any:
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield Anything()


def wrap_tensor(kind: type, tensor: torch.Tensor) -> Any:
    out = object.__new__(kind)
    object.__setattr__(out, "tensor", tensor)
    return out


class Lines(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index / 8)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.full((4,), index / 8) for index in range(8)])


class Model(nn.Module):
    def __init__(self, wrap: Any, body: nn.Module) -> None:
        super().__init__()
        self.body, self.wrap = body, wrap

    def forward(self, batch: Any) -> Any:
        x = batch if type(batch) is torch.Tensor else object.__getattribute__(batch, "tensor")
        return self.wrap(self.body(x))


def iter_outputs() -> Iterator[Any]:
    """Ways to put a tensor into an output, each with the way to have it back."""
    plain = make_touchy_class(object)
    for kind in (plain, with_class(plain)):
        yield lambda y, kind=kind: wrap_tensor(kind, y), lambda out: object.__getattribute__(out, "tensor")
    for base, more in ((dict, ("items", "keys", "values", "get")), (list, ()), (tuple, ())):
        kind = make_touchy_class(base, *more)

        def wrap_output(y: torch.Tensor, kind: type = kind, base: type = base) -> Any:
            return kind({"y": y}) if base is dict else base.__new__(kind, [y]) if base is tuple else fill_list(kind, y)

        def unwrap_output(out: Any, base: type = base) -> torch.Tensor:
            return dict.__getitem__(out, "y") if base is dict else base.__getitem__(out, 0)

        yield wrap_output, unwrap_output
    for other in (Endless(), Anything(), make_touchy_class(str)(), make_touchy_class(int)(7)):
        yield lambda y, other=other: {"y": y, "other": other}, lambda out: out["y"]


def fill_list(kind: type, y: torch.Tensor) -> Any:
    out = kind.__new__(kind)
    list.append(out, y)
    return out


def make_body(name: str) -> nn.Module:
    if name != "module":
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    kind = make_touchy_class(nn.Sequential, "extra_repr", "__dir__", "named_children_", "_get_name")
    kind.__iter__ = nn.Sequential.__iter__
    kind.__len__ = nn.Sequential.__len__
    kind.__getitem__ = nn.Sequential.__getitem__
    return kind(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def make_loader(name: str) -> Any:
    if name == "dataset":
        kind = make_touchy_class(Lines)
        kind.__len__, kind.__getitem__ = Lines.__len__, Lines.__getitem__
        kind.__getattr__ = getattr_that_raises
        return DataLoader(kind(), batch_size=2)
    if name == "stream":
        kind = make_touchy_class(Stream)
        kind.__iter__ = Stream.__iter__
        del kind.__len__
        return DataLoader(kind(), batch_size=2)
    if name == "sampler":
        kind = make_touchy_class(Sampler, "__getattr__")
        kind.__iter__ = lambda self: iter([3, 1, 2, 0])
        return DataLoader(Lines(), batch_size=2, sampler=kind())
    if name == "batch":
        kind = make_touchy_class(object)
        return DataLoader(Lines(), batch_size=2, collate_fn=lambda items: wrap_tensor(kind, torch.stack(items)))
    return DataLoader(Lines(), batch_size=2)


def train_model(name: str, wrap: Any, unwrap: Any) -> None:
    torch.manual_seed(0)
    model = Model(wrap, make_body(name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "group":
        optimizer.param_groups[0]["note"] = make_touchy_class(object)()
        optimizer.param_groups[0][wrap_tensor(make_touchy_class(object), torch.ones(1))] = 1
    if name == "scheduler":
        kind = make_touchy_class(torch.optim.lr_scheduler.StepLR, "state_dict", "__getattr__")
        scheduler = kind(optimizer, 2)
    last = 0.0
    for batch in make_loader(name):
        loss = unwrap(model(batch)).square().mean()
        if name == "loss":
            loss = loss.as_subclass(make_touchy_class(torch.Tensor, "item", "tolist"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if name == "scheduler":
            scheduler.step()
        last = torch.Tensor.item(loss.as_subclass(torch.Tensor)) if name == "loss" else loss.item()
    print(f"LOSS {name} {last:.9f}", flush=True)


PLACES = ("module", "dataset", "stream", "sampler", "batch", "group", "scheduler", "loss", "output")
wanted = sys.argv[2:] or PLACES
cases: list[tuple[str, Any, Any]] = []
for place in wanted:
    ways = list(iter_outputs()) if place == "output" else [(lambda y: y, lambda y: y)]
    cases += [(f"{place}", *way) for way in ways]
choose.shuffle(cases)
for case in cases:
    train_model(*case)
