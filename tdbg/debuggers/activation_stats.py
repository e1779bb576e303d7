"""ActivationStats: the figures of a layer's output, without the output."""

from typing import Any

import torch
from torch import Tensor, nn

from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import ForwardDebugger
from tdbg.debuggers.captured_stats import channel_dim, each_tensor, measure_tensor, to_real_numbers

SAMPLES = 100


@DEBUGGERS.add
class ActivationStats(ForwardDebugger):
    """How the values of a layer's output are distributed.

    channel_dim: where the channels are, if the layer's kind does not say (see `channel_dim`).
    Returns ``layer_name``, ``module_type``, ``activation_stats`` and ``sample_values`` (the first 100 elements). The
    statistics are those of the finite elements, None where there are none; what is not finite is counted:

    - shape, nan_count, inf_count;
    - mean, std (n - 1), min, max, l1_norm (mean of the magnitudes), l2_norm;
    - shares, 0 to 1: sparsity (exactly 0), positive_ratio (> 0), saturation_low (<= -1), saturation_high (>= 1);
    - channel_means, channel_stds: one per channel over all other dimensions (NaN for a channel without a finite
      element); empty tensors for an output without channels.

    Half precision is worked out in float32, integers in float64, complex numbers as magnitudes. Several tensors: see
    `FeatureMap`. Cost: about ten passes; small copies to the host.
    """

    name = "activation-stats"

    def __init__(self, layer_name: str, *, channel_dim: int | None = None) -> None:
        super().__init__(layer_name)
        self.channel_dim = channel_dim

    def process_forward(self, module: nn.Module, input: object, output: object) -> dict[str, object]:
        with torch.no_grad():
            found = each_tensor(self.layer_name, output, lambda tensor: self._describe_tensor(module, tensor))
        return {**found, "module_type": type(module).__name__}

    def _describe_tensor(self, module: nn.Module, tensor: Tensor) -> dict[str, object]:
        channel = self.channel_dim if self.channel_dim is not None else channel_dim(module, tensor)
        return {
            "activation_stats": {**_compute_stats(tensor), **_by_channel(tensor, channel)},
            "sample_values": tensor.detach().flatten()[:SAMPLES],
        }


def _compute_stats(tensor: Tensor) -> dict[str, object]:
    figures = measure_tensor(tensor)
    found: dict[str, Any] = {
        "shape": list(tensor.shape),
        "nan_count": figures.nan,
        "inf_count": figures.inf,
        "mean": figures.mean,
        "std": figures.std,
        "min": figures.low,
        "max": figures.high,
        "l2_norm": figures.norm,
    }
    return {**found, **_compute_shares(tensor, finite=figures.finite)}


def _compute_shares(tensor: Tensor, *, finite: bool) -> dict[str, float | None]:
    """What is worked out over the finite elements, read with one copy."""
    data = to_real_numbers(tensor).flatten()
    data = data if finite else data[torch.isfinite(data)]
    names = ("l1_norm", "sparsity", "positive_ratio", "saturation_low", "saturation_high")
    if not data.numel():
        return dict.fromkeys(names)
    wide = data.dtype if data.device.type == "mps" else torch.float64  # a sum of large ones must not overflow
    counts = [torch.count_nonzero(test) for test in (data == 0, data > 0, data <= -1, data >= 1)]
    rows = [data.abs().mean(dtype=wide), *(count.to(wide) / data.numel() for count in counts)]
    return dict(zip(names, torch.stack(rows).tolist(), strict=True))


def _by_channel(tensor: Tensor, channel: int | None) -> dict[str, Tensor]:
    """Mean and std (n - 1; 0 for one element) of each channel's finite elements."""
    if channel is None or not tensor.numel():
        return {"channel_means": torch.empty(0), "channel_stds": torch.empty(0)}
    rows_CN = to_real_numbers(tensor).movedim(channel, 0).flatten(1)
    finite_CN = torch.isfinite(rows_CN)
    count_C = finite_CN.sum(1)
    mean_C = torch.where(finite_CN, rows_CN, 0).sum(1) / count_C
    off_CN = torch.where(finite_CN, rows_CN - mean_C[:, None], 0)
    std_C = (off_CN.square().sum(1) / (count_C - 1).clamp(min=1)).sqrt()
    return {"channel_means": mean_C, "channel_stds": torch.where(count_C > 0, std_C, mean_C)}
