"""Statistics by layer and group over a stream of tensors in any order, in bounded memory."""

import math

from tdbg.core.errors import TdbgError
from tdbg.pages.format.dtypes import Dtype
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.selection.iteration import ReadErrors
from tdbg.pages.stats.streaming_stats import StreamingStats, is_plain
from tdbg.pages.stats.value_stats import ValueStats

TOGETHER = 1 << 20  # bytes of small tensors of one layer that are worked out at once
WAITING = 64 << 20  # of all layers
OVERHEAD = 64  # bytes that Python takes for each of them besides
HISTOGRAMS = 64 << 20  # bytes; beyond them all become coarser
CHECKED = 1024  # tensors that are added before the memory of histograms is looked at again
SAMPLE = ("mean", "std", "zero_share", "absmax")


class RunningSpread:
    """Mean and variance of a number that is told sample by sample."""

    __slots__ = ("count", "mean", "square")

    def __init__(self) -> None:
        self.count, self.mean, self.square = 0, 0.0, 0.0

    def add_value(self, value: float | None) -> None:
        """One more; what is unknown does not count."""
        if value is None or not math.isfinite(value):
            return
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.square += off * (value - self.mean)


class GroupStats:
    """samples: figures of single tensors are compared between groups too, so that each is worked out alone."""

    def __init__(self, *, samples: bool = False) -> None:
        self.samples = samples
        self._tallies: dict[str, dict[str, StreamingStats]] = {}
        self._tensors: dict[tuple[str, str], int] = {}
        self._spreads: dict[tuple[str, str], dict[str, RunningSpread]] = {}
        self._small: dict[tuple[str, str, Dtype], list[bytes]] = {}
        self._sizes: dict[tuple[str, str, Dtype], int] = {}
        self._waiting = self._added = self._shift = 0

    def add_tensor(self, group: str, datapoint: Datapoint, tensor: Tensor, troubles: ReadErrors) -> None:
        """Add a tensor; one that cannot be read is told."""
        try:
            if self.samples:
                sample = StreamingStats(bins=False)
                sample.add_tensor(tensor)
                self._add_spreads(group, tensor.path, sample.compute_stats())
            if tensor.nbytes < TOGETHER and is_plain(tensor):
                self._buffer_tensor(group, tensor)
            else:
                tally = StreamingStats()  # of its own: half a tensor does not count
                tally.add_tensor(tensor)
                self._get_tally(group, tensor.path).merge_stats(tally)
        except TdbgError as error:
            troubles.report(datapoint, error)
            return
        self._count_tensor(group, tensor.path)

    def add_figures(self, group: str, path: str, figures: ValueStats) -> None:
        """Add figures that were captured instead of a tensor."""
        self._get_tally(group, path).merge_figures(figures)
        self._count_tensor(group, path)
        if self.samples:
            self._add_spreads(group, path, figures)

    def flush(self) -> None:
        """Work out what waits."""
        for (group, path, dtype), parts in self._small.items():
            if parts:
                self._get_tally(group, path).add_bytes(b"".join(parts), dtype)
        self._small.clear()
        self._sizes.clear()
        self._waiting = 0
        self._bound_memory()

    def list_paths(self) -> list[str]:
        """The layers, in the order of first appearance."""
        return list(self._tallies)

    def list_groups(self) -> list[str]:
        """All groups by name."""
        return sorted({group for groups in self._tallies.values() for group in groups})

    def has_layer(self, path: str, group: str) -> bool:
        """True if the group has such a layer."""
        return group in self._tallies[path]

    def count_tensors(self, path: str, group: str) -> int:
        """How many tensors were read."""
        return self._tensors.get((path, group), 0)

    def compute_stats(self, path: str, group: str) -> ValueStats:
        """Of all values of a layer in a group."""
        tally = self._tallies[path].get(group)
        return tally.compute_stats() if tally else ValueStats(0)

    def measure_separation(self, path: str) -> tuple[float | None, str]:
        """How far the groups are apart in a figure of single samples, and in which: the difference of the outermost
        means in units of the spread within the groups. None where a group has fewer than two samples."""
        best: tuple[float | None, str] = None, ""
        for name in SAMPLE:
            spreads = [
                self._spreads[path, group][name] for group in self._tallies[path] if (path, group) in self._spreads
            ]
            if len(spreads) < 2 or any(spread.count < 2 for spread in spreads):
                continue
            means = [spread.mean for spread in spreads]
            within = sum(spread.square for spread in spreads) / sum(spread.count - 1 for spread in spreads)
            off = max(means) - min(means)
            found = off / math.sqrt(within) if within > 0 else math.inf if off else 0.0
            if best[0] is None or found > best[0]:
                best = found, name
        return best

    def _get_tally(self, group: str, path: str) -> StreamingStats:
        groups = self._tallies.setdefault(path, {})
        found = groups.get(group)
        if found is None:
            found = groups[group] = StreamingStats()
            if found.bins is not None:
                found.bins.shift = self._shift
        return found

    def _count_tensor(self, group: str, path: str) -> None:
        self._tensors[path, group] = self._tensors.get((path, group), 0) + 1
        self._added += 1
        if self._added % CHECKED == 0:
            self._bound_memory()

    def _buffer_tensor(self, group: str, tensor: Tensor) -> None:
        name = group, tensor.path, tensor.dtype
        self._small.setdefault(name, []).append(tensor.read())
        self._tallies.setdefault(tensor.path, {})
        nbytes = tensor.nbytes + OVERHEAD
        size = self._sizes[name] = self._sizes.get(name, 0) + nbytes
        self._waiting += nbytes
        if size >= TOGETHER:
            self._waiting -= size
            self._sizes[name] = 0
            self._get_tally(group, tensor.path).add_bytes(b"".join(self._small.pop(name)), tensor.dtype)
        elif self._waiting >= WAITING:
            self.flush()

    def _add_spreads(self, group: str, path: str, figures: ValueStats) -> None:
        spreads = self._spreads.setdefault((path, group), {name: RunningSpread() for name in SAMPLE})
        for name in SAMPLE:
            spreads[name].add_value(getattr(figures, name))

    def _bound_memory(self) -> None:
        """Make all histograms coarser until they fit."""
        found = [tally.bins for groups in self._tallies.values() for tally in groups.values() if tally.bins is not None]
        while self._shift < 7 and sum(bins.nbytes for bins in found) > HISTOGRAMS:
            self._shift += 1
            for bins in found:
                bins.coarsen(max(self._shift - bins.shift, 0))
