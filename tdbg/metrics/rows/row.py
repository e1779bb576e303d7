"""One row of ``metrics.jsonl``, and its header. Standard library alone: ranks write them."""

from dataclasses import dataclass, field

SCHEMA = 1
MAX_STEP = 2**63 - 1  # a file may claim any number: a larger one is no step
FILE = "metrics.jsonl"
READ_FROM_TEXT = "text"  # the source of numbers that the program printed
COUNT_0 = "count_0_str"  # the text of a phase that names its metrics without a sample
MOST_NAMED = 12  # of them
LEFT_OUT = {  # why rows are not written
    "overhead": "the program logs more often than --max-overhead allows",
    "disk": "the file reached its limit (a quarter of --disk-budget) or could not be written",
    "device": "too many values were still being copied from the device",
    "printed": "lines with results were printed faster than they are read",
}


@dataclass(slots=True, repr=False)
class Row:
    """Values of one moment.

    t: seconds since 1970. step: the program's global step. phase: ``train``, ``val``, ...; None for none. values: key ->
    number. text: key -> words. units: key -> ``pct``, ``frac``, ``ms``, ..., the first time that it is known. source: who
    said so (``tracker``, ``tdbg``, ``wandb``, ``tensorboard``, ``hf``, ``lightning``, ``torchmetrics``, ``metric``, ``text``).
    own_step: the step that the source itself gave or counts, where it has one of its own.
    left_out: why -> how many rows were not written since the row before (see `LEFT_OUT`).
    """

    t: float
    step: int
    epoch: int | float | None = None
    phase: str | None = None
    rank: int = 0
    values: dict[str, float] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    source: str = "tracker"
    own_step: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class Header:
    """What begins a file, and what each later process begins with that appends to it.

    resumed_after: source -> the step of the checkpoint that it went on from. Rows of that source with a later step, which
    earlier attempts wrote, were made again. A source that is not named there made again what is not before its own first
    step in this attempt.
    joins: the process had written a header there before; then sources that are not named there go on as they were.
    """

    run: str = ""
    rank: int = 0
    attempt: int = 0
    t: float = 0.0
    pid: int = 0
    resumed_after: dict[str, int] = field(default_factory=dict)
    joins: bool = False
    schema: int = SCHEMA
