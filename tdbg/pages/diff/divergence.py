"""The divergence of two captures: the first tensor in execution order that differs, and the largest differences."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.pages.diff.alignment import Alignment, TensorForm, align_tensors
from tdbg.pages.diff.datapoint_pairs import CaptureSide, DatapointPairs, Entry
from tdbg.pages.diff.tensor_distance import Distance, compare_scalars, compare_tensors
from tdbg.pages.progress_bar import Progress

SCALARS_LAST = 1 << 40  # a figure stands behind all tensors of its datapoint


class TensorDifference(NamedTuple):
    """Two tensors that differ. place: when A captured it, and which of its datapoint's tensors it is."""

    place: tuple[int, ...]
    a: Entry
    b: Entry
    path: str
    path_b: str
    form: str
    gap: Distance


class PathDifferences:
    """What was found of one path. compared, differing: datapoints. worst: the finding of the largest error."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.compared = self.differing = 0
        self.first: TensorDifference | None = None
        self.worst: TensorDifference | None = None

    def add_gap(self, finding: TensorDifference) -> None:
        """Count one that differs."""
        self.differing += 1
        if self.first is None or finding.place < self.first.place:
            self.first = finding
        if self.worst is None or _difference_sort_key(finding) > _difference_sort_key(self.worst):
            self.worst = finding


def _difference_sort_key(finding: TensorDifference) -> tuple[float, float, tuple[int, ...]]:
    """Larger is worse; of equals the earlier."""
    return finding.gap.error, finding.gap.apart, tuple(-at for at in finding.place)


class Divergence:
    """Compares two sides. chosen: which paths. allowed: a tolerance instead of those of the types.

    first: the first finding. paths: what was found, by path of A. only_a, only_b: how many datapoints have a path that
    the other side's do not. renamed: pairs of names that belong together. alone_a, alone_b: datapoints without a partner.
    unreadable: why tensors could not be compared, and how many.
    """

    def __init__(
        self, a: CaptureSide, b: CaptureSide, chosen: Callable[[str], bool], allowed: float | None = None
    ) -> None:
        self.a, self.b, self._chosen, self._allowed = a, b, chosen, allowed
        self.first: TensorDifference | None = None
        self.paths: dict[str, PathDifferences] = {}
        self.only_a: dict[str, int] = {}
        self.only_b: dict[str, int] = {}
        self.renamed: dict[tuple[str, str], int] = {}
        self.dtypes: dict[tuple[str, str, str], int] = {}
        self.alone_a: list[Entry] = []
        self.alone_b: list[Entry] = []
        self.unreadable: dict[str, int] = {}
        self.datapoints = self.tensors = self.differing_datapoints = self.differing_tensors = 0
        self._alignments: dict[object, Alignment] = {}

    @property
    def differs(self) -> bool:
        """True if values differ, datapoints are missing, or something could not be compared."""
        return bool(self.first or self.alone_a or self.alone_b or self.unreadable)

    def compare_captures(self) -> "Divergence":
        """Compare all. Memory: a few MB, and what waits for its partner."""
        with Progress("comparing") as progress:
            pairs = DatapointPairs(self.a, self.b)
            for one, other in pairs:
                self._compare_datapoints(one, other, whole=True)
                progress.advance(one.datapoint.nbytes + other.datapoint.nbytes)
            self.alone_a, self.alone_b = pairs.only_a, pairs.only_b
            if any(entry.datapoint.keys for entry in (*self.alone_a, *self.alone_b)) and not self.a.order:
                self._compare_rows(progress)
        return self

    def _compare_rows(self, progress: Progress) -> None:
        pairs = DatapointPairs(self.a.iter_row_entries(self.alone_a), self.b.iter_row_entries(self.alone_b))
        for one, other in pairs:
            self._compare_datapoints(one, other, whole=False)
            progress.advance(one.datapoint.nbytes + other.datapoint.nbytes)
        self.alone_a, self.alone_b = pairs.only_a, pairs.only_b

    def _compare_datapoints(self, one: Entry, other: Entry, *, whole: bool) -> None:
        before = self.differing_tensors
        try:
            self._compare_tensors(one, other, whole)
        except TdbgError as error:
            _count_names(self.unreadable, [str(error)])
        self._compare_scalars(one, other)
        self.datapoints += 1
        self.differing_datapoints += self.differing_tensors > before

    def _compare_tensors(self, one: Entry, other: Entry, whole: bool) -> None:
        a, b = ({p: t for p, t in side.select_tensors(whole).items() if self._chosen(p)} for side in (one, other))
        list_a, list_b = list(a.values()), list(b.values())
        found = self._align_cached(list_a, list_b)
        _count_names(self.only_a, (list_a[at].path for at in found.only_a))
        _count_names(self.only_b, (list_b[at].path for at in found.only_b))
        for i, j in found.pairs:
            left, right = list_a[i], list_b[j]
            if left.path != right.path:
                _count_names(self.renamed, [(left.path, right.path)])
            if left.dtype != right.dtype:
                _count_names(self.dtypes, [(left.path, left.dtype.name, right.dtype.name)])
            self.tensors += 1
            place, form = (*one.place, i), f"{left.dtype.name}{list(left.shape)}"
            try:
                gap = compare_tensors(left, right, self._allowed)
            except TdbgError as error:
                _count_names(self.unreadable, [str(error)])
                continue
            self._add_difference(TensorDifference(place, one, other, left.path, right.path, form, gap))

    def _align_cached(self, a: list[Any], b: list[Any]) -> Alignment:
        forms = tuple(tuple(TensorForm(t.path, t.dtype.name, t.shape) for t in side) for side in (a, b))
        if forms not in self._alignments:
            if len(self._alignments) > 64:
                self._alignments.clear()
            self._alignments[forms] = align_tensors(*forms)
        return self._alignments[forms]

    def _compare_scalars(self, one: Entry, other: Entry) -> None:
        a, b = one.datapoint.scalars, other.datapoint.scalars
        for at, (path, value) in enumerate(a.items()):
            if not self._chosen(path):
                continue
            if path not in b:
                _count_names(self.only_a, [path])
                continue
            gap = compare_scalars(value, b[path], self._allowed)
            self._add_difference(
                TensorDifference((*one.place, SCALARS_LAST + at), one, other, path, path, type(value).__name__, gap)
            )
        _count_names(self.only_b, (path for path in b if path not in a and self._chosen(path)))

    def _add_difference(self, finding: TensorDifference) -> None:
        about = self.paths.setdefault(finding.path, PathDifferences(finding.path))
        about.compared += 1
        if not finding.gap.differs:
            return
        self.differing_tensors += 1
        about.add_gap(finding)
        if self.first is None or finding.place < self.first.place:
            self.first = finding

    def list_worst(self, count: int) -> list[TensorDifference]:
        """The largest error of each path that differs, the largest first."""
        found = [about.worst for about in self.paths.values() if about.worst]
        return sorted(found, key=_difference_sort_key, reverse=True)[:count]


def _count_names(into: dict[Any, int], names: Iterable[object]) -> None:
    for name in names:
        into[name] = into.get(name, 0) + 1
