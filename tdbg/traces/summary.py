"""The summary of a trace: sums and lists of bounded length, never events. Times are whole nanoseconds."""

from dataclasses import dataclass, field

VERSION = 7  # of what is stored beside a trace: another number, and it is made anew


@dataclass(slots=True)
class Step:
    """One step, or the whole trace where it marks none.

    ``bar`` parts its wall-clock time, and adds up to it. ``spent`` are unions of one thing each within it: they
    overlap. Both are by the names of `tdbg.traces.parse.event_names`; ``spent`` also has busy, compute, overlap, wait, and matrix and tensor
    (kernels of matrix products).
    """

    number: int | None
    start: int
    end: int
    bar: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Its wall-clock time."""
        return self.end - self.start


@dataclass(slots=True)
class Operator:
    """Calls of one name with one set of input shapes (JSON; empty where none were recorded)."""

    name: str
    shapes: str = ""
    calls: int = 0
    total: int = 0
    own: int = 0  # without the operators it called
    flops: int = 0  # of all calls, where its shapes tell
    frames: dict[str, int] = field(default_factory=dict)  # line of the program -> calls from there


@dataclass(slots=True)
class Work:
    """Things of one name: kernels, copies, waits, regions, modules. ``kind``: what a kernel does; a copy's direction."""

    name: str
    kind: str = ""
    calls: int = 0
    total: int = 0
    nbytes: int = 0
    short: int = 0  # calls below 10 us


@dataclass(slots=True)
class Memory:
    """One device's memory over time. Bytes; ``device`` is cpu, cuda:0 ..."""

    device: str
    peak: int = 0
    peak_at: int = 0
    reserved: int = 0
    first: int = 0
    last: int = 0
    line: list[tuple[int, int, int]] = field(default_factory=list)  # time; the most and the least from there on
    holders: dict[str, int] = field(default_factory=dict)  # at the peak: who allocated what was alive


@dataclass(slots=True)
class Flame:
    """A tree of calls, a node behind the one that called it: column by column, as there are thousands.

    ``kind``: operators (nested, within the spans around them) or python (lines of the program and modules, with the
    outermost operators that they called). ``parents``: numbers of nodes, -1 for none. ``kinds``: a letter a node, as
    in `tdbg.traces.analyze.call_tree`. ``cut``: calls that found no room; their time is their caller's own.
    """

    kind: str
    names: list[str] = field(default_factory=list)
    which: list[int] = field(default_factory=list)  # the number of its name
    parents: list[int] = field(default_factory=list)
    kinds: str = ""
    calls: list[int] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)
    cut: int = 0


@dataclass(slots=True)
class Device:
    """What ran on accelerators, over the whole trace. Unions of wall-clock time: busy is when any of them is."""

    start: int = 0
    end: int = 0
    busy: int = 0
    compute: int = 0
    communication: int = 0
    overlap: int = 0  # communication while something was computed
    count: int = 1  # accelerators that ran kernels
    busy_of: dict[str, int] = field(default_factory=dict)  # each of several, by its number: when it is itself
    launches: int = 0
    launched: int = 0  # kernels whose launch is known
    delay: int = 0  # from the end of the launching call to the start of the kernel: the median of these
    delay_p90: int = 0
    unlaunched: int = 0  # nothing ran, and what ran next had not been launched yet


@dataclass(slots=True)
class Summary:
    """A whole trace of one rank."""

    path: str = ""
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    events: int = 0
    base_us: int = 0  # the time of the trace that all others here are counted from
    start: int = 0
    end: int = 0
    recorded: list[str] = field(default_factory=list)  # shapes, stacks, memory, modules, flops, device, steps
    devices: list[str] = field(default_factory=list)  # names of accelerators
    matmul_precision: str = ""  # of float32, as torch.get_float32_matmul_precision tells it
    capability: tuple[int, int] | None = None
    device_bytes: int = 0  # memory of one
    steps: list[Step] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    kernels: list[Work] = field(default_factory=list)
    copies: list[Work] = field(default_factory=list)
    waits: list[Work] = field(default_factory=list)
    regions: list[Work] = field(default_factory=list)
    modules: list[Work] = field(default_factory=list)
    updates: list[Work] = field(default_factory=list)  # arithmetic in Optimizer.step; kind: loop, or together
    saves: list[Work] = field(default_factory=list)  # to the disk, by the line of the program; where stacks are
    loads: list[Work] = field(default_factory=list)  # waits for a batch, by the line of the program; where stacks are
    closing_wait: int = 0  # the profiler's own synchronisation at its end: counted nowhere else
    device: Device | None = None
    memory: list[Memory] = field(default_factory=list)
    flames: list[Flame] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def nested(self) -> bool:
        """True if it tells which operator called which."""
        return any(flame.kind == "operators" for flame in self.flames)
