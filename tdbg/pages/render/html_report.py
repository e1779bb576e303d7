"""Captured tensors as one HTML file with its data as JSON; it needs no network and no server.

Everything that comes from a file is JSON in which no ``<`` stands, and reaches the page as text, never as markup. The
page may load nothing and run only the one script whose hash it names.
"""

import html
from importlib import resources
from typing import IO, NamedTuple

from tdbg.core.tables import format_count
from tdbg.core.webpage import as_json, content_hash, fill_template
from tdbg.pages.progress_bar import Progress
from tdbg.pages.read.datapoint import Datapoint, Tensor
from tdbg.pages.read.tensor_values import format_value
from tdbg.pages.render.preview import wanted_bytes
from tdbg.pages.render.tensor_picture import describe_tensor_picture, truncate_text
from tdbg.pages.selection.tensor_selection import TensorSelection
from tdbg.pages.selection.token_lists import token_lists

SCALARS = 1000  # of a datapoint


class Report(NamedTuple):
    """What a page holds. shrunk: tensors of which not all is shown; without: those with figures alone."""

    datapoints: int
    left_out: int
    tensors: int
    shrunk: int
    without: int
    unreadable: int


class Document:
    """The page of the chosen datapoints. limit: of datapoints. total_bytes: of previews, before they become text."""

    def __init__(self, picks: TensorSelection, title: str, limit: int, total_bytes: int) -> None:
        self.picks, self.title, self.total_bytes = picks, title, total_bytes
        self.chosen: list[Datapoint] = []
        self.left_out = 0
        for datapoint in picks.iter_datapoints():
            if len(self.chosen) < limit:
                self.chosen.append(datapoint)
            else:
                self.left_out += 1
        self.budget = self._compute_preview_budget()
        self.shrunk = self.without = self.unreadable = self.tensors = 0

    @property
    def is_empty(self) -> bool:
        """True if no tensor and no figure was chosen."""
        return not any(
            any(self.picks.is_chosen(path) for path in (*datapoint.tensors, *datapoint.scalars))
            for datapoint in self.chosen
        )

    def _compute_preview_budget(self) -> int:
        """Bytes of one preview, so that all of them fit: what is smaller leaves its rest to the others."""
        sizes = sorted(
            wanted_bytes(pick.tensor) for datapoint in self.chosen for pick in self.picks.iter_tensors(datapoint)
        )
        left = self.total_bytes
        for place, wanted in enumerate(sizes):
            share = left // (len(sizes) - place)
            if wanted > share:
                return share
            left -= wanted
        return self.total_bytes

    def write_html(self, file: IO[bytes]) -> Report:
        """Write the page, datapoint by datapoint. Memory: that of one. Raises OSError."""
        style, page = _read_template("page.css"), _read_template("page.html")
        script = _read_template("tensor.js") + _read_template("page.js")
        hashes = {"script_hash": content_hash(script), "style_hash": content_hash(style)}
        before, _, after = page.partition("{data}")
        names = {"title": html.escape(self.title), "style": style, "script": script, **hashes}
        file.write(fill_template(before, names).encode("utf-8", "backslashreplace"))
        file.write(b'{"datapoints":[')
        total = sum(pick.nbytes for datapoint in self.chosen for pick in self.picks.iter_tensors(datapoint))
        with Progress("drawing", total) as progress:
            for number, datapoint in enumerate(self.chosen):
                file.write((b",\n" if number else b"\n") + as_json(self._build_datapoint(datapoint, progress)))
        report = self._build_report()
        file.write(b'\n],"summary":' + as_json(_format_summary(report)) + b"}")
        file.write(fill_template(after, names).encode())
        return report

    def _build_report(self) -> Report:
        return Report(len(self.chosen), self.left_out, self.tensors, self.shrunk, self.without, self.unreadable)

    def _build_datapoint(self, datapoint: Datapoint, progress: Progress) -> dict[str, object]:
        tensors = []
        for pick in self.picks.iter_tensors(datapoint):
            self.tensors += 1
            tensors.append(self._build_tensor(pick.tensor))
            progress.advance(pick.nbytes)
        scalars = [(path, value) for path, value in datapoint.scalars.items() if self.picks.is_chosen(path)]
        about = {name: getattr(datapoint, name) for name in ("rank", "step", "epoch", "phase")}
        return {
            "key": truncate_text(datapoint.key),
            **about,
            "scalars": [
                [truncate_text(path), truncate_text(_format_scalar(value))] for path, value in scalars[:SCALARS]
            ],
            "scalars_left_out": max(len(scalars) - SCALARS, 0),
            "tokens": [{"path": truncate_text(path), "words": words} for path, words in token_lists(datapoint)],
            "tensors": tensors,
        }

    def _build_tensor(self, tensor: Tensor) -> dict[str, object]:
        found = describe_tensor_picture(tensor, min(self.budget, wanted_bytes(tensor)))
        self.unreadable += "error" in found
        self.without += "why" in found
        preview = found.get("preview")
        self.shrunk += isinstance(preview, dict) and preview["shape"] != preview["whole"]
        return found


def _format_summary(report: Report) -> str:
    said = [format_count(report.datapoints, "datapoint"), format_count(report.tensors, "tensor")]
    if report.left_out:
        said.append(f"{format_count(report.left_out, 'datapoint')} left out")
    if report.shrunk:
        said.append(f"{format_count(report.shrunk, 'tensor')} shown in part or as means")
    if report.without:
        said.append(f"{format_count(report.without, 'tensor')} with statistics only")
    return ", ".join(said)


def _format_scalar(value: object) -> str:
    return format_value(value) if isinstance(value, int | float | complex) else str(value)


def _read_template(name: str) -> str:
    return resources.files("tdbg.pages").joinpath("web", name).read_text(encoding="utf-8")
