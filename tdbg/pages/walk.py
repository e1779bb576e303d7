"""Every tensor of a selection in turn, as `stats` and `find` go over them."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from tdbg.output import say
from tdbg.pages.datapoint import Datapoint, Tensor
from tdbg.pages.places import Selected, chosen
from tdbg.pages.progress import Progress, is_terminal
from tdbg.pages.reader import PageSet
from tdbg.pages.tables import safe

TOLD = 20


class Troubles:
    """Tensors that cannot be read: the first ones are told, all are counted."""

    def __init__(self) -> None:
        self.count = 0

    def tell(self, datapoint: Datapoint, error: Exception) -> None:
        """Say it on stderr."""
        self.count += 1
        if self.count <= TOLD:
            say(safe(f"datapoint {datapoint.key}: {error}"))

    def end(self) -> int:
        """Say how many more there were; the exit code: 2 if there were any."""
        if self.count > TOLD:
            say(f"and {self.count - TOLD} more tensors that cannot be read")
        return 2 if self.count else 0


def progress_of(pages: PageSet, question: Selected, layers: "Layers", doing: str) -> Progress:
    """A bar over all bytes of a selection; where nobody sees it they are not counted."""
    total = 0
    if is_terminal():
        for datapoint in chosen(pages, question):
            pieces = datapoint.layout.pieces if datapoint.layout else ()
            total += sum(piece.length for piece in pieces if layers.fits(piece.path))
    return Progress(doing, total)


class Layers:
    """Which paths are wanted: those of any of the patterns, all if there are none."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._known: dict[str, bool] = {}

    def fits(self, path: str) -> bool:
        """True if it is one of them."""
        if not self._patterns:
            return True
        found = self._known.get(path)
        if found is None:
            found = self._known[path] = any(_fits(path, pattern) for pattern in self._patterns)
        return found


def _fits(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or (path.startswith(pattern) and path[len(pattern)] in "./:")


def by_sample(datapoints: Iterable[Datapoint]) -> Iterator[tuple[Datapoint, list[Tensor]]]:
    """Each datapoint with its tensors. Of a batch that is stored once: the row of each sample, then what is not split."""
    for datapoint in datapoints:
        if datapoint.keys is None:
            yield datapoint, list(datapoint.tensors.values())
            continue
        split = set(datapoint.split)
        for row in datapoint.rows():
            yield row, [tensor for path, tensor in row.tensors.items() if path in split]
        whole = [tensor for path, tensor in datapoint.tensors.items() if path not in split]
        if whole:
            yield datapoint, whole
