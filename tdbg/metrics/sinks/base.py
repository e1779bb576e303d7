"""What every sink is: a name and a few calls, all of which do nothing here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tdbg.metrics.rows.row import Row


class MetricSink:
    """Takes rows somewhere. It does not average, does not decide when, and may raise: see `FanOut`.

    every_rank: it is made on each rank, else on rank 0 alone.
    """

    name: ClassVar[str] = ""
    every_rank: bool = False

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
