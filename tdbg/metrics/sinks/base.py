"""What every sink is: a name and a few calls, all of which do nothing here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tdbg.metrics.rows.row import Row


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A recorded run, as `MetricSink.open_for_run` gets it; command and flags have their secrets masked.

    folder: the run directory, where a sink may keep files. own_runs: the runs that the program itself has in this sink
    (a folder, a project), the oldest first.
    """

    name: str
    folder: Path
    command: Sequence[str] = ()
    level: str = ""
    flags: Mapping[str, object] = field(default_factory=dict)
    own_runs: Sequence[Mapping[str, Any]] = ()


class SinkDisabled(Exception):
    """Raised by `MetricSink.open_for_run` if the user has switched the sink off: nothing is sent, and nothing failed."""


class MetricSink:
    """Takes rows somewhere. It does not average, does not decide when, and may raise: see `FanOut`.

    every_rank: it is made on each rank, else on rank 0 alone. package: what has to be installed for `open_for_run`; it
    is looked for before the program starts.
    """

    name: ClassVar[str] = ""
    package: ClassVar[str] = ""
    every_rank: bool = False

    @classmethod
    def open_for_run(cls, run: RunDescription) -> "MetricSink":
        """Make the sink that a recorded run is written to: what ``--to NAME`` calls, in a process of its own.

        A sink that overrides this is one that ``--to`` takes. `write`, `add_finding`, `add_report`, `describe_place`
        and `close` follow. Raises SinkDisabled, or anything else if it fails.
        """
        raise NotImplementedError

    @classmethod
    def takes_runs(cls) -> bool:
        """True for a sink that ``--to`` takes."""
        return any("open_for_run" in vars(base) for base in cls.__mro__ if base is not MetricSink)

    def describe_place(self) -> str:
        """Where rows go, for the line that says what was written; called before `close`."""
        return f"the sink {self.name}"

    def place(self, folder: Path) -> None:
        """Take the folder where ``metrics.jsonl`` of this rank lies, for files that nobody named; called before all else."""

    def write(self, row: Row) -> None:
        """Take one row."""

    def config(self, values: Mapping[str, object]) -> None:
        """Take what holds for the whole run; called once, with plain values."""

    def resumed(self, step: int) -> None:
        """The program goes on from a checkpoint of this step: rows of later steps will be made again."""

    def summary(self, values: Mapping[str, object]) -> None:
        """Take the final results."""

    def add_finding(self, finding: Mapping[str, Any]) -> None:
        """Take one finding, with the keys that `tdbg report --json` gives it."""

    def add_report(self, headline: str, markdown: str) -> None:
        """Take the report of the run: its first line, and the whole of it."""

    def flush(self) -> None:
        """Let nothing that was taken be lost if the process is killed now."""

    def close(self) -> None:
        """Flush and let go; may be called twice."""

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint has to bring back, such as the id of a run elsewhere."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over what a checkpoint brought; called before the first row, or not at all."""
