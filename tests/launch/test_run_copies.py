"""Reading commands of a run on a store: what they print is what they print of the run directory."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg import cli
from tdbg.launch import run_copies
from tdbg.launch.run_upload import RunUpload
from tdbg.pages.read import remote_store
from tests.pages.material import fill_writer, make_items
from tests.stores import Counted, use_counting_store
from tests.streams import Stream

URL = "counted://store/runs/train"


@pytest.fixture
def store() -> Iterator[type[Counted]]:
    with use_counting_store() as found:
        yield found


@pytest.fixture
def run(tmp_path: Path, store: type[Counted]) -> Path:
    """A run of two ranks, one of which diverges, on the disk and on the store, there in several pieces."""
    stream = Stream(tmp_path / "train")
    upload = RunUpload(stream.run.path, URL)
    ranks = [stream.begin_rank(rank, world=2) for rank in (0, 1)]
    for number in range(5):
        for folder in ranks:
            stream.emit_steps(folder, [1.0 + number] * 10, first=10 * number + 1)
            log = stream.run.path / folder / f"debug_log_rank{folder[-1]}.txt"
            with log.open("a", encoding="utf-8") as file:
                file.write(
                    f"2026-11-20T03:06:4{number}.000000 D r000{folder[-1]} s0000000{number} [DEBUG_LR] lr={number}\n"
                )
            with (stream.run.path / folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"t": float(number), "step": number, "values": {"loss": number / 2}}) + "\n")
        upload.upload_new_files()
    (stream.run.path / ranks[0] / "batch_1.safetensors").write_bytes(b"x" * 100)
    upload.upload_new_files(last=True)
    assert sum("rank0001/events.jsonl.pieces/" in name for name in store.store) > 3
    store.requests.clear()
    return stream.run.path


def ask(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main([*words, "--color", "never"])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{run}"],
        ["report", "{run}", "--all"],
        ["report", "{run}", "--json"],
        ["status", "{run}"],
        ["filter-logs", "{run}", "-f", "LR"],
        ["filter-logs", "{run}", "--count"],
        ["metrics", "show", "{run}"],
        ["metrics", "dump", "{run}"],
        ["metrics", "sanity", "{run}"],
        ["metrics", "compare", "{run}", "{run}"],
    ],
    ids=" ".join,
)
def test_a_command_prints_the_same_of_a_url(
    words: list[str], run: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # of the ages in `status`
    here = ask(capfd, *(word.format(run=run) for word in words))
    there = ask(capfd, *(word.format(run=URL) for word in words))
    assert here[1] and here[0] == there[0]
    assert there[1].replace(URL, str(run)) == here[1]
    assert "tdbg-run-" not in there[1] + there[2]


def test_of_a_long_run_status_fetches_the_ends(
    tmp_path: Path, store: type[Counted], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_copies, "TAIL_BYTES", 256 << 10)
    stream = Stream(tmp_path / "train")
    upload, folder = RunUpload(stream.run.path, URL), stream.begin_rank()
    stream.emit_steps(folder, [1.0] * 20_000)
    upload.upload_new_files()
    stream.emit_steps(folder, [1.0] * 20, first=20_001)
    upload.upload_new_files()
    size = (stream.run.path / folder / "events.jsonl").stat().st_size
    store.requests.clear()
    code, out, err = ask(capfd, "status", URL, "--json")
    (row,) = json.loads(out)["data"]["ranks"]
    assert code == 0 and row["step"] == 20_020, err
    read = sum(request.nbytes for request in store.requests if "events.jsonl" in request.path)
    assert size > 2 * (run_copies.HEAD_BYTES + run_copies.TAIL_BYTES) and read <= size / 2, (read, size)


def test_a_report_fetches_no_tensors_and_no_logs(
    run: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    ask(capfd, "report", URL)
    read = {request.path for request in store.requests if request.kind == "read"}
    assert any("events.jsonl" in path for path in read)
    assert not any("debug_log" in path or "safetensors" in path for path in read), read


def test_join_makes_a_run_directory_of_it(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(capfd, "join", URL, "-o", str(tmp_path / "back"))
    assert code == 0 and "files of counted://store/runs/train are in" in out, err
    assert (tmp_path / "back/rank0000/events.jsonl").read_bytes() == (run / "rank0000/events.jsonl").read_bytes()
    assert ask(capfd, "join", URL, "-o", str(tmp_path / "back"))[0] == 2
    assert ask(capfd, "report", str(tmp_path / "back"))[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"train", "back"}


def test_a_folder_of_pieces_is_read_too_and_taken_for_no_run_directory(
    run: Path, store: type[Counted], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, found in store.store.items():
        target = tmp_path / "synced" / name.removeprefix("/store/runs/train/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(found.getvalue())
    for place in (str(tmp_path / "synced"), f"file://{tmp_path}/synced"):
        assert ask(capfd, "report", place)[1].replace(place, str(run)) == ask(capfd, "report", str(run))[1]
    code, _, said = ask(capfd, "stacks", str(tmp_path / "synced"))
    assert code == 2 and "are in pieces" in said and "tdbg join URL -o DIR" in said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["report", "counted://store/none"], "there is no run at counted://store/none"),
        (["report", "nowhere://x/y"], "unknown URL scheme nowhere://"),
        (["report", "s3://key:sesame@bucket/x"], "the s3:// URL holds a password"),
        (["report", URL, "--note", "x"], "--note needs a run directory on this machine"),
        (["status", URL, "--watch"], "--watch needs a run directory on this machine"),
        (["control", URL, "--level", "basic"], f"{URL} is no run directory on this machine"),
        (["join", "counted://store/none", "-o", "{out}"], "there is no run at"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_cannot_be_done_is_said_in_a_line(
    words: list[str], text: str, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, said = ask(capfd, *(word.format(out=tmp_path / "out") for word in words))
    assert code == 2 and not out and text in said and "sesame" not in said, said
    assert len(said.splitlines()) == 2 and {path.name for path in tmp_path.iterdir()} == {"train"}


def test_a_store_that_names_files_outside_of_the_run_writes_none(
    tmp_path: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    fs: Any = store()
    for name in ("run.json", "../evil.json", "rank0000/../../evil.jsonl.pieces/0001-000000000000-000000000002"):
        fs.store[f"/store/runs/train/{name}"] = fs.open("/x", "wb")
    fs.pipe_file("/store/runs/train/run.json", b"{}")
    ask(capfd, "join", URL, "-o", str(tmp_path / "back"))
    assert not list(tmp_path.parent.rglob("evil*"))


def put_pieces(*pieces: tuple[int, int, bytes]) -> None:
    """A run whose findings are in pieces of these names, with other bytes in them."""
    fs: Any = Counted()
    fs.pipe_file("/store/runs/train/run.json", b"{}")
    for start, stop, data in pieces:
        fs.pipe_file(f"/store/runs/train/findings.jsonl.pieces/0001-{start:012d}-{stop:012d}", data)


def test_a_piece_that_is_shorter_than_its_name_says_is_damage(
    tmp_path: Path, store: type[Counted], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pieces((0, 4, b"one\n"), (4, 8, b"two\n"))
    find = Counted.find

    def find_without_sizes(self: Counted, path: str, **more: Any) -> Any:
        found = find(self, path, **more)
        return {name: {**about, "size": None} for name, about in found.items()} if more.get("detail") else found

    monkeypatch.setattr(Counted, "find", find_without_sizes)
    assert ask(capfd, "join", URL, "-o", str(tmp_path / "good"))[0] == 0
    assert (tmp_path / "good/findings.jsonl").read_bytes() == b"one\ntwo\n"
    put_pieces((0, 4, b"on"))
    code, _, said = ask(capfd, "join", URL, "-o", str(tmp_path / "back"))
    assert code == 2 and "0001-000000000000-000000000004 is not as long as its name says" in said, said
    assert not (tmp_path / "back").exists() and len(said.splitlines()) == 2


def test_a_run_of_more_bytes_than_any_disk_is_refused(
    tmp_path: Path, store: type[Counted], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pieces((0, 4, b"one\n"))
    find = Counted.find

    def find_much(self: Counted, path: str, **more: Any) -> Any:
        found = find(self, path, **more)
        return {name: {**about, "size": 10**17} for name, about in found.items()} if more.get("detail") else found

    monkeypatch.setattr(Counted, "find", find_much)
    store.store["/store/runs/train/rank0000/events.jsonl"] = store.store["/store/runs/train/run.json"]
    for words in (["join", URL, "-o", str(tmp_path / "back")], ["status", URL], ["report", URL]):
        code, _, said = ask(capfd, *words)
        assert code == 2 and len(said.splitlines()) == 2 and "itself failed" not in said, said


def test_a_large_piece_is_fetched_part_by_part(
    tmp_path: Path, store: type[Counted], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "PART_BYTES", 1000)
    monkeypatch.setattr(run_copies, "FETCHED_BYTES", 100)
    data = bytes(range(256)) * 100
    put_pieces((0, len(data), data))
    store.requests.clear()
    assert ask(capfd, "join", URL, "-o", str(tmp_path / "back"))[0] == 0
    assert (tmp_path / "back/findings.jsonl").read_bytes() == data
    read = [request.nbytes for request in store.requests if ".pieces/" in request.path]
    assert max(read) <= 1000 and sum(read) == len(data)


def test_a_file_that_is_replaced_by_a_longer_one_is_whole(
    run: Path, store: type[Counted], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fs: Any = store()
    fs.pipe_file("/store/runs/train/hello/1.json", b'{"a": 1}')
    find = Counted.find

    def find_and_replace(self: Counted, path: str, **more: Any) -> Any:
        found = find(self, path, **more)
        fs.pipe_file("/store/runs/train/hello/1.json", b'{"a": 1, "b": 2}')
        return found

    monkeypatch.setattr(Counted, "find", find_and_replace)
    assert ask(capfd, "join", URL, "-o", str(tmp_path / "back"))[0] == 0
    assert (tmp_path / "back/hello/1.json").read_bytes() == b'{"a": 1, "b": 2}'


def test_a_page_that_is_gone_meanwhile_is_left_out(
    run: Path, store: type[Counted], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Counted.find

    def find_and_remove(self: Counted, path: str, **more: Any) -> Any:
        found = find(self, path, **more)
        store.store.pop("/store/runs/train/rank0000/batch_1.safetensors", None)
        return found

    monkeypatch.setattr(Counted, "find", find_and_remove)
    assert ask(capfd, "join", URL, "-o", str(tmp_path / "back"))[0] == 0
    assert (tmp_path / "back/run.json").exists() and not list((tmp_path / "back").rglob("*.safetensors"))


def test_a_name_that_is_a_file_and_a_folder_is_refused_in_a_line(
    run: Path, store: type[Counted], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fs: Any = store()
    store.store["/store/runs/train/rank0000/events.jsonl/deep.json"] = fs.open("/x", "wb")
    for words in (["join", URL, "-o", str(tmp_path / "back")], ["report", URL]):
        code, out, said = ask(capfd, *words)
        assert code == 2 and not out and f"cannot copy {URL}: " in said and len(said.splitlines()) == 2, said
    assert {path.name for path in tmp_path.iterdir()} == {"train"}


def test_a_copy_that_is_not_complete_says_so(
    run: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    assert "not complete" not in ask(capfd, "report", URL)[2]
    upload = RunUpload(run, URL)
    with (run / "findings.jsonl").open("a") as file:
        file.write("\n")
    upload.upload_new_files()
    for words in (["report", URL], ["status", URL], ["metrics", "show", URL]):
        said = ask(capfd, *words)[2]
        assert (
            f"{URL}: the copy is not complete, last written at 20" in said and f"the whole run is in {run} on " in said
        )
    notes = json.loads(ask(capfd, "report", URL, "--json")[1])["data"]["notes"]
    assert any(note.startswith("the copy is not complete") for note in notes), notes
    fs: Any = store()
    for text in (b"[" * 9000, b'{"complete": false, "t": 1e300, "path": 7}', b'{"complete": false, "t": NaN}', b"\xff"):
        fs.pipe_file("/store/runs/train/pieces.json", text)
        code, _, said = ask(capfd, "report", URL)
        assert code == 0 and "itself failed" not in said, said
    upload.upload_new_files(last=True)
    assert "not complete" not in ask(capfd, "report", URL)[2]


def test_pages_of_a_copy_that_is_not_complete_say_so(
    run: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    with fill_writer(run / "rank0000" / "pages"):
        pass
    upload = RunUpload(run, URL)
    upload.upload_new_files()
    code, out, said = ask(capfd, "inspect-pages", "ls", URL)
    assert code == 0 and out and f"{URL}: the copy is not complete, last written at 20" in said, said
    upload.upload_new_files(last=True)
    code, out, said = ask(capfd, "inspect-pages", "ls", URL)
    assert code == 0 and out and "not complete" not in said, said


def test_a_secret_in_a_url_is_not_repeated(run: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]) -> None:
    url = f"{URL}?token=sesame123456"
    assert "sesame" not in "".join(map(str, ask(capfd, "report", url)))
    for name in [name for name in store.store if name.startswith("/store/runs/train/")]:
        store.store[name.replace("train/", "train?token=sesame123456/")] = store.store[name]
    code, out, said = ask(capfd, "report", url, "--json")
    assert code == 0 and "counted://store/runs/train?token=***" in out and "sesame" not in out + said


def test_no_link_of_a_local_store_is_read_through(
    tmp_path: Path, run: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    place, url = tmp_path / "a store", f"file://{tmp_path}/a store"
    RunUpload(run, url).upload_new_files(last=True)
    (tmp_path / "secret").write_text("sesame")
    (place / "rank0000/other_log_rank0.txt").symlink_to(tmp_path / "secret")
    (place / "rank0007").symlink_to(tmp_path)
    os.mkfifo(place / "rank0000/pipe.json")
    for where in (url, str(place)):
        assert "lr=4" in ask(capfd, "filter-logs", where)[1]
        assert "sesame" not in "".join(map(str, ask(capfd, "filter-logs", where)))
    assert ask(capfd, "join", url, "-o", str(tmp_path / "back"))[0] == 0
    assert not any("sesame" in path.read_text(errors="replace") for path in (tmp_path / "back").rglob("*.*"))


def test_pages_in_a_local_store_are_read(
    tmp_path: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(tmp_path / "train")
    place, url = tmp_path / "a store", f"file://{tmp_path}/a store"
    upload = RunUpload(stream.run.path, url)
    with fill_writer(stream.run.path / "rank0000/pages", 0, page_bytes=4000) as writer:
        for number in range(10):
            writer.add(f"k{number}", make_items(f"k{number}"), step=number)
            upload.upload_new_files()
    upload.upload_new_files(last=True)
    here = ask(capfd, "inspect-pages", "ls", "--datapoints", str(stream.run.path))
    assert here[0] == 0 and "k7" in here[1]
    for where in (url, str(place), f"{url}/rank0000/pages", str(place / "rank0000")):
        assert ask(capfd, "inspect-pages", "ls", "--datapoints", where)[:2] == here[:2], where
    shown = [ask(capfd, "inspect-pages", "show", place, "k7")[:2] for place in (str(stream.run.path), url)]
    assert shown[0][0] == 0 and shown[1] == shown[0]


def test_an_ordinary_run_directory_may_be_a_url_too(
    run: Path, store: type[Counted], capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(capfd, "report", f"file://{run}") == ask(capfd, "report", str(run))
