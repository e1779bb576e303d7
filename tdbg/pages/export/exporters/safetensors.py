"""One safetensors file with every type unchanged. Source: https://huggingface.co/docs/safetensors."""

import json
from collections.abc import Iterable
from pathlib import Path

from tdbg.core.errors import TdbgError
from tdbg.pages.export.exporter import ArchiveExporter, new_file
from tdbg.pages.export.exporters import EXPORTERS
from tdbg.pages.read.datapoint import Tensor
from tdbg.version import __version__

HEADER_LIMIT = 100_000_000  # bytes that readers take


@EXPORTERS.add
class SafetensorsExporter(ArchiveExporter):
    """All tensors in one file, each with the type it has."""

    name = "safetensors"

    def write_archive(self, path: Path, tensors: Iterable[tuple[str, Tensor]], force: bool) -> None:
        """Write named tensors; the widest elements come first, so that each tensor is aligned to its element's size.

        Types that the format has no name for are written as raw bytes; ``types`` in the metadata holds their names.
        """
        found = sorted(tensors, key=lambda item: -item[1].dtype.size)
        header = _build_header(found)
        if len(header) > HEADER_LIMIT:
            raise TdbgError(f"{len(found):,} tensors are too many for one file", "choose fewer with --keys or --layer")
        with new_file(path, force) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _, tensor in found:
                for data in tensor.chunks(4 << 20):
                    file.write(data)


def _build_header(tensors: list[tuple[str, Tensor]]) -> bytes:
    types = {name: [t.dtype.name, list(t.shape), t.note] for name, t in tensors if t.note or t.dtype.name not in _PLAIN}
    metadata = {"producer": f"tdbg {__version__}"}
    if types:
        metadata["types"] = json.dumps(types, default=str)
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, tensor in tensors:
        shape = list(tensor.dtype.stored_shape(tensor.shape))
        header[name] = {"dtype": tensor.dtype.stored, "shape": shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _list_plain_dtypes() -> frozenset[str]:
    from tdbg.pages.format.dtypes import BY_STORED

    return frozenset(dtype.name for dtype in BY_STORED.values())


_PLAIN = _list_plain_dtypes()
