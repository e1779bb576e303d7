"""The tensors and datapoints that a command selects, each under a unique name."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tdbg.core.command_spec import Option, Options
from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short
from tdbg.pages.read.page_set import Datapoint, PageSet, Tensor
from tdbg.pages.selection.layer_globs import match_layers, split_words, unknown_layer_error
from tdbg.pages.selection.locations import SELECTION, Selected, open_pages, select_datapoints

PICKING: Options = {
    "layer": Option(("--layer",), "GLOB", "Only tensors whose path matches this glob; repeatable."),
    "keys": Option(("--keys", "--key"), "KEY", "Only datapoints with these keys, such as 17,18; repeatable."),
    **SELECTION,
}


class Picking(Selected):
    """What a command that takes tensors can be asked."""

    layer: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class SelectedTensor(NamedTuple):
    """One tensor that was chosen."""

    datapoint: Datapoint
    tensor: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.tensor.nbytes


class TensorSelection:
    """The chosen datapoints of the pages at a path, and the chosen tensors of each. Nothing is read of tensors."""

    def __init__(self, paths: Sequence[str], question: Picking) -> None:
        self.pages: PageSet = open_pages(paths)
        self.question = question
        self.is_chosen = match_layers(question.layer)
        self.ranks = {source.rank for source in self.pages.sources}

    def iter_datapoints(self) -> Iterator[Datapoint]:
        """In order; those of a key as rows of their batch. Raises TdbgError for a key that is not there."""
        return select_datapoints(self._find_datapoints(), self.question)

    def iter_tensors(self, datapoint: Datapoint) -> Iterator[SelectedTensor]:
        """The chosen tensors of one, in the order they were captured in."""
        return (SelectedTensor(datapoint, tensor) for path, tensor in datapoint.tensors.items() if self.is_chosen(path))

    def iter_all_tensors(self) -> Iterator[SelectedTensor]:
        """The chosen tensors of all."""
        for datapoint in self.iter_datapoints():
            yield from self.iter_tensors(datapoint)

    def build_prefix(self, datapoint: Datapoint) -> tuple[str, ...]:
        """What names a datapoint: its key, and its rank where there are several."""
        rank = (f"rank{datapoint.rank:04d}",) if len(self.ranks) > 1 else ()
        return (*rank, str(datapoint.key))

    def build_empty_error(self) -> TdbgError:
        """The error where no tensor was chosen."""
        if self.question.layer:
            known = dict.fromkeys(path for datapoint in self.iter_datapoints() for path in datapoint.tensors)
            if not any(map(self.is_chosen, known)):
                return unknown_layer_error(self.question.layer, known)
        return TdbgError("no tensor matches the selection", "`tdbg inspect-pages ls` shows what was captured")

    def _find_datapoints(self) -> Iterable[Datapoint]:
        wanted = split_words(self.question.keys)
        if not wanted:
            return self.pages
        return (datapoint for key in wanted for datapoint in self._of_key(key))

    def _of_key(self, key: str) -> list[Datapoint]:
        found = self.pages.find(key)
        if not found:
            raise TdbgError(
                f"no datapoint has the key {format_short(key)}", "`tdbg inspect-pages ls --datapoints` shows the keys"
            )
        return found
