"""Iterate over every tensor of a selection, as `stats` and `find` do."""

from collections.abc import Callable, Iterable, Iterator

from tdbg.core.output import can_redraw_stderr, print_messages
from tdbg.core.tables import format_count, safe
from tdbg.pages.progress_bar import Progress
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.selection.locations import Selected, select_datapoints

MAX_NAMED = 20


class ReadErrors:
    """Tensors that cannot be read: the first ones are told, all are counted."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, datapoint: Datapoint, error: Exception) -> None:
        """Say it on stderr."""
        self.count += 1
        if self.count <= MAX_NAMED:
            print_messages(safe(f"datapoint {datapoint.key}: {error}"))

    def report_remaining(self) -> int:
        """Say how many more there were; the exit code: 2 if there were any."""
        if self.count > MAX_NAMED:
            print_messages(f"and {format_count(self.count - MAX_NAMED, 'more tensor')} that cannot be read")
        return 2 if self.count else 0


def make_progress(pages: PageSet, question: Selected, is_chosen: Callable[[str], bool], doing: str) -> Progress:
    """A bar over all bytes of a selection; where nobody sees it they are not counted. is_chosen: which paths."""
    total = 0
    if can_redraw_stderr():
        for datapoint in select_datapoints(pages, question):
            pieces = datapoint.layout.pieces if datapoint.layout else ()
            total += sum(piece.length for piece in pieces if is_chosen(piece.path))
    return Progress(doing, total)


def iter_samples(datapoint: Datapoint) -> Iterator[Datapoint]:
    """The rows of a batch; itself where nothing in it belongs to a single row, such as figures of the whole batch."""
    return datapoint.rows() if datapoint.split else iter((datapoint,))


def iter_sample_tensors(datapoints: Iterable[Datapoint]) -> Iterator[tuple[Datapoint, list[Tensor]]]:
    """Each datapoint with its tensors. Of a batch that is stored once: the row of each sample, then what is not split."""
    for datapoint in datapoints:
        split = set(datapoint.split)
        if datapoint.keys is None or not split:
            yield datapoint, list(datapoint.tensors.values())
            continue
        for row in datapoint.rows():
            yield row, [tensor for path, tensor in row.tensors.items() if path in split]
        whole = [tensor for path, tensor in datapoint.tensors.items() if path not in split]
        if whole:
            yield datapoint, whole
