"""What the probe `rank-weights` sees."""

from tdbg.core.events import Number, doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count


class WeightChecksums(Observed):
    """Checksums of a sample of each parameter, as the weights are after ``step``."""

    PROBE = "rank-weights"
    PART = "WEIGHTS"
    EVIDENCE = Evidence.FROM_WEIGHTS

    group: list[int] = doc("ranks that hold the same parameters", factory=list)
    wrapped: bool = doc("the parameters are those of a DistributedDataParallel module", False)
    hybrid: bool = doc("the parameters are shards that FSDP2 keeps on each rank of the group (HSDP)", False)
    replicated: bool | None = doc(
        "true for parameters that another dimension of a device mesh replicates, as tensor parallelism does with norms"
    )
    whole: bool | None = doc(
        "true for parameters of torch's replicate(), which stay whole on each rank; hybrid as well"
    )
    look_part: int | None = doc(
        "index of the part of the parameters that this look reads, of models with more than 256; left out for part 0"
    )
    module: int = doc("number of the module, from 0, where there are several", 0)
    names: list[str] | None = doc("names and shapes of the parameters; given when they change")
    checksums: list[str] = doc("checksum of 64 elements of each", factory=list)
    norms: list[Number | None] = doc("norm of the same elements", factory=list)
    gradients: list[str] | None = doc(
        "checksum of the same elements of each gradient as the next update gets it, empty for a parameter without one; left"
        " out where DDP, FSDP2 or a mesh keeps the parameters equal"
    )

    def text(self) -> str:
        """How many parameters, and of whom."""
        how = "under DDP" if self.wrapped else "under HSDP" if self.hybrid else "without a wrapper"
        how = "under replicate()" if self.whole else how
        how = "replicated on a mesh" if self.replicated else how
        return f"checksums of {format_count(len(self.checksums), 'parameter')} {how}, on {format_count(len(self.group), 'rank')}"
