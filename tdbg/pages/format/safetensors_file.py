"""Write tensors as a plain safetensors file, with the standard library and torch alone.

Source: the format's page, https://huggingface.co/docs/safetensors (an 8-byte little-endian header
length, a JSON header, then the bytes).
"""

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tdbg.core import run_files
from tdbg.core.guard import undo_on_error

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
}


def is_storable(tensor: "Tensor") -> bool:
    """True if the format has a name for the dtype and the tensor holds plain, dense data."""
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    return name in DTYPES and not tensor.is_meta and not tensor.is_quantized and tensor.layout is torch.strided


def write_safetensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> int:
    """Write ``tensors`` to ``path`` through a temporary file beside it; returns the bytes written.

    Tensors are copied to the host one at a time. Raises OSError when the disk refuses.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(f".{path.name}.part")
    with undo_on_error(lambda: part.unlink(missing_ok=True)):
        with run_files.open_new(part) as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for tensor in tensors.values():
                _write_data(file, tensor)
        run_files.rename_file(part, path)
    return 8 + len(text) + offset


def _write_data(file: IO[bytes], tensor: "Tensor") -> None:
    data = tensor.detach().to("cpu").contiguous()
    size = data.numel() * data.element_size()
    if size:
        file.write((ctypes.c_char * size).from_address(data.data_ptr()))  # no numpy in a rank
