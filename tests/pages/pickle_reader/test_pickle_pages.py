"""Pages of other tools: found, in order, one datapoint at a time, salvaged where they are torn, never run."""

import io
import os
import pickle
import random
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tdbg
from tdbg.core.errors import TdbgError
from tdbg.pages.pickle_reader import decompression, pickle_pages
from tdbg.pages.pickle_reader.parsed_values import Array, Refused, Sparse
from tdbg.pages.pickle_reader.pickle_pages import LegacyPages, PickledDatapoint, flatten_outputs
from tests.pages.foreign import Point, Runs, dump_joblib, make_page, save_torch, to_bytes


def open_pages(path: Path) -> tuple[list[PickledDatapoint], LegacyPages]:
    """All datapoints below a path, and who read them."""
    found = LegacyPages.from_path(path)
    return list(found), found


def assert_alike(found: Any, wanted: Any) -> None:
    """The tree is what was written."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_alike(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other)
    elif isinstance(wanted, torch.Tensor | np.ndarray):
        assert isinstance(found, Array) and found.shape == tuple(wanted.shape)
        assert found.load_bytes() == (to_bytes(wanted) if isinstance(wanted, torch.Tensor) else wanted.tobytes())
    else:
        assert found == wanted


WRITERS: dict[str, Callable[[Any], bytes]] = {
    "joblib": dump_joblib,
    **{f"pickle{protocol}": lambda x, p=protocol: pickle.dumps(x, p) for protocol in range(6)},
    "torch_zip": lambda x: save_torch(x, True),
    "torch_row": lambda x: save_torch(x, False),
    **{kind: lambda x, k=kind: dump_joblib(x, compress=(k, 3)) for kind in ("zlib", "gzip", "bz2", "xz", "lzma")},
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_page_is_what_was_written(writer: str, tmp_path: Path) -> None:
    wanted = make_page(4)
    (tmp_path / "page_0.pkl").write_bytes(WRITERS[writer](wanted))
    points, pages = open_pages(tmp_path)
    assert (pages.problems, pages.refused) == ([], {})
    assert [point.key for point in points] == list(wanted)
    for point in points:
        assert_alike(point.outputs, wanted[point.key])
    (point,) = LegacyPages.from_path(tmp_path / "page_0.pkl").find_datapoints(2)
    assert_alike(point.outputs, wanted[2])
    assert list(tmp_path.iterdir()) == [tmp_path / "page_0.pkl"]


def test_a_datapoint_by_path(tmp_path: Path) -> None:
    outputs = {
        "FeatureMap": {"feature_map": torch.ones(2, 3), "stats": {"mean": 0.5, "shape": [1, 2]}},
        "Largest": torch.max(torch.eye(2), 0),
        "Pair": (torch.zeros(2), "a"),
        "Sparse": torch.eye(2).to_sparse(),
        "Labels": {"a": b"xy", "none": None, "nothing": {}},
        "Mine": Point(1, 2),
        "Set": frozenset({2, 1}),
        "Q": torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8),
    }
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib({7: outputs}))
    (point,), pages = open_pages(tmp_path)
    values, notes = point.build_flat_tree()
    assert {path: value for path, value in values.items() if not isinstance(value, Array)} == {
        "FeatureMap/stats/mean": 0.5,
        "FeatureMap/stats/shape/0": 1,
        "FeatureMap/stats/shape/1": 2,
        "Pair/1": "a",
        "Labels/none": None,
        "Mine": "<refused tests.pages.foreign.Point>",
        "Mine/0/0": 1,
        "Mine/0/1": 2,
        "Set/0": 1,
        "Set/1": 2,
    }
    assert {path: str(value) for path, value in values.items() if isinstance(value, Array)} == {
        "FeatureMap/feature_map": "Array(float32, [2, 3])",
        "Largest/0": "Array(float32, [2])",
        "Largest/1": "Array(int64, [2])",
        "Pair/0": "Array(float32, [2])",
        "Sparse/indices": "Array(int64, [2, 2])",
        "Sparse/values": "Array(float32, [2])",
        "Labels/a": "Array(uint8, [2])",
        "Q": "Array(qint8, [2])",
    }
    assert notes == {
        "FeatureMap/stats/shape": {"list": ""},
        "Largest": {"tuple": "torch.return_types.max"},
        "Pair": {"tuple": ""},
        "Sparse": {"sparse": "sparse_coo", "shape": [2, 2]},
        "Labels/a": {"bytes": ""},
        "Labels/nothing": {"dict": ""},
        "Mine": {"refused": "tests.pages.foreign.Point"},
        "Mine/0": {"tuple": ""},
        "Set": {"set": ""},
        "Q": {"scheme": "per_tensor_affine", "scale": 0.5, "zero_point": 1},
    }
    assert pages.refused == {"tests.pages.foreign.Point": 1}


def test_scales_of_channels_have_paths_of_their_own(tmp_path: Path) -> None:
    value = torch.quantize_per_channel(torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([5, 7]), 0, torch.qint8)
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib({7: {"q": value}}))
    (point,), _ = open_pages(tmp_path)
    values, notes = point.build_flat_tree()
    assert list(values) == ["q", "q/scales", "q/zero_points"]
    assert notes == {"q": {"scheme": "per_channel_affine", "axis": 0}}


def test_paths_that_meet_are_told_apart() -> None:
    assert flatten_outputs({"a": {1: "x", "1": "y"}}).values == {"a/1": "x", "a/1~2": "y"}


def test_keys_that_a_path_does_not_tell_are_noted() -> None:
    values, notes = flatten_outputs({"a": {"b": 1}, "a/b": 2, 3: {None: 4}})
    assert values == {"a/b": 1, "a\\x2fb": 2, "3/None": 4}
    assert notes == {"": {"dict": {"a\\x2fb": "a/b", "3": 3}}, "3": {"dict": {"None": None}}}


def test_a_sparse_tensor_keeps_its_shape(tmp_path: Path) -> None:
    (tmp_path / "page_0.pkl").write_bytes(dump_joblib({1: {"s": torch.eye(3).to_sparse()}}))
    (point,), _ = open_pages(tmp_path)
    assert isinstance(point.outputs["s"], Sparse) and point.outputs["s"].shape == (3, 3)


def test_order_is_by_number(tmp_path: Path) -> None:
    for epoch in (10, 2):
        folder = tmp_path / f"epoch_{epoch}" / "debugger"
        folder.mkdir(parents=True)
        for number in (10, 9, 0):
            (folder / f"page_{number}.pkl").write_bytes(dump_joblib({epoch * 100 + number: {"a": 1}}))
    (tmp_path / "debugger").mkdir()
    (tmp_path / "debugger" / "page_3.pkl").write_bytes(dump_joblib({3: {"a": 1}}))
    (tmp_path / "epoch_2" / "debugger" / "notes.txt").write_text("no page")
    points, pages = open_pages(tmp_path)
    assert [(point.epoch, point.key) for point in points] == [
        *[(None, 3), (2, 200), (2, 209), (2, 210)],
        *[(10, 1000), (10, 1009), (10, 1010)],
    ]
    assert pages.problems == []
    assert [point.epoch for point in LegacyPages.from_path(tmp_path / "epoch_10")] == [10, 10, 10]
    assert [point.epoch for point in LegacyPages.from_path(tmp_path / "epoch_10" / "debugger" / "page_9.pkl")] == [10]


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_an_idx_in_several_pages_is_found_in_each(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        (tmp_path / f"page_{number}.pkl").write_bytes(
            dump_joblib({5: {"a": number}, 100 + number: {}, f"s{number}": {}})
        )
    pages = LegacyPages.from_path(tmp_path)
    monkeypatch.setattr(pickle_pages, "KEPT_BYTES", kept)
    for _ in range(2):
        found = pages.find_datapoints(5)
        assert len(pages._read) == (8 if kept else 1)
        assert [(point.page.name, point.outputs["a"]) for point in found] == [(f"page_{n}.pkl", n) for n in range(8)]
    assert [point.key for point in pages.find_datapoints("5")] == [5] * 8
    assert [point.page.name for point in pages.find_datapoints(103)] == ["page_3.pkl"]
    assert [point.page.name for point in pages.find_datapoints("s7")] == ["page_7.pkl"]
    assert pages.find_datapoints(4) == []


def test_an_idx_may_be_a_tensor_or_a_scalar(tmp_path: Path) -> None:
    data = {torch.tensor([5]): {"a": 1}, np.int64(6): {"a": 2}, torch.tensor(7): {"a": 3}, "8": {"a": 4}}
    (tmp_path / "page_0.pkl").write_bytes(pickle.dumps(data, 4))
    points, _ = open_pages(tmp_path)
    assert [point.key for point in points] == [5, 6, 7, "8"]


def test_one_bad_page_does_not_hide_the_others(tmp_path: Path) -> None:
    good = dump_joblib({1: {"a": 1}})
    pages = [
        b"",
        good,
        b"no pickle at all",
        pickle.dumps([1, 2]),
        b"\x04\x22\x4d\x18....",
        b"\x28\xb5\x2f\xfd....",
        b"ZF0x5",
    ]
    pages += [pickle.dumps(Runs(tmp_path / "canary")), good + b"more"]
    for number, data in enumerate(pages):
        (tmp_path / f"page_{number}.pkl").write_bytes(data)
    (tmp_path / "page_20.pkl").mkdir()
    os.mkfifo(tmp_path / "page_21.pkl")
    (tmp_path / "page_22.pkl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "page_23.pkl").write_bytes(dump_joblib({2: {"a": 2}}))
    points, found = open_pages(tmp_path)
    assert [point.key for point in points] == [1, 1, 2]
    said = [problem.removeprefix(f"{tmp_path}/") for problem in found.problems]
    wanted = [
        "page_0.pkl: it is empty",
        "page_2.pkl: torn at byte",
        "page_3.pkl: it holds a list, not a dict of datapoints",
        "page_4.pkl: it is compressed with lz4, which is not supported",
        "page_5.pkl: it is compressed with zstd",
        "page_6.pkl: it is compressed with joblib's format before 0.10",
        "page_7.pkl: it holds <refused posix.system>, not a dict of datapoints",
        "page_8.pkl: 4 bytes follow the end",
        "page_20.pkl: is not a regular file",
        "page_21.pkl: is not a regular file",
        "page_22.pkl: No such file",
    ]
    assert len(said) == len(wanted)
    for problem, beginning in zip(said, wanted, strict=True):
        assert problem.startswith(beginning)
    assert found.refused == {"posix.system": 1}
    assert not (tmp_path / "canary").exists()


def test_no_page_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(TdbgError):
            LegacyPages.from_path(path)


def test_a_page_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "page_0.pkl"
    path.write_bytes(dump_joblib(make_page(2)))
    (point, _), _ = open_pages(path)
    path.write_bytes(b"something else")
    with pytest.raises(TdbgError, match="changed"):
        point.outputs["Numpy"].load_bytes()


def test_refused_values_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    itself: list[Any] = []
    itself.append(itself)
    for number in range(8):
        value = {number: {"a": Point(1, 2), "b": torch.ones(1), "c": itself}}
        (tmp_path / f"page_{number}.pkl").write_bytes(pickle.dumps(value))
    pages = LegacyPages.from_path(tmp_path)
    monkeypatch.setattr(pickle_pages, "KEPT_BYTES", 0)
    for _ in range(3):
        assert [point.outputs["b"].load_bytes() for point in pages] == [to_bytes(torch.ones(1))] * 8
        assert pages.refused == {"tests.pages.foreign.Point": 8, "pickle.value": 8}


def test_a_disk_that_fails_leaves_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page_0.pkl"
    path.write_bytes(dump_joblib(make_page(6)))
    real = os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if offset > 60_000:
            raise OSError(5, "Input/output error")
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    points, pages = open_pages(path)
    assert 1 <= len(points) < 6
    assert "Input/output error" in pages.problems[0]


# torn pages


def read_cut_page(data: bytes, cut: int, wanted: dict[Any, Any], marks: list[bytes], tmp_path: Path) -> int:
    """How many datapoints a page that is cut there gives; each of them is whole, in order, from the first on."""
    path = tmp_path / "page_0.pkl"
    path.write_bytes(data[:cut])
    points, pages = open_pages(path)
    assert [point.key for point in points] == list(wanted)[: len(points)]
    for point in points:
        assert_alike(point.outputs, wanted[point.key])
    assert len(pages.problems) == 1
    begun = sum(1 for mark in marks if 0 <= data.find(mark) <= cut - len(mark))
    assert begun - 1 <= len(points), (cut, begun)
    return len(points)


@pytest.mark.parametrize("writer", ["joblib", "pickle0", "pickle1", "pickle2", "pickle4", "pickle5"])
def test_a_torn_page_gives_all_that_is_whole(writer: str, tmp_path: Path) -> None:
    wanted = make_page(6, size=600)
    data = WRITERS[writer](wanted)
    marks = [f"layer{idx}".encode() for idx in wanted]
    counts = [read_cut_page(data, cut, wanted, marks, tmp_path) for cut in range(1, len(data) - 1, 41)]
    assert counts == sorted(counts)
    assert set(counts) == set(range(6))
    assert read_cut_page(data, len(data) - 1, wanted, marks, tmp_path) == 6  # only the end is missing


CHAINS: list[dict[Any, Any]] = [
    {i: {"a": {"b": {"c": [i]}}} for i in range(5)},
    {i: {} for i in range(5)},
    {i: {"a": i} for i in range(5)},
    {f"k{i}": {"a": {"b": i}} for i in range(5)},
    {f"k{i}": {"a": {}} for i in range(5)},
    {i: {"a": (1, 2), "b": (3,)} for i in range(5)},
    {i: {"a": ({"x": 1}, {"y": 2})} for i in range(5)},
    {i: {"a": torch.ones(2).to_sparse() * i} for i in range(3)},
    {i: OrderedDict(a=1, b=i) for i in range(5)},
    {i: {f"d{j}": j for j in range(1000)} for i in range(3)},
    {i: {f"d{j}": j for j in range(1001)} for i in range(3)},
    {1: {"a": 1}},
    {1: {"a": {"b": 2}}, 2: {"c": 1, "d": 2}},
]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_what_is_half_written_is_never_taken_for_whole(chain: int, protocol: int, tmp_path: Path) -> None:
    wanted = CHAINS[chain]
    data = pickle.dumps(wanted, protocol)
    path = tmp_path / "page_0.pkl"
    most = 0
    for cut in range(1, len(data) - 1, 1 + len(data) // 200):
        path.write_bytes(data[:cut])
        points, _ = open_pages(path)
        for point in points:
            if not isinstance(wanted[point.key].get("a"), torch.Tensor):
                assert point.outputs == wanted[point.key], cut
        most = max(most, len(points))
    assert most >= len(wanted) - 2 or not any(wanted.values())


def test_many_datapoints_are_salvaged_batch_by_batch(tmp_path: Path) -> None:
    wanted = {i: {"a": i} for i in range(3500)}
    data = pickle.dumps(wanted, 4)
    path = tmp_path / "page_0.pkl"
    path.write_bytes(data[: len(data) * 9 // 10])
    points, pages = open_pages(path)
    assert 3000 < len(points) < 3500
    assert {point.key: point.outputs for point in points} == {i: wanted[i] for i in range(len(points))}
    assert (
        f"datapoint {len(points)} and everything after it are lost, {len(points)} before it are complete"
        in pages.problems[0]
    )


@pytest.mark.parametrize("kind", ["zlib", "gzip", "bz2", "xz", "lzma"])
def test_a_torn_packed_page(kind: str, tmp_path: Path) -> None:
    wanted = make_page(40, size=6000)
    path = tmp_path / "page_0.pkl"
    data = dump_joblib(wanted, compress=(kind, 3))
    path.write_bytes(data[: len(data) // 2])
    points, pages = open_pages(path)
    assert 0 < len(points) < 40 or kind == "bz2"
    for point in points:
        assert_alike(point.outputs, wanted[point.key])
    assert "compressed data" in pages.problems[0]


@pytest.mark.parametrize("kind", ["zlib", "gzip", "bz2", "xz", "lzma"])
def test_a_packed_bomb_is_bounded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(decompression, "RATIO", 2)
    path = tmp_path / "page_0.pkl"
    path.write_bytes(dump_joblib({1: {"a": 1}, 2: {"a": np.zeros(3_000_000)}}, compress=(kind, 3)))
    points, pages = open_pages(path)
    assert [point.key for point in points] == [1]
    assert "decompresses to more than" in pages.problems[0]


def test_a_packed_page_of_several_streams(tmp_path: Path) -> None:
    import gzip

    data, path = dump_joblib(make_page(3)), tmp_path / "page_0.pkl"
    path.write_bytes(gzip.compress(data[:5000]) + gzip.compress(data[5000:]))
    points, pages = open_pages(path)
    assert (len(points), pages.problems) == (3, [])


@pytest.mark.parametrize("kind", ["xz", "lzma"])
def test_an_enormous_dictionary_of_lzma_is_not_made(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page_0.pkl"
    path.write_bytes(dump_joblib(make_page(2), compress=(kind, 3)))
    assert len(open_pages(path)[0]) == 2
    monkeypatch.setattr(decompression, "MEMORY_BYTES", 1 << 16)
    points, pages = open_pages(path)
    assert not points and "Memory usage limit" in pages.problems[0]


# one datapoint of a large page

MEASURE = """
import resource, sys, time
from pathlib import Path
from tdbg.pages.pickle_reader.pickle_pages import LegacyPages
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(point,) = LegacyPages.from_path(Path(sys.argv[1])).find_datapoints(int(sys.argv[2]))
data = point.outputs["x"]["y"].load_bytes()
print(len(data), data[:1].hex(), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
print(*(name for name in ("torch", "numpy", "pickle", "joblib") if name in sys.modules))
"""


@pytest.mark.parametrize("kind", ["joblib", "pickle2", "gzip"])
def test_one_datapoint_does_not_load_its_page(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "page_0.pkl"
    value = {i: {"x": {"y": torch.full((1 << 20,), i + 128, dtype=torch.uint8)}} for i in range(96)}
    path.write_bytes(WRITERS[kind](value))
    command = [sys.executable, "-c", MEASURE, str(path), "77"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(tdbg.__file__).parent.parent)
    first, modules = done.stdout.splitlines()
    size, byte, grown_mb = first.split()
    assert (int(size), byte) == (1 << 20, "cd")
    assert int(grown_mb) < 16
    assert modules == ""


# broken at random


def walk_pages(path: Path) -> None:
    """Read all there is to read; TdbgError is what may come of it."""
    try:
        pages = LegacyPages.from_path(path)
        for point in pages:
            values, _ = point.build_flat_tree()
            str(point)
            for value in values.values():
                if isinstance(value, Array) and value.nbytes < 1 << 20:
                    try:
                        assert len(value.load_bytes()) == value.nbytes
                    except TdbgError:
                        pass
                else:
                    str(value)
        pages.find_datapoints(1)
        assert all(isinstance(problem, str) for problem in pages.problems)
    except TdbgError:
        pass


def _make_seeds() -> list[bytes]:
    rich = {
        1: {
            "t": torch.randn(3, 4).T,
            "n": np.arange(20),
            "s": torch.eye(2).to_sparse(),
            "p": torch.nn.Parameter(torch.ones(2)),
        },
        2: {
            "q": torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.quint8),
            "l": [1, (2.5, "x")],
            "m": torch.max(torch.eye(2), 0),
        },
        3: {
            "o": np.array([1, "a"], dtype=object),
            "f8": torch.ones(3).to(torch.float8_e4m3fn),
            "b": b"bytes",
            "d": torch.float16,
        },
        "4": {
            "c": 1j,
            "set": {1, 2},
            "np": np.float32(2),
            "po": Point(1, 2),
            "od": OrderedDict(a=1),
            "big": np.arange(3000),
        },
    }
    found = [pickle.dumps(rich, protocol) for protocol in range(6)] + [dump_joblib(rich), dump_joblib(rich, protocol=2)]
    found += [dump_joblib(rich, compress=(kind, 3)) for kind in ("zlib", "gzip", "bz2", "xz", "lzma")]
    return [*found, save_torch(rich, True), save_torch(rich, False)]


SEEDS = _make_seeds()
SPLICES = [
    b"\xff" * 4,
    b"\xff" * 8,
    b"\x00" * 8,
    b"\x80\x00\x00\x00",
    b"\x7f\xff\xff\xff",
    b".",
    b"(",
    b"0",
    b"R",
    b"b",
    b"u",
    b"\x81",
    b"2",
    b"\x94",
]
SPLICES += [
    b"cos\nsystem\n",
    b"\x95" + b"\xff" * 8,
    b"\x8e\x00\x00\x00\x00\x01\x00\x00\x00",
    b"h\x00",
    b"h\x05",
    b"Q",
    b"\x82\x01",
    b"\x93",
    b"t",
    b"\x85",
]


def mutate_pickle(data: bytes, random: random.Random, count: int) -> bytes:
    """The same with a few bits, bytes and pieces changed."""
    found = bytearray(data)
    for _ in range(count):
        at, kind = random.randrange(len(found) + 1), random.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = random.randrange(256)
        elif kind == 2:
            del found[at : at + random.randrange(1, 20)]
        elif kind == 3:
            found[at:at] = random.choice(SPLICES)
        elif kind == 4:
            piece = random.choice(SPLICES)
            found[at : at + len(piece)] = piece
        elif kind == 5:
            begin = random.randrange(len(found) + 1)
            found[at:at] = found[begin : begin + random.randrange(1, 60)]
        else:
            other = random.choice(SEEDS)
            begin = random.randrange(len(other))
            found[at:at] = other[begin : begin + random.randrange(1, 200)]
    return bytes(found[: random.randrange(len(found) + 1)] if random.randrange(8) == 0 else found)


@given(seed=st.integers(0, len(SEEDS) - 1), random=st.randoms(use_true_random=False), count=st.integers(1, 12))
@settings(
    max_examples=150, deadline=20_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_mutated_page_is_read_or_told_of(seed: int, random: random.Random, count: int, tmp_path: Path) -> None:
    path = tmp_path / "page_0.pkl"
    path.write_bytes(mutate_pickle(SEEDS[seed], random, count))
    walk_pages(path)


STARTS = [b"", b"\x80\x02}(", b"\x80\x04]", b"\x78\x9c", b"\x1f\x8b\x08\x00", b"PK\x03\x04"]


@given(data=st.binary(max_size=300), start=st.sampled_from(STARTS))
@settings(
    max_examples=150, deadline=20_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_bytes_are_read_or_told_of(data: bytes, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "page_0.pkl"
    path.write_bytes(start + data)
    walk_pages(path)


def test_the_walk_would_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above could not fail."""
    path = tmp_path / "page_0.pkl"
    path.write_bytes(SEEDS[0])
    monkeypatch.setattr(pickle_pages, "follow_pickle", lambda machine: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        walk_pages(path)


def test_what_joblib_reads_is_what_is_read(tmp_path: Path) -> None:
    """Against joblib itself, on a page that this test wrote."""
    data = dump_joblib(make_page(3))
    (tmp_path / "page_0.pkl").write_bytes(data)
    trusted = joblib.load(io.BytesIO(data))
    points, _ = open_pages(tmp_path)
    for point in points:
        assert_alike(point.outputs, trusted[point.key])
    assert not any(isinstance(value, Refused) for point in points for value in point.build_flat_tree().values.values())


def test_offsets_that_no_file_has(tmp_path: Path) -> None:
    start, end = b"PK\x03\x04" + bytes(60), b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, 46, 0, 0)
    where = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, 46, 2**64 - 1)
    for more, at in ((b"", 2**64 - 1), (where, len(start))):
        path = tmp_path / "page_0.pkl"
        path.write_bytes(start + more + b"PK\x06\x07" + struct.pack("<IQI", 0, at, 1) + end)
        found = LegacyPages.from_path(path)
        assert list(found) == [] and "a zip file that torch.save did not make" in found.problems[0]
