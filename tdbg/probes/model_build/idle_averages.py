"""Layers whose running averages stay where they began, or move though the layer is frozen."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tdbg.runtime.root_modules import clean_path, unwrap_module
from tdbg.runtime.torch_compat import BATCH_NORMS

LEAST_STEPS = 20  # done, and batches that a layer has seen
MAX_NORMS = 512


def find_norms(roots: Iterable[nn.Module]) -> list[tuple[str, Any]]:
    """Batch normalisation layers in train mode that are to keep running statistics, with their names."""
    return [
        (clean_path(name), layer)
        for root in roots
        for name, layer in unwrap_module(root).named_modules()
        if isinstance(layer, BATCH_NORMS) and layer.training and layer.track_running_stats
        if layer.running_mean is not None and layer.num_batches_tracked is not None
    ][:MAX_NORMS]


def find_frozen_norms(norms: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Of `find_norms`: layers that are frozen, and whose statistics a batch would move."""
    return [
        (name, layer)
        for name, layer in norms
        if layer.weight is not None and layer.momentum != 0 and not any(p.requires_grad for p in layer.parameters())
    ]


def count_batches(layers: Iterable[Any]) -> Tensor:
    """The batches that each layer has seen; on the device of the first, a copy."""
    counts = [layer.num_batches_tracked.detach().float() for layer in layers]
    return torch.stack([one.to(counts[0].device, non_blocking=True) for one in counts])


def read_norms(layers: Iterable[Any]) -> Tensor:
    """For each layer the largest running mean, and the batches it has seen; on the device of the first."""
    means = [layer.running_mean.detach().abs().amax().float() for layer in layers]
    counts = [layer.num_batches_tracked.detach().float() for layer in layers]
    device = means[0].device
    return torch.stack([one.to(device, non_blocking=True) for one in (*means, *counts)])


def find_idle(values: list[float]) -> list[int]:
    """Of `read_norms`: the places of layers that have seen enough batches and still have a mean of zero."""
    count = len(values) // 2
    return [at for at in range(count) if values[at] == 0.0 and values[count + at] >= LEAST_STEPS]
