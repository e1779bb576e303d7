"""Where a tensor holds NaN or Inf."""

from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import flat_parts


def find_nonfinite_places(tensor: Tensor, most: int) -> list[list[int]]:
    """The index of each element that is not finite, in order, at most ``most`` of them. Raises TdbgError."""
    import numpy as np

    found: list[list[int]] = []
    start = 0
    for part in flat_parts(tensor):
        for at in np.flatnonzero(~np.isfinite(part))[: most - len(found)]:
            found.append([int(index) for index in np.unravel_index(start + int(at), tensor.shape)])
        start += part.size
        if len(found) >= most:
            break
    return found
