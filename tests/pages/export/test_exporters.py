"""The registry of exporters: a format is one file in `tdbg.pages.export.exporters`, and nothing else knows of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tdbg.pages.export import exporters
from tdbg.pages.export.exporter import FileExporter
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.export.tensor_export import Export
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.selection.tensor_selection import Picking, TensorSelection
from tests.pages.arrays import write_pages


class ShapeExporter(FileExporter):
    """The shape of a tensor as text."""

    name = "shape"

    def write_tensor(self, file: IO[bytes], tensor: Tensor) -> None:
        """Write one line."""
        file.write(repr(tensor.shape).encode())


@pytest.fixture
def shape_exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    EXPORTERS.load()
    monkeypatch.setattr(EXPORTERS, "_items", dict(EXPORTERS._items))
    EXPORTERS.add(ShapeExporter)
    yield


def test_every_file_registers_the_exporter_of_its_name() -> None:
    files = Path(exporters.__file__).parent.glob("[!_]*.py")
    assert EXPORTERS.names() == sorted(file.stem for file in files) and not EXPORTERS.broken
    assert {"csv", "npy", "npz", "png", "safetensors"} <= set(EXPORTERS.names())
    assert all(exporter.__module__ == f"tdbg.pages.export.exporters.{exporter.name}" for exporter in EXPORTERS)


def test_a_new_exporter_needs_its_class_alone(shape_exporter: None, tmp_path: Path) -> None:
    folder = write_pages(tmp_path / "pages", [(0, {"x": np.zeros((2, 3)), "loss": 0.5}, {})])
    picks = TensorSelection([str(folder)], Picking())
    done = Export(picks, "shape", tmp_path / "out", force=False).write_selection()
    assert (tmp_path / "out/0/x.shape").read_text() == "(2, 3)"
    assert [written.name for written in done.written] == ["x.shape"] and done.figures == 0


def test_a_file_is_named_like_its_format_and_the_help_names_it() -> None:
    from tdbg.cli.inspect_pages.export import HELP

    summary = HELP.partition("\n")[0]
    *names, last = EXPORTERS.names()
    assert summary == f"Write tensors as {', '.join(names)} or {last}."
