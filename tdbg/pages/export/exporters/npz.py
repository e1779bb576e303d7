"""An archive of NumPy's own format: named tensors as one ``.npz``. Types that numpy lacks become float32."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

from tdbg.pages.export.exporter import ArchiveExporter, new_file
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.export.exporters.npy import NpyExporter
from tdbg.pages.read.datapoint import Tensor


@EXPORTERS.add
class NpzExporter(ArchiveExporter):
    """All tensors in one archive, not compressed, as ``numpy.savez`` writes it."""

    name = "npz"
    widens = True

    def write_archive(self, path: Path, tensors: Iterable[tuple[str, Tensor]], force: bool) -> None:
        """Write a member for each tensor, 4 MB at a time."""
        npy = NpyExporter()
        with new_file(path, force) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, tensor in tensors:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_tensor(member, tensor)
