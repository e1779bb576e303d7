"""What a program logs, sorted: numbers that can be had at once, those that come from a device later, and words."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_KEYS = 2000  # of one call
MAX_DEPTH = 4
MAX_TEXT = 200
MAX_KEY = 500
MAX_BITS = 1000  # of an integer; a float holds 1024


@dataclass(slots=True)
class Sorted:
    """What one call logged. late: keys, and their values on a device."""

    values: dict[str, float] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    late: list[tuple[str, object]] = field(default_factory=list)


def sort_values(data: Mapping[object, object]) -> Sorted:
    """Sort what was logged; what is neither a number nor words (pictures, histograms) is passed over.

    Mappings in it are flattened with dots, as Weights & Biases does. Nothing waits for a device, and of DTensors only
    a replicated one is read. Cost: about 0.3 us a float.
    """
    found = Sorted()
    for number, (key, value) in enumerate(_iter_flattened(data, "", 0)):
        if number >= MAX_KEYS:
            break
        kind = type(value)
        if kind is float:
            found.values[key] = value
        elif kind is int:
            found.values[key] = value if value.bit_length() <= MAX_BITS else _to_python_number(value)
        elif kind is str:
            found.text[key] = value[:MAX_TEXT]
        elif value is not None:
            _sort_other(found, key, value)
    return found


def _iter_flattened(data: Mapping[object, object], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}{name}"[:MAX_KEY]
        if isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                yield from _iter_flattened(value, f"{key}.", depth + 1)
        else:
            yield key, value


def _sort_other(found: Sorted, key: str, value: Any) -> None:
    """A bool, a NumPy scalar or a tensor of one element; anything else is none of ours."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        _sort_tensor(found, key, value)
    elif isinstance(value, int | float):  # bool, and NumPy's float64
        found.values[key] = _to_python_number(value)
    elif type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtype.kind in "fiub":
            found.values[key] = _to_python_number(value.item())


def _to_python_number(value: Any) -> float:
    """As Python's own number; an integer that no float holds is infinite."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return float("inf") if value > 0 else float("-inf")
    return int(value) if isinstance(value, int) else float(value)


def _sort_tensor(found: Sorted, key: str, value: Any) -> None:
    if value.numel() != 1 or value.is_complex() or value.is_meta or value.is_quantized:
        return
    places = getattr(value, "placements", None)
    if places is not None:
        if not all(place.is_replicate() for place in places):
            return
        value = value.to_local()
    value = value.detach()
    if value.device.type == "cpu":
        found.values[key] = value.item()
    else:
        found.late.append((key, value))
