"""A run directory below a URL: pieces that are never written again, and a run that no store can disturb."""

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tdbg import cli
from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.host import host_name
from tdbg.core.rundir import RunDir, process_start
from tdbg.launch import run_upload, run_uploading, store_claim
from tdbg.launch.run_copies import fetch_run
from tdbg.launch.run_upload import PlaceTakenError, RunUpload, claim_place
from tdbg.launch.run_uploading import RunUploading, StorePlace
from tdbg.pages import page_upload
from tdbg.pages.read.page_set import PageSet
from tdbg.pages.read.remote_store import Store
from tests.pages.material import assert_whole, fill_writer, make_items
from tests.stores import Counted, use_counting_store

URL = "counted://store/run"
STATUS = ("run.json", "pieces.json", "report.json")  # small files that are written again


@pytest.fixture(autouse=True)
def counting_store() -> Iterator[type[Counted]]:
    with use_counting_store() as found:
        yield found


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found, _ = RunDir.create(tmp_path / "run", {"command": ["python", "x.py"], "end": None})
    return found


def append_text(run: RunDir, path: str, text: str) -> None:
    target = run.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a", encoding="utf-8") as file:
        file.write(text)


def read_stored(path: str) -> str:
    store = Store(URL)
    return store.read_range(path, 0, store.list_files()[path]).decode()


def count_writes() -> Counter[str]:
    names = (request.path.rpartition("/")[2] for request in Counted.requests if request.kind == "write")
    return Counter(name.removeprefix(".").removesuffix(".uploading") for name in names)


def test_what_grows_is_kept_in_pieces_and_read_as_one(run: RunDir) -> None:
    upload, events = RunUpload(run.path, URL), "rank0000/events.jsonl"
    for text in ("one\n", "two\nth", "ree\n", ""):
        append_text(run, events, text)
        upload.upload_new_files()
    assert read_stored(events) == "one\ntwo\nthree\n"
    store = Store(URL)
    assert store.list_files()[events] == 14 and store.read_range(events, 2, 9) == b"e\ntwo\nt"
    assert Store(URL).get_size(events) == 14, "without a listing too"
    repeated = {name for name, count in count_writes().items() if count > 1}
    assert repeated <= set(STATUS), repeated


def test_a_later_supervisor_goes_on_where_the_first_ended(run: RunDir) -> None:
    append_text(run, "findings.jsonl", "a" * 1000)
    RunUpload(run.path, URL).upload_new_files()
    append_text(run, "findings.jsonl", "b" * 10)
    Counted.requests.clear()
    RunUpload(run.path, URL).upload_new_files(last=True)
    assert read_stored("findings.jsonl") == "a" * 1000 + "b" * 10
    assert "0001-000000001000-000000001010" in count_writes(), count_writes()
    assert "0001-000000000000-000000001000" not in count_writes()


def test_a_log_that_was_rotated_is_read_as_the_new_one(run: RunDir) -> None:
    upload, log = RunUpload(run.path, URL), "rank0000/debug_log_rank0.txt"
    append_text(run, log, "old\n" * 10)
    upload.upload_new_files()
    (run.path / log).rename(run.path / f"{log}.1")
    append_text(run, log, "new\n")
    upload.upload_new_files()
    assert read_stored(log) == "new\n" and read_stored(f"{log}.1") == "old\n" * 10


def test_a_file_that_was_cut_off_and_has_grown_again_is_another_one(run: RunDir) -> None:
    upload, log = RunUpload(run.path, URL), "rank0000/stdout.log"
    append_text(run, log, "first\n" * 10)
    upload.upload_new_files()
    with (run.path / log).open("r+b") as file:  # the same inode
        file.truncate(0)
        file.write(b"second\n" * 100)
    upload.upload_new_files()
    assert read_stored(log) == "second\n" * 100
    append_text(run, log, "third\n")
    RunUpload(run.path, URL).upload_new_files()
    assert read_stored(log) == "second\n" * 100 + "third\n"
    assert "0002-000000000700-000000000706" in count_writes(), count_writes()


def test_files_that_cannot_be_read_do_not_keep_the_others_back(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sesame")
    for name in "abcd":
        (run.path / f"{name}.json").symlink_to(tmp_path / "secret")
    append_text(run, "rank0000/events.jsonl", "one\n")
    upload = RunUpload(run.path, URL)
    for _ in range(2):
        with pytest.raises(TdbgError, match=r"cannot read .*a\.json"):
            upload.upload_new_files(last=True)
    assert read_stored("rank0000/events.jsonl") == "one\n"
    assert json.loads(read_stored("pieces.json"))["complete"] is False


def test_pieces_that_overlap_are_read_once(run: RunDir) -> None:
    store = Store(URL)
    for start, text in ((0, b"abc"), (0, b"abcde"), (3, b"defg"), (6, b"ghi"), (8, b"i"), (9, b"jk")):
        store.put_piece("findings.jsonl", 1, start, text)
    assert store.list_files() == {"findings.jsonl": 11} and read_stored("findings.jsonl") == "abcdefghijk"
    assert [store.read_range("findings.jsonl", at, at + 2) for at in (2, 4, 6, 8)] == [b"cd", b"ef", b"gh", b"ij"]


def test_a_piece_that_was_half_written_is_none_and_is_written_again(run: RunDir) -> None:
    store, path = Store(URL), "findings.jsonl"
    store.put_piece(path, 1, 0, b"abc")
    store.put_file(f"{path}.pieces/0001-000000000003-000000000009", b"de")
    store.put_file(f"{path}.pieces/.0001-000000000009-000000000012.uploading", b"jkl")
    assert store.list_files()[path] == 3 and read_stored(path) == "abc"
    append_text(run, path, "abcdefghi")
    RunUpload(run.path, URL).upload_new_files()
    assert read_stored(path) == "abcdefghi" and "0001-000000000003-000000000009" in count_writes()


def test_a_gap_ends_what_is_read(run: RunDir) -> None:
    store = Store(URL)
    for start, text in ((0, b"abc"), (3, b"de"), (7, b"zz")):
        store.put_piece("rank0000/events.jsonl", 1, start, text)
    assert read_stored("rank0000/events.jsonl") == "abcde"


def test_what_is_of_no_use_and_what_is_no_file_stays_here(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sesame")
    (run.path / "stolen.json").symlink_to(tmp_path / "secret")
    os.mkfifo(run.path / "pipe.json")
    for path in ("boot/sitecustomize.py", "preflight/host/x.pt", ".hidden", "upload/host.lock", "boot/woke"):
        append_text(run, path, "x")
    with pytest.raises(TdbgError, match=r"cannot read .*stolen\.json"):
        RunUpload(run.path, URL).upload_new_files(last=True)
    kept = set(Store(URL).list_files())
    assert kept == {"pieces.json", "run.json", "boot/woke"}, kept
    assert not any(b"sesame" in found.getvalue() for found in Counted.store.values())


def test_captured_pages_can_be_read_while_they_are_written(run: RunDir) -> None:
    upload, counts = RunUpload(run.path, URL), []
    with fill_writer(run.path / "rank0000/pages", 0, page_bytes=4000) as writer:
        for number in range(30):
            writer.add(f"k{number}", make_items(f"k{number}"), step=number)
            upload.upload_new_files()
            counts.append(_count_datapoints() if number else 0)
        assert counts == sorted(counts) and len(set(counts)) > 5
    upload.upload_new_files(last=True)
    assert _count_datapoints() == 30
    journals = {name for name in Counted.store if ".journal" in name}
    assert journals and all(".journal.pieces/" in name for name in journals)
    repeated = {name for name, count in count_writes().items() if count > 1}
    assert repeated <= set(STATUS), repeated


def test_a_journal_is_copied_in_parts(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage all of it is new, and none of it need be in memory at once."""
    monkeypatch.setattr(page_upload, "PIECE_BYTES", 100)
    with fill_writer(run.path / "rank0000/pages", 0, page_bytes=4000) as writer:
        for number in range(10):
            writer.add(f"k{number}", make_items(f"k{number}"), step=number)
    RunUpload(run.path, URL).upload_new_files(last=True)
    sizes = [len(file.getvalue()) for name, file in Counted.store.items() if ".journal.pieces/" in name]
    assert len(sizes) > 5 and max(sizes) == 100
    assert _count_datapoints() == 10


def _count_datapoints() -> int:
    """How many a reader of the store finds; all of them good, and nothing wrong."""
    with PageSet.open(URL) as found:
        count = assert_whole(found)
        assert not [problem for problem in found.problems if problem.grave]
    return count


def test_a_url_belongs_to_one_run(run: RunDir) -> None:
    claim_place(Store(URL), "first")
    with pytest.raises(PlaceTakenError, match="already holds a run"):
        claim_place(Store(URL), "second")
    claim_place(Store(URL), "first")
    assert set(Store(URL).list_files()) == {"claims/first"}
    Store("counted://store/other").put_file("notes.txt", b"mine")
    with pytest.raises(PlaceTakenError):
        claim_place(Store("counted://store/other"), "third")


def test_a_taken_place_is_named_where_nothing_may_be_deleted(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    claim_place(Store(URL), "another")

    def refuse_removal(store: Store, path: str) -> None:
        raise TdbgError("not allowed")

    monkeypatch.setattr(Store, "remove_file", refuse_removal)
    with pytest.raises(PlaceTakenError, match="already holds a run"):
        claim_place(Store(URL), "mine")


def test_a_link_is_something_that_lies_there(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "place/run.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlaceTakenError):
        claim_place(Store(f"file://{tmp_path}/place"), "mine")


def test_a_claim_that_could_not_be_checked_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Counted, path: str, **more: object) -> None:
        raise PermissionError("you may write, and not list")

    with monkeypatch.context() as patched:
        patched.setattr(Counted, "find", refuse)
        with pytest.raises(TdbgError, match="you may write"):
            claim_place(Store(URL), "first")
    claim_place(Store(URL), "second")


def test_a_store_without_an_answer_holds_up_the_start_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    monkeypatch.setattr(store_claim, "SLOW_S", 0.3)
    monkeypatch.setattr(store_claim, "PATIENCE_S", 0.8)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        begun = time.monotonic()
        assert store_claim.try_claim("s3://bucket/run", "mine") is False
    assert time.monotonic() - begun < 10
    said = capsys.readouterr().err
    assert "waiting for s3://bucket/run, for at most 0.8 s" in said and "has not answered for 0.8 s" in said, said
    left = [
        child for child in psutil.Process().children(recursive=True) if "tdbg.launch.store_claim" in child.cmdline()
    ]
    assert not left


def test_ctrl_c_before_the_start_leaves_no_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(url: str, token: str) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_claim, "try_claim", interrupt)
    with pytest.raises(KeyboardInterrupt):
        StorePlace.claim(run, Settings(run_dir=URL))
    assert not run.path.exists()


@pytest.fixture
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_uploading, "LEAST_PAUSE_S", 0.02)
    monkeypatch.setattr(run_uploading, "REST", 0)


def start_uploading(run: RunDir, **settings: object) -> RunUploading:
    found = RunUploading(run, Settings(run_dir=URL, **settings), StorePlace(URL, "mine"))  # type: ignore[arg-type]
    found.start_thread()
    return found


def wait_until(test: object) -> None:
    until = time.monotonic() + 20
    while not test():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.usefixtures("quick_rounds")
def test_a_store_that_fails_and_comes_back_has_all_of_it(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    append_text(run, "rank0000/events.jsonl", "one\n")
    Counted.failing.add("events.jsonl")
    uploading = start_uploading(run)
    wait_until(lambda: "/store/run/run.json" in Counted.store)
    time.sleep(0.2)  # several rounds
    assert not any("events.jsonl" in name for name in Counted.store)
    Counted.failing.clear()
    wait_until(lambda: any("events.jsonl" in name for name in Counted.store))
    append_text(run, "rank0000/events.jsonl", "two\n")
    uploading.finish_upload()
    said = capsys.readouterr().err
    assert said.count("the store is full") == 1 and f"the whole run is in {run.path}" in said
    assert "of the run are on counted://store/run" in said
    assert read_stored("rank0000/events.jsonl") == "one\ntwo\n"
    assert json.loads(read_stored("pieces.json"))["complete"] is True


@pytest.mark.usefixtures("quick_rounds")
def test_a_library_that_cannot_be_made_at_first_is_tried_again(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter((OSError("no network"), OSError("no network")))

    def make_upload(*words: object, **more: object) -> RunUpload:
        for error in failures:
            raise error
        return RunUpload(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(run_upload, "RunUpload", make_upload)
    uploading = start_uploading(run)
    wait_until(lambda: "/store/run/run.json" in Counted.store)
    uploading.finish_upload()
    assert json.loads(read_stored("pieces.json"))["complete"] is True


@pytest.mark.usefixtures("quick_rounds")
def test_a_store_that_never_works_is_said_once_and_at_the_end(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    Counted.failing.add("run")
    uploading = start_uploading(run)
    time.sleep(0.3)
    uploading.finish_upload()
    lines = capsys.readouterr().err.splitlines()
    assert sum("tdbg will retry" in line for line in lines) == 1, lines
    assert sum("not all of the run is on counted://store/run" in line for line in lines) == 1
    assert f"the whole run is in {run.path}; `tdbg runs upload {run.path}` copies the rest" in lines[-1]
    assert len(lines) <= 5, lines
    assert (run.path / "run.json").exists() and not Counted.store


@pytest.mark.usefixtures("quick_rounds")
def test_a_place_that_another_run_took_meanwhile_is_left_alone(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    claim_place(Store(URL), "another")
    before = set(Counted.store)
    uploading = start_uploading(run)
    uploading.finish_upload()
    said = capsys.readouterr().err
    assert "already holds a run" in said and "nothing more is copied" in said, said
    assert set(Counted.store) == before


def test_a_store_that_does_not_answer_does_not_hold_up_the_end(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_uploading, "PATIENCE_S", 0.4)
    monkeypatch.setattr(RunUpload, "upload_new_files", lambda self, last=False: time.sleep(1.5))
    uploading, begun = start_uploading(run), time.monotonic()
    uploading.finish_upload()
    assert time.monotonic() - begun < 1.4
    uploading._thread.join()
    assert "nothing was copied for" in capsys.readouterr().err


def test_a_slow_store_holds_up_the_end_for_a_limited_time(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def copy_slowly(self: RunUpload, *, last: bool = False) -> None:
        for number in range(300):
            self._count(str(number), 1)
            time.sleep(0.01)

    monkeypatch.setattr(run_uploading, "LIMIT_S", 1.0)
    monkeypatch.setattr(run_uploading, "SLOW_S", 0.2)
    monkeypatch.setattr(RunUpload, "upload_new_files", copy_slowly)
    uploading, begun = start_uploading(run), time.monotonic()
    uploading.finish_upload()
    assert 0.9 < time.monotonic() - begun < 2.5
    uploading._thread.join()
    said = capsys.readouterr().err
    assert said.count(f"copying the rest of the run to {URL}, for at most 1 s; Ctrl-C ends the wait") == 1, said
    assert f"not all of the run is on {URL}: 1 s were not enough" in said, said


def test_a_stopped_run_waits_less(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_uploading, "STOPPED_LIMIT_S", 0.4)
    monkeypatch.setattr(RunUpload, "upload_new_files", lambda self, last=False: time.sleep(1.5))
    uploading, begun = start_uploading(run), time.monotonic()
    uploading.hasten_round(is_stopped=True)
    uploading.finish_upload()
    assert time.monotonic() - begun < 1.4
    uploading._thread.join()
    assert "0.4 s were not enough" in capsys.readouterr().err


def test_a_slow_round_does_not_put_off_the_next_one_beyond_the_longest_pause(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []

    def copy_slowly(self: RunUpload, *, last: bool = False) -> None:
        rounds.append(time.monotonic())
        time.sleep(0.2)

    monkeypatch.setattr(run_uploading, "MOST_PAUSE_S", 0.05)
    monkeypatch.setattr(RunUpload, "upload_new_files", copy_slowly)
    uploading = start_uploading(run)
    wait_until(lambda: len(rounds) > 2)
    uploading.finish_upload()
    assert rounds[2] - rounds[0] < 2, "20 times 0.2 s is what a round of that length asks for"


@pytest.mark.usefixtures("quick_rounds")
def test_it_comes_back_as_the_same_run_directory(run: RunDir, tmp_path: Path) -> None:
    for path in ("rank0000/events.jsonl", "rank0001/events.jsonl", "rank0001/metrics.jsonl", "hello/1.json"):
        append_text(run, path, f"{path}\n" * 100)
    (run.path / "rank0000/batch.safetensors").write_bytes(os.urandom(3 << 20))
    uploading = start_uploading(run)
    uploading.finish_upload()
    count = fetch_run(URL, tmp_path / "back")
    there = {path.relative_to(run.path): path.read_bytes() for path in run.path.rglob("*.*") if path.is_file()}
    back = {path.relative_to(tmp_path / "back"): path.read_bytes() for path in (tmp_path / "back").rglob("*.*")}
    del there[Path(".store-claim")]
    assert back == there and count == len(there)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://key:sesame@bucket/run", "run-dir: the s3:// URL holds a password"),
        ("s3://bucket/run?sig=sesame12345", "run-dir: the s3:// URL holds a secret"),
        ("abfs://box@account?sig=sesame12345", "run-dir: the abfs:// URL holds a secret"),
        ("https://host/run", "--run-dir: https:// can be read, not written"),
        ("memory://run", "--run-dir: memory:// ends with this process"),
        ("simplecache::s3://key:sesame@bucket/run", "run-dir: not a URL that tdbg can copy to"),
        ("s3://bucket/run#token=sesame12345", "the s3:// URL holds a secret"),
        ("nowhere://x/y", "unknown URL scheme nowhere://"),
        ("s3://", "names no bucket or folder"),
    ],
)
def test_a_url_of_no_use_is_refused_in_a_line(url: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--run-dir", url, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert text in said and "sesame" not in said and len(said.splitlines()) == 2, said


@pytest.mark.parametrize(
    ("module", "url", "text"),
    [
        ("fsspec", "s3://bucket/run", "s3://bucket/run needs fsspec"),
        ("s3fs", "s3://bucket/run", "s3:// needs another library"),
    ],
)
def test_a_missing_library_is_named_before_the_start(
    module: str, url: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(
        sys.modules["fsspec.registry"]._registry, "s3", raising=False
    )  # an earlier test may have used it
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["run", "--run-dir", url, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert text in said and "install" in said.lower() and len(said.splitlines()) == 2, said


def test_it_needs_tdbg_to_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--exec", "--run-dir", URL, "--", "true"]) == 2
    assert "--run-dir URL needs tdbg to stay running" in capsys.readouterr().err


def end_run(run: RunDir) -> None:
    run.update_info(end=time.time())


@pytest.mark.usefixtures("quick_rounds")
def test_what_a_failed_copy_has_left_is_completed_later(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    append_text(run, "rank0000/events.jsonl", "one\n")
    uploading = start_uploading(run)
    wait_until(lambda: "/store/run/run.json" in Counted.store)
    Counted.failing.add("run")
    append_text(run, "rank0000/events.jsonl", "two\n")
    uploading.finish_upload()
    assert json.loads(read_stored("pieces.json"))["complete"] is False
    Counted.failing.clear()
    end_run(run)
    assert cli.main(["runs", "upload", str(run.path)]) == 0, "it knows its URL"
    assert f"the run is on {URL}" in capsys.readouterr().err
    assert read_stored("rank0000/events.jsonl") == "one\ntwo\n"
    assert json.loads(read_stored("pieces.json"))["complete"] is True


def test_a_run_that_was_begun_without_a_url_is_copied_again_and_again(run: RunDir, tmp_path: Path) -> None:
    append_text(run, "rank0000/events.jsonl", "one\n")
    end_run(run)
    assert cli.main(["runs", "upload", str(run.path), f"{URL}/"]) == 0
    append_text(run, "rank0000/events.jsonl", "two\n")
    Counted.requests.clear()
    assert cli.main(["runs", "upload", str(run.path)]) == 0
    assert "0001-000000000000-000000000004" not in count_writes(), "what is there is not copied again"
    assert fetch_run(URL, tmp_path / "copy") and read_stored("rank0000/events.jsonl") == "one\ntwo\n"
    assert (tmp_path / "copy/rank0000/events.jsonl").read_text() == "one\ntwo\n"


def test_a_run_is_not_copied_over_another_one(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    end_run(run)
    claim_place(Store(URL), "another")
    before = dict(Counted.store)
    assert cli.main(["runs", "upload", str(run.path), URL]) == 2
    assert "already holds a run" in capsys.readouterr().err and Counted.store == before
    assert not (run.path / ".store-claim").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "was not begun with --run-dir URL"),
        (["other"], "other is no URL"),
        (["http://host/run"], "http:// can be read, not written"),
        (["s3://user:secret@host/run"], "holds a password"),
        (["none://bucket/run"], "none"),
    ],
)
def test_what_cannot_be_copied_is_said(
    run: RunDir, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    end_run(run)
    assert cli.main(["runs", "upload", str(run.path), *words]) == 2
    found = capsys.readouterr()
    assert said in found.err and "secret" not in found.err and not found.out
    assert len(found.err.splitlines()) <= 2 and not Counted.store


def test_a_run_that_goes_on_is_left_to_its_supervisor(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "upload", str(run.path), URL]) == 2
    end_run(run)
    rank = run.path / "rank0000"
    rank.mkdir()
    owner = {"pid": os.getpid(), "host": host_name(), "start": process_start(os.getpid())}
    (rank / "owner.json").write_text(json.dumps(owner))
    append_text(run, "rank0000/events.jsonl", "")
    assert cli.main(["runs", "upload", str(run.path), URL]) == 2, "a rank has outlived it"
    assert capsys.readouterr().err.count("may still be running") == 2 and not Counted.store


def test_a_run_that_is_copied_to_a_second_url_still_knows_the_first(run: RunDir) -> None:
    end_run(run)
    first, second = URL, "counted://store/second"
    for words, url in (([first], first), ([second], second), ([], first), ([second], second), ([first], first)):
        append_text(run, "rank0000/events.jsonl", "{}\n")
        assert cli.main(["runs", "upload", str(run.path), *words]) == 0
        about = json.loads(Counted.store[f"{url.removeprefix('counted:/')}/pieces.json"].getvalue())
        assert about["complete"] is True and Path(about["path"]).is_absolute()
        store = Store(url)
        events = store.list_files()["rank0000/events.jsonl"]
        assert events == (run.path / "rank0000/events.jsonl").stat().st_size


def test_a_refused_folder_is_left_as_it_was(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end_run(run)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/hi.txt").write_text("hi")
    assert cli.main(["runs", "upload", str(run.path), f"file://{tmp_path}/other"]) == 2
    assert [path.name for path in (tmp_path / "other").rglob("*")] == ["hi.txt"]
    assert "choose another URL" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    end_run(run)
    assert cli.main(["runs", "upload", str(run.path), "file:///proc/x"]) == 2
    said = capsys.readouterr().err
    assert "cannot write to file:///proc/x" in said and "choose another URL" in said
