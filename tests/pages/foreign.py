"""Pages as other tools write them, and hostile ones, for the tests of the reader that runs nothing."""

import copyreg
import ctypes
import io
import os
import pickle
import struct
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

from tdbg.pages.pickle_reader.allowed_globals import RULES
from tdbg.pages.pickle_reader.byte_source import ByteReader, MemorySource
from tdbg.pages.pickle_reader.datapoint_tree import TreeBuilder
from tdbg.pages.pickle_reader.pickle_machine import PickleMachine
from tdbg.pages.pickle_reader.read_budget import ReadBudget
from tdbg.pages.pickle_reader.unpickle import follow_pickle

Point = namedtuple("Point", "x y")


def read_pickle(data: bytes, **limits: Any) -> tuple[Any, ReadBudget]:
    """The plain tree of a pickle, and what it cost."""
    ledger = ReadBudget(**limits)
    found = follow_pickle(PickleMachine(ByteReader(MemorySource(data)), RULES, ledger))
    return TreeBuilder(ledger.record_refused).build_tree(found), ledger


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's values, C-contiguous, whatever its dtype."""
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    size = whole.untyped_storage().nbytes() if whole.is_quantized else whole.numel() * whole.element_size()
    if not size:
        return b""
    return bytes((ctypes.c_char * size).from_address(whole.data_ptr()))


def dump_joblib(value: Any, **options: Any) -> bytes:
    """What joblib.dump writes."""
    file = io.BytesIO()
    joblib.dump(value, file, **options)
    return file.getvalue()


def save_torch(value: Any, new: bool) -> bytes:
    """What torch.save writes, in either of its formats."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=new)
    return file.getvalue()


def make_page(count: int = 3, first: int = 0, size: int = 3000) -> dict[int, Any]:
    """A page of datapoints, large enough that some of it is not kept in memory."""
    generator = torch.Generator().manual_seed(first)
    return {
        idx: {
            "FeatureMap": {
                "feature_map": torch.randn(1, 3, size // 10, generator=generator),
                "stats": {"mean": 0.5 + idx, "shape": (1, 3, size // 10)},
                "layer_name": f"layer{idx}",
            },
            "Numpy": np.arange(size, dtype=np.float32) + idx,
            "Logits": torch.randn(4, generator=generator),
        }
        for idx in range(first, first + count)
    }


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    **{
        str(dtype).removeprefix("torch."): lambda dtype=dtype: (torch.arange(5000) % 7).to(dtype).reshape(50, 100)
        for dtype in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
            *(torch.bool, torch.complex64, torch.complex128, torch.complex32),
            *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
            *([torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []),  # torch 2.6 has none
        )
    },
    "fp4": lambda: torch.arange(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "small": lambda: torch.arange(3.0),
    "scalar": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0, 3),
    "no_columns": lambda: torch.empty(5, 0, dtype=torch.int64),
    "transposed": lambda: torch.arange(12000.0).reshape(30, 400).T,
    "small_transposed": lambda: torch.arange(12.0).reshape(3, 4).T,
    "sliced": lambda: torch.arange(100_000.0).reshape(100, 1000)[3:90:7, 5:900:3],
    "row_of_a_large_one": lambda: torch.arange(1 << 20, dtype=torch.int32)[5000:5010],
    "column_of_a_large_one": lambda: torch.arange(1 << 20, dtype=torch.int32).reshape(1024, 1024)[:, 17],
    "expanded": lambda: torch.arange(50.0).expand(100, 50),
    "permuted": lambda: torch.arange(24000).reshape(2, 30, 400).permute(2, 0, 1),
    "channels_last": lambda: torch.randn(2, 3, 20, 20).to(memory_format=torch.channels_last),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 4j, complex(0, -0.0)]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "parameter": lambda: torch.nn.Parameter(torch.randn(40, 50)),
    "buffer": lambda: torch.nn.Buffer(torch.randn(4)),
    "needs_gradient": lambda: torch.randn(3, requires_grad=True),
}


def make_new_zip(count: int, data: bytes, packed: bool = False, order: bytes = b"little") -> bytes:
    """The bytes of torch.save's newer format, of one storage of floats, put together by hand."""
    storage = b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
    storage += b"\x8a\x08" + struct.pack("<q", count) + b"tQ."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", storage)
        archive.writestr("a/byteorder", order)
        archive.writestr("a/data/0", data, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)
    return file.getvalue()


def make_old_row(
    key: str, kind: str, count: int, data: bytes, numel: int | None = None, little_endian: bool = True
) -> bytes:
    """The bytes of torch.save's older format, of one storage, put together by hand."""
    head = (
        pickle.dumps(0x1950A86A20F9469CFC6C, 2)
        + pickle.dumps(1001, 2)
        + pickle.dumps({"little_endian": little_endian}, 2)
    )
    module, _, name = kind.rpartition(".")
    storage = b"\x80\x02(X\x07\x00\x00\x00storagec" + module.encode() + b"\n" + name.encode() + b"\n"
    storage += b"X" + struct.pack("<I", len(key)) + key.encode() + b"X\x03\x00\x00\x00cpu"
    storage += b"\x8b\x08\x00\x00\x00" + struct.pack("<q", count) + b"NtQ."
    return head + storage + pickle.dumps([key], 2) + struct.pack("<q", count if numel is None else numel) + data


def make_call_pickle(module: str, name: str, *arguments: Any) -> bytes:
    """A pickle, protocol 2, that calls a name."""
    inner = pickle.dumps(arguments, 2)[2:-1]
    return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n" + inner + b"R."


def make_tensor_pickle(payload: bytes, offset: Any = 0, size: Any = (1,), stride: Any = (1,)) -> bytes:
    """A pickle, protocol 3, of a tensor whose memory is in these bytes."""
    memory = b"ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(payload)) + payload + b"\x85R"
    layout = b"".join(pickle.dumps(part, 3)[2:-1] for part in (offset, size, stride))
    return b"\x80\x03ctorch._utils\n_rebuild_tensor_v2\n(" + memory + layout + b"\x89ccollections\nOrderedDict\n)RtR."


class Runs:
    """Unpickled by the real thing, it makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


class State:
    """Its __setstate__ makes a file."""

    def __setstate__(self, state: Any) -> None:
        Path(state).touch()

    def __getstate__(self) -> Any:
        return self.canary

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)


class Hashed:
    """Its hash makes a file, once it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> Any:
        return Hashed, (self.canary,), {"unpickled": True}

    def __hash__(self) -> int:
        if hasattr(self, "unpickled"):
            Path(self.canary).touch()
        return 1


class Nested:
    """A pickle in a pickle, by the name of the real loader."""

    def __init__(self, inner: bytes) -> None:
        self.inner = inner

    def __reduce__(self) -> Any:
        return pickle.loads, (self.inner,)


def _make_shell_line(canary: Path) -> str:
    return f"touch {canary}"


def _make_python_line(canary: Path) -> str:
    return f"open({str(canary)!r}, 'w').close()"


EXTENSION = 240
copyreg.add_extension("os", "system", EXTENSION)

# name -> what the pickle is, and the names it is refused by
HOSTILE: dict[str, tuple[Callable[[Path], bytes], tuple[str, ...]]] = {
    **{
        f"reduce{protocol}": (lambda c, p=protocol: pickle.dumps(Runs(c), p), ("posix.system",))
        for protocol in range(6)
    },
    "system": (lambda c: make_call_pickle("os", "system", _make_shell_line(c)), ("os.system",)),
    "eval": (lambda c: make_call_pickle("builtins", "eval", _make_python_line(c)), ("builtins.eval",)),
    "exec": (lambda c: make_call_pickle("builtins", "exec", _make_python_line(c)), ("builtins.exec",)),
    "old_eval": (lambda c: make_call_pickle("__builtin__", "eval", _make_python_line(c)), ("__builtin__.eval",)),
    "popen": (lambda c: make_call_pickle("subprocess", "getoutput", _make_shell_line(c)), ("subprocess.getoutput",)),
    "open": (lambda c: make_call_pickle("io", "open", str(c), "w"), ("io.open",)),
    "dotted": (
        lambda c: (
            b"\x80\x04\x8c\x05torch\x8c\x10serialization.os\x930"
            + make_call_pickle("os", "system", _make_shell_line(c))[2:]
        ),
        ("torch.serialization.os", "os.system"),
    ),
    "dotted_system": (
        lambda c: (
            b"\x80\x04\x8c\x13torch.serialization\x8c\x09os.system\x93"
            + pickle.dumps((_make_shell_line(c),), 4)[11:-1]
            + b"R."
        ),
        ("torch.serialization.os.system",),
    ),
    "inst": (lambda c: f"(S{_make_shell_line(c)!r}\nios\nsystem\n.".encode(), ("os.system",)),
    "obj": (lambda c: f"(cos\nsystem\nS{_make_shell_line(c)!r}\no.".encode(), ("os.system",)),
    "newobj": (
        lambda c: b"\x80\x02cos\nsystem\n" + pickle.dumps((_make_shell_line(c),), 2)[2:-1] + b"\x81.",
        ("os.system",),
    ),
    "newobj_ex": (
        lambda c: b"\x80\x04cos\nsystem\n" + pickle.dumps((_make_shell_line(c),), 2)[2:-1] + b"}\x92.",
        ("os.system",),
    ),
    "setstate": (lambda c: pickle.dumps(State(c), 4), (f"{__name__}.State",)),
    "setstate0": (lambda c: pickle.dumps(State(c), 0), (f"{__name__}.State",)),
    "hash": (lambda c: pickle.dumps({Hashed(c): 1}, 4), (f"{__name__}.Hashed",)),
    "extension": (
        lambda c: b"\x80\x02\x82\xf0" + pickle.dumps((_make_shell_line(c),), 2)[2:-1] + b"R.",
        ("copyreg.extension 240",),
    ),
    "extension2": (
        lambda c: b"\x80\x02\x83\xf0\x00" + pickle.dumps((_make_shell_line(c),), 2)[2:-1] + b"R.",
        ("copyreg.extension 240",),
    ),
    "extension4": (
        lambda c: b"\x80\x02\x84\xf0\x00\x00\x00" + pickle.dumps((_make_shell_line(c),), 2)[2:-1] + b"R.",
        ("copyreg.extension 240",),
    ),
    "copyreg": (lambda c: b"ccopyreg\n__newobj__\n(cos\nsystem\ntR.", ("copyreg.__newobj__",)),
    "reconstructor": (
        lambda c: b"ccopyreg\n_reconstructor\n(csubprocess\nPopen\nc__builtin__\nobject\nNtR.",
        ("subprocess.Popen",),
    ),
    "persistent": (lambda c: b"Pstorage\n.", ("pickle.persistent_id",)),
    "binary_persistent": (lambda c: b"\x80\x02X\x01\x00\x00\x00aQ.", ("pickle.persistent_id",)),
    "import": (lambda c: make_call_pickle("builtins", "__import__", "this"), ("builtins.__import__",)),
    "mention": (lambda c: b"cthis\ns\n.", ("this.s",)),
    "pickle": (lambda c: make_call_pickle("pickle", "loads", pickle.dumps(Runs(c), 2)), ("pickle.loads",)),
    "c_pickle": (lambda c: make_call_pickle("_pickle", "loads", pickle.dumps(Runs(c), 2)), ("_pickle.loads",)),
    "torch_load": (lambda c: make_call_pickle("torch", "load", str(c)), ("torch.load",)),
    "torch_load2": (lambda c: make_call_pickle("torch.serialization", "load", str(c)), ("torch.serialization.load",)),
    "joblib_load": (lambda c: make_call_pickle("joblib.numpy_pickle", "load", str(c)), ("joblib.numpy_pickle.load",)),
    "getattr": (lambda c: make_call_pickle("builtins", "getattr", "", "format"), ("builtins.getattr",)),
    "from_bytes": (
        lambda c: make_tensor_pickle(save_torch(Runs(c), False)),
        ("posix.system", "torch._utils._rebuild_tensor_v2"),
    ),
    "from_bytes_zip": (
        lambda c: make_tensor_pickle(save_torch(Runs(c), True)),
        ("posix.system", "torch._utils._rebuild_tensor_v2"),
    ),
    "from_bytes_long": (lambda c: make_tensor_pickle(save_torch([Runs(c), "x" * 9000], False)), ("posix.system",)),
    "from_bytes_alone": (
        lambda c: make_call_pickle("torch.storage", "_load_from_bytes", save_torch(Runs(c), False)),
        ("posix.system",),
    ),
    "from_bytes_deep": (
        lambda c: make_tensor_pickle(save_torch(Nested(make_tensor_pickle(save_torch(Runs(c), False))), False)),
        ("pickle.loads",),
    ),
    "from_bytes_head": (lambda c: make_tensor_pickle(pickle.dumps(Runs(c), 2)), ("posix.system",)),
    "from_type": (
        lambda c: (
            b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nTensor\n"
            + pickle.dumps((_make_shell_line(c),), 2)[2:-1]
            + b"}tR."
        ),
        ("os.system", "torch._tensor._rebuild_from_type_v2"),
    ),
    "object_array": (
        lambda c: pickle.dumps(np.array([Runs(c), 1], dtype=object), 4),
        ("posix.system", "numpy.ndarray"),
    ),
    "joblib_object_array": (
        lambda c: dump_joblib(np.array([Runs(c), 1], dtype=object)),
        ("posix.system", "numpy.ndarray"),
    ),
}
