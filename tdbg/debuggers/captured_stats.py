"""The figures of captured tensors, and which of their dimensions is which.

Shapes: B batch, C channels, H W D L spatial, T tokens.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.runtime.tensors import Figures, iter_tensors, measure_tensors
from tdbg.runtime.torch_compat import BATCH_NORMS

# Modules whose channels (features) stand last, whatever comes before.
CHANNELS_LAST = (
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
NOTHING = Figures(0)


def channel_dim(module: nn.Module, tensor: Tensor) -> int | None:
    """Which dimension of a module's output holds its channels; None for an output that has none.

    The module's kind decides: Conv2d gives BCHW, or CHW unbatched; Linear and LayerNorm have them last. Of a
    kind that does not say (an activation, a block of the user's), 3-D is taken for BTC, and 4-D and 5-D for BC....
    """
    if tensor.dim() < 2:
        return None
    if isinstance(module, CHANNELS_LAST):
        return tensor.dim() - 1
    spatial = _spatial_of(module)
    if spatial is not None and tensor.dim() in (spatial + 1, spatial + 2) and not _is_flat_norm(module, tensor):
        return tensor.dim() - spatial - 1
    if tensor.dim() == 3 and not isinstance(module, nn.GroupNorm):
        return 2
    return 1


def spatial_dims(module: nn.Module, tensor: Tensor, channel: int | None = None) -> list[int]:
    """The dimensions over which a module's output is laid out in space or time; [] for none.

    channel: the dimension of the channels, where the caller knows better than `channel_dim`.
    """
    if channel is None:
        channel = channel_dim(module, tensor)
    if channel is None:
        return []
    if time_first(module, tensor):
        return [0]
    return [dim for dim in range(1, tensor.dim()) if dim != channel % tensor.dim()]


def time_first(module: nn.Module, tensor: Tensor) -> bool:
    """True for a TBC output: that of an attention or recurrent module without ``batch_first``."""
    inner = getattr(module, "self_attn", module)
    return tensor.dim() == 3 and getattr(inner, "batch_first", True) is False


def _spatial_of(module: nn.Module) -> int | None:
    """2 for Conv2d, BatchNorm2d, MaxPool2d and what inherits from them; None for others."""
    for base in type(module).__mro__:
        found = re.search(r"([123])d$", base.__name__) if base.__module__.startswith("torch.nn.") else None
        if found:
            return int(found[1])
    return None


def _is_flat_norm(module: nn.Module, tensor: Tensor) -> bool:
    """BatchNorm1d of BC: two dimensions, and none of them is space."""
    return isinstance(module, BATCH_NORMS) and tensor.dim() == 2


def to_real_numbers(tensor: Tensor) -> Tensor:
    """The elements as real numbers in float32; float64 and integers in float64, complex ones as magnitudes."""
    data = tensor.detach()
    if hasattr(data, "to_local"):
        data = data.to_local()
    if data.is_quantized:
        data = data.dequantize()
    if data.is_sparse or data.is_mkldnn:
        data = data.to_dense()
    if data.is_complex():
        data = data.abs()
    exact = data.dtype == torch.float64 or not data.is_floating_point()
    return data.to(torch.float64 if exact and data.device.type != "mps" else torch.float32)


def measure_tensor(tensor: Tensor) -> Figures:
    """The exact figures of one tensor; of one that shows no elements (meta), of nothing."""
    with torch.inference_mode(False):
        return measure_tensors([tensor])[0] or NOTHING


def compute_stats(tensor: Tensor) -> dict[str, Any]:
    """mean, std (with n - 1), min and max of the finite elements, None where there are none; and the shape.

    ``nan_count`` and ``inf_count`` are there only if there are any.
    """
    found = measure_tensor(tensor)
    counts = {"nan_count": found.nan, "inf_count": found.inf}
    shape = list(tensor.shape)
    ends = {"mean": found.mean, "std": found.std, "min": found.low, "max": found.high, "shape": shape}
    return {**ends, **{name: count for name, count in counts.items() if count}}


def each_tensor(layer_name: str, value: object, tell: Callable[[Tensor], dict[str, object]]) -> dict[str, object]:
    """What ``tell`` says of the first tensor in a module's output, with the layer's name.

    If the output holds more of them, ``others`` has what it says of each by its path (``1.0``, ``hidden_states``).
    Without any, ``note`` says what there was.
    """
    found = list(iter_tensors(value))
    if not found:
        return {"layer_name": layer_name, "note": f"the output holds no tensor: {type(value).__name__}"}
    (_, first), *more = found
    result = {"layer_name": layer_name, **tell(first)}
    if more:
        result["others"] = {path: tell(tensor) for path, tensor in more}
    return result
