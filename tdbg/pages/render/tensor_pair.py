"""Two tensors beside each other, and their difference, as plain data for ``web/tensor.js``."""

from typing import Any

from tdbg.core.errors import TdbgError
from tdbg.core.tables import to_json_value
from tdbg.pages.diff.tensor_distance import Distance, compare_tensors
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.render.preview import build_difference_previews
from tdbg.pages.render.region import Region
from tdbg.pages.render.tensor_picture import collect_figures, encode_preview, truncate_text


def describe_tensor_pair(first: Tensor, second: Tensor, budget: int) -> dict[str, Any]:
    """Both with figures and histogram, and the second minus the first, of at most ``budget`` bytes each.

    ``why`` where there is no difference to show.
    """
    sides = {"first": _describe_side(first), "second": _describe_side(second)}
    found: dict[str, Any] = {"path": truncate_text(first.path), **sides}
    try:
        sides["first"] |= collect_figures(first)
        sides["second"] |= collect_figures(second)
        distance = compare_tensors(first, second)
        previews = build_difference_previews(first, second, budget) if first.shape == second.shape else None
    except TdbgError as error:
        return found | {"why": str(error)}
    found |= {"distance": _describe_distance(distance)}
    if previews is None:
        return found | {"why": distance.reason or "the values take too much room to be shown"}
    sides["first"]["preview"], sides["second"]["preview"], gaps = map(encode_preview, previews)
    return found | {"difference": {"shape": list(first.shape), "preview": gaps}}


def describe_region_difference(first: Tensor, second: Tensor, budget: int, region: Region) -> dict[str, Any]:
    """The second minus the first, of a part alone; ``why`` where there is none. Raises TdbgError where one cannot be read."""
    found: dict[str, Any] = {"path": truncate_text(first.path)}
    is_alike = first.shape == second.shape
    previews = build_difference_previews(first, second, budget, region) if is_alike else None
    if previews is None:
        return found | {"why": "it takes too much room" if is_alike else "their shapes differ"}
    return found | {"difference": {"shape": list(first.shape), "preview": encode_preview(previews[2])}}


def _describe_side(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape)}


def _describe_distance(found: Distance) -> dict[str, Any]:
    """How far they are apart. differing: values beyond what rounding does, of ``total``. apart: the largest difference."""
    names = ("error", "tolerance", "differing", "total", "apart", "where", "a", "b", "reason")
    values: dict[str, Any] = to_json_value({name: getattr(found, name) for name in names})
    return values
