"""The report of a run inside a notebook."""

import html
import io

from tdbg.core.errors import TdbgError
from tdbg.core.rundir import RunDir
from tdbg.launch.metrics_findings import read_verdict
from tdbg.rules.report_page.document import write_page

MAX_HEIGHT = 10_000


class View:
    """The report of a run, shown in a notebook where it is the last value of a cell; no server is started.

    run: a run directory, or nothing for the newest run. height: of the frame, in pixels. The page is the one that
    ``tdbg report --html`` writes, in a frame that may run its own scripts and nothing else. Needs the extra ``html``.
    Raises TdbgError for a run that is not there, and a height that is none.
    """

    def __init__(self, run: str | None = None, *, height: int = 800) -> None:
        if not 1 <= height <= MAX_HEIGHT:
            raise TdbgError(f"the height cannot be {height}", f"choose 1 to {MAX_HEIGHT} pixels")
        self.run, self.height = RunDir.open(run), int(height)

    def build_page(self) -> str:
        """The whole page as HTML, drawn now: a run that goes on looks different the next time."""
        verdict = read_verdict(self.run)
        page = io.BytesIO()
        write_page(page, self.run, verdict)
        return page.getvalue().decode()

    def _repr_html_(self) -> str:
        """The page in a frame, for IPython."""
        page, name = html.escape(self.build_page()), html.escape(self.run.path.name)
        return (
            f'<iframe title="tdbg: {name}" sandbox="allow-scripts" width="100%" height="{self.height}"'
            f' style="border: 0" srcdoc="{page}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"View({str(self.run.path)!r})"
