"""One stored tensor in figures, as cheaply as its size allows: with lists, with numpy, or streamed."""

from tdbg.pages import figures, slices
from tdbg.pages.figures import PURE
from tdbg.pages.values import value_count

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable

    from tdbg.pages.datapoint import Tensor
    from tdbg.pages.figures import Figures
    from tdbg.pages.slices import Part

EXACT = 1 << 22  # values: of more, the quantiles are those of a histogram, and nobody gets the values


def measure(
    tensor: "Tensor",
    wanted: str,
    count: int,
    progress: "Callable[[int], object]" = lambda nbytes: None,
    lists: int = PURE,
) -> "tuple[Figures, list[int], Part | None]":
    """Figures, a histogram of ``count`` bars, and the values themselves unless there are too many.

    wanted: a part, such as ``0,:,3:5``; then the values are always there. lists: of more values numpy is used.
    Raises TdbgError.
    """
    if not wanted and value_count(tensor.dtype, tensor.shape) > EXACT:
        from tdbg.pages.tally import Tally

        tally = Tally()
        tally.add_tensor(tensor, progress)
        found = tally.figures()
        return found, tally.bins.bars(found.min, found.max, count) if tally.bins else [], None
    part = slices.read(tensor, wanted, lists)
    progress(tensor.nbytes)
    if part.array is not None:
        found = figures.of_array(part.array)
        return found, figures.array_bars(part.array, found.min, found.max, count), part
    numbers = figures.plain(part.listed())
    finite = figures.ordered(numbers)
    return figures.of_numbers(numbers, finite), figures.bars(finite, count), part
