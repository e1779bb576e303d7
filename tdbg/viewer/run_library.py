"""The runs that are served: one, or those of a folder. Nothing outside of them is reachable by any name."""

from dataclasses import dataclass, field
from pathlib import Path

from tdbg.core.rundir import RUNS, STATE_FILE, RunDir
from tdbg.launch.run_list import list_run_paths
from tdbg.viewer.datapoint_tables import DatapointTables
from tdbg.viewer.drawings import Drawings
from tdbg.viewer.routes import NotFoundError
from tdbg.viewer.sessions import Sessions
from tdbg.viewer.trace_indexes import TraceIndexes


@dataclass(slots=True)
class Served:
    """What the handlers of routes are given. control: they may act on a run."""

    runs: "RunLibrary"
    sessions: Sessions
    control: bool = False
    drawings: Drawings = field(default_factory=Drawings)
    tables: DatapointTables = field(default_factory=DatapointTables)
    traces: TraceIndexes = field(default_factory=TraceIndexes)


class UnknownRunError(NotFoundError):
    """A name that no served run has."""


class RunLibrary:
    """The runs by their names, which are those of their folders.

    where: a run directory, a folder of run directories, or None for those under ./tdbg_runs. Raises TdbgError where
    there is neither.
    """

    def __init__(self, where: str | None) -> None:
        self.only: RunDir | None = None
        folder = Path(RUNS if where is None else where)
        if (where is None or folder.is_dir()) and not (folder / STATE_FILE).exists():
            self.folder = folder
            if where is not None and not self.list_names():
                self.only = RunDir.open(where)
        else:
            self.only = RunDir.open(where)
        if self.only is not None:
            self.only = RunDir(self.only.path.absolute().resolve())  # `.` has no name
            self.folder = self.only.path.parent

    def list_names(self) -> list[str]:
        """Names of the runs, the newest first."""
        if self.only is not None:
            return [self.only.path.name]
        return [path.name for path in list_run_paths(self.folder)]

    def open_run(self, name: str) -> RunDir:
        """The run of that name; UnknownRunError if none of those served has it."""
        if name not in self.list_names():
            raise UnknownRunError("there is no run of that name here", "the list of runs has their names")
        return RunDir(self.folder / name)

    @property
    def label(self) -> str:
        """Where the runs are, for people."""
        return self.folder.name

    def locate_pages(self, name: str) -> str:
        """Where the captured tensors of a run are: its folder, or a URL."""
        return str(self.open_run(name).path)

    def restore_paths(self, answer: bytes) -> bytes:
        """JSON with the URLs of runs instead of the paths of their temporary copies; runs on this machine have none."""
        return answer

    def close(self) -> None:
        """Remove temporary copies; runs on this machine have none."""

    def open_newest(self, name: str = "") -> RunDir:
        """The run of that name; without a name the newest."""
        names = self.list_names()
        if not names:
            raise UnknownRunError("there is no run here yet", "start one with `tdbg run`")
        return self.open_run(name or names[0])
