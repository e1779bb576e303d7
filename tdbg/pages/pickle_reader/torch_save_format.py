"""Both formats of ``torch.save``, as far as they hold tensors and their storages.

The older one is a row of five pickles and then the data; the newer one a zip file, nothing in it packed.
Source: ``torch/serialization.py`` (``_legacy_save``, ``_save``), and the zip format's APPNOTE.TXT, sections 4.3 and 4.5.3.
"""

import struct
from typing import NamedTuple

from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.pickle_reader.byte_source import ByteReader, ByteSource, TruncatedError, WindowSource
from tdbg.pages.pickle_reader.parsed_values import Global, Storage
from tdbg.pages.pickle_reader.pickle_machine import PickleMachine
from tdbg.pages.pickle_reader.unpickle import follow_pickle

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
ZIP = b"PK\x03\x04"
HEAD_BYTES = 512  # the pickles of one storage
ENTRIES, DIRECTORY_BYTES = 100_000, 16 << 20
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QUInt8Storage": "quint8",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}
UNTYPED = ("torch.storage", "UntypedStorage")


def read_torch_save(machine: PickleMachine, source: ByteSource) -> object:
    """The value that was saved. Raises TruncatedError or ValueError if these are no such bytes."""
    return _read_zip(machine, source) if source.read_range(0, 4) == ZIP else _read_row(machine, source)


def is_torch_save(start: bytes) -> bool:
    """Whether a file that begins so is one of torch.save's."""
    return start.startswith(ZIP) or b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." in start[:16]


def _read_row(machine: PickleMachine, source: ByteSource) -> object:
    reader = ByteReader(source, block_bytes=HEAD_BYTES)
    storages: dict[str, Storage] = {}

    def persistent_load(found: object) -> Storage:
        if not isinstance(found, tuple) or len(found) != 6 or found[5] is not None:
            raise ValueError("not a torch.save storage")
        wanted = _parse_storage_id(found)
        return storages.setdefault(found[2], wanted)

    if follow_pickle(machine.create_nested(reader)) != MAGIC or follow_pickle(machine.create_nested(reader)) != VERSION:
        raise ValueError("torch.save did not write these bytes")
    about = follow_pickle(machine.create_nested(reader))
    if not isinstance(about, dict) or about.get("little_endian") is not True:
        raise ValueError("it was saved on a machine with another byte order")
    value = follow_pickle(machine.create_nested(reader, persistent_load))
    keys = follow_pickle(machine.create_nested(reader))
    if not isinstance(keys, list):
        raise ValueError("it does not say which storages it holds")
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None or storage.offset is not None:
            raise ValueError("it holds a storage that it does not describe")
        width = DTYPES[storage.dtype].size if storage.dtype else 1
        if reader.read_uint(8) * width != storage.nbytes:
            raise ValueError("a storage has a different size than declared")
        storage.source, storage.offset = source, reader.skip(storage.nbytes)
    return value


def _parse_storage_id(found: tuple[object, ...]) -> Storage:
    """The storage that a persistent id describes; where it lies is not known yet."""
    word, kind, key, _, count = found[:5]
    if word != "storage" or not isinstance(kind, Global) or not isinstance(key, str) or type(count) is not int:
        raise ValueError("not a torch.save storage")
    dtype = STORAGES.get(kind.name, "")
    if (kind.module, kind.name) != UNTYPED and (kind.module != "torch" or not dtype):
        raise ValueError("not a torch.save storage")
    if not 0 <= count < 1 << 62:
        raise ValueError("a storage with an impossible size")
    return Storage(dtype, count * (DTYPES[dtype].size if dtype else 1))


class _Entry(NamedTuple):
    """A file in a zip file: how it is packed, its size, and where its own header is."""

    method: int
    packed: int
    size: int
    offset: int


def _read_zip(machine: PickleMachine, source: ByteSource) -> object:
    entries = _read_directory(source)
    machine.ledger.charge(300 * len(entries))
    roots = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(roots) != 1:
        raise ValueError("a zip file that torch.save did not make")
    folder = roots[0].removesuffix("data.pkl")
    order = entries.get(f"{folder}byteorder")
    if order is not None and _open_entry(source, order).read_range(0, 6) != b"little":
        raise ValueError("it was saved on a machine with another byte order")
    storages: dict[str, Storage] = {}

    def persistent_load(found: object) -> Storage:
        if not isinstance(found, tuple) or len(found) != 5:
            raise ValueError("not a torch.save storage")
        wanted = _parse_storage_id(found)
        key = found[2]
        if key not in storages:
            entry = entries.get(f"{folder}data/{key}")
            if entry is None or entry.size < wanted.nbytes:
                raise ValueError("a storage is missing, or smaller than declared")
            wanted.source, wanted.offset = _open_entry(source, entry), 0
            storages[key] = wanted
        return storages[key]

    return follow_pickle(machine.create_nested(ByteReader(_open_entry(source, entries[roots[0]])), persistent_load))


def _open_entry(source: ByteSource, entry: _Entry) -> WindowSource:
    head = source.read_range(entry.offset, 30)
    if len(head) < 30 or not head.startswith(ZIP) or entry.method or entry.packed != entry.size:
        raise ValueError("a zip file that torch.save did not make")
    name, extra = struct.unpack("<HH", head[26:30])
    begin = entry.offset + 30 + name + extra
    if begin + entry.size > source.size:
        raise TruncatedError("it ends too early")
    return WindowSource(source, begin, entry.size)


def _read_directory(source: ByteSource) -> dict[str, _Entry]:
    """The central directory: name -> entry. ValueError if there is none, or an enormous one."""
    begin = max(0, source.size - 22 - 65535)
    tail = source.read_range(begin, 22 + 65535)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise ValueError("the zip directory at its end is missing")
    count, size, offset = struct.unpack("<HII", tail[at + 10 : at + 20])
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        record = source.read_range(int.from_bytes(tail[at - 12 : at - 4], "little"), 56)
        if len(record) == 56 and record.startswith(b"PK\x06\x06"):
            count, size, offset = struct.unpack("<QQQ", record[32:56])
    if count > ENTRIES or size > DIRECTORY_BYTES:
        raise ValueError("a zip file with too many files")
    return _parse_entries(source.read_range(offset, size))


def _parse_entries(data: bytes) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    at = 0
    while data[at : at + 4] == b"PK\x01\x02" and at + 46 <= len(data):
        method, packed, size, name, extra, comment, offset = struct.unpack("<10xH8xIIHHH8xI", data[at : at + 46])
        end = at + 46 + name
        entry = _apply_zip64_extra(_Entry(method, packed, size, offset), data[end : end + extra])
        found[data[at + 46 : end].decode("utf-8")] = entry
        at = end + extra + comment
    return found


def _apply_zip64_extra(entry: _Entry, extra: bytes) -> _Entry:
    """The entry with the 64-bit numbers of its extra field, for those that do not fit into 32 bits."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack("<HH", extra[at : at + 4])
        if kind == 1:
            body = extra[at + 4 : at + 4 + size]
            numbers = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            narrow = (entry.size, entry.packed, entry.offset)
            real, packed, offset = (next(numbers, n) if n == 0xFFFFFFFF else n for n in narrow)
            return _Entry(entry.method, packed, real, offset)
        at += 4 + size
    return entry
