"""Upload: again and again while pages are written, and never half of anything."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdbg import cli
from tdbg.core.errors import TdbgError
from tdbg.pages.format.journal import Frames
from tdbg.pages.page_upload import Upload
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.repair.recovery import recover_pages
from tests.pages.material import assert_whole, fill_writer, list_sealed, make_items, write_pages
from tests.stores import Counted, use_counting_store

URL = "counted://store/run"


@pytest.fixture(autouse=True)
def counting_store() -> Iterator[type[Counted]]:
    with use_counting_store() as found:
        yield found


def count_uploaded() -> int:
    """How many datapoints a reader of the store finds; all of them good, and nothing wrong."""
    with PageSet.open(URL) as found:
        count = assert_whole(found)
        assert not [problem for problem in found.problems if problem.grave]
    return count


def take_writes() -> list[str]:
    found = [request.path for request in Counted.requests if request.kind == "write"]
    Counted.requests.clear()
    return [path.removeprefix("/store/run/") for path in found]


def test_there_and_back(tmp_path: Path) -> None:
    folder = write_pages(tmp_path / "rank0000" / "pages", 20, page_bytes=3000)
    upload = Upload(tmp_path, URL)
    upload.upload_new_files(last=True)
    assert count_uploaded() == 20 and upload.files == len(set(take_writes()))
    names = {path.name for path in folder.iterdir()}
    assert {name.rpartition("/")[2] for name in Counted.store} == names
    for path in folder.iterdir():
        assert Counted.store[f"/store/run/rank0000/pages/{path.name}"].getvalue() == path.read_bytes()
    Upload(tmp_path, URL).upload_new_files(last=True)
    assert take_writes() == []


def test_while_it_is_written_a_reader_finds_what_is_sealed(tmp_path: Path) -> None:
    upload, counts = Upload(tmp_path, URL), []
    with fill_writer(tmp_path, 0, page_bytes=4000) as writer:
        for number in range(40):
            writer.add(f"k{number}", make_items(f"k{number}"), step=number)
            upload.upload_new_files()
            if number:
                kept = sum(
                    1
                    for datapoint in PageSet.open(tmp_path)
                    if datapoint.file and datapoint.file.path.suffix != ".part"
                )
                assert count_uploaded() == kept
                counts.append(kept)
        assert counts == sorted(counts) and counts[10] > 0 and len(set(counts)) > 5
        assert not any(name.endswith(".part") for name in Counted.store)
    upload.upload_new_files(last=True)
    assert count_uploaded() == 40
    pages = [name for name in take_writes() if name.endswith(".safetensors.uploading")]
    assert len(pages) == len(set(pages)) == len(list_sealed(tmp_path))


def test_nothing_is_asked_while_nothing_is_new(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 20, page_bytes=4000):
        upload = Upload(tmp_path, URL)
        upload.upload_new_files()
        Counted.requests.clear()
        upload.upload_new_files()
        assert not Counted.requests


def test_the_copies_of_a_journal_are_few(tmp_path: Path) -> None:
    upload = Upload(tmp_path, URL)
    with fill_writer(tmp_path, 0) as writer:
        for number in range(400):
            writer.add(number, [], scalars={"loss": number})
            upload.upload_new_files()
    upload.upload_new_files(last=True)
    journals = [name for name in take_writes() if ".journal" in name]
    assert count_uploaded() == 400 and 5 < len(journals) < 40
    assert upload.nbytes < 6 * sum(path.stat().st_size for path in tmp_path.glob("*.journal"))


def test_a_page_appears_before_its_journal_tells_of_it(tmp_path: Path) -> None:
    write_pages(tmp_path, 20, page_bytes=3000)
    first = list_sealed(tmp_path)[2].name
    Counted.failing.add(first)
    upload = Upload(tmp_path, URL)
    with pytest.raises(TdbgError, match=f"{first}: ConnectionError: the store is full"):
        upload.upload_new_files(last=True)
    (journal,) = [file.getvalue() for name, file in Counted.store.items() if name.endswith(".journal")]
    frames = Frames(lambda offset, length: journal[offset : offset + length], len(journal))
    assert [frames.read_record(index)["t"] for index in range(len(frames))] == ["open"]
    assert 0 < count_uploaded() < 20, "out of the headers of pages"
    Counted.failing.clear()
    upload.upload_new_files(last=True)
    assert count_uploaded() == 20


def test_half_a_page_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pages(tmp_path, 20)
    seen: list[set[str]] = []
    put = Counted.put_file

    def half(self: Counted, lpath: str, rpath: str, *args: object, **more: object) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes()[:1000])
        seen.append({name.rpartition("/")[2] for name in self.store})
        put(self, lpath, rpath)

    monkeypatch.setattr(Counted, "put_file", half)
    Upload(tmp_path, URL).upload_new_files(last=True)
    (page,) = list_sealed(tmp_path)
    assert any(f".{page.name}.uploading" in names for names in seen) and not any(page.name in names for names in seen)
    assert count_uploaded() == 20


DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.pages.material import fill_writer
fill_writer(Path(sys.argv[1]), 20, page_bytes=4000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path), str(root)])
    assert done.returncode == -signal.SIGKILL
    upload = Upload(tmp_path, URL)
    upload.upload_new_files()
    assert 0 < count_uploaded() < 20 and not any(name.endswith(".part") for name in Counted.store)
    upload.upload_new_files(last=True)
    assert count_uploaded() == 20 and any(name.endswith(".part") for name in Counted.store)
    recover_pages(tmp_path)
    Upload(tmp_path, URL).upload_new_files(last=True)
    assert count_uploaded() == 20 and not any(name.endswith(".part") for name in Counted.store)


def test_a_living_writers_page_is_left_alone(tmp_path: Path) -> None:
    with fill_writer(tmp_path, 5):
        Upload(tmp_path, URL).upload_new_files(last=True)
        assert not any("000000" in name for name in Counted.store)
        with PageSet.open(URL) as found:
            assert not list(found) and not found.problems


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    Upload(write_pages(tmp_path / "one"), URL).upload_new_files(last=True)
    (journal,) = (tmp_path / "one").glob("*.journal")
    other = write_pages(tmp_path / "two")
    (mine,) = other.glob("*.journal")
    for name in (mine.name, "r0000-1.journal", journal.name):
        mine = mine.rename(other / name)
        Counted.requests.clear()
        with pytest.raises(TdbgError, match="is the journal of another run"):
            Upload(other, URL).upload_new_files(last=True)
        assert not take_writes()
    assert count_uploaded() == 10


def test_a_folder_that_fails_does_not_keep_the_others(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_pages(tmp_path / f"rank000{rank}" / "pages", rank=rank)
    Counted.failing.add("rank0000")
    with pytest.raises(TdbgError, match="the store is full"):
        Upload(tmp_path, URL).upload_new_files(last=True)
    assert count_uploaded() == 10
    Counted.failing.clear()
    Upload(tmp_path, URL).upload_new_files(last=True)
    assert count_uploaded() == 20


def test_of_other_hosts_nothing_is_copied(tmp_path: Path) -> None:
    write_pages(tmp_path / "rank0000" / "pages")
    Upload(tmp_path, URL, host="elsewhere").upload_new_files(last=True)
    assert not Counted.store
    Upload(tmp_path, URL, host=socket.gethostname()).upload_new_files(last=True)
    assert count_uploaded() == 10


def test_a_folder_that_may_go_waits_for_the_end(tmp_path: Path) -> None:
    write_pages(tmp_path / "epoch_1")
    upload = Upload(tmp_path, URL, stays=lambda folder: folder.name != "epoch_1")
    upload.upload_new_files()
    assert not Counted.store
    upload.upload_new_files(last=True)
    assert count_uploaded() == 10


def test_pages_whose_journal_is_lost(tmp_path: Path) -> None:
    write_pages(tmp_path, 20, page_bytes=3000)
    next(tmp_path.glob("*.journal")).unlink()
    Upload(tmp_path, URL).upload_new_files(last=True)
    assert count_uploaded() == 20


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pages(tmp_path / "run" / "rank0000" / "pages")
    assert cli.main(["inspect-pages", "upload", str(tmp_path / "run"), URL]) == 0
    assert "tdbg: copied 3 files" in capsys.readouterr().err and count_uploaded() == 10
    assert cli.main(["inspect-pages", "upload", str(tmp_path / "run"), URL]) == 0
    assert "there was nothing to copy" in capsys.readouterr().err
    for words, text in (
        ([str(folder)], "is not a URL"),
        ([str(tmp_path / "no"), URL], "is no folder here"),
        ([URL, URL], "is no folder here"),
        ([str(tmp_path), "s3://a:sesame@b/c"], "holds a password"),
        ([], "URL is missing"),
    ):
        assert cli.main(["inspect-pages", "upload", *words]) == 2
        said = capsys.readouterr().err
        assert text in said and "sesame" not in said
    os.makedirs(tmp_path / "empty")
    assert cli.main(["inspect-pages", "upload", str(tmp_path / "empty"), URL]) == 2
