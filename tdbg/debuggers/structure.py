"""What stands in a structure that a module took or put out: tensors, plain values, and what can be neither."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdbg.core.guard import belongs_to_program
from tdbg.core.tables import format_count

MAX_DEPTH = 32
MAX_ITEMS = 4096
MAX_TEXT = 1 << 16
NUMBERS = "biufc"  # numpy's kinds of arrays that torch can hold


def is_number_list(value: object) -> bool:
    """True for a list of numbers that is kept as one plain value."""
    return isinstance(value, list) and len(value) <= MAX_ITEMS and all(map(_is_number, value))


class Left(NamedTuple):
    """What is not kept, and why."""

    why: str


def iter_leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every leaf with its path (``layer:output.0.mask``): a Tensor, a plain value, or a `Left`.

    Looked into are mappings (so also the outputs of Hugging Face's models), tuples, lists and dataclasses. A list of
    numbers or texts inside is one plain value; numpy's arrays are tensors.
    """
    return _iter_below(value, path, 0)


def _iter_below(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    """The leaves below one value; an object of the program's that refuses to be looked at is one that is left."""
    try:
        found = list(_iter_parts(value, path, depth))
    except BaseException as error:  # inline, as this runs for every value of a pass
        if belongs_to_program(error):
            raise
        found = [Part(path, Left(f"a {type(value).__name__} that raised {type(error).__name__} when it was read"))]
    for part in found:
        if part.is_leaf:
            yield part.path, part.value
        else:
            yield from _iter_below(part.value, part.path, depth + 1)


class Part(NamedTuple):
    """A leaf, or what has to be looked into."""

    path: str
    value: object
    is_leaf: bool = True


def _iter_parts(value: object, path: str, depth: int) -> Iterator[Part]:
    if isinstance(value, Tensor):
        yield Part(path, value)
    elif value is None or isinstance(value, bool | int | float | complex | str):
        yield Part(path, _limit_text(value) if isinstance(value, str) else value)
    elif depth >= MAX_DEPTH:
        yield Part(path, Left(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself"))
    elif depth and isinstance(value, list | tuple) and all(_is_number(item) for item in value[:MAX_ITEMS]):
        yield Part(path, list(value[:MAX_ITEMS]))
        yield from _iter_omitted(value, path)
    elif (items := _iter_items(value)) is not None:
        for key, item in items:
            yield Part(f"{path}.{key}", item, is_leaf=False)
        yield from _iter_omitted(value, path)
    else:
        yield Part(path, _convert_other(value))


def _iter_items(value: object) -> Iterable[tuple[object, object]] | None:
    if isinstance(value, Mapping):
        return islice(value.items(), MAX_ITEMS)
    if isinstance(value, list | tuple):
        return enumerate(value[:MAX_ITEMS])
    if is_dataclass(value) and not isinstance(value, type):
        return [(item.name, getattr(value, item.name, None)) for item in fields(value)]
    return None


def _iter_omitted(value: object, path: str) -> Iterator[Part]:
    more = len(value) - MAX_ITEMS if hasattr(value, "__len__") else 0
    if more > 0:
        yield Part(f"{path}.{MAX_ITEMS}", Left(f"{more:,} more after the first {MAX_ITEMS:,}"))


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _limit_text(value: str) -> str | Left:
    return value if len(value) <= MAX_TEXT else Left(f"a string of {format_count(len(value), 'character')}")


def _convert_other(value: Any) -> object:
    if isinstance(value, torch.dtype | torch.device | torch.layout):
        return str(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if hasattr(value, "__array_interface__") and kind and kind in NUMBERS:
        try:
            return torch.from_numpy(value.copy()) if value.ndim else value.item()
        except (TypeError, ValueError):
            pass
    return Left(f"a {type(value).__name__} is neither a tensor nor a plain value")
