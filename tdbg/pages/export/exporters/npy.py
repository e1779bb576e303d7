"""NumPy's own files: a tensor as ``.npy``, many as ``.npz``. What numpy has no type for becomes float32."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from tdbg.pages.export.exporters import new_file, numpy_dtype
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import flat_parts
from tdbg.pages.read.tensor_values import value_shape


def write(file: IO[bytes], tensor: Tensor) -> None:
    """One tensor, 4 MB at a time. Source: numpy.lib.format, version 1.0."""
    from numpy.lib import format

    dtype = numpy_dtype(tensor)
    shape = value_shape(tensor.dtype, tensor.shape)
    about = {"descr": format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    format.write_array_header_1_0(file, about)
    for part in flat_parts(tensor):
        file.write(part.astype(dtype, copy=False).tobytes())


def write_npz(path: Path, found: Iterable[tuple[str, Tensor]], force: bool) -> None:
    """Named tensors as one archive, not compressed, as ``numpy.savez`` writes it."""
    with new_file(path, force) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in found:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write(member, tensor)
