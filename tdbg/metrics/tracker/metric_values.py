"""Convert any number of a training loop to a float. Recognizes tensors without importing torch."""

import math
from typing import Any

from tdbg.core.errors import TdbgError


class MetricValueError(TdbgError):
    """What was handed over as the value of a metric is not one real number."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint or "pass one number: take the mean of the batch, or .item()")


def as_float(value: Any, name: str) -> float:
    """One number as a float: int, float, bool, a NumPy scalar, a tensor or array of one element, a replicated DTensor.

    name: the metric's, for the error. NaN and Inf pass: who keeps the value counts them. Raises MetricValueError,
    naming the metric. Cost: 0.1 us for a float; a tensor on an accelerator is waited for.
    """
    if type(value) is float:
        return value
    if isinstance(value, str | bytes | bytearray) or value is None:
        raise MetricValueError(f"metric {name!r} is {_describe_kind(value)}, not a number")
    if not isinstance(value, int | float):
        value = _extract_element(value, name)
    try:
        return float(value)
    except OverflowError:
        raise MetricValueError(f"metric {name!r} is too large for a float") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise MetricValueError(f"metric {name!r} is {_describe_kind(value)}, not a number: {error}") from error


def as_count(value: object, name: str) -> int:
    """A number of samples: a whole number from 0 up. Raises MetricValueError, naming the metric."""
    if type(value) is int and value >= 0:
        return value
    found = as_float(value, f"{name} (its number of samples)")
    if not math.isfinite(found) or found < 0 or found != int(found):
        raise MetricValueError(f"metric {name!r} was given {found:g} samples", "a number of samples is 0, 1, 2, ...")
    return int(found)


def as_list(values: object, name: str) -> list[object]:
    """A vector (one entry a sample) as a list: a list, a tuple, an array or tensor of one dimension.

    Cost: one copy; a tensor on an accelerator is waited for once. Raises MetricValueError, naming the metric.
    """
    if isinstance(values, list | tuple):
        return list(values)
    shape = getattr(values, "shape", None)
    if shape is None or len(shape) != 1:
        raise MetricValueError(f"metric {name!r} has no per-sample values: {_describe_kind(values)}", "pass a vector")
    found: list[Any] = _to_local(values, name).tolist()
    return found


def _extract_element(value: object, name: str) -> object:
    """The one element of a tensor or array; anything else as it is."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return value
    if math.prod(shape) != 1:
        raise MetricValueError(f"metric {name!r} must be one number, not {_describe_kind(value)}")
    if getattr(value, "is_meta", False):
        raise MetricValueError(f"metric {name!r} is {_describe_kind(value)}, which holds no data")
    value = _to_local(value, name)
    return value.item() if hasattr(value, "item") else value


def _to_local(value: object, name: str) -> Any:
    """A DTensor's local copy if it is replicated: no collective is ever issued for a metric."""
    places = getattr(value, "placements", None)
    if places is not None and hasattr(value, "to_local"):
        if not all(place.is_replicate() for place in places):
            raise MetricValueError(
                f"metric {name!r} is a DTensor placed {', '.join(map(str, places))}: this rank holds a part of it",
                "reduce it first: value.full_tensor()",
            )
        value = value.to_local()
    return value.detach() if hasattr(value, "detach") else value


def _describe_kind(value: object) -> str:
    """What it is, for an error: ``Tensor of shape (2, 3) on cuda:0``."""
    shape, device = getattr(value, "shape", None), getattr(value, "device", None)
    text = "None" if value is None else type(value).__name__
    if shape is not None:
        text += f" of shape {tuple(shape)}"
    return f"{text} on {device}" if device is not None else text
