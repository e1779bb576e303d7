"""Which paths are gone under --preflight, as several processes see it."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tdbg.inject.deleted_paths import DeletedPaths

NAMES = ["/a", "/a/b", "/odd name\n", "/\udcff", "/ü/" + "x" * 200]


def make_deleted_paths(tmp_path: Path) -> tuple[DeletedPaths, DeletedPaths]:
    journal = str(tmp_path / "host.deleted")
    return DeletedPaths(journal), DeletedPaths(journal)


@pytest.mark.parametrize("name", NAMES)
def test_others_see_what_one_deletes_and_makes_again(tmp_path: Path, name: str) -> None:
    mine, other = make_deleted_paths(tmp_path)
    other.read_new_records()
    assert not other and not other.is_gone(name)
    mine.add(name, is_folder=False)
    assert mine.is_gone(name) and not other.is_gone(name)
    other.read_new_records()
    assert other and other.is_gone(name)
    other.discard(name)
    mine.read_new_records()
    assert not mine.is_gone(name) and not other.is_gone(name)


def test_what_was_in_a_folder_stays_gone_when_it_is_made_again(tmp_path: Path) -> None:
    mine, other = make_deleted_paths(tmp_path)
    mine.add("/runs", is_folder=True)
    mine.discard("/runs")
    other.read_new_records()
    for seen in (mine, other):
        assert not seen.is_gone("/runs") and seen.is_gone("/runs/one") and not seen.is_gone("/runs-of-others")


def test_half_a_record_is_read_once_it_is_whole(tmp_path: Path) -> None:
    mine, other = make_deleted_paths(tmp_path)
    mine.add("/one", is_folder=False)
    journal = tmp_path / "host.deleted"
    whole = journal.read_bytes() + b"-/two\0"
    for size in range(len(whole) + 1):
        journal.write_bytes(whole[:size])
        other.read_new_records()
        assert (other.is_gone("/one"), other.is_gone("/two")) == (size >= len("-/one\0"), size == len(whole))


def delete(journal: str, number: int) -> None:
    deleted = DeletedPaths(journal)
    for at in range(200):
        deleted.add(f"/{number}/{at}", is_folder=False)
        deleted.read_new_records()
        if at % 2:
            deleted.discard(f"/{number}/{at}")


def test_processes_that_delete_at_once(tmp_path: Path) -> None:
    journal = str(tmp_path / "host.deleted")
    # Not forked: a thread of an earlier test that holds a lock would leave it locked in the child for ever.
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(delete, [journal] * 4, range(4)))
    seen = DeletedPaths(journal)
    seen.read_new_records()
    for number in range(4):
        assert [seen.is_gone(f"/{number}/{at}") for at in range(200)] == [at % 2 == 0 for at in range(200)]


def test_where_the_others_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    deleted = DeletedPaths(str(tmp_path / "file" / "host.deleted"))
    deleted.read_new_records()
    with pytest.raises(OSError):
        deleted.add("/a", is_folder=False)
    assert not deleted.is_gone("/a")
