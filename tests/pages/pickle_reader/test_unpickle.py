"""A pickle is followed, and nothing in it runs: values of every kind, and a corpus of those that would run code."""

import ast
import collections
import io
import pickle
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdbg
from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short
from tdbg.pages.pickle_reader import strided_views
from tdbg.pages.pickle_reader.byte_source import ByteReader, Latin1Source, MemorySource, TruncatedError, WindowSource
from tdbg.pages.pickle_reader.parsed_values import Array, Named, Refused, Sparse, Storage
from tdbg.pages.pickle_reader.read_budget import BudgetExhausted, ReadBudget
from tests.pages.foreign import (
    HOSTILE,
    TENSORS,
    Point,
    dump_joblib,
    make_call_pickle,
    make_new_zip,
    make_old_row,
    make_tensor_pickle,
    read_pickle,
    save_torch,
    to_bytes,
)

PROTOCOLS = range(6)


def read_clean(data: bytes) -> Any:
    """The value of a pickle in which nothing is refused."""
    found, ledger = read_pickle(data)
    assert not ledger.refused, ledger.reasons
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_what_torch_saved(name: str, protocol: int) -> None:
    wanted = TENSORS[name]()
    data = pickle.dumps(wanted, protocol)
    found = read_clean(data)
    assert isinstance(found, Array)
    assert (found.dtype, found.shape) == (str(wanted.dtype).removeprefix("torch."), tuple(wanted.shape))
    assert found.load_bytes() == to_bytes(wanted)
    assert found.nbytes == len(to_bytes(wanted))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", ["float32", "sliced", "parameter", "bfloat16", "bool"])
def test_a_tensor_is_what_torch_reads(name: str, protocol: int) -> None:
    data = pickle.dumps({"x": TENSORS[name]()}, protocol)
    assert read_clean(data)["x"].load_bytes() == to_bytes(pickle.loads(data)["x"])


def test_quantised_tensors_keep_their_scale() -> None:
    values = torch.arange(6000.0)
    found = read_clean(pickle.dumps(torch.quantize_per_tensor(values, 0.5, 3, torch.quint8), 4))
    assert (found.dtype, found.note) == ("quint8", {"scheme": "per_tensor_affine", "scale": 0.5, "zero_point": 3})
    assert found.load_bytes() == bytes(min(255, int(value / 0.5 + 3)) for value in values.tolist())
    wanted = torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([5, 7]), 0, torch.qint8
    )
    found = read_clean(pickle.dumps(wanted, 4))
    assert (found.dtype, found.note["axis"]) == ("qint8", 0)
    assert struct.unpack("<2d", found.note["scales"].load_bytes()) == pytest.approx((0.1, 0.2))
    assert struct.unpack("<2q", found.note["zero_points"].load_bytes()) == (5, 7)
    assert found.load_bytes() == bytes([15, 15, 15, 12, 12, 12])


def test_two_values_in_a_byte() -> None:
    wanted = torch.quantize_per_tensor(torch.arange(5.0), 1.0, 0, torch.quint4x2)
    found = read_clean(pickle.dumps(wanted, 4))
    assert (found.dtype, found.shape, found.nbytes) == ("quint4x2", (5,), 3)
    assert found.load_bytes() == bytes([0x10, 0x32, 0x04])
    rows = read_clean(
        pickle.dumps(torch.quantize_per_tensor(torch.arange(9.0).reshape(3, 3), 1.0, 0, torch.quint4x2), 4)
    )
    assert (rows.nbytes, len(rows.load_bytes())) == (6, 6)  # each row begins a byte


def test_sparse_tensors_keep_their_parts() -> None:
    wanted = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    found = read_clean(pickle.dumps(wanted.to_sparse(), 4))
    assert isinstance(found, Sparse)
    assert (found.layout, found.shape) == ("sparse_coo", (2, 2))
    assert struct.unpack("<4q", found.parts["indices"].load_bytes()) == (0, 1, 1, 0)
    assert struct.unpack("<2f", found.parts["values"].load_bytes()) == (2.0, 3.0)
    found = read_clean(pickle.dumps(wanted.to_sparse_csr(), 4))
    assert list(found.parts) == ["compressed_indices", "plain_indices", "values"]


def test_a_tensor_with_attributes_is_the_tensor() -> None:
    wanted = torch.randn(5)
    wanted.colour = "red"  # type: ignore[attr-defined]
    assert read_clean(pickle.dumps(wanted, 4)).load_bytes() == to_bytes(wanted)


def test_a_tensor_in_a_newer_payload() -> None:
    wanted = torch.randn(3000)
    payload = save_torch(wanted.storage(), True)
    assert read_clean(make_tensor_pickle(payload, 10, (4, 5), (5, 1))).load_bytes() == to_bytes(wanted[10:30])
    payload = save_torch(wanted.untyped_storage(), False)
    assert read_clean(make_tensor_pickle(payload, 4, (8,), (1,))).load_bytes() == to_bytes(wanted[1:3])


ARRAYS: dict[str, Callable[[], Any]] = {
    **{
        name: lambda name=name: np.arange(3000).astype(name)
        for name in ("f2", "f4", "f8", "i1", "u2", "i4", "u8", "?", "c8")
    },
    "small": lambda: np.arange(3.0),
    "scalar": lambda: np.array(2.5),
    "empty": lambda: np.empty((0, 3)),
    "columns_first": lambda: np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    "view": lambda: np.arange(6000.0).reshape(60, 100)[::2, 3:50:4],
    "big_endian": lambda: np.arange(3000, dtype=">f4"),
    "big_endian_complex": lambda: (np.arange(30) + 2j).astype(">c16"),
    "read_only": lambda: np.frombuffer(np.arange(4000.0).tobytes()),
}


@pytest.mark.parametrize("write", [*(lambda x, p=p: pickle.dumps(x, p) for p in PROTOCOLS), dump_joblib])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_what_numpy_saved(name: str, write: Callable[[Any], bytes]) -> None:
    wanted = ARRAYS[name]()
    found = read_clean(write({"before": 1, "x": wanted, "after": "text"}))
    array = found["x"]
    assert np.dtype(getattr(np, array.dtype)) == wanted.dtype.newbyteorder("=")
    assert array.shape == wanted.shape
    assert array.load_bytes() == np.ascontiguousarray(wanted).astype(wanted.dtype.newbyteorder("<")).tobytes()
    assert (found["before"], found["after"]) == (1, "text")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_joblib_with_every_protocol(protocol: int) -> None:
    page = {1: {"a": np.arange(5000), "b": [np.ones(3), np.ones(3)]}, 2: {"a": np.arange(4)}}
    data = dump_joblib(page, protocol=protocol)
    found = read_clean(data)
    assert found[1]["a"].load_bytes() == page[1]["a"].tobytes()  # type: ignore[union-attr]
    assert found[1]["b"][1].load_bytes() == np.ones(3).tobytes()
    assert found[2]["a"].load_bytes() == np.arange(4).tobytes()


def test_joblib_without_padding() -> None:
    """joblib before 1.2: the bytes follow the description at once."""
    array = np.arange(3000.0)
    state = {"subclass": np.ndarray, "shape": (3000,), "order": "C", "dtype": array.dtype, "allow_mmap": True}
    head = (
        b"\x80\x02}(X\x01\x00\x00\x00acjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81"
        + pickle.dumps(state, 2)[2:-1]
        + b"b"
    )
    found = read_clean(head + array.tobytes() + b"X\x01\x00\x00\x00bK\x07u.")
    assert found["a"].load_bytes() == array.tobytes()
    assert found["b"] == 7


PLAIN = {
    "none": None,
    "flags": [True, False],
    "numbers": [0, 255, 256, 65535, 65536, -1, -129, 1 << 31, -(1 << 63), 1 << 200, -(1 << 2000)],
    "floats": [0.5, -0.0, 1e300, float("inf")],
    "complex": 1 - 2j,
    "text": ["", "a", "é€😀", "x" * 300, "line\nbreak\\", "y" * 100_000],
    "nested": {"a": [1, (2, [3, ()])], 3: {"b": {}}, (1, "k"): 5, None: 6, 2.5: 7},
    "long": list(range(2500)),
    "wide": {f"k{i}": i for i in range(2500)},
    "set": {1, 2, 3},
    "frozen": frozenset({"a"}),
    "ordered": collections.OrderedDict(a=1, b=2),
    "counter": collections.Counter("aab"),
    "default": collections.defaultdict(list, a=[1]),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", PLAIN)
def test_plain_values(name: str, protocol: int) -> None:
    found = read_clean(pickle.dumps({"x": PLAIN[name]}, protocol))["x"]
    assert found == PLAIN[name]
    assert type(found) is type(PLAIN[name]) or isinstance(found, dict | frozenset)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [b"", b"ab\xff\x00", bytes(range(256)) * 40, bytearray(b"\x80q"), bytearray(9000)])
def test_bytes_are_arrays_of_bytes(value: bytes, protocol: int) -> None:
    found = read_clean(pickle.dumps([value, value], protocol))
    for array in found:
        assert (array.dtype, array.shape, array.load_bytes()) == ("uint8", (len(value),), bytes(value))
        assert array.note == {"bytes": ""}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_names_and_scalars(protocol: int) -> None:
    value = [torch.float8_e4m3fn, torch.device("cuda", 1), torch.device("cpu"), torch.Size([2, 3]), np.dtype("f4")]
    assert read_clean(pickle.dumps(value, protocol)) == ["torch.float8_e4m3fn", "cuda:1", "cpu", (2, 3), "numpy.f4"]
    value = [
        np.float32(0.5),
        np.int64(-3),
        np.bool_(True),
        np.float16(2),
        np.complex64(1 + 2j),
        np.str_("añ"),
        np.uint8(9),
    ]
    assert read_clean(pickle.dumps(value, protocol)) == [0.5, -3, True, 2.0, 1 + 2j, "añ", 9]


def test_a_tuple_with_a_name_keeps_it() -> None:
    found = read_clean(pickle.dumps(torch.max(torch.eye(3), 0), 4))
    assert isinstance(found, Named)
    assert found.type_name == "torch.return_types.max"
    assert [part.dtype for part in found] == ["float32", "int64"]


def test_a_class_of_the_user_is_refused_and_its_parts_are_readable() -> None:
    found, ledger = read_pickle(pickle.dumps([Point(torch.ones(2), "b"), 5], 4))
    assert str(found[0]) == "<refused tests.pages.foreign.Point>"
    assert found[0].parts[0][1] == "b"
    assert found[0].parts[0][0].load_bytes() == to_bytes(torch.ones(2))
    assert found[1] == 5
    assert ledger.refused == {"tests.pages.foreign.Point": 1}


def test_old_strings() -> None:
    assert read_clean(b"S'ab\\n'\n.") == "ab\n"
    assert read_clean(b"U\x03abc.") == "abc"
    assert read_clean(b"T\x03\x00\x00\x00abc.") == "abc"
    assert read_clean(b"U\x02\xff\xfe.").load_bytes() == b"\xff\xfe"
    found = read_clean(b"(I01\nI00\nI1\nL5L\nF0.5\nl.")
    assert list(map(repr, found)) == ["True", "False", "1", "5", "0.5"]
    assert read_clean(b"(K\x01K\x02K\x03K\x04d.") == {1: 2, 3: 4}
    assert read_clean(b"]K\x01a(0K\x02a(K\x05K\x061.") == [1, 2]


def test_shared_memory_is_shared() -> None:
    both = torch.arange(4000.0).storage()
    data = pickle.dumps([both, both], 4)
    first, second = read_clean(data)
    assert first.load_bytes() == second.load_bytes() == to_bytes(torch.arange(4000.0))


# nothing runs

ALIVE = ["reduce0", "reduce5", "eval", "exec", "inst", "obj", "setstate", "hash", "extension", "pickle", "from_bytes"]
ALIVE += [
    "from_bytes_zip",
    "from_bytes_long",
    "from_bytes_deep",
    "from_bytes_head",
    "from_type",
    "object_array",
    "dotted_system",
]


@pytest.mark.parametrize("name", ALIVE)
def test_the_corpus_would_run(name: str, tmp_path: Path) -> None:
    """Else the next test could not fail."""
    canary = tmp_path / "canary"
    data = HOSTILE[name][0](canary)
    assert not canary.exists()
    try:
        pickle.loads(data)
    except Exception:
        pass
    assert canary.exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_runs(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    make, refused = HOSTILE[name]
    data = make(canary)
    found, ledger = read_pickle(data)
    assert not canary.exists()
    assert "this" not in sys.modules
    assert set(refused) <= set(ledger.refused)
    assert isinstance(found, Refused | dict)
    assert str(found).startswith(("<refused ", "{<refused ", "{'<refused "))


@pytest.mark.parametrize("name", HOSTILE)
def test_what_stands_beside_is_readable(name: str, tmp_path: Path) -> None:
    """The hostile value in a page: as one of two outputs, as a datapoint's key, as an item."""
    inner = HOSTILE[name][0](tmp_path / "canary")
    inner = inner[2:-1] if inner[:1] == b"\x80" else inner[:-1]
    good = pickle.dumps(torch.arange(3.0), 2)[2:-1]
    refused = set(HOSTILE[name][1])
    found, ledger = read_pickle(b"\x80\x04}(K\x01}(U\x03bad" + inner + b"U\x04good" + good + b"uK\x02K\x05u.")
    assert found[1]["good"].load_bytes() == to_bytes(torch.arange(3.0))
    assert found[2] == 5
    assert refused <= set(ledger.refused)
    found, ledger = read_pickle(b"\x80\x04}(" + inner + b"K\x05K\x01" + good + b"u.")
    assert found[1].load_bytes() == to_bytes(torch.arange(3.0))
    assert 5 in found.values()
    assert refused <= set(ledger.refused)
    found, ledger = read_pickle(b"\x80\x04](" + inner + good + b"e.")
    assert found[1].load_bytes() == to_bytes(torch.arange(3.0))
    assert refused <= set(ledger.refused)
    assert not (tmp_path / "canary").exists()


WATCH = """
import sys
from pathlib import Path
from tdbg.pages.pickle_reader.pickle_pages import LegacyPages, flatten_outputs
import encodings.raw_unicode_escape, encodings.latin_1, encodings.unicode_escape, encodings.utf_32_le
FORBIDDEN = {"import", "exec", "compile", "pickle.find_class", "os.system", "os.exec", "os.fork", "os.posix_spawn",
             "subprocess.Popen", "ctypes.dlopen", "os.remove", "os.rename", "os.mkdir", "shutil.rmtree", "object.__setattr__"}
def watch(event, arguments):
    if event in FORBIDDEN or event.startswith("socket.") or event == "open" and arguments[1] not in (None, "r", "rb"):
        print("FORBIDDEN", event, arguments, flush=True)
        raise SystemExit(9)
pages = LegacyPages.from_path(Path(sys.argv[1]))
sys.addaudithook(watch)
count = sum(len(point.build_flat_tree().values) for point in pages)
print(count, len(pages.refused))
"""


def test_the_interpreter_itself_sees_nothing(tmp_path: Path) -> None:
    """The whole corpus in a process in which an import, a call out or a write would end it."""
    for number, (make, _) in enumerate(HOSTILE.values()):
        inner = make(tmp_path / "canary")
        inner = inner[2:-1] if inner[:1] == b"\x80" else inner[:-1]
        (tmp_path / f"page_{number}.pkl").write_bytes(b"\x80\x04}K\x01}U\x03bad" + inner + b"ss.")
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(tdbg.__file__).parent.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count, refused = map(int, done.stdout.split())
    assert count >= len(HOSTILE)
    assert refused >= 20


def test_no_loader_is_imported() -> None:
    files = sorted((Path(tdbg.__file__).parent / "pages" / "pickle_reader").glob("*.py"))
    assert len(files) >= 13
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            bad = {"pickle", "_pickle", "torch", "joblib", "importlib", "marshal", "shelve", "builtins", "subprocess"}
            assert not {name.partition(".")[0] for name in names} & bad
            if isinstance(node, ast.Name):
                assert node.id not in ("eval", "exec", "__import__", "compile", "globals")


# lies and bombs


def test_a_tensor_stays_in_its_memory() -> None:
    payload = make_old_row("k", "torch.FloatStorage", 10, bytes(range(40)))
    assert read_clean(make_tensor_pickle(payload, 2, (4,), (2,))).load_bytes() == bytes(
        [*range(8, 12), *range(16, 20), *range(24, 28), *range(32, 36)]
    )
    lies = [(0, (11,), (1,)), (1, (10,), (1,)), (0, (2,), (10,)), (-1, (1,), (1,)), (0, (-1,), (1,)), (0, (1,), (-1,))]
    lies += [(0, (1 << 62,), (1,)), (0, (1 << 40, 1 << 40), (0, 0)), (0, (2,), (1, 1)), (0, 3, (1,)), (0, ("a",), (1,))]
    lies += [
        (0.0, (1,), (1,)),
        (0, (True,), (1,)),
        (0, (1,) * 65, (1,) * 65),
        (1 << 70, (1,), (1,)),
        (1 << 70, (0,), (1,)),
    ]
    for lie in lies:
        found, ledger = read_pickle(make_tensor_pickle(payload, *lie))
        assert isinstance(found, Refused), lie
        assert ledger.refused == {"torch._utils._rebuild_tensor_v2": 1}
        assert found.why


@pytest.mark.parametrize(
    "payload",
    [
        make_old_row("k", "torch.FloatStorage", 10, bytes(36)),  # data that end too early
        make_old_row("k", "torch.FloatStorage", 10, bytes(40), numel=9),
        make_old_row("k", "torch.FloatStorage", 1 << 61, bytes(40)),
        make_old_row("k", "torch.FloatStorage", -1, bytes(40)),
        make_old_row("k", "torch.FloatStorage", 10, bytes(40), little_endian=False),
        make_old_row("k", "torch.NoStorage", 10, bytes(40)),
        make_old_row("k", "os.FloatStorage", 10, bytes(40)),
        b"",
        b"PK\x03\x04" + bytes(100),
        b"PK\x03\x04" + bytes(100) + b"PK\x05\x06" + b"\xff" * 18,
        pickle.dumps([1, 2, 3]),
        bytes(5000),
    ],
)
def test_memory_that_lies_is_refused(payload: bytes) -> None:
    found, ledger = read_pickle(make_tensor_pickle(payload))
    assert isinstance(found, Refused)
    assert "torch._utils._rebuild_tensor_v2" in ledger.refused


def test_a_newer_payload_by_hand() -> None:
    data = struct.pack("<10f", *range(10))
    assert read_clean(make_tensor_pickle(make_new_zip(10, data), 0, (10,), (1,))).load_bytes() == data
    cut = bytearray(make_new_zip(10, data))
    at = cut.index(b"PK\x01\x02", cut.index(b"a/data/0") + 40)
    at = cut.index(b"PK\x01\x02", cut.index(b"PK\x01\x02", at + 4) + 4)  # the third entry of the directory
    cut[at + 20 : at + 28] = struct.pack("<II", 5000, 5000)  # its size, packed and not
    for lie in (
        make_new_zip(11, data),
        make_new_zip(10, data, packed=True),
        make_new_zip(10, data, order=b"big"),
        bytes(cut),
    ):
        found, ledger = read_pickle(make_tensor_pickle(lie, 0, (10,), (1,)))
        assert isinstance(found, Refused)
        assert ledger.reasons


def test_a_newer_payload_that_lies() -> None:
    whole = save_torch(torch.arange(1000.0).storage(), True)
    assert read_clean(make_tensor_pickle(whole, 0, (1000,), (1,))).load_bytes() == to_bytes(torch.arange(1000.0))
    at = whole.index(b"PK\x01\x02")
    for begin in range(at, len(whole) - 4):
        data = bytearray(whole)
        data[begin : begin + 4] = b"\xff\xff\xff\x7f"
        found, _ = read_pickle(make_tensor_pickle(bytes(data), 0, (1000,), (1,)))
        assert isinstance(found, Refused) or found.load_bytes() == to_bytes(torch.arange(1000.0))


LYING_ARRAYS = [
    lambda: np.array(["a", "bc"]),
    lambda: np.array([b"a"]),
    lambda: np.zeros(2, dtype=[("a", "f4"), ("b", "i2")]),
    lambda: np.array(["2020"], dtype="M8[D]"),
    lambda: np.array([1, "a", None], dtype=object),
    lambda: np.ones(3, dtype=np.longdouble),
]


@pytest.mark.parametrize("write", [lambda x: pickle.dumps(x, 4), lambda x: pickle.dumps(x, 5), dump_joblib])
@pytest.mark.parametrize("make", LYING_ARRAYS)
def test_arrays_of_other_things_are_refused_and_the_rest_stays(
    make: Callable[[], Any], write: Callable[[Any], bytes]
) -> None:
    found, ledger = read_pickle(write({"a": make(), "b": np.arange(3)}))
    assert isinstance(found["a"], Refused)
    assert found["b"].load_bytes() == np.arange(3).tobytes()
    assert set(ledger.refused) & {"numpy.ndarray", "numpy._core.numeric._frombuffer"}


def _make_wrapper(state: dict[str, Any], data: bytes) -> bytes:
    return b"\x80\x02cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81" + pickle.dumps(state, 2)[2:-1] + b"b" + data + b"."


LIES: list[dict[str, Any]] = [{"shape": shape} for shape in ((1 << 40,), (-1,), (1 << 61, 8), None, [3], (21,))]
LIES += [{"dtype": None}, {"dtype": "f4"}, {"numpy_array_alignment_bytes": 16}]


@pytest.mark.parametrize("change", LIES)
def test_an_array_in_the_stream_that_lies_ends_the_page(change: dict[str, Any]) -> None:
    state = {"shape": (20,), "order": "C", "dtype": np.dtype("f4"), "subclass": np.ndarray}
    assert read_clean(_make_wrapper(state, bytes(80))).load_bytes() == bytes(80)
    with pytest.raises(TruncatedError):
        read_pickle(_make_wrapper(state | change, b"\xff" * 80))


TORN = {
    "nothing": b"",
    "no_stop": b"\x80\x04K\x01",
    "only_stop": b".",
    "no_opcode": b"\x80\x04\xff.",
    "protocol": b"\x80\x06N.",
    "huge_bytes": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
    "huge_text": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "huge_bytearray": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "huge_number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "no_memo": b"h\x05.",
    "no_mark": b"t.",
    "no_text": b"X\x02\x00\x00\x00\xff\xfe.",
    "odd_dict": b"(K\x01d.",
    "number": b"Iabc\n.",
    "endless_number": b"I" + b"9" * 5000 + b"\n.",
    "float": b"Fx\n.",
    "quote": b"S'abc\n.",
    "global": b"\x80\x04K\x01K\x02\x93.",
    "global_long": b"c" + b"a" * 5000 + b"\nb\n.",
    "setitem": b"}K\x01s.",
    "tuple3": b"K\x01\x87.",
}


@pytest.mark.parametrize("name", TORN)
def test_what_makes_no_sense_is_torn(name: str) -> None:
    with pytest.raises(TruncatedError):
        read_pickle(TORN[name])


def test_odd_uses_are_refused() -> None:
    for data in (
        b"K\x01)R.",
        b"K\x01K\x02b.",
        b"K\x01K\x02a.",
        b"K\x01(K\x02e.",
        b"K\x01K\x02K\x03s.",
        b"K\x01(K\x02\x90.",
    ):
        found, ledger = read_pickle(data)
        assert isinstance(found, Refused), data
        assert ledger.refused
    found, ledger = read_pickle(b"\x80\x02\x8b\x00\x10\x00\x00" + b"\x7f" * 4096 + b".")
    assert str(found) == "<refused builtins.int: a number of 4096 bytes>"
    assert read_clean(b"}]b.") == {}
    found, ledger = read_pickle(b"\x80\x04ctorch\nSize\n(K\x02t\x85}U\x01aK\x01s\x92.")
    assert ledger.refused == {"pickle.NEWOBJ_EX": 1}
    assert found.parts == [(2,), {"a": 1}]
    assert read_clean(b"\x80\x04ctorch\nSize\n(K\x02t\x85}\x92.") == (2,)


@pytest.mark.parametrize(
    "name", ["builtins.int", "builtins.object", "torch.FloatStorage", "torch.float32", "numpy.ndarray"]
)
def test_a_name_that_may_be_mentioned_may_not_be_called(name: str) -> None:
    module, _, last = name.rpartition(".")
    found, ledger = read_pickle(make_call_pickle(module, last, "5"))
    assert isinstance(found, Refused)
    assert found.parts == [("5",)]
    assert ledger.refused == {name: 1}


def test_a_subclass_of_a_subclass_without_end() -> None:
    deep = b"(ctorch._tensor\n_rebuild_from_type_v2\nctorch\nTensor\n"
    data = b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n" + deep * 20_000 + b")}t" + b"}t" * 19_999 + b"R."
    found, ledger = read_pickle(data)
    assert isinstance(found, Refused)
    assert "torch._tensor._rebuild_from_type_v2" in ledger.refused


def test_a_key_that_cannot_be_one_is_refused() -> None:
    found, ledger = read_pickle(b"}]K\x01s.")  # a list
    assert list(found.values()) == [1]
    assert ledger.refused == {"pickle.key": 1}
    laughs = b")" + b"2\x86" * 60  # a tuple of two of itself, sixty times: its hash would take for ever
    found, ledger = read_pickle(b"}" + laughs + b"K\x01s.", limit=1 << 20)
    assert ledger.refused["pickle.key"] == 1


def test_a_tree_of_what_shares_its_parts_is_bounded() -> None:
    began = time.thread_time()
    assert read_clean(b"]q\x00](h\x00h\x00e.") == [[], []]
    laughs = b"]K\x07aq\x00" + b"".join(
        b"0](h" + bytes([at]) + b"h" + bytes([at]) + b"eq" + bytes([at + 1]) for at in range(50)
    )
    _, ledger = read_pickle(laughs + b".")
    assert ledger.refused["pickle.value"] >= 1
    assert time.thread_time() - began < 20


def test_a_value_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append({"me": value})
    found, ledger = read_pickle(pickle.dumps(value, 4))
    assert found[0] == 1
    assert str(found[1]["me"]) == "<refused pickle.value: it contains itself>"
    assert ledger.refused == {"pickle.value": 1}


def test_depth_is_bounded() -> None:
    found, ledger = read_pickle(b"]" * 5000 + b"a" * 4999 + b".")
    assert ledger.refused == {"pickle.value": 1}
    depth = 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1
    assert depth == 64
    read_pickle(b")" + b"\x85" * 1_000_000 + b".")  # goes away without a crash


BOMBS = {
    "lists": b"]" * 400_000,
    "sets": b"\x8f" * 400_000,
    "marks": b"(" * 400_000,
    "nothing": b"N" * 4_000_000,
    "memo": b"]" + b"\x94" * 400_000,
    "floats": b"G\x3f\xf0\x00\x00\x00\x00\x00\x00" * 400_000,
    "names": b"".join(b"co%d\ns\n" % i for i in range(100_000)),
    "copies": b"](" + b"K\x01" * 20_000 + b"eq\x000c__builtin__\nset\nq\x010" + b"h\x01h\x00\x85R" * 1000,
    "encoded": b"c_codecs\nencode\nq\x000(X\x00\x80\x00\x00"
    + b"a" * 32768
    + b"U\x06latin1tq\x010"
    + b"h\x00h\x01R" * 10_000,
    "payloads": make_tensor_pickle(make_old_row("k", "torch.FloatStorage", 1, bytes(4)))[:-1] * 4000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded(name: str) -> None:
    with pytest.raises(BudgetExhausted):
        read_pickle(BOMBS[name], limit=8 << 20)


def test_nested_payloads_are_bounded() -> None:
    data = b"]."
    for _ in range(12):
        data = make_tensor_pickle(data)
    found, ledger = read_pickle(data)
    assert isinstance(found, Refused)
    assert any("deep" in reason for reason in ledger.reasons)


def test_the_same_payload_asked_for_again_is_read_once() -> None:
    payload = make_old_row("k", "torch.FloatStorage", 2000, bytes(8000))
    ask = (
        b"\x80\x03ctorch.storage\n_load_from_bytes\nq\x00B" + struct.pack("<I", len(payload)) + payload + b"\x85q\x01R"
    )
    _, once = read_pickle(ask + b".")
    found, often = read_pickle(b"\x80\x03](" + ask[2:] + b"h\x00h\x01R" * 1000 + b"e.")
    assert len(found) == 1001
    assert often.spent < once.spent + 1000 * 1000


def test_time_is_bounded() -> None:
    """Numbers that all have the same hash, in one dict."""
    keys = b"".join(b"\x8a\x0c" + (i * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for i in range(1, 100_000))
    began = time.thread_time()
    with pytest.raises(BudgetExhausted, match="longer"):
        read_pickle(b"}(" + keys + b"u.", patience_s=0.2)
    assert time.thread_time() - began < 20


def test_a_view_that_repeats_its_memory_is_not_written_out() -> None:
    payload = make_old_row("k", "torch.FloatStorage", 10, bytes(40))
    found = read_clean(make_tensor_pickle(payload, 0, (1 << 30, 10), (0, 1)))
    assert found.shape == (1 << 30, 10)
    with pytest.raises(TdbgError, match="made from a storage of 40 bytes"):
        found.load_bytes()


def test_packed_values_are_not_taken_apart() -> None:
    storage = Storage("quint4x2", 4, MemorySource(bytes(4)), 0)
    assert Array(storage, "quint4x2", (2, 4)).nbytes == 4
    for strides, start in (((1, 2), 0), ((4, 1), 1), ((8, 1), 0)):
        with pytest.raises(ValueError):
            Array(storage, "quint4x2", (2, 4), strides, start)
    with pytest.raises(ValueError):
        Array(storage, "quint4x2", (9,))


def test_data_that_are_not_there_are_told_of() -> None:
    for storage in (Storage("uint8", 10, MemorySource(b"123"), 0), Storage("uint8", 10)):
        with pytest.raises(TdbgError, match="the page ends"):
            Array(storage, "uint8", (10,)).load_bytes()


@given(
    shape=st.lists(st.integers(0, 5), max_size=5).map(tuple),
    steps=st.lists(st.integers(0, 30), min_size=5, max_size=5),
    width=st.sampled_from([1, 2, 4, 8, 16]),
    start=st.integers(0, 9),
    small=st.sampled_from([0, 2048]),
    piece=st.sampled_from([16, 100, 1 << 20]),
)
@settings(max_examples=300, deadline=None)
def test_a_view_is_what_numpy_makes_of_it(
    shape: tuple[int, ...], steps: list[int], width: int, start: int, small: int, piece: int
) -> None:
    strides = tuple(steps[: len(shape)])
    data = np.random.default_rng(0).bytes(start * width + strided_views.view_span(shape, strides, width))
    wanted = np.ndarray(shape, f"V{width}", data, start * width, tuple(step * width for step in strides)).tobytes()
    reads: list[int] = []

    def read_and_record(offset: int, count: int) -> bytes:
        reads.append(count)
        assert offset >= 0 and offset + count <= len(data)
        return data[offset : offset + count]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strided_views, "SMALL", small)
        patch.setattr(strided_views, "PIECE_BYTES", piece)
        assert strided_views.gather_view(read_and_record, start * width, shape, strides, width) == wanted
    assert all(count <= piece for count in reads)


def test_names_are_fit_for_a_terminal() -> None:
    found, ledger = read_pickle(b"\x80\x04U\x06\x1b[31mXU\x03o\ns\x93.")
    assert "\x1b" not in str(found) and "\n" not in str(found)
    assert list(ledger.refused) == ["\\x1b[31mX.o\\ns"]
    assert [format_short(text) for text in ("côté", "\u202ea", "\ud800")] == ["côté", "\\u202ea", "\\ud800"]
    found, _ = read_pickle(b"c" + b"a" * 3000 + b"\nb\n.")
    assert len(str(found)) < 250


# sources


def test_latin1_gives_any_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdbg.pages.pickle_reader.byte_source.TEXT_BLOCK_BYTES", 7)
    wanted = bytes(range(256)) * 2
    source = Latin1Source(MemorySource(wanted.decode("latin-1").encode()))
    assert source.size == len(wanted)
    for begin in range(0, 512, 3):
        for count in (0, 1, 5, 8, 600):
            assert source.read_range(begin, count) == wanted[begin : begin + count]
    with pytest.raises(ValueError):
        Latin1Source(MemorySource("€".encode()))


def test_a_window_stays_in_its_bounds() -> None:
    window = WindowSource(MemorySource(b"abcdefgh"), 2, 4)
    assert (window.read_range(0, 100), window.read_range(3, 5), window.read_range(4, 1), window.read_range(9, 1)) == (
        b"cdef",
        b"f",
        b"",
        b"",
    )


@pytest.mark.parametrize("block", [1, 2, 3, 64])
def test_a_reader_is_where_it_says(block: int) -> None:
    data = bytes(range(32, 96)) + b"line\nrest"
    reader = ByteReader(MemorySource(data), block_bytes=block)
    assert (reader.read_byte(), reader.take_bytes(3), reader.skip(20), reader.position) == (32, data[1:4], 4, 24)
    assert (reader.skip(2), reader.read_byte(), reader.read_line(), reader.take_bytes(4)) == (
        24,
        data[26],
        data[27:68],
        b"rest",
    )
    assert reader.bytes_left == 0
    with pytest.raises(TruncatedError):
        ByteReader(MemorySource(b"abc"), block_bytes=block).take_bytes(4)
    for call in (
        reader.read_byte,
        lambda: reader.take_bytes(1),
        reader.read_line,
        lambda: reader.skip(1),
        lambda: reader.skip(-1),
    ):
        with pytest.raises(TruncatedError):
            call()


def test_a_ledger_counts_names_that_were_only_looked_up_once() -> None:
    _, ledger = read_pickle(b"(cos\nsystem\ncos\nsystem\nl.")
    assert ledger.refused == {"os.system": 1}
    _, ledger = read_pickle(b"\x80\x02(" + make_call_pickle("os", "system", "a")[2:-1] * 3 + b"l.")
    assert ledger.refused == {"os.system": 3}
    assert ReadBudget().refused == {}


def test_joblib_reads_what_the_tests_call_joblib() -> None:
    assert joblib.load(io.BytesIO(dump_joblib({"a": np.arange(3)})))["a"].tolist() == [0, 1, 2]
