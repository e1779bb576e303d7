"""What the probe `rank-batches` sees."""

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed


class BatchChecksums(Observed):
    """Checksums of a sample of each tensor that the model is called with in training."""

    PROBE = "rank-batches"
    PART = "BATCH"
    EVIDENCE = Evidence.LOCAL

    group: list[int] = doc("ranks that train the same parameters", factory=list)
    wrapped: bool = doc(
        "the model is inside a DistributedDataParallel module, or sharded by FSDP over all ranks and nothing else",
        False,
    )
    sharded: bool | None = doc("true where FSDP shards the model over all ranks, and no DDP wraps it")
    is_split: bool = doc(
        "the model is sharded otherwise, or the program has groups of fewer ranks than the world", False
    )
    names: list[str] = doc("paths of the tensors", factory=list)
    checksums: list[str] = doc("checksum of 256 elements of each", factory=list)

    def text(self) -> str:
        """Each tensor's checksum."""
        return ", ".join(f"{name} {checksum}" for name, checksum in zip(self.names, self.checksums, strict=False))
