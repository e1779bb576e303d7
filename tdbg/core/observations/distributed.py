"""What the probe `distributed` sees."""

from typing import Any, NotRequired, TypedDict

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count
from tdbg.core.tables import format_size as bytes_in_words


class FunctionFigures(TypedDict):
    """What one function did in a step, or in the run."""

    op: str
    calls: int
    bytes: int
    ms: float


class GroupOrder(TypedDict):
    """The calls on one group, as checksums of every few of them."""

    group: str
    size: int
    since: int
    ranks: NotRequired[list[int]]
    marks: list[list[Any]]  # [first call, last call, crc32, first step, last step]
    chunks: dict[str, list[list[Any]]]  # crc32 -> [[call, times]]


class _OfGroups(Observed):
    """Calls that were seen as they were made."""

    PROBE = "distributed"
    EVIDENCE = Evidence.LOCATED


class ProcessGroupMade(_OfGroups):
    """The world's process group is there."""

    PART = "INIT"
    ALWAYS = ("timeout_s",)
    LEVEL = "I"

    backend: str = doc("the backend of the world's group", "")
    world_size: int = doc("number of ranks", 1)
    rank: int = doc("this rank", 0)
    seconds: float = doc("duration of the call", 0.0)
    timeout_s: float | None = doc("timeout of collectives, if known")
    late: bool | None = doc("true if the group existed before tdbg started to watch")

    def text(self) -> str:
        """Backend, rank, time and timeout."""
        text = f"{self.backend}, rank {self.rank} of {self.world_size}, in {self.seconds:.3f} s"
        text += f", timeout {self.timeout_s:g} s" if self.timeout_s is not None else ""
        return text + (" (created before tdbg started to watch)" if self.late else "")


class ProcessGroupDestroyed(_OfGroups):
    """The world's process group is gone."""

    PART = "DESTROY"
    LEVEL = "I"

    seconds: float = doc("duration of the call", 0.0)
    calls: int = doc("collectives in the whole run", 0)
    bytes: int = doc("bytes that this rank passed to them", 0)
    ms: float = doc("host time inside them", 0.0)
    ops: list[FunctionFigures] = doc(
        "per function, the slowest first: op, calls, bytes, ms; at most eight", factory=list
    )

    def text(self) -> str:
        """The sum of all calls."""
        spent = f"{bytes_in_words(self.bytes)}, {self.ms / 1e3:.3f} s in all"
        return f"in {self.seconds:.3f} s; {format_count(self.calls, 'collective')}, {spent}"


class CollectiveFailed(_OfGroups):
    """A collective that raised: a timeout, a lost peer, a wrong argument."""

    PART = "FAILED"
    LEVEL = "E"

    op: str = doc("the function", "")
    seconds: float = doc("how long it ran", 0.0)
    error: str = doc("the exception", "")

    def text(self) -> str:
        """Which one, after how long, and why."""
        return f"{self.op} failed after {self.seconds:.1f} s: {self.error}"


class CallOrder(_OfGroups):
    """Which collectives this rank has called on each group, to be compared with the other ranks."""

    PART = "ORDER"

    groups: list[GroupOrder] = doc(
        "per group: group, size, ranks (if not the world), since (0, or the step that counting began at), marks"
        " ([first call, last call, crc32, their steps] of each chunk), chunks (crc32 -> [[call, times]])",
        factory=list,
    )

    numbers: tuple[str, ...] = ()  # how many calls on which group: for the line alone

    def text(self) -> str:
        """How many calls on each group."""
        return f"calls so far: {', '.join(self.numbers)}"


class StepCollectives(_OfGroups):
    """The collectives of a step, and what DistributedDataParallel says of itself."""

    PART = "STEP"
    EVIDENCE = Evidence.LOCAL

    calls: int = doc("collectives that returned in the step", 0)
    bytes: int = doc("bytes that this rank passed to them", 0)
    ms: float = doc("host time inside them", 0.0)
    ops: list[FunctionFigures] = doc(
        "per function, the slowest first: op, calls, bytes, ms; at most eight", factory=list
    )
    longest: str = doc("the function of the longest call", "")
    longest_ms: float = doc("duration of the longest call", 0.0)
    ddp_buckets: int | None = doc("number of gradient buckets of the DistributedDataParallel models")
    ddp_bytes: int | None = doc("total size of the gradients in these buckets")
    ddp_comm_ms: float | None = doc("mean time of the all-reduces of these buckets")
    ddp_overlap_ms: float | None = doc("the part of that time that overlapped with backward")

    def text(self) -> str:
        """Calls, bytes and time; the longest call; DDP's buckets."""
        text = f"{format_count(self.calls, 'collective')}, {bytes_in_words(self.bytes)}, {self.ms:.3f} ms"
        text += f", the longest {self.longest} {self.longest_ms:.3f} ms" if self.ops else ""
        if self.ddp_buckets is None:
            return text
        took = f", {self.ddp_comm_ms} ms a step on average" if self.ddp_comm_ms is not None else ""
        return f"{text}; DDP: {format_count(self.ddp_buckets, 'bucket')}, {bytes_in_words(self.ddp_bytes or 0)}{took}"


class QuietRank(_OfGroups):
    """Nothing has happened on this rank for a while."""

    PART = "QUIET"
    LEVEL = "W"

    state: str = doc(
        "collective, wait (for an asynchronous one), backward (of a DistributedDataParallel model), "
        "device (the host may wait for the accelerator), init or elsewhere",
        "",
    )
    op: str = doc("the function that is running, if any", "")
    began_t: float | None = doc("when it began, wall clock, seconds since 1970")
    group: str | None = doc("process group of that function")
    size: int | None = doc("ranks of that group")
    ranks: list[int] | None = doc("the ranks of that group, if it is not the world; at most 64")
    rank_ranges: str | None = doc(
        "all ranks of that group where they are more, such as 0-63,128-1016:8 (first-last:step)"
    )
    shapes: list[str] | None = doc("shape and type of each tensor that the function was called with, at most eight")
    number: int | None = doc(
        "number of the call on the group, from 1, where all ranks count from the group's beginning"
    )
    counts: dict[str, int] | None = doc("number of calls begun on each group, counted likewise; at most eight groups")
    quiet_s: float = doc("time without any progress", 0.0)
    where: str = doc("the program's own line that the training thread is at", "")
    activity: str = doc(
        "what the training thread does outside of collectives: sleep, lock, loader, checkpoint, compile, import, "
        "network, command, debugger, compute (its stack moves or it uses the CPU) or still (neither)",
        "",
    )
    alike: int | None = doc("earlier calls of that function with tensors of the same sizes, as far as torch keeps them")
    limit_s: float | None = doc("seconds without progress after which it is reported without the flag DISTRIBUTED")
    alive_s: float | None = doc("seconds without a training step after which a rank gives a sign of life; None: never")
    stacks: str | None = doc("the file with the stacks of all threads")
    flight: str | None = doc("the file with the flight recorder's last entries, where torch keeps one")

    @property
    def written_files(self) -> list[str]:
        """What was written beside it."""
        return [file for file in (self.stacks, self.flight) if file]

    def text(self) -> str:
        """For how long, in what, and where."""
        doing = {
            "collective": f"in {self.op}",
            "init": "in init_process_group",
            "wait": f"waiting for {self.op}",
            "backward": "in a backward pass that reduces gradients over the ranks",
            "device": "no collective and no finished step, perhaps waiting for the device",
            "elsewhere": "no collective is running and no step has finished",
        }.get(self.state, self.state)
        place = f" (call {self.number} on {self.group})" if self.group and self.number else ""
        files = f"; stacks: {self.stacks}" if self.stacks else ""
        activity = f" ({self.activity})" if self.activity and self.state == "elsewhere" else ""
        return f"no progress for {self.quiet_s:.1f} s: {doing}{place}, at {self.where}{activity}{files}"


class RankResumed(_OfGroups):
    """A rank that was quiet goes on."""

    PART = "RESUMED"
    LEVEL = "W"

    op: str = doc("the function that was running, if any", "")
    began_t: float | None = doc("when it began, wall clock, seconds since 1970")
    quiet_s: float = doc("time without any progress before", 0.0)

    def text(self) -> str:
        """After how long, and of what."""
        return f"resumed after {self.quiet_s:.1f} s" + (f" of {self.op}" if self.op else "")
