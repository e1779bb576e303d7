"""NumPy's own format: a tensor as ``.npy``. Types that numpy lacks become float32."""

from typing import IO

from tdbg.pages.export.exporter import FileExporter, numpy_dtype
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.read.datapoint import Tensor
from tdbg.pages.read.tensor_slices import flat_parts
from tdbg.pages.read.tensor_values import value_shape


@EXPORTERS.add
class NpyExporter(FileExporter):
    """One tensor a file."""

    name = "npy"
    widens = True

    def write_tensor(self, file: IO[bytes], tensor: Tensor) -> None:
        """Write one tensor, 4 MB at a time. Source: numpy.lib.format, version 1.0."""
        from numpy.lib import format

        dtype = numpy_dtype(tensor)
        shape = value_shape(tensor.dtype, tensor.shape)
        header = {"descr": format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        format.write_array_header_1_0(file, header)
        for part in flat_parts(tensor):
            file.write(part.astype(dtype, copy=False).tobytes())
