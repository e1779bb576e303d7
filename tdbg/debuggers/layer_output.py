"""LayerOutput: what a layer put out, made smaller."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from tdbg.core.errors import TdbgError
from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import ForwardDebugger
from tdbg.debuggers.captured_stats import each_tensor, spatial_dims, to_real_numbers

POOLS: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@DEBUGGERS.add
class LayerOutput(ForwardDebugger):
    """The output of a layer, averaged over blocks of its spatial dimensions.

    downsample_factor: the length of a block in each of 1 to 3 spatial dimensions; those of BTC are T. Blocks at the
        end may be shorter, and a dimension shorter than a block is one block.
    channel_dim: where the channels are, if the layer's kind does not say (see `channel_dim`).
    Returns ``layer_name``, ``original_shape``, ``output`` (of the layer's dtype; averages are worked out in float32),
    ``downsampled`` (False where there was nothing to average: no spatial dimension, integers, complex numbers, a
    factor of 1) and ``downsample_factor``. Several tensors: see `FeatureMap`.
    Raises TdbgError for a factor below 1. Cost: one pass; the copy to the host is that of the small tensor.
    """

    name = "layer-output"

    def __init__(self, layer_name: str, downsample_factor: int = 4, *, channel_dim: int | None = None) -> None:
        super().__init__(layer_name)
        if downsample_factor < 1:
            raise TdbgError(f"downsample_factor must be 1 or more, not {downsample_factor}", "1 keeps the full output")
        self.downsample_factor = downsample_factor
        self.channel_dim = channel_dim

    def process_forward(self, module: nn.Module, input: object, output: object) -> dict[str, object]:
        return each_tensor(self.layer_name, output, lambda tensor: self._describe_tensor(module, tensor))

    def _describe_tensor(self, module: nn.Module, tensor: Tensor) -> dict[str, object]:
        dims = spatial_dims(module, tensor, self.channel_dim)
        small = self._pool_tensor(tensor, dims) if self._can_pool(tensor, dims) else tensor
        return {
            "original_shape": list(tensor.shape),
            "output": small,
            "downsampled": small.shape != tensor.shape,
            "downsample_factor": self.downsample_factor,
        }

    def _can_pool(self, tensor: Tensor, dims: list[int]) -> bool:
        plain = tensor.is_floating_point() and not tensor.is_nested and not tensor.is_sparse
        return plain and len(dims) in POOLS and tensor.numel() > 0 and self.downsample_factor > 1

    def _pool_tensor(self, tensor: Tensor, dims: list[int]) -> Tensor:
        """The averages, each of the elements that are there: at the ends blocks are shorter."""
        last = list(range(-len(dims), 0))
        moved = to_real_numbers(tensor).movedim(dims, last)
        flat = moved.reshape(1, -1, *moved.shape[-len(dims) :])
        small = POOLS[len(dims)](flat, self.downsample_factor, ceil_mode=True)
        return small.reshape(*moved.shape[: -len(dims)], *small.shape[2:]).movedim(last, dims).to(tensor.dtype)
