"""Verify and recover: what is wrong is told, what can be mended is, and nothing is lost by it."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tdbg.core.errors import TdbgError
from tdbg.pages.format import header
from tdbg.pages.format.file_format import MANIFEST
from tdbg.pages.format.header import Placed
from tdbg.pages.format.journal import encode_frame, iter_records
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.repair.recovery import recover_pages
from tdbg.pages.repair.verification import verify_pages
from tests.pages.material import assert_whole, fill_writer, list_sealed, make_items, read_keys, write_pages

ROOT = Path(__file__).parents[3]


def make_names(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


def kill_writer(folder: Path, count: int = 6, *, close: bool = False, **options: Any) -> Path:
    """What a writer left that was killed after ``count`` datapoints, or after it had closed its files."""
    code = f"""
import os, sys
from pathlib import Path
from tests.pages.material import fill_writer
writer = fill_writer(Path(sys.argv[1]), {count}, **{options!r})
if {close}:
    writer.close()
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT).returncode == -9
    return folder


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def list_grave(path: Path) -> list[str]:
    return [str(problem) for problem in verify_pages(path) if problem.grave]


def test_a_good_folder_has_nothing_wrong_and_nothing_to_recover(tmp_path: Path) -> None:
    write_pages(tmp_path, 20, page_bytes=20_000, checksums=True)
    before = read_folder(tmp_path)
    assert verify_pages(tmp_path) == []
    assert recover_pages(tmp_path) == ([], [])
    assert read_folder(tmp_path) == before


@pytest.mark.parametrize("options", [{}, {"page_bytes": 20_000}, {"durable": True}])
def test_what_a_kill_left_becomes_sealed_pages(tmp_path: Path, options: dict[str, Any]) -> None:
    kill_writer(tmp_path, 25, **options)
    (part,) = tmp_path.glob("*.part")
    assert [problem.grave for problem in verify_pages(tmp_path)] == [False]
    assert "never sealed" in verify_pages(tmp_path)[0].text
    (done,) = recover_pages(tmp_path).done
    assert done.startswith("sealed ")
    assert not part.exists()
    for page in list_sealed(tmp_path):
        with safe_open(page, "pt") as opened:
            assert opened.keys()
    assert read_keys(tmp_path) == make_names(25)
    assert verify_pages(tmp_path) == []
    before = read_folder(tmp_path)
    assert recover_pages(tmp_path) == ([], [])
    assert read_folder(tmp_path) == before
    next(tmp_path.glob("*.journal")).unlink()
    assert read_keys(tmp_path) == make_names(25)


def test_half_a_datapoint_behind_the_last_does_not_count_and_is_not_thrown_away(tmp_path: Path) -> None:
    kill_writer(tmp_path, 3)
    (part,) = tmp_path.glob("*.part")
    with open(part, "ab") as file:
        file.write(b"half a datapoint")
    with open(next(tmp_path.glob("*.journal")), "ab") as file:
        file.write(encode_frame({"t": "dp", "key": "half"})[:-3])
    assert list_grave(tmp_path) == []
    recover_pages(tmp_path)
    assert read_keys(tmp_path) == make_names(3)
    assert list_sealed(tmp_path)[0].read_bytes().endswith(b"half a datapoint")
    assert list_grave(tmp_path) == []


def test_a_kill_while_it_recovers_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_writer(tmp_path, 4)
    real = os.replace

    def raise_interrupt(*ignored: object, **how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        recover_pages(tmp_path)
    monkeypatch.setattr(os, "replace", real)
    assert read_keys(tmp_path) == make_names(4)
    recover_pages(tmp_path)
    assert read_keys(tmp_path) == make_names(4)
    assert verify_pages(tmp_path) == []


def test_a_part_that_was_cut_short_gives_what_it_holds(tmp_path: Path) -> None:
    kill_writer(tmp_path, 8)
    (part,) = tmp_path.glob("*.part")
    os.truncate(part, part.stat().st_size - 500)
    assert len(list_grave(tmp_path)) >= 1
    found = recover_pages(tmp_path)
    assert "sealed" in found.done[0]
    assert found.problems and all(problem.grave for problem in found.problems)
    with PageSet.open(list_sealed(tmp_path)[0]) as page:
        kept = assert_whole(page)
    assert 4 <= kept < 8
    with safe_open(list_sealed(tmp_path)[0], "pt") as opened:
        assert opened.keys()


def test_a_datapoint_whose_bytes_changed_is_left_out_of_the_page(tmp_path: Path) -> None:
    kill_writer(tmp_path, 5, checksums=True)
    (part,) = tmp_path.glob("*.part")
    at = PageSet.open(tmp_path).find("k2")[0].tensors["flags"].at
    with open(part, "r+b") as file:
        file.seek(at)
        file.write(b"\xff\xfe")
    assert len(list_grave(tmp_path)) == 1
    recover_pages(tmp_path)
    assert [datapoint.key for datapoint in PageSet.open(list_sealed(tmp_path)[0])] == ["k0", "k1", "k3", "k4"]


def test_a_lost_journal_is_written_anew(tmp_path: Path) -> None:
    kill_writer(tmp_path, 30, page_bytes=20_000, close=True)
    journal = next(tmp_path.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    journal.unlink()
    pages = {page.name: page.read_bytes() for page in list_sealed(tmp_path)}
    (done,) = recover_pages(tmp_path).done
    assert "30 datapoints" in done
    assert [record for _, record in iter_records(journal)] == [*records[:-1], {"t": "end", "recovered": True}]
    assert {page.name: page.read_bytes() for page in list_sealed(tmp_path)} == pages
    assert read_keys(tmp_path) == make_names(30)
    assert verify_pages(tmp_path) == []
    assert recover_pages(tmp_path) == ([], [])


@pytest.mark.parametrize("at", [0, 3, 10, 25])
def test_a_journal_that_is_broken_in_the_middle_is_completed(tmp_path: Path, at: int) -> None:
    kill_writer(tmp_path, 30, page_bytes=20_000, close=True)
    journal = next(tmp_path.glob("*.journal"))
    data = bytearray(journal.read_bytes())
    offsets = [offset for offset, _ in iter_records(bytes(data))]
    data[offsets[at] + 12] ^= 1
    journal.write_bytes(data)
    assert len(list_grave(tmp_path)) == 1
    (done,) = recover_pages(tmp_path).done
    assert "recovered.journal" in done
    assert journal.read_bytes() == data  # the broken one stays: nothing is thrown away
    assert sorted(map(str, read_keys(tmp_path))) == sorted(make_names(30))
    before = read_folder(tmp_path)
    recover_pages(tmp_path)
    assert read_folder(tmp_path) == before


def test_a_lost_manifest_is_written_anew(tmp_path: Path) -> None:
    write_pages(tmp_path, 2, run="mine", rank=3, world_size=8)
    before = (tmp_path / MANIFEST).read_bytes()
    (tmp_path / MANIFEST).unlink()
    assert recover_pages(tmp_path).done == [f"wrote {tmp_path / MANIFEST}"]
    assert (tmp_path / MANIFEST).read_bytes() == before
    assert verify_pages(tmp_path) == []


def test_a_manifest_is_not_invented_for_several_runs(tmp_path: Path) -> None:
    write_pages(tmp_path / "a", 2, run="a", rank=0), write_pages(tmp_path / "b", 2, run="b", rank=1)
    for path in (tmp_path / "b").iterdir():
        if path.name != MANIFEST:
            path.rename(tmp_path / "a" / path.name)
    (tmp_path / "a" / MANIFEST).unlink()
    shutil.rmtree(tmp_path / "b")
    assert recover_pages(tmp_path).done == []
    assert not (tmp_path / "a" / MANIFEST).exists()


def test_the_files_of_a_living_writer_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = fill_writer(tmp_path, 3)
    writer.seal()
    writer.add("k3", make_items("k3"))
    before = read_folder(tmp_path)
    found = recover_pages(tmp_path)
    assert found.done == [] and "left alone" in found.problems[0].text
    assert read_folder(tmp_path) == before
    writer.add("k4", make_items("k4"))
    writer.close()
    assert read_keys(tmp_path) == make_names(5)
    next(tmp_path.glob("*.journal")).unlink()
    assert recover_pages(tmp_path).done == []  # nothing tells that it has ended


def test_a_writer_on_another_host_is_dead_when_it_was_silent_for_long(tmp_path: Path) -> None:
    kill_writer(tmp_path, 2)
    journal = next(tmp_path.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    records[0]["host"] = "another"
    journal.write_bytes(b"".join(map(encode_frame, records)))
    assert recover_pages(tmp_path).done == []
    os.utime(journal, (1, 1))
    assert len(recover_pages(tmp_path).done) == 1


def test_by_force_even_so(tmp_path: Path) -> None:
    fill_writer(tmp_path, 2)
    assert len(recover_pages(tmp_path, force=True).done) == 1
    assert read_keys(tmp_path) == make_names(2)


def test_a_part_beside_its_sealed_page_is_told(tmp_path: Path) -> None:
    kill_writer(tmp_path, 2)
    (part,) = tmp_path.glob("*.part")
    shutil.copy(part, tmp_path / "copy")
    recover_pages(tmp_path)
    (tmp_path / "copy").rename(part)
    before = read_folder(tmp_path)
    assert any("remove one" in problem.text for problem in recover_pages(tmp_path).problems)
    assert read_folder(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_an_error(read_only_disk: Path, tmp_path: Path) -> None:
    kill_writer(tmp_path / "p", 2)
    subprocess.run(["mount", "-o", "remount,rw", str(read_only_disk)], check=True)
    shutil.copytree(tmp_path / "p", read_only_disk / "p")
    subprocess.run(["mount", "-o", "remount,ro", str(read_only_disk)], check=True)
    with pytest.raises(TdbgError):
        recover_pages(read_only_disk)
    assert read_keys(read_only_disk) == make_names(2)


def test_a_header_that_says_something_else_than_the_journal_is_told(tmp_path: Path) -> None:
    write_pages(tmp_path, 3)
    page = list_sealed(tmp_path)[0]
    data = page.read_bytes()
    page.write_bytes(data.replace(b'"00000001/flags"', b'"00000009/flags"'))
    found = [problem.text for problem in verify_pages(tmp_path)]
    assert any("no entry for 'flags'" in text for text in found) and any("in no record" in text for text in found)
    page.write_bytes(data.replace(b'/flags":{"dtype":"BOOL"', b'/flags":{"dtype":"U8"  ', 1))
    (problem,) = verify_pages(tmp_path)
    assert "a different entry for 'flags'" in problem.text and "'k0'" in problem.text


def test_bytes_that_no_tensor_names_are_told(tmp_path: Path) -> None:
    write_pages(tmp_path, 3)
    page = list_sealed(tmp_path)[0]
    page.write_bytes(page.read_bytes() + b"more")
    assert any("in no tensor" in problem.text for problem in verify_pages(tmp_path))


def test_datapoints_that_share_bytes_are_told(tmp_path: Path) -> None:
    fill_writer(tmp_path, 3)
    journal = next(tmp_path.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    records[-1]["base"] = records[-2]["base"] + 64
    journal.write_bytes(b"".join(map(encode_frame, records)))
    assert any("share bytes" in text for text in list_grave(tmp_path))
    recover_pages(tmp_path, force=True)
    assert [datapoint.key for datapoint in PageSet.open(list_sealed(tmp_path)[0])] == ["k0", "k1"]


def test_a_datapoint_within_the_header_is_told(tmp_path: Path) -> None:
    write_pages(tmp_path, 2)
    journal = next(tmp_path.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    records[3]["base"] = 64
    journal.write_bytes(b"".join(map(encode_frame, records)))
    assert any("within the header" in text for text in list_grave(tmp_path))


@pytest.mark.parametrize("data", [0, 8, 1 << 50])
def test_a_journal_that_lies_about_a_page_does_no_harm(tmp_path: Path, data: int) -> None:
    kill_writer(tmp_path, 3)
    journal = next(tmp_path.glob("*.journal"))
    records = [record for _, record in iter_records(journal)]
    next(record for record in records if record["t"] == "page")["data"] = data
    if data < 64:
        for record in records[3:]:
            record["base"] = 0
    journal.write_bytes(b"".join(map(encode_frame, records)))
    (part,) = tmp_path.glob("*.part")
    before = part.read_bytes()
    found = recover_pages(tmp_path)
    assert found.done == [] and found.problems
    assert part.read_bytes() == before


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    kill_writer(tmp_path / "p", 2)
    (part,) = (tmp_path / "p").glob("*.part")
    part.rename(tmp_path / "target")
    part.symlink_to(tmp_path / "target")
    before = (tmp_path / "target").read_bytes()
    with pytest.raises(TdbgError):
        recover_pages(tmp_path / "p")
    assert (tmp_path / "target").read_bytes() == before


def test_a_header_never_outgrows_what_was_reckoned(tmp_path: Path) -> None:
    import random

    from tdbg.pages.format.header import Entries, bound_header_growth, build_header
    from tdbg.pages.format.layout import Layout
    from tdbg.pages.format.open_page import least_header_bytes

    chance = random.Random(0)
    for _ in range(200):
        about = {"writer": "w" * chance.randrange(20), "opened": {"t": "open", "run": '"\\' * chance.randrange(9)}}
        layouts = [
            Layout.from_specs(
                [(f'ü"{n}' * chance.randrange(1, 9), "uint8", (chance.randrange(99),), {}) for n in range(k)]
            )
            for k in range(4)
            if k != 3 or chance.random() < 2
        ]
        entries = {layout.id: Entries(layout) for layout in layouts}
        placed, at = [], 1 << 50
        for number in range(chance.randrange(30)):
            at += chance.choice([0, 64, 640])
            layout = chance.choice(layouts)
            placed.append(Placed(10**8 - 1 + number, at, layout, b'{"t":"dp","x":"\\\\%s"}' % (b"y" * number)))
            at += layout.length
        reckoned = least_header_bytes(about) + sum(
            bound_header_growth(entries[one.layout.id], one.body) for one in placed
        )
        reckoned += sum(entries[id].layout_bytes for id in {one.layout.id for one in placed})
        found = build_header(placed, entries, about, 1 << 50, at + 7)
        assert len(found) <= reckoned
        length = header.length_of(found[:8], 1 << 60)
        _, tensors = header.parse_header(found[8 : 8 + length], at + 7)
        edges = sorted((stored.begin, stored.end) for stored in tensors.values())
        assert edges[0][0] == len(found) and edges[-1][1] == at + 7
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
