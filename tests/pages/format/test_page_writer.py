"""The writer: what it acknowledged is there, whatever happens to the process, the disk or the folder."""

import contextlib
import errno
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors import safe_open

from tdbg.core.errors import TdbgError
from tdbg.pages.format import disk
from tdbg.pages.format.dtypes import DTYPES
from tdbg.pages.format.file_format import ALIGN, MANIFEST
from tdbg.pages.format.layout import UnstorableError
from tdbg.pages.format.page_writer import BudgetExceeded, Item, PageWriter
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.repair.verification import verify_pages
from tests.chance import choose_seed
from tests.pages.material import (
    assert_whole,
    fill_writer,
    list_sealed,
    make_content,
    make_items,
    read_keys,
    sum_bytes,
    write_pages,
)

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("TDBG_TEST_PAGE_KILLS", "30"))
PAGE_SEED = choose_seed("TDBG_TEST_PAGE_SEED", "TDBG_TEST_PAGE_KILLS")


def make_names(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


# --- what can be stored ---


@pytest.mark.parametrize("close", [True, False])
def test_every_dtype_and_odd_shape_comes_back(tmp_path: Path, close: bool) -> None:
    writer = PageWriter(tmp_path)
    for name, dtype in DTYPES.items():
        shapes = [(2, 4), (0, 3), (5, 0), (3,)] + ([()] if not dtype.counts_values else [])
        found = [
            Item(f"{i}", name, shape, make_content(name, f"{i}", dtype.count_bytes(shape)))
            for i, shape in enumerate(shapes)
        ]
        writer.add(name, found)
    if close:
        writer.close()
    found_set = PageSet.open(list_sealed(tmp_path)[0] if close else tmp_path)
    assert assert_whole(found_set) == len(DTYPES)
    for datapoint in found_set:
        assert [tensor.dtype.name for tensor in datapoint.tensors.values()] == [datapoint.key] * len(datapoint.tensors)
        assert [tensor.shape for tensor in datapoint.tensors.values()][:4] == [(2, 4), (0, 3), (5, 0), (3,)]


def test_a_sealed_page_is_what_safetensors_reads(tmp_path: Path) -> None:
    with PageWriter(tmp_path) as writer:
        for name, dtype in DTYPES.items():
            writer.add(name, [Item("a/b", name, (2, 4), make_content(name, "a/b", dtype.count_bytes((2, 4))))])
    with safe_open(list_sealed(tmp_path)[0], "pt") as page:
        for seq, (name, dtype) in enumerate(DTYPES.items()):
            tensor = page.get_tensor(f"{seq:08d}/a/b")
            if dtype.stored != "U8":
                assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, name), (2, 4))
            data = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
            assert data == make_content(name, "a/b", dtype.count_bytes((2, 4))), name
        starts = json.loads((tmp_path / list_sealed(tmp_path)[0]).read_bytes()[8:].split(b"}  ")[0] + b"}")
    ours = [entry for name, entry in starts.items() if name[0] == "0"]
    header = int.from_bytes(list_sealed(tmp_path)[0].read_bytes()[:8], "little") + 8
    assert all((header + entry["data_offsets"][0]) % ALIGN == 0 for entry in ours)


def test_names_of_all_kinds(tmp_path: Path) -> None:
    found = ["a/b", "", "ü€𝄞", "\0\n\"\\'", "../../etc", os.fsdecode(b"\xff\xfe"), os.fsdecode(b"\xfd\xfe"), "x" * 5000]
    with PageWriter(tmp_path, run="ü") as writer:
        writer.add(found[5], [Item(name, "uint8", (4,), make_content(found[5], name, 4)) for name in found])
    for path in (tmp_path, list_sealed(tmp_path)[0]):
        (datapoint,) = PageSet.open(path)
        assert list(datapoint.tensors) == found
        assert assert_whole([datapoint]) == 1
        assert len(PageSet.open(path).find(found[5])) == 1
    with safe_open(list_sealed(tmp_path)[0], "pt") as page:
        assert len([name for name in page.keys() if not name.startswith("pad/")]) == len(found)  # noqa: SIM118
    assert verify_pages(tmp_path) == []


def test_two_datapoints_of_one_key_are_both_kept(tmp_path: Path) -> None:
    with PageWriter(tmp_path) as writer:
        assert [writer.add(7, make_items(7)), writer.add("7", make_items("7")), writer.add(7, make_items(7))] == [
            0,
            1,
            2,
        ]
    found = PageSet.open(tmp_path).find(7)
    assert [(datapoint.key, datapoint.seq) for datapoint in found] == [(7, 0), ("7", 1), (7, 2)]


def test_scalars_alone_need_no_page(tmp_path: Path) -> None:
    with PageWriter(tmp_path) as writer:
        writer.add(
            "a", [], scalars={"loss": float("nan"), "word": "nan", "parts": [1, (2, 3)], "z": 1 + 2j, "b": b"\0"}
        )
        writer.record_drop(3, "the ring was full", 5, 9)
    assert list_sealed(tmp_path) == []
    found = PageSet.open(tmp_path)
    (datapoint,) = found
    assert repr(datapoint.scalars) == repr(
        {"loss": float("nan"), "word": "nan", "parts": [1, [2, 3]], "z": 1 + 2j, "b": b"\0"}
    )
    assert [tuple(drop) for drop in found.drops] == [(0, 3, "the ring was full", 5, 9)]
    assert (datapoint.tensors, datapoint.page, datapoint.nbytes) == ({}, None, 0)


@pytest.mark.parametrize(
    ("found", "fields", "text"),
    [
        ([Item("a", "float32", (2,), bytes(7))], {}, "a: 7 bytes"),
        ([Item("a", "float33", (2,), bytes(8))], {}, "float33"),
        ([Item("a", "float32", (2,), "text")], {}, "a: "),
        ([Item("a", "float32", (2,), bytes(8)), Item("a", "float32", (2,), bytes(8))], {}, "'a'"),
        ([Item("a", "float32", (-1,), b"")], {}, "shape"),
        ([Item("a", "float32", (2**40, 2**40), b"")], {}, "2\\*\\*62"),
        ([Item("a", "uint8", (4, 2), memoryview(bytes(16)).cast("B", (4, 4))[::2])], {}, "a: "),
        ([], {"scalars": {"model": object()}}, "model"),
        ([], {"scalars": {"ok": 1, "loop": {1, 2}}}, "loop"),
        ([], {"step": "x"}, "step|datapoint"),
        ([], {"seq": 4}, "seq"),
        ([Item("a", "uint8", (2,), bytes(2))], {"keys": [1, 2, 3], "split": ["a"]}, "a: 2 rows for 3"),
        ([], {"keys": [1, 2.5]}, "keys|datapoint"),
    ],
)
def test_what_cannot_be_stored_is_named_and_nothing_of_it_is_kept(
    tmp_path: Path, found: list[Item], fields: dict[str, Any], text: str
) -> None:
    with fill_writer(tmp_path, 2) as writer:
        with pytest.raises(UnstorableError, match=text):
            writer.add("bad", found, **fields)
        writer.add("k2", make_items("k2"))
    assert read_keys(tmp_path) == make_names(3)
    assert verify_pages(tmp_path) == []


def test_notes_come_back(tmp_path: Path) -> None:
    note = {"scales": [0.5, float("inf")], "axis": 0, "tuple": "Output"}
    with PageWriter(tmp_path) as writer:
        for number in range(3):
            writer.add(number, [Item("q", "quint8", (2,), bytes(2), note), Item("p", "quint8", (2,), bytes(2))])
    for path in (tmp_path, list_sealed(tmp_path)[0]):
        assert [datapoint.tensors["q"].note for datapoint in PageSet.open(path)] == [note] * 3
        assert [dict(datapoint.tensors["p"].note) for datapoint in PageSet.open(path)] == [{}] * 3
    journal = next(tmp_path.glob("*.journal")).read_bytes()
    assert journal.count(b'{"t":"layout"') == 1


def test_one_flat_buffer_is_the_same_as_many_pieces(tmp_path: Path) -> None:
    with PageWriter(tmp_path) as writer:
        layout = writer.plan_layout([item[:3] for item in make_items("flat")])
        assert writer.plan_layout([item[:3] for item in make_items("other")]) is layout
        buffer = bytearray(b"\xee" * layout.length)
        for item, piece in zip(make_items("flat"), layout.pieces, strict=True):
            buffer[piece.offset : piece.offset + piece.length] = item.data
        writer.add_flat("flat", layout, buffer + b"more")
        with pytest.raises(UnstorableError, match="its layout"):
            writer.add_flat("short", layout, buffer[:-1])
    assert read_keys(tmp_path) == ["flat"]
    with safe_open(list_sealed(tmp_path)[0], "pt") as page:
        assert page.get_tensor("00000000/flags").shape == (64,)


def test_more_pieces_than_one_call_takes(tmp_path: Path) -> None:
    shapes = [(f"t{n}", "uint8", (n % 5,), n % 5) for n in range(3000)]
    with PageWriter(tmp_path) as writer:
        writer.add("k", make_items("k", shapes))
    assert read_keys(tmp_path) == ["k"]
    assert verify_pages(tmp_path) == []


# --- pages ---


def test_the_page_limit_is_kept_to_one_datapoint(tmp_path: Path) -> None:
    shapes = [("t", "uint8", (30_000,), 30_000)]
    with PageWriter(tmp_path, page_bytes=200_000) as writer:
        for number in range(40):
            writer.add(number, make_items(number, shapes))
            assert all(page.stat().st_size <= 200_000 for page in tmp_path.iterdir())
        writer.add("huge", make_items("huge", [("t", "uint8", (1_000_000,), 1_000_000)]))
        writer.add("after", make_items("after", shapes))
    sizes = [page.stat().st_size for page in list_sealed(tmp_path)]
    assert [size > 200_000 for size in sizes] == [False] * (len(sizes) - 2) + [True, False]
    assert min(sizes[:-3]) > 150_000  # filled, not wasted
    assert read_keys(tmp_path) == [*range(40), "huge", "after"]


def test_a_page_is_sealed_before_its_header_overflows(tmp_path: Path) -> None:
    tiny = [(f"layer.{n}.with.a.long.name/output", "uint8", (1,), 1) for n in range(20)]
    with PageWriter(tmp_path, header_bytes=20_000) as writer:
        for number in range(60):
            writer.add(f"k{number}", make_items(f"k{number}", tiny), scalars={"text": '"quoted" \\ \n' * 20})
    assert len(list_sealed(tmp_path)) > 5
    assert read_keys(tmp_path) == make_names(60)
    for page in list_sealed(tmp_path):
        with safe_open(page, "pt") as opened:
            assert opened.metadata()["format"] == "tdbg-pages"
    assert verify_pages(tmp_path) == []


def test_one_datapoint_with_a_header_larger_than_usual(tmp_path: Path) -> None:
    tiny = [(f"t{n}", "uint8", (1,), 1) for n in range(3000)]
    with fill_writer(tmp_path, 3, header_bytes=20_000) as writer:
        writer.add("many", make_items("many", tiny))
        writer.add("k3", make_items("k3"))
    assert read_keys(tmp_path) == [*make_names(3), "many", "k3"]
    with safe_open(list_sealed(tmp_path)[1], "pt") as page:
        assert page.get_tensor("00000003/t2999").tolist() == list(make_content("many", "t2999", 1))


def test_too_many_tensors_for_any_header_are_refused(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 1) as writer, pytest.raises(UnstorableError, match="too many"):
        writer.add("k", [Item(f"{n}" * 20, "uint8", (0,), b"") for n in range(100_000)])
    assert read_keys(tmp_path) == ["k0"]


def test_sealing_by_hand_begins_a_new_page(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 2) as writer:
        writer.seal()
        assert len(list_sealed(tmp_path)) == 1
        writer.seal()
        writer.add("k2", make_items("k2"))
    assert len(list_sealed(tmp_path)) == 2
    assert read_keys(tmp_path) == make_names(3)
    writer.close()  # once more does nothing
    with pytest.raises(TdbgError, match="closed"):
        writer.add("k3", make_items("k3"))


def test_nothing_is_made_before_the_first_datapoint(tmp_path: Path) -> None:
    PageWriter(tmp_path / "a").close()
    assert not (tmp_path / "a").exists()
    writer = PageWriter(tmp_path / "b")
    writer.prepare_journal()
    assert sorted(path.suffix for path in (tmp_path / "b").iterdir()) == [".journal", ".json"]
    writer.close()
    assert list(PageSet.open(tmp_path / "b")) == []


# --- the budget ---


@pytest.mark.parametrize("budget", [40_000, 100_000, 300_000, 1_000_000])
def test_the_budget_is_never_exceeded(tmp_path: Path, budget: int) -> None:
    writer = PageWriter(tmp_path, budget_bytes=budget, page_bytes=100_000)
    done = 0
    with pytest.raises(BudgetExceeded):
        for done in range(10_000):
            writer.add(f"k{done}", make_items(f"k{done}", [("t", "uint8", (1000,), 1000)]))
            assert sum_bytes(tmp_path) <= budget
    for number in range(200):
        writer.record_drop(1, "the budget is used up", number, number)
    writer.close()
    assert budget / 3 < sum_bytes(tmp_path) <= budget
    assert read_keys(tmp_path) == make_names(done)
    assert writer.written_bytes == sum_bytes(tmp_path)


def test_a_budget_for_nothing_writes_nothing(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "p", budget_bytes=1000)
    with pytest.raises(BudgetExceeded):
        writer.add("k", make_items("k"))
    writer.close()
    assert not (tmp_path / "p").exists()


# --- the disk ---


@pytest.mark.parametrize("most", [1, 7, 100])
def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:most], offset))
    monkeypatch.setattr(os, "pwritev", lambda fd, data, offset: pwrite(fd, next(p for p in data if p)[:most], offset))
    write_pages(tmp_path, 3, page_bytes=50_000)
    monkeypatch.undo()
    assert read_keys(tmp_path) == make_names(3)
    assert verify_pages(tmp_path) == []


def test_a_disk_that_takes_nothing_and_says_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = fill_writer(tmp_path, 2)
    monkeypatch.setattr(os, "pwritev", lambda *ignored: 0)
    monkeypatch.setattr(os, "pwrite", lambda *ignored: 0)
    with pytest.raises(OSError, match="accepts no more"):
        writer.add("k", make_items("k"))
    monkeypatch.undo()
    writer.close()
    assert read_keys(tmp_path) == make_names(2)


def test_half_a_datapoint_is_no_part_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, real = fill_writer(tmp_path, 2), disk.write_at

    def interrupted(fd: int, pieces: Any, offset: int) -> int:
        real(fd, pieces[:1], offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "write_at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.add("k", make_items("k"))
    monkeypatch.undo()
    writer.close()
    with safe_open(list_sealed(tmp_path)[0], "pt") as page:
        assert page.keys()
    assert read_keys(tmp_path) == make_names(2)
    assert verify_pages(tmp_path) == []


def test_a_writer_that_is_dropped_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    for number in range(20):
        writer = PageWriter(tmp_path / str(number))
        writer.add(1, [], scalars={"a": 1})
        writer.add(2, [Item("x", "uint8", (3,), b"abc")])
    del writer
    gc.collect()
    assert psutil.Process().num_fds() <= before + 2
    with PageSet.open(tmp_path / "19") as pages:
        assert [point.key for point in pages] == [1, 2], "what it has acknowledged is there"


def test_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "pages"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(700_000))
    writer = PageWriter(folder, page_bytes=300_000)
    done = 0
    with pytest.raises(OSError) as caught:
        for done in range(10_000):
            writer.add(f"k{done}", make_items(f"k{done}", [("t", "uint8", (9000,), 9000)]))
    assert caught.value.errno == errno.ENOSPC
    assert done > 50
    assert read_keys(folder) == make_names(done)
    for _ in range(5):
        with pytest.raises(OSError):
            writer.add("no", make_items("no", [("t", "uint8", (900_000,), 900_000)]))
    ballast.unlink()
    writer.add(f"k{done}", make_items(f"k{done}", [("t", "uint8", (9000,), 9000)]))
    writer.close()
    assert read_keys(folder) == make_names(done + 1)
    assert [problem for problem in verify_pages(folder) if problem.grave] == []


def test_what_is_asked_of_the_disk_ahead_of_time_goes_back(tmp_path: Path) -> None:
    writer = fill_writer(tmp_path, 3)
    (part,) = tmp_path.glob("*.part")
    ahead = part.stat().st_blocks * 512 - part.stat().st_size
    assert part.stat().st_size < 1_200_000, "the size is that of what is written"
    probe = os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT)
    if disk.reserve_blocks(probe, 0, 4096):
        assert ahead > 1_000_000
    os.close(probe)
    writer.close()
    (sealed,) = tmp_path.glob("*.safetensors")
    assert sealed.stat().st_blocks * 512 <= sealed.stat().st_size + 65536


def test_disk_that_was_asked_for_is_given_to_the_journal_of_a_full_disk(small_disk: Path) -> None:
    writer = PageWriter(small_disk / "pages", page_bytes=400_000)
    writer.add("k0", make_items("k0", [("t", "uint8", (900,), 900)]))
    ballast = os.open(small_disk / "ballast", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError):
        while os.write(ballast, bytes(4096)):
            pass
    os.close(ballast)
    for number in range(1, 101):  # some 20 kB of journal, for which nothing was asked ahead of time
        writer.add(f"k{number}", make_items(f"k{number}", [("t", "uint8", (900,), 900)]))
    assert read_keys(small_disk / "pages") == make_names(101)


def test_a_first_datapoint_that_fails_leaves_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PageWriter(tmp_path)
    writer.prepare_journal()
    monkeypatch.setattr(os, "pwritev", lambda *ignored: 0)
    monkeypatch.setattr(os, "pwrite", lambda *ignored: 0)
    with pytest.raises(OSError):
        writer.add("k", make_items("k"))
    monkeypatch.undo()
    writer.close()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".journal", ".json"]
    assert verify_pages(tmp_path) == []


def test_a_full_disk_at_the_end_keeps_what_was_acknowledged(small_disk: Path) -> None:
    writer = fill_writer(small_disk / "pages", 20)
    ballast = os.open(small_disk / "ballast", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError):
        while os.write(ballast, bytes(4096)):
            pass
    os.close(ballast)
    with pytest.raises(OSError):
        writer.close()  # no room for the header
    writer.close()
    assert read_keys(small_disk / "pages") == make_names(20)


def test_a_file_size_limit_is_an_error_like_a_full_disk(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from tests.pages.material import fill_writer, make_items
writer = fill_writer(Path(sys.argv[1]), 5)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
(part,) = Path(sys.argv[1]).glob("*.part")
before = part.stat().st_size
try:
    writer.add("large", make_items("large", [("t", "uint8", (3_000_000,), 3_000_000)]))
except OSError as error:
    print("OSError", error.errno, part.stat().st_size == before)
writer.add("k5", make_items("k5"))
writer.close()
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"OSError {errno.EFBIG} True\n"  # half a datapoint is taken off a full disk
    assert read_keys(tmp_path) == make_names(6)
    assert verify_pages(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, read_only_disk: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file" / "pages", read_only_disk / "pages"):
        with pytest.raises(OSError), PageWriter(folder) as writer:
            writer.add("k", make_items("k"))


def test_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    import shutil

    writer = fill_writer(tmp_path / "p", 3)
    shutil.rmtree(tmp_path / "p")
    with pytest.raises(OSError):
        writer.close()
    writer.close()


def test_durable_writes_wait_for_the_data_before_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fill_writer(tmp_path, 1, durable=True)
    calls: list[str] = []
    sync, write_at = disk.sync, disk.write_at

    def name(fd: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{fd}")).suffix

    monkeypatch.setattr(disk, "sync", lambda fd: (calls.append("sync " + name(fd)), sync(fd)))
    monkeypatch.setattr(disk, "write_at", lambda fd, *rest: (calls.append("write " + name(fd)), write_at(fd, *rest))[1])
    writer.add("k1", make_items("k1"))
    assert calls == ["write .part", "sync .part", "write .journal", "sync .journal"]
    calls.clear()
    writer.flush()
    assert calls == ["sync .part", "sync .journal"]
    calls.clear()
    writer.close()
    assert calls[:2] == ["write .part", "sync .part"]
    assert all(datapoint.crc is not None for datapoint in PageSet.open(tmp_path))
    assert verify_pages(tmp_path) == []


# --- others in the folder ---


def test_another_runs_folder_is_refused(tmp_path: Path) -> None:
    write_pages(tmp_path, 3, run="one")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(TdbgError, match="another run, 'one'"):
        PageWriter(tmp_path, run="two")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"name": "an app"}', "is not the manifest of a page folder"),
        ("no json", "is not the manifest"),
        ("[" * 10_000, "is not the manifest"),
        ('{"format": "tdbg-pages", "version": {"major": 2, "minor": 0}, "run": ""}', "version 2"),
        ('{"format": "tdbg-pages", "version": 1, "run": ""}', "version None"),
    ],
)
def test_a_folder_with_a_foreign_manifest_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(TdbgError, match=match):
        PageWriter(tmp_path)


def test_pages_without_a_manifest_are_not_continued(tmp_path: Path) -> None:
    (write_pages(tmp_path, 1) / MANIFEST).unlink()
    with pytest.raises(TdbgError, match="but no MANIFEST"):
        PageWriter(tmp_path)


def test_a_newer_minor_version_is_continued(tmp_path: Path) -> None:
    found = json.loads((write_pages(tmp_path, 1) / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**found, "version": {"major": 1, "minor": 7}, "more": 1}))
    fill_writer(tmp_path, 1).close()
    assert read_keys(tmp_path) == ["k0", "k0"]


def run_child(folder: Path, how: str = "items") -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.pages.killed", str(folder), "70000", how]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def test_a_second_run_into_the_folder_overwrites_nothing(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 5, run="r", page_bytes=20_000):
        pass
    before = {path.name: path.read_bytes() for path in list_sealed(tmp_path)}
    code = "import sys; from pathlib import Path; from tests.pages.material import fill_writer\n"
    code += "fill_writer(Path(sys.argv[1]), 4, run='r', page_bytes=20_000).close()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    after = {path.name: path.read_bytes() for path in list_sealed(tmp_path)}
    assert before.items() < after.items()
    assert read_keys(tmp_path) == [*make_names(5), *make_names(4)]
    assert verify_pages(tmp_path) == []


def test_two_writers_of_one_process_keep_apart(tmp_path: Path) -> None:
    one, two = PageWriter(tmp_path, page_bytes=20_000), PageWriter(tmp_path, page_bytes=20_000)
    for number in range(10):
        one.add(f"a{number}", make_items(f"a{number}"))
        two.add(f"b{number}", make_items(f"b{number}"))
    one.close(), two.close()
    assert read_keys(tmp_path) == [f"a{n}" for n in range(10)] + [f"b{n}" for n in range(10)]
    assert verify_pages(tmp_path) == []


def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from tdbg.pages.format.page_writer import PageWriter
from tests.pages.material import make_items
sys.stdin.readline()
with PageWriter(Path(sys.argv[1]), page_bytes=20_000) as writer:
    for number in range(60):
        key = f"{sys.argv[2]}{number}"
        writer.add(key, make_items(key))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    children = [subprocess.Popen([*command, name], cwd=ROOT, stdin=subprocess.PIPE) for name in "ab"]
    for child in children:
        assert child.stdin
        child.stdin.write(b"\n")
        child.stdin.close()
    assert [child.wait() for child in children] == [0, 0]
    assert sorted(map(str, read_keys(tmp_path))) == sorted(f"{name}{number}" for name in "ab" for number in range(60))
    assert verify_pages(tmp_path) == []


def test_a_number_that_was_sealed_meanwhile_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdbg.pages.format import open_page

    write_pages(tmp_path, 2)
    before = list_sealed(tmp_path)[0].read_bytes()
    monkeypatch.setattr(open_page, "pages", lambda folder: iter(()))  # a listing from before the other writer's page
    fill_writer(tmp_path, 2).close()
    assert [path.name for path in list_sealed(tmp_path)] == ["r0000-000000.safetensors", "r0000-000001.safetensors"]
    assert list_sealed(tmp_path)[0].read_bytes() == before
    assert read_keys(tmp_path) == ["k0", "k1"] * 2


def test_ranks_share_a_folder(tmp_path: Path) -> None:
    for rank in (1, 0, 12):
        write_pages(tmp_path, 2, rank=rank, world_size=16)
    assert [(point.rank, point.key) for point in PageSet.open(tmp_path)] == [
        (rank, key) for rank in (0, 1, 12) for key in ("k0", "k1")
    ]


def test_a_forked_child_has_files_of_its_own(tmp_path: Path) -> None:
    writer = fill_writer(tmp_path, 3)
    child = os.fork()
    if child == 0:
        try:
            writer.add("child", make_items("child"))
            writer.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    writer.add("k3", make_items("k3"))
    writer.close()
    assert sorted(map(str, read_keys(tmp_path))) == ["child", *make_names(4)]
    assert verify_pages(tmp_path) == []


def test_a_forked_child_that_only_closes_leaves_the_parents_files_alone(tmp_path: Path) -> None:
    writer = fill_writer(tmp_path, 3)
    child = os.fork()
    if child == 0:
        writer.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert list_sealed(tmp_path) == []
    writer.add("k3", make_items("k3"))
    writer.close()
    assert read_keys(tmp_path) == make_names(4)


@pytest.mark.parametrize("which", ["part", "journal"])
def test_a_file_number_that_the_program_closed_is_not_written_to(tmp_path: Path, which: str) -> None:
    writer = fill_writer(tmp_path / "p", 3)
    fds = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)}
    (fd,) = [fd for fd, path in fds.items() if path.endswith(which) and str(tmp_path) in path]
    os.close(fd)
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    os.dup2(mine, fd)
    os.write(mine, b"the program's own")
    with pytest.raises(OSError, match="closed a file"):
        writer.add("k3", make_items("k3"))
    for stop in (writer.flush, writer.seal):
        with pytest.raises(OSError):
            stop()
    with contextlib.suppress(OSError):  # its page is set aside by now
        writer.close()
    assert (tmp_path / "mine").read_bytes() == b"the program's own"
    assert os.fstat(fd)  # still the program's
    for number in {fd, mine}:  # the program may well have been given the same number
        os.close(number)
    assert read_keys(tmp_path / "p") == make_names(3)


def _is_link(fd: str) -> bool:
    try:
        os.readlink(f"/proc/self/fd/{fd}")
        return True
    except OSError:
        return False


def test_threads(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path, page_bytes=50_000)

    def work(name: str) -> None:
        for number in range(40):
            writer.add(f"{name}{number}", make_items(f"{name}{number}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    writer.close()
    found = read_keys(tmp_path)
    assert sorted(map(str, found)) == sorted(f"{name}{number}" for name in "abcd" for number in range(40))
    assert [point.seq for point in PageSet.open(tmp_path)] == list(range(160))


# --- kills and interrupts ---


@pytest.mark.timeout(60 + KILLS)
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    print(f"TDBG_TEST_PAGE_SEED={PAGE_SEED}")
    chance = random.Random(PAGE_SEED)
    for kill in range(KILLS):
        folder = tmp_path / f"{kill // 6}"  # a few in each: restarts come upon what kills left
        acknowledged = _kill_writer(folder, chance.uniform(0.0, 0.05), ("flat", "items")[kill % 2])
        with PageSet.open(folder) as found:
            assert_whole(found)
            there = {(str(datapoint.key), datapoint.seq) for datapoint in found}
            assert acknowledged <= there
            assert len(there - acknowledged) <= 1 + len(_get_earlier(folder))
            _get_earlier(folder).update(there)
            assert [problem for problem in found.problems if problem.grave] == []
    for folder in tmp_path.iterdir():
        assert [problem for problem in verify_pages(folder) if problem.grave] == []


_SEEN: dict[Path, set[tuple[str, int]]] = {}


def _get_earlier(folder: Path) -> set[tuple[str, int]]:
    """The datapoints of the kills before, in this folder."""
    return _SEEN.setdefault(folder, set())


def _kill_writer(folder: Path, after_s: float, how: str) -> set[tuple[str, int]]:
    """Start a writer, kill it a while after its first datapoint, and return what it acknowledged."""
    child = run_child(folder, how)
    assert child.stdout
    first = child.stdout.readline()
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    lines = (first + child.stdout.read()).splitlines(keepends=True)
    assert child.wait() == -signal.SIGKILL
    whole = [line.split() for line in lines if line.endswith(b"\n")]
    assert whole
    return {(key.decode(), int(seq)) for seq, key in whole}


def test_exceptions_of_signal_handlers_at_any_moment(tmp_path: Path) -> None:
    class Now(Exception):
        pass

    def interrupt(*ignored: object) -> None:
        raise Now

    writer, acknowledged, limit_s = PageWriter(tmp_path, page_bytes=100_000), [], 5e-4
    writer.prepare_journal()  # it imports, and an import that is broken off is no matter of ours
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        number = interrupted = 0
        while interrupted < 150 or len(acknowledged) < 50:
            number += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, limit_s))
                writer.add(f"k{number}", make_items(f"k{number}"))
                acknowledged.append(f"k{number}")
                signal.setitimer(signal.ITIMER_REAL, 0)
                limit_s *= 0.97
            except Now:
                interrupted += 1
                limit_s *= 1.03  # as slow as the machine happens to be
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    writer.close()
    found = read_keys(tmp_path)
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    for page in list_sealed(tmp_path):
        with safe_open(page, "pt") as opened:
            assert opened.keys()
    assert [problem for problem in verify_pages(tmp_path) if problem.grave] == []


# --- cost ---


def test_the_writer_needs_the_standard_library_alone(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tdbg.pages.format.page_writer import Item, PageWriter
with PageWriter({str(tmp_path)!r}) as writer:
    writer.add("k0", [Item("a", "float32", (2,), bytes(8))])
print(sorted(set(name.partition(".")[0] for name in sys.modules) & {{"torch", "numpy", "msgspec", "safetensors"}}))
"""
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_datapoint_of_120_tensors_costs_little_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "write_at", lambda fd, pieces, offset: offset + sum(map(len, pieces)))
    data = bytes(16384)
    found = [Item(f"layers.{n}.attn/output/0", "float32", (64, 64), data) for n in range(120)]
    writer = PageWriter(tmp_path, page_bytes=1 << 40, header_bytes=16 << 20)
    times = []
    for number in range(100):
        begin = time.thread_time()
        writer.add(number, found, step=number)
        times.append(time.thread_time() - begin)
    assert sorted(times)[50] < 0.001, "measured 0.1 ms when it was written"


def test_the_writer_holds_no_data(tmp_path: Path) -> None:
    import tracemalloc

    layout_data = bytes(1 << 20)
    writer = PageWriter(tmp_path)
    layout = writer.plan_layout([("t", "uint8", (1 << 20,))])
    writer.add_flat("first", layout, layout_data)
    tracemalloc.start()
    for number in range(150):
        writer.add_flat(number, layout, layout_data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    writer.close()
    assert peak < 1 << 20
