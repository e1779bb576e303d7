"""The reader: finds what was captured wherever it lies, and believes no file."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tdbg.core.errors import TdbgError
from tdbg.pages.format.file_format import HEADER_LIMIT, MANIFEST
from tdbg.pages.format.journal import encode_frame, iter_records
from tdbg.pages.format.manifest import VersionError
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.read import datapoint as datapoint_module
from tdbg.pages.read.page_set import NoPagesError, PageSet
from tdbg.pages.repair.verification import verify_pages
from tests.pages.material import (
    assert_whole,
    fill_writer,
    list_sealed,
    make_content,
    make_items,
    read_keys,
    write_pages,
)

ROOT = Path(__file__).parents[3]
FRAMES = 1 + 1 + 1 + 1  # open, page, layout and a datapoint stand first in a journal


def list_problems(path: Path) -> str:
    """All problems, once everything was read."""
    found = PageSet.open(path)
    for datapoint in found:
        for tensor in datapoint.tensors.values():
            try:
                tensor.read()
            except TdbgError:
                continue
    return "\n".join(map(str, found.problems))


# --- what is found ---


def test_a_run_is_read_in_the_order_of_ranks_and_numbers(tmp_path: Path) -> None:
    for rank, folder in ((10, "rank0010/pages"), (2, "rank0002/pages"), (2, "rank0002/attempt1/pages")):
        write_pages(tmp_path / folder, 3, rank=rank, page_bytes=20_000)
    (tmp_path / "rank0002" / "events.jsonl").write_text("{}\n")
    found = PageSet.open(tmp_path)
    order = [(datapoint.rank, datapoint.seq) for datapoint in found]
    assert order == [(2, 0), (2, 1), (2, 2)] * 2 + [(10, 0), (10, 1), (10, 2)]
    assert assert_whole(found) == 9
    assert found.problems == []
    assert [datapoint.rank for datapoint in found.find("k1")] == [2, 2, 10]
    assert len(list(PageSet.open(tmp_path / "rank0002"))) == 6


def test_one_page_or_one_journal_is_enough(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 5) as writer:
        writer.seal()
        writer.add("k5", make_items("k5"))
        part, page, journal = (next(tmp_path.glob(f"*.{end}")) for end in ("part", "safetensors", "journal"))
        assert read_keys(part) == ["k5"]
        assert [datapoint.key for datapoint in PageSet.open(part).find("k1")] == []
        assert read_keys(page) == [f"k{n}" for n in range(5)]
        assert read_keys(journal) == [f"k{n}" for n in range(6)]
        assert len(PageSet.open(page).find("k3")) == 1
    moved = tmp_path / "elsewhere" / "renamed.safetensors"
    moved.parent.mkdir()
    page.rename(moved)
    assert read_keys(moved) == [f"k{n}" for n in range(5)]


def test_a_plain_safetensors_file_is_one_datapoint(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6).reshape(2, 3), "a": torch.ones(3, dtype=torch.bfloat16), "e": torch.empty(0, 2)}
    tensors["fp4"] = torch.tensor([[0x21]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file(tensors, tmp_path / "model.safetensors", {"note": "x"})
    (found,) = PageSet.open(tmp_path / "model.safetensors")
    assert (found.key, found.more) == ("model", {"metadata": {"note": "x"}})
    assert {path: tensor.shape for path, tensor in found.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert found.tensors["b"].array().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.tensors["fp4"].numbers() == [0.5, 1.0]


def test_what_was_told_of_a_datapoint_comes_back(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"step": 7, "epoch": 2, "phase": "val", "scalars": {"loss": 0.5}, "flags": ["late"]}
    with PageWriter(tmp_path) as writer:
        writer.add("k", make_items("k"), **fields, stats={"a": {"nan": float("inf")}}, call=3, modules=["x"])
        writer.add("bare", make_items("bare"))
    one, bare = PageSet.open(tmp_path)
    assert {name: getattr(one, name) for name in fields} == fields
    assert (one.stats, one.more) == ({"a": {"nan": float("inf")}}, {"call": 3, "modules": ["x"]})
    assert (bare.step, bare.epoch, bare.phase, bare.scalars, bare.flags, bare.keys, bare.row) == (
        0, None, "", {}, [], None, None,
    )  # fmt: skip


def test_rows_of_a_batch_are_read_alone(tmp_path: Path) -> None:
    data = make_content("batch", "x", 4 * 24)
    note = {"axis": 0, "scales": [1.0, 2.0, 3.0, 4.0], "zero_points": [0, 1, 2, 3]}
    shapes = [Item("x", "float32", (4, 2, 3), data), Item("w", "uint8", (3,), b"abc")]
    shapes.append(Item("q", "quint8", (4, 2), bytes(range(8)), note))
    columns = {"axis": 1, "scales": [0.5, 0.25], "zero_points": [0, 0]}
    shapes.append(Item("c", "quint8", (4, 2), bytes(range(8)), columns))
    with PageWriter(tmp_path) as writer:
        writer.add(
            "b", shapes, keys=[5, "six", 5, 8], split=["x", "q", "c", "label"], scalars={"label": [1, 2, 3, 4], "n": 9}
        )
    found = PageSet.open(tmp_path)
    one, other = found.find(5)
    assert (one.row, other.row, other.key) == (0, 2, 5)
    assert (other.tensors["x"].shape, other.tensors["x"].read()) == ((2, 3), data[48:72])
    assert other.tensors["w"].read() == b"abc"
    assert other.tensors["q"].numbers() == [(4 - 2) * 3.0, (5 - 2) * 3.0]
    assert other.scalars == {"label": 3, "n": 9}
    assert other.tensors["c"].numbers() == [4 * 0.5, 5 * 0.25]
    assert [datapoint.key for datapoint in found.rows()] == [5, "six", 5, 8]
    (batch,) = found
    assert batch.tensors["x"].read_row(1) == data[24:48]
    assert found.find("b")[0].row is None
    with pytest.raises(TdbgError, match="no row 4"):
        batch.tensors["x"].read_row(4)


def test_a_key_is_found_in_whatever_spelling(tmp_path: Path) -> None:
    wanted = ["a", 'quo"te', "ü", "12", 12, "back\\slash", os.fsdecode(b"\xff")]
    with PageWriter(tmp_path) as writer:
        for key in wanted:
            writer.add(key, make_items(key), scalars={"path": os.fsdecode(b"\xfe")} if key == "ü" else {})
    for key in wanted:
        assert len(PageSet.open(tmp_path).find(key)) == (2 if key in ("12", 12) else 1), key
    assert PageSet.open(tmp_path).find("1") == []
    journal = next(tmp_path.glob("*.journal"))
    with open(journal, "r+b") as file:  # another writer's JSON, with blanks, and in another order
        file.seek(0, os.SEEK_END)
        other = json.dumps({"seq": 99, "key": "ü", "t": "dp"}, ensure_ascii=True, indent=1).encode()
        from tdbg.pages.format.journal import frame_body

        file.write(frame_body(other))
    assert [datapoint.seq for datapoint in PageSet.open(tmp_path).find("ü")] == [2, 99]


def test_layers_are_summed_up(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 3) as writer:
        writer.add("k", [Item("flags", "uint8", (2,), bytes(2))])
    layers = {layer.path: layer for layer in PageSet.open(tmp_path).layers()}
    assert layers["flags"] == ("flags", ("bool", "uint8"), ((64,), (2,)), 4, 3 * 64 + 2)
    assert list(layers) == [item.path for item in make_items("x")]


def test_a_part_of_a_tensor_and_chunks(tmp_path: Path) -> None:
    with PageWriter(tmp_path) as writer:
        writer.add("k", make_items("k", [("t", "int16", (1000,), 2000)]))
    (datapoint,) = PageSet.open(tmp_path)
    tensor, data = datapoint.tensors["t"], make_content("k", "t", 2000)
    assert (tensor.read_range(10, 20), tensor.read_range(1990, 5000), tensor.read_range(-5, 0)) == (
        data[10:20],
        data[1990:],
        b"",
    )
    assert [len(chunk) for chunk in tensor.chunks(999)] == [998, 998, 4]
    assert b"".join(tensor.chunks(7)) == data


def test_what_is_no_set_of_pages_is_said(tmp_path: Path) -> None:
    (tmp_path / "page_0.pkl").write_bytes(b"\x80")
    for path in (tmp_path, tmp_path / "no", tmp_path / "page_0.pkl"):
        with pytest.raises(NoPagesError):
            PageSet.open(path)


def test_a_writer_at_work_is_read_as_far_as_it_got(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 3, page_bytes=20_000) as writer:
        early = PageSet.open(tmp_path)
        first = next(iter(early))
        for number in range(3, 40):
            writer.add(f"k{number}", make_items(f"k{number}"))
            assert len(read_keys(tmp_path)) == number + 1
        assert len(list_sealed(tmp_path)) > 1
        assert_whole([first])  # its page was sealed meanwhile
        assert [datapoint.key for datapoint in early] == ["k0", "k1", "k2"]
        assert verify_pages(tmp_path)[-1].grave is False


# --- what is missing or torn ---


def test_a_torn_journal_gives_what_stands_before_the_tear(tmp_path: Path) -> None:
    fill_writer(tmp_path, 5)
    journal = next(tmp_path.glob("*.journal"))
    whole = journal.read_bytes()
    ends = [*[offset for offset, _ in iter_records(whole)][FRAMES - 1 :], len(whole)]
    for cut in range(ends[1], len(whole), 7):
        journal.write_bytes(whole[:cut])
        count = sum(end <= cut for end in ends[1:])
        assert read_keys(tmp_path) == [f"k{n}" for n in range(count)]
        assert not any(problem.grave for problem in PageSet.open(tmp_path).problems)


def test_sealed_pages_tell_what_a_broken_or_lost_journal_cannot(tmp_path: Path) -> None:
    write_pages(tmp_path, 30, page_bytes=20_000)
    assert len(list_sealed(tmp_path)) == 3
    journal = next(tmp_path.glob("*.journal"))
    data = bytearray(journal.read_bytes())
    offsets = [offset for offset, record in iter_records(bytes(data)) if record["t"] == "dp"]
    data[offsets[11] + 20] ^= 1
    journal.write_bytes(data)
    assert read_keys(tmp_path) == [f"k{n}" for n in range(30)]
    assert "of an incomplete record" in list_problems(tmp_path)
    journal.unlink()
    assert read_keys(tmp_path) == [f"k{n}" for n in range(30)]
    assert [datapoint.key for datapoint in PageSet.open(tmp_path).find("k17")] == ["k17"]


def test_a_missing_page_is_told_and_its_tensors_are_errors(tmp_path: Path) -> None:
    write_pages(tmp_path, 30, page_bytes=20_000)
    list_sealed(tmp_path)[1].unlink()
    found = PageSet.open(tmp_path)
    assert "page 1 of rank 0 is missing" in str(found.problems[0])
    lost = [datapoint for datapoint in found if datapoint.page == 1]
    assert len(list(found)) == 30 and lost
    with pytest.raises(TdbgError, match="is missing"):
        lost[0].tensors["flags"].read()
    assert lost[0].tensors["empty"].read() == b""


def test_a_page_cut_short_gives_what_it_holds(tmp_path: Path) -> None:
    write_pages(tmp_path, 10)
    page = list_sealed(tmp_path)[0]
    os.truncate(page, page.stat().st_size - 400)
    found = PageSet.open(tmp_path)
    assert "when sealed" in str(found.problems[0])
    good = 0
    for datapoint in found:
        try:
            good += assert_whole([datapoint])
        except TdbgError as error:
            assert "should have" in str(error)
    assert 5 <= good < 10
    assert any("ends at byte" in problem.text for problem in verify_pages(tmp_path))


def test_a_lost_manifest_is_told(tmp_path: Path) -> None:
    (write_pages(tmp_path, 2) / MANIFEST).unlink()
    assert "has no MANIFEST.json" in list_problems(tmp_path)
    assert len(read_keys(tmp_path)) == 2


def test_a_part_without_a_journal_is_told(tmp_path: Path) -> None:
    fill_writer(tmp_path, 2)
    next(tmp_path.glob("*.journal")).unlink()
    assert "in no journal" in list_problems(tmp_path)


# --- versions ---


def test_an_unknown_major_version_is_refused_and_a_minor_one_is_not(tmp_path: Path) -> None:
    write_pages(tmp_path, 2)
    journal, page = next(tmp_path.glob("*.journal")), list_sealed(tmp_path)[0]
    whole = journal.read_bytes()
    records = [record for _, record in iter_records(whole)]
    records[0]["version"] = {"major": 1, "minor": 9}
    records[0]["new"] = records[-2]["new"] = {"x": 1}
    journal.write_bytes(b"".join(map(encode_frame, [*records, {"t": "a new kind", "x": 1}])))
    assert read_keys(tmp_path) == ["k0", "k1"]
    assert list_problems(tmp_path) == ""
    for version in ({"major": 2, "minor": 0}, None, "1.0", {}):
        records[0]["version"] = version
        journal.write_bytes(b"".join(map(encode_frame, records)))
        with pytest.raises(VersionError, match="version"):
            PageSet.open(tmp_path)
    journal.write_bytes(whole)
    page.write_bytes(page.read_bytes().replace(b'"version":"1.0"', b'"version":"2.0"'))
    with pytest.raises(VersionError, match="version"):
        PageSet.open(page)
    (tmp_path / MANIFEST).write_text('{"format": "tdbg-pages", "version": {"major": 3}}')
    with pytest.raises(VersionError, match="version 3"):
        PageSet.open(tmp_path)


# --- hostile files ---


def write_with_records(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """A folder whose journal says something else, with good checksums."""
    fill_writer(folder, 4)
    journal = next(folder.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    change(records)
    journal.write_bytes(b"".join(map(encode_frame, records)))
    return folder


WRONG: list[Any] = [None, True, -1, 2**63, 10**400, 1.5, float("nan"), "x", "", [], {}, [[]], [None], {"$x": 1}]
DP_FIELDS = ["key", "seq", "page", "base", "length", "layout", "step", "epoch", "phase", "scalars", "stats", "flags"]
DP_FIELDS += ["keys", "split", "crc", "t"]


@pytest.mark.parametrize("field", DP_FIELDS)
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_datapoint_with_a_field_of_a_wrong_type(tmp_path: Path, field: str, value: Any) -> None:
    folder = write_with_records(tmp_path, lambda records: records[4].__setitem__(field, value))
    _read_all(folder)
    assert assert_whole(datapoint for datapoint in PageSet.open(folder) if datapoint.key in ("k0", "k2", "k3")) >= 3


@pytest.mark.parametrize("field", ["t", "id", "length", "items"])
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_layout_with_a_field_of_a_wrong_type(tmp_path: Path, field: str, value: Any) -> None:
    _read_all(write_with_records(tmp_path, lambda records: records[2].__setitem__(field, value)))


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize(
    "value", [*WRONG, [2**62, 2**62], [-1], [1] * 100, [2**20] * 3, "float32", "quint4x2"], ids=repr
)
def test_an_item_of_a_layout_with_a_field_of_a_wrong_type(tmp_path: Path, place: int, value: Any) -> None:
    folder = write_with_records(tmp_path, lambda records: records[2]["items"][1].__setitem__(place, value))
    _read_all(folder)


@pytest.mark.parametrize("kind", ["open", "page", "layout", "dp", "seal", "drop", "end", "x"])
def test_records_without_any_field(tmp_path: Path, kind: str) -> None:
    _read_all(write_with_records(tmp_path, lambda records: records.insert(1, {"t": kind})))
    _read_all(write_with_records(tmp_path / "b", lambda records: records.append({"t": kind})))
    if kind != "open":
        _read_all(write_with_records(tmp_path / "c", lambda records: records.__setitem__(0, {"t": kind})))


def test_problems_do_not_fill_the_memory(tmp_path: Path) -> None:
    folder = write_with_records(tmp_path, lambda records: records.extend({"t": "dp", "key": n} for n in range(3000)))
    found = PageSet.open(folder)
    assert (len(list(found)), len(found.problems)) == (4, 1000)


def test_layouts_that_share_bytes_or_leave_the_datapoint_are_refused(tmp_path: Path) -> None:
    def overlap(records: list[dict[str, Any]]) -> None:
        records[2]["items"][1][3] = 16

    def beyond(records: list[dict[str, Any]]) -> None:
        records[2]["items"][-1][3] = 2**40

    for number, change in enumerate((overlap, beyond)):
        folder = write_with_records(tmp_path / f"{number}", change)
        found = PageSet.open(folder)
        assert list(found) == []
        assert any("overlap" in p.text or "beyond" in p.text for p in found.problems)


def test_a_place_beyond_the_page_is_an_error(tmp_path: Path) -> None:
    for number, base in enumerate((2**40, 2**61)):
        folder = write_with_records(tmp_path / f"{number}", lambda records, base=base: records[4].update(base=base))
        datapoint = list(PageSet.open(folder))[1]
        with pytest.raises(TdbgError, match="should have"):
            datapoint.tensors["flags"].read()


def test_a_file_with_a_hole_may_claim_any_size_and_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 42

    def claim_size(records: list[dict[str, Any]]) -> None:
        records[2]["items"] = [["t", "uint8", [size], 0, size, {}]]
        records[2]["length"] = size
        for record in records[3:]:
            record["length"] = size

    folder = write_with_records(tmp_path, claim_size)
    try:
        os.truncate(next(folder.glob("*.part")), 1 << 43)
    except OSError:
        pytest.skip("no such large files here")
    datapoint = next(iter(PageSet.open(folder)))
    with pytest.raises(TdbgError, match="too many to read at once"):
        datapoint.tensors["t"].read()
    assert datapoint.tensors["t"].read_range(10, 20) != b""
    monkeypatch.setattr(datapoint_module, "READ_LIMIT", 100)
    with pytest.raises(TdbgError):
        next(iter(datapoint.tensors["t"].chunks(200)))


def write_header_file(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
    return path


def encode_entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> bytes:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


OURS = {"format": "tdbg-pages", "version": "1.0", "layouts": "[]", "datapoints": "[]"}
HEADERS: list[tuple[bytes, int | None]] = [
    (b"", 0),
    (b"", 2**64 - 1),
    (b"{}", 2**63),
    (b"{}", 100),
    (b"[]", None),
    (b"{" * 1000, None),
    (b"[" * 1_000_000, None),
    (b'{"a":' * 1_000_000, None),
    (b"\xff\xfe{}", None),
    (b'{"a":NaN}', None),
    (b'{"a":1}', None),
    (b'{"__metadata__":[]}', None),
    (b'{"__metadata__":{"a":1}}', None),
    (encode_entry(offsets=(0, 5)), None),
    (encode_entry(offsets=(0, 3)), None),
    (encode_entry(offsets=(4, 0)), None),
    (encode_entry(offsets=(-4, 0)), None),
    (encode_entry(offsets=(0, 2**63)), None),
    (encode_entry(offsets=(2**62, 2**62 + 4)), None),
    (encode_entry(offsets=(0.0, 4.0)), None),
    (encode_entry(offsets=(0, 4, 8)), None),
    (encode_entry(shape=(2**32, 2**32)), None),
    (encode_entry(shape=(2**62, 2**62, 4)), None),
    (encode_entry(shape=(-2, -2)), None),
    (encode_entry(shape="4"), None),
    (encode_entry(shape=(True, 4)), None),
    (encode_entry(dtype=7), None),
    (json.dumps({n: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for n in "ab"}).encode(), None),
    *((json.dumps({"__metadata__": {**OURS, name: value}}).encode(), None) for name in OURS if name != "format"
      for value in ("", "x", "{}", "[", "null", "[" * 100_000, '[{"t":1}]', "9" * 5000)),
]  # fmt: skip


@pytest.mark.parametrize(("header", "length"), HEADERS, ids=lambda value: repr(value)[:40])
def test_headers_that_lie(tmp_path: Path, header: bytes, length: int | None) -> None:
    path = write_header_file(tmp_path / "r0000-000000.safetensors", header, b"abcd", length)
    try:
        assert_metadata_only = list(PageSet.open(path))
        assert assert_metadata_only == [] or all(not point.tensors for point in assert_metadata_only)
    except TdbgError:
        pass
    _read_all(tmp_path)


def test_a_dtype_that_nobody_knows_is_told(tmp_path: Path) -> None:
    path = write_header_file(tmp_path / "x.safetensors", encode_entry(dtype="F6_E2M3"), b"abcd")
    found = PageSet.open(path)
    assert [dict(datapoint.tensors) for datapoint in found] == [{}]
    assert "unknown dtype" in str(found.problems[0])


def test_a_header_of_100_mb_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with open(path, "wb") as file:
        file.write((100_000_000).to_bytes(8, "little") + b'{"a":')
        file.truncate(100_000_100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TdbgError, match="limit"):
        PageSet.open(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert HEADER_LIMIT < 100_000_000


@pytest.mark.parametrize("name", ["r0000-000000.safetensors", "r0000-000000.part", "r0000-1.journal", MANIFEST])
@pytest.mark.parametrize("kind", ["pipe", "folder", "zero", "nowhere", "loop"])
def test_what_is_no_plain_file_holds_nobody_up(tmp_path: Path, name: str, kind: str) -> None:
    write_pages(tmp_path / "other", 1, rank=3)
    for file in (tmp_path / "other").iterdir():
        file.rename(tmp_path / file.name)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"zero": "/dev/zero", "nowhere": "no/where", "loop": name}[kind])
    _read_all(tmp_path)
    if kind in ("pipe", "folder", "zero"):
        assert "not a regular file" in list_problems(tmp_path) or (
            name.endswith("part") and "in no journal" in list_problems(tmp_path)
        )
    assert "k0" in [datapoint.key for datapoint in PageSet.open(tmp_path)]


def _read_all(path: Path) -> None:
    """Read all there is, through every door; TdbgError alone may come of it."""
    for use in (
        _read_everything,
        verify_pages,
        lambda where: PageSet.open(where).layers(),
        lambda where: PageSet.open(where).find("k1"),
    ):
        try:
            use(path)
        except TdbgError:
            continue


def _read_everything(path: Path) -> None:
    found = PageSet.open(path)
    for datapoint in found.rows():
        assert isinstance(datapoint.key, str | int) and isinstance(datapoint.step, int)
        assert isinstance(datapoint.scalars, dict) and isinstance(datapoint.more, dict)
        for tensor in datapoint.tensors.values():
            try:
                assert len(tensor.read()) == tensor.nbytes
                tensor.numbers()
            except TdbgError:
                continue
    str(found.problems), found.drops


@pytest.fixture(scope="module")
def sample_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A folder with a sealed page and one that is being filled, as bytes; with a batch, a drop and marked scalars."""
    folder = tmp_path_factory.mktemp("sample")
    writer = fill_writer(folder, 4, header_bytes=4096, checksums=False)
    writer.record_drop(2, "full", 1, 2)
    writer.seal()
    writer.add("k4", make_items("k4"), scalars={"nan": float("nan")})
    writer.add("b", [Item("x", "uint8", (2, 3), make_content("b", "x", 6))], keys=["r", "s"], split=["x"])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "splice", "zero", "grow"]), st.integers(0, 1 << 20), st.integers(0, 1 << 20)
    ),
    min_size=1,
    max_size=4,
)


def mutate_bytes(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """Flip bits, cut, copy a piece elsewhere, zero a piece, append."""
    for kind, a, b in changes:
        found = bytearray(data)
        a, size = a % max(len(found), 1), b % 64 + 1
        if kind == "flip" and found:
            found[a] ^= 1 << b % 8
        elif kind == "cut":
            del found[a:]
        elif kind == "splice":
            at = b % max(len(found), 1)
            found[at:at] = found[a : a + size]
        elif kind == "zero":
            found[a : a + size] = bytes(len(found[a : a + size]))
        else:
            found += found[a : a + size]
        data = bytes(found)
    return data


EXAMPLES = int(os.environ.get("TDBG_TEST_PAGE_EXAMPLES", "250"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), MUTATIONS)
def test_no_change_of_any_file_makes_a_crash_or_a_wrong_journal(
    sample_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, changes: Any
) -> None:
    name = data.draw(st.sampled_from(sorted(sample_files)))
    folder = tmp_path_factory.mktemp("mutated")
    for other, found in sample_files.items():
        (folder / other).write_bytes(mutate_bytes(found, changes) if other == name else found)
    _read_all(folder)
    _read_all(folder / name)
    if name.endswith("journal"):  # its checksums: what it still tells is true
        assert_same_as_sample(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def assert_same_as_sample(folder: Path) -> None:
    found = PageSet.open(folder)
    known = {"k0", "k1", "k2", "k3", "k4", "b"}
    assert {datapoint.key for datapoint in found} <= known
    assert_whole(datapoint for datapoint in found)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 7), st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_of_a_page_changes_one_tensor_at_most(
    sample_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, bit: int, where: float
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    for name, found in sample_files.items():
        changed = bytearray(found)
        if name == "r0000-000000.safetensors":
            at = int(where * len(changed))
            changed[at] ^= 1 << bit
        (folder / name).write_bytes(changed)
    wrong = []
    for datapoint in PageSet.open(folder):  # through the journal: a header that lies changes nothing
        for path, tensor in datapoint.tensors.items():
            if tensor.read() != make_content(datapoint.key, path, tensor.nbytes):
                wrong.append((datapoint.page, tensor.at <= at < tensor.at + tensor.nbytes))
    assert wrong in ([], [(0, True)])
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def test_checksums_find_a_flipped_bit_of_the_data(tmp_path: Path) -> None:
    write_pages(tmp_path, 3, checksums=True)
    assert verify_pages(tmp_path) == []
    page = list_sealed(tmp_path)[0]
    data = bytearray(page.read_bytes())
    (datapoint,) = PageSet.open(tmp_path).find("k1")
    data[datapoint.tensors["flags"].at + 5] ^= 1
    page.write_bytes(data)
    (problem,) = verify_pages(tmp_path)
    assert problem.grave and "checksum" in problem.text and "'k1'" in problem.text


# --- cost ---


PEAK_MB = """next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))"""  # ru_maxrss would be that of the parent too


def run_child(code: str, *args: object) -> str:
    command = [sys.executable, "-c", code.replace("PEAK_MB", PEAK_MB), *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_reading_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    write_pages(tmp_path, 2)
    code = """
import sys
from tdbg.pages.read.page_set import PageSet
found = PageSet.open(sys.argv[1])
found.layers()
for datapoint in found.rows():
    for tensor in datapoint.tensors.values():
        tensor.numbers()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "msgspec", "pickle", "safetensors"}))
"""
    assert run_child(code, tmp_path) == "[]"


def test_12_000_tensors_are_listed_fast_and_one_is_found_in_little_memory(tmp_path: Path) -> None:
    data = bytes(64)
    with PageWriter(tmp_path) as writer:
        for number in range(100):
            writer.add(f"k{number}", [Item(f"layers.{n}/output", "float32", (4, 4), data) for n in range(120)])
    code = """
import sys, time
from tdbg.pages.read.page_set import PageSet
begin = time.process_time()
count = sum(len(datapoint.tensors) for datapoint in PageSet.open(sys.argv[1]))
listed = time.process_time() - begin
begin = time.process_time()
(found,) = PageSet.open(sys.argv[1]).find("k77")
found.tensors["layers.7/output"].read()
print(count, listed, time.process_time() - begin, PEAK_MB)
import json, pathlib
files = [path.read_bytes() for path in pathlib.Path(sys.argv[1]).glob("*.safetensors")]
heads = [data[8 : 8 + int.from_bytes(data[:8], "little")] for data in files]
for _ in range(5):
    begin = time.process_time()
    for head in heads:
        json.loads(head)
    print(time.process_time() - begin)
"""
    count, listed, found, rss, *parsed = map(float, run_child(code, tmp_path).split())
    assert count == 12_000
    assert listed < 3 * min(parsed), "it took 0.3 to 0.5 times as long as json takes for the same headers"
    assert found < min(parsed), "it took 0.1 times as long"
    assert rss < 40


def test_a_journal_is_not_kept_in_memory(tmp_path: Path) -> None:
    journal = tmp_path / "r0000-1.journal"
    records = [{"t": "open", "version": {"major": 1, "minor": 0}, "time": 0}]
    with open(journal, "wb") as file:
        file.write(encode_frame(records[0]))
        body = {"t": "dp", "key": "x", "seq": 0, "scalars": {"text": "y" * 9_000}}
        for number in range(7000):  # 63 MB
            file.write(encode_frame({**body, "seq": number}))
    code = """
import sys
from tdbg.pages.read.page_set import PageSet
print(sum(1 for _ in PageSet.open(sys.argv[1])), PEAK_MB)
"""
    count, rss = map(int, run_child(code, tmp_path).split())
    assert count == 7000
    assert rss < 40


def test_the_newest_run_with_pages_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with traces: a later run without any is passed over."""
    from tdbg.core.rundir import RunDir
    from tdbg.pages.selection.locations import find_newest_run

    monkeypatch.chdir(tmp_path)
    first, _ = RunDir.create(tmp_path / "tdbg_runs" / "a", {})
    (first.path / "rank0000" / "pages").mkdir(parents=True)
    time.sleep(0.02)
    RunDir.create(tmp_path / "tdbg_runs" / "b", {})
    assert Path(find_newest_run()).name == "a"
