"""Statistics of one stored tensor, as cheaply as its size allows: with lists, with numpy, or streamed."""

from tdbg.pages.read import tensor_slices
from tdbg.pages.read.tensor_values import value_count
from tdbg.pages.stats import value_stats
from tdbg.pages.stats.value_stats import PURE

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable

    from tdbg.pages.read.datapoint import Tensor
    from tdbg.pages.read.tensor_slices import Part
    from tdbg.pages.stats.value_stats import ValueStats

EXACT = 1 << 22  # values: of more, the quantiles are those of a histogram, and nobody gets the values


def measure_tensor(
    tensor: "Tensor",
    wanted: str,
    count: int,
    progress: "Callable[[int], object]" = lambda nbytes: None,
    lists: int = PURE,
) -> "tuple[ValueStats, list[int], Part | None]":
    """Figures, a histogram of ``count`` bars, and the values themselves unless there are too many.

    wanted: a part, such as ``0,:,3:5``; then the values are always there. lists: of more values numpy is used.
    Raises TdbgError.
    """
    if not wanted and value_count(tensor.dtype, tensor.shape) > EXACT:
        from tdbg.pages.stats.streaming_stats import StreamingStats

        tally = StreamingStats()
        tally.add_tensor(tensor, progress)
        found = tally.compute_stats()
        return found, tally.bins.compute_histogram(found.min, found.max, count) if tally.bins else [], None
    part = tensor_slices.read_slice(tensor, wanted, lists)
    progress(tensor.nbytes)
    if part.array is not None:
        found = value_stats.of_array(part.array)
        return found, value_stats.array_bars(part.array, found.min, found.max, count), part
    numbers = value_stats.to_real_values(part.to_numbers())
    finite = value_stats.sort_finite(numbers)
    return value_stats.of_numbers(numbers, finite), value_stats.compute_histogram(finite, count), part
