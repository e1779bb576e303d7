"""Parameters that ``parameters()`` does not reach: in a plain list, tuple, set or dict of a module."""

import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.runtime import tensors
from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.sampling import select_evenly, view_sample

MAX_DEPTH = 4  # of containers in containers
MAX_ITEMS = 256  # of one container
MAX_MODULES = 4096
MAX_SAMPLED = 8  # parameters whose values are compared
ELEMENTS = 64  # of each
# These exact classes alone: a subclass may run code of the program's when it is gone through.
SEQUENCES = (list, tuple, set, frozenset, deque)
MAPPINGS = (dict, OrderedDict, defaultdict)
OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class Unregistered(NamedTuple):
    """A parameter in a container."""

    name: str  # layers[0].weight
    parameter: nn.Parameter
    container: str  # Net.layers (list)


class _Place(NamedTuple):
    """A container, or something in it."""

    path: str
    value: Any
    container: str
    depth: int


def find_unregistered(root: nn.Module, registered: Collection[int]) -> list[Unregistered]:
    """The parameters in containers of a model's modules, whose ids are not among the ``registered`` ones.

    A module that is in eval mode while its owner is not was set aside on purpose (a teacher, a perceptual loss), and is
    left out with all that it holds. Cost: 2 us a module of the program's own classes.
    """
    found: dict[int, Unregistered] = {}
    seen: set[int] = set()
    model = unwrap_module(root)
    waiting = deque(_containers_of(model, "", seen))
    while waiting:
        place, owner_trains = waiting.popleft()
        value = place.value
        if isinstance(value, nn.Parameter):
            if id(value) not in registered:
                found.setdefault(id(value), Unregistered(place.path, value, place.container))
        elif isinstance(value, nn.Module):
            if id(value) not in seen and (value.training or not owner_trains):
                for path, part in value.named_modules():
                    for name, parameter in part._parameters.items():
                        inner = ".".join((path, name)) if path else name
                        if parameter is not None and id(parameter) not in registered:
                            entry = Unregistered(f"{place.path}.{clean_path(inner)}", parameter, place.container)
                            found.setdefault(id(parameter), entry)
                waiting += _containers_of(value, place.path, seen)
        elif place.depth < MAX_DEPTH:
            waiting += [(item, owner_trains) for item in _items_of(place)]
    return list(found.values())


def _containers_of(module: nn.Module, prefix: str, seen: set[int]) -> Iterator[tuple[_Place, bool]]:
    """The containers of a module's parts, and whether the part is in training mode; marks the parts as seen."""
    for path, part in module.named_modules():
        if id(part) in seen or len(seen) >= MAX_MODULES:
            continue
        seen.add(id(part))
        if type(part).__module__.startswith("torch."):  # what those keep is torch's own
            continue
        for name, value in list(vars(part).items()):
            if type(value) in (*SEQUENCES, *MAPPINGS) and name not in OF_EVERY_MODULE:
                full = ".".join(word for word in (prefix, clean_path(path), name) if word)
                container = f"{type(part).__name__}.{name} ({type(value).__name__})"
                yield _Place(full, value, container, 0), part.training


def _items_of(place: _Place) -> Iterator[_Place]:
    """What a container holds, but for plain values."""
    value = place.value
    if type(value) in MAPPINGS:
        items = [(repr(key) if isinstance(key, str | int) else "...", item) for key, item in list(value.items())]
    elif type(value) in SEQUENCES:
        items = [(str(index), item) for index, item in enumerate(list(value))]
    else:
        return
    for key, item in islice(items, MAX_ITEMS):
        if isinstance(item, nn.Module | nn.Parameter) or type(item) in (*SEQUENCES, *MAPPINGS):
            yield _Place(f"{place.path}[{key}]", item, place.container, place.depth + 1)


class ValueWatch:
    """Whether anything has changed some parameters since a step: nothing where they are forgotten.

    A few elements of a few of them are compared, and the count of writes that torch keeps.
    """

    def __init__(self, parameters: Sequence[Tensor], step: int) -> None:
        self.step = step
        self.compared = step  # the step of the last comparison whose result is there
        self.is_changed = False
        self._refs = [weakref.ref(parameter) for parameter in parameters]
        self._versions = [tensors.read_version(parameter) for parameter in parameters]
        self._values = _sample(parameters)

    def is_of(self, parameters: Sequence[Tensor]) -> bool:
        """True if it watches exactly these."""
        return len(parameters) == len(self._refs) and all(
            ref() is parameter for ref, parameter in zip(self._refs, parameters, strict=True)
        )

    def compare(
        self, parameters: Sequence[Tensor], step: int, read_late: Callable[[Tensor, Callable[..., None]], None]
    ) -> None:
        """Compare with the first step's; values on an accelerator are read one step late."""
        if [tensors.read_version(parameter) for parameter in parameters] != self._versions:
            self.is_changed = True
        now = _sample(parameters)
        if now is None or self._values is None:
            self.compared = step
            return
        if now.shape != self._values.shape or now.device != self._values.device:
            self.is_changed = True
            return
        # NaN differs from NaN: weights that are lost are somebody else's news
        changed = (now != self._values).any().reshape(1).float()
        if tensors.on_host(changed):
            self._enter(changed.tolist(), step)
        else:
            read_late(changed, lambda values, record: self._enter(values, step))

    def _enter(self, values: Sequence[float], step: int) -> None:
        self.compared = step
        self.is_changed = self.is_changed or values[0] != 0.0


def _sample(parameters: Sequence[Tensor]) -> Tensor | None:
    """Some elements of some of the parameters, of those on the first one's device; a copy."""
    views = [
        view for one in select_evenly(list(parameters), MAX_SAMPLED) if (view := view_sample(one, ELEMENTS)) is not None
    ]
    views = [view for view in views if view.device == views[0].device]
    return torch.cat([view.float() for view in views]) if views else None
