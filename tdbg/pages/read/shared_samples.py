"""Samples that several ranks captured: a sampler that pads its last batches gives them out twice. Standard library alone."""

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from tdbg.pages.read.datapoint import Datapoint

MOST = 1_000_000  # keys that are remembered; of a set with more nothing is said


class Shared:
    """Counts the keys that stand on more than one rank in the same phase and epoch.

    A key that is only the step (``step17``) names no sample, and does not count. Memory: some 150 bytes a key.
    """

    def __init__(self) -> None:
        self._rank: dict[tuple[object, ...], int] = {}  # where a key was met first
        self._shared: set[tuple[object, ...]] = set()

    def add(self, datapoint: "Datapoint") -> None:
        """See one, or each row of one."""
        keys = datapoint.keys
        if keys is None and datapoint.step and datapoint.key in (datapoint.step, f"step{datapoint.step}"):
            return
        where = datapoint.phase, datapoint.epoch
        for key in [datapoint.key] if keys is None else keys:
            if len(self._rank) < MOST and self._rank.setdefault((*where, key), datapoint.rank) != datapoint.rank:
                self._shared.add((*where, key))

    def told(self) -> str:
        """In words; empty where there are none, or too many to know."""
        if not self._shared or len(self._rank) >= MOST:
            return ""
        named = ", ".join(str(name[-1])[:40] for name in list(self._shared)[:3])
        return (
            f"{len(self._shared):,} of {len(self._rank):,} samples were captured on several ranks ({named}"
            f"{', ...' if len(self._shared) > 3 else ''}): a sampler pads, or ranks see the same data"
        )
