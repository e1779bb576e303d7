"""A tensor as the pages show it: figures, histogram and preview, as plain data for ``web/tensor.js``."""

import base64
import math
from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import to_json_value
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_values import value_count
from tdbg.pages.render.preview import Preview, build_preview
from tdbg.pages.render.region import Region
from tdbg.pages.stats.stored_tensor import measure_tensor

BARS = 64
FIGURES = ("count", "nan", "inf", "zero", "mean", "std", "min", "max", "median", "q05", "q95")
TEXT = 500  # characters of a text, a name or a key


def describe_tensor_picture(tensor: Tensor, budget: int) -> dict[str, Any]:
    """Figures, histogram and a preview of at most ``budget`` bytes; only what is wrong with it where it cannot be read."""
    found: dict[str, Any] = {"path": truncate_text(tensor.path), "dtype": tensor.dtype.name, "shape": tensor.shape}
    try:
        found |= collect_figures(tensor)
        drawn = build_preview(tensor, budget)
    except TdbgError as error:
        return found | {"error": str(error)}
    if not value_count(tensor.dtype, tensor.shape):
        return found
    if drawn is None:
        return found | {"why": "its values are not in this file: they take too much room"}
    return found | {"preview": encode_preview(drawn)}


def describe_region(tensor: Tensor, budget: int, region: Region) -> dict[str, Any]:
    """A preview of a part alone: figures and histogram are of the whole tensor. Raises TdbgError where it cannot be read."""
    found: dict[str, Any] = {"path": truncate_text(tensor.path), "dtype": tensor.dtype.name, "shape": tensor.shape}
    drawn = build_preview(tensor, budget, region)
    return found | ({"why": "it takes too much room"} if drawn is None else {"preview": encode_preview(drawn)})


def collect_figures(tensor: Tensor) -> dict[str, object]:
    """Figures of all its values, and how many lie in each part of their range."""
    known, bars, _ = measure_tensor(tensor, "", BARS, lists=0)
    named = known.as_dict()
    found: dict[str, Any] = {"figures": {name: to_json_value(named[name]) for name in FIGURES if name in named}}
    if known.min is None or known.max is None or not math.isfinite(known.max - known.min):
        return found
    return found | {"bars": bars, "low": float(known.min), "high": float(known.max)}


def encode_preview(found: Preview) -> dict[str, object]:
    """The preview as ``web/tensor.js`` decodes it."""
    about: dict[str, object] = {
        name: getattr(found, name)
        for name in ("kind", "shape", "whole", "block", "exact", "image", "region", "leading")
    }
    about |= {"scale": found.scale, "low": found.low, "high": found.high, "said": found.reduction_note}
    return {**about, "data": base64.b64encode(found.data).decode()}


def truncate_text(text: object) -> str:
    """The text, cut if it is long."""
    found = str(text)
    return found if len(found) <= TEXT else f"{found[: TEXT - 3]}..."
