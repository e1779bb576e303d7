"""Runs on a store: the same answers as of the run on a disk, only what is looked at fetched, nothing left behind."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

from tdbg import cli
from tdbg.core.errors import TdbgError
from tdbg.core.urls import Url
from tdbg.launch.run_upload import RunUpload
from tdbg.pages.format.page_writer import Item, PageWriter
from tdbg.pages.page_upload import Upload
from tdbg.pages.read.remote_store import Store
from tdbg.viewer import remote_runs
from tdbg.viewer.remote_runs import RemoteLibrary
from tests.stores import Counted, use_counting_store
from tests.viewer.conftest import NAMES, Client

URL = "counted://store/runs"
MakeLibrary = Callable[..., RemoteLibrary]
ROUTES = (
    "",
    "/report",
    "/ranks",
    "/findings",
    "/logs",
    "/metrics",
    "/flags",
    "/pages",
    "/pages?datapoints=true",
    "/trace",
)


@pytest.fixture
def store() -> Iterator[type[Counted]]:
    with use_counting_store() as found:
        yield found


@pytest.fixture
def make_library() -> Iterator[MakeLibrary]:
    with contextlib.ExitStack() as stack:

        def make(url: str = URL) -> RemoteLibrary:
            library = RemoteLibrary(Url(url))
            stack.callback(library.close)
            return library

        yield make


def put_folder(folder: Path, url: str) -> None:
    fs, root = fsspec.core.url_to_fs(url)
    for path in folder.rglob("*"):
        if path.is_file():
            target = f"{root}/{path.relative_to(folder).as_posix()}"
            fs.pipe_file(target, path.read_bytes())
            fs.store[fs._strip_protocol(target)].created = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    Counted.requests.clear()


def test_answers_are_those_of_the_same_runs_on_a_disk(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary
) -> None:
    put_folder(runs_folder, URL)
    library = make_library()
    here, there = Client(runs_folder), Client(library)
    listed = [
        {name: row[name] for name in ("name", "state", "severity", "title")} for row in there.ask("/runs")["runs"]
    ]
    expected = {row["name"]: row for row in here.ask("/runs")["runs"]}
    assert there.ask("/runs")["folder"] == URL
    assert sorted(row["name"] for row in listed) == NAMES
    assert all(row == {name: expected[row["name"]][name] for name in row} for row in listed)
    for name in NAMES:
        for route in ROUTES:
            path = f"/api/v1/runs/{name}{route}"
            ours, theirs = there.get(path), here.get(path)
            assert ours.status_code == theirs.status_code, path
            assert str(library.folder) not in ours.text, "the copy is nobody's business"
            text = ours.text.replace(URL, str(runs_folder))
            assert text == theirs.text, path


@pytest.mark.usefixtures("store")
def test_a_run_in_pieces_is_shown_as_the_run(runs_folder: Path, make_library: MakeLibrary, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs_folder / NAMES[0], folder / "train")
    events = sorted((folder / "train").rglob("events.jsonl"))
    whole = [path.read_bytes() for path in events]
    upload = RunUpload(folder / "train", f"{URL}/train")
    for share in (3, 2, 1):
        for path, data in zip(events, whole, strict=True):
            path.write_bytes(data[: len(data) // share])
        upload.upload_new_files(last=share == 1)
    pieces = [name for name in Counted.store if "/events.jsonl.pieces/" in name]
    assert len(pieces) == 3 * len(events) > 0, pieces
    library = make_library()
    for route in ROUTES:
        path = f"/api/v1/runs/train{route}"
        ours, theirs = Client(library).get(path), Client(folder).get(path)
        assert (ours.status_code, ours.text.replace(URL, str(folder))) == (theirs.status_code, theirs.text), path


@pytest.mark.usefixtures("store")
def test_a_run_that_was_not_copied_to_its_end_says_so_until_it_is(
    runs_folder: Path, make_library: MakeLibrary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs_folder / NAMES[0], tmp_path / "train")
    upload = RunUpload(tmp_path / "train", f"{URL}/train")
    upload.upload_new_files()
    library = make_library()
    for _ in range(2):
        notes = Client(library).ask("/runs/train/report")["notes"]
        assert [note for note in notes if note.startswith("the copy is not complete, last written at 20")], notes
    said = capsys.readouterr().err
    assert said.count(f"{URL}/train: the copy is not complete") == 1, said
    upload.upload_new_files(last=True)
    library._listed_t = float("-inf")
    assert not any("not complete" in note for note in Client(library).ask("/runs/train/report")["notes"])


def test_pages_are_read_by_range(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary, tmp_path: Path
) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/large")
    writer = PageWriter(tmp_path / "rank0000" / "pages", run="large")
    for key in range(8):
        writer.add(key, [Item("conv:output", "float32", (1 << 20,), bytes(4 << 20), {})])
    writer.close()
    put_folder(tmp_path, f"{URL}/large")
    library = make_library()
    client = Client(library)
    assert client.ask("/runs/large/pages", datapoints=True)["bytes"] >= 32 << 20
    fetched = [request for request in store.requests if request.path.endswith(".safetensors")]
    assert sum(request.nbytes for request in fetched) < 1 << 20
    assert not list(library.folder.rglob("pages/*.safetensors")) and list(library.folder.rglob("pages/*"))


def test_one_run_is_named_and_copied_once(runs_folder: Path, store: type[Counted], make_library: MakeLibrary) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    library = make_library(f"{URL}/one")
    assert library.only is not None and library.list_names() == ["one"]
    client = Client(library)
    first = client.ask("/runs/one/report")
    assert first["run"] == f"{URL}/one"
    Counted.requests.clear()
    assert client.ask("/runs/one/report") == first and store.requests == []


def test_a_refusal_names_the_run_itself(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary, tmp_path: Path
) -> None:
    batch = tmp_path / "one" / "rank0000" / "batch_step00000003.safetensors"
    shutil.copytree(runs_folder / NAMES[0], tmp_path / "one")
    batch.write_bytes(b"no safetensors")
    put_folder(tmp_path, URL)
    library = make_library()
    answer = Client(library).get("/api/v1/runs/one/pages/datapoint", params={"batch": f"rank0000/{batch.name}"})
    assert answer.status_code == 404 and str(library.folder) not in answer.text
    assert f"{URL}/one/rank0000/{batch.name}" in answer.json()["error"]


def test_the_grid_of_a_store_is_that_of_the_disk(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary
) -> None:
    put_folder(runs_folder, URL)
    here, there = Client(runs_folder), Client(make_library())
    query = {"sort": "step", "descending": "true", "steps": "2:5"}
    ours, theirs = (one.ask("/runs/captured/pages/datapoints", **query)["rows"] for one in (here, there))
    names = ("key", "nth", "rank", "step", "bytes")
    assert ours and [[row[name] for name in names] for row in ours] == [[row[name] for name in names] for row in theirs]


def test_what_has_grown_is_copied_again(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    library = make_library(f"{URL}/one")
    run = library.open_run("one")
    fs, root = fsspec.core.url_to_fs(f"{URL}/one")
    fs.pipe_file(f"{root}/rank0000/new.txt", b"x")
    assert not (library.open_run("one").path / "rank0000" / "new.txt").exists()
    monkeypatch.setattr(remote_runs, "LIST_EVERY_S", 0.0)
    assert (library.open_run("one").path / "rank0000" / "new.txt").read_bytes() == b"x"
    fs.pipe_file(f"{root}/rank0000/new.txt", b"longer")
    assert (library.open_run("one").path / "rank0000" / "new.txt").read_bytes() == b"longer"
    assert run.path.exists()


def test_of_a_file_in_pieces_only_what_is_new_is_fetched(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that goes on: its events grow to hundreds of megabytes, and the browser asks every few seconds."""
    run, name = tmp_path / "train", "rank0000/events.jsonl"
    shutil.copytree(runs_folder / NAMES[0], run)
    monkeypatch.setattr(remote_runs, "LIST_EVERY_S", 0.0)
    upload = RunUpload(run, f"{URL}/train")
    upload.upload_new_files()
    library = make_library()
    copy = library.open_run("train").path / name

    def fetch_again(last: str = "") -> list[str]:
        """The pieces that are fetched for another look."""
        upload.upload_new_files()
        store.requests.clear()
        library.open_run("train")
        assert copy.read_bytes() == (run / name).read_bytes(), last
        return [
            one.path.rpartition("/")[2]
            for one in store.requests
            if one.kind == "read" and f"{name}.pieces/" in one.path
        ]

    size = copy.stat().st_size
    with (run / name).open("a") as file:
        file.write("{}\n")
    assert fetch_again() == [f"0001-{size:012d}-{size + 3:012d}"]
    assert not fetch_again("nothing is new")
    (run / name).unlink()
    (run / name).write_text("{}\n" * 100_000)  # longer than before, and another file
    assert [found[:5] for found in fetch_again("another edition")] == ["0002-"]
    copy.write_text("cut off")
    with (run / name).open("a") as file:
        file.write("{}\n")
    assert len(fetch_again("copied whole")) == 2


def test_copies_that_are_not_in_use_are_removed_and_made_again(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        put_folder(runs_folder / NAMES[0], f"{URL}/{name}")
    library = make_library()
    client = Client(library)
    first = client.ask("/runs/one/report")
    held = {path for path in library.folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(remote_runs, "MAX_COPIES_BYTES", 10)
    client.ask("/runs/other/report")
    assert held < {path for path in library.folder.rglob("*") if path.is_file()}, "it may still be read"
    monkeypatch.setattr(remote_runs, "IN_USE_S", 0.0)
    client.ask("/runs/other/report")
    left = {path.relative_to(library.folder / "one").as_posix() for path in (library.folder / "one").rglob("*.*")}
    assert left <= {"run.json", "report.json"}
    assert {row["name"] for row in client.ask("/runs")["runs"]} == {"one", "other"}
    monkeypatch.setattr(remote_runs, "IN_USE_S", 60.0)
    assert client.ask("/runs/one/report") == first


def test_uploaded_pages_alone_are_shown(runs_folder: Path, store: type[Counted], make_library: MakeLibrary) -> None:
    name = next(one for one in NAMES if list((runs_folder / one).rglob("*.safetensors")))
    Upload(runs_folder / name, f"{URL}/{name}").upload_new_files(last=True)
    client = Client(make_library())
    here = Client(runs_folder).ask(f"/runs/{name}/pages", datapoints=True)
    assert client.ask(f"/runs/{name}/pages", datapoints=True)["datapoints"] == here["datapoints"]
    assert client.get(f"/runs/{name}/overview").status_code == 200
    assert client.get(f"/api/v1/runs/{name}/report").status_code == 200


def test_large_files_are_left_out_and_named(
    runs_folder: Path,
    store: type[Counted],
    make_library: MakeLibrary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    fs, root = fsspec.core.url_to_fs(f"{URL}/one")
    fs.pipe_file(f"{root}/rank0000/huge.log", b"x" * 300_000)
    monkeypatch.setattr(remote_runs, "MAX_FILE_BYTES", 200_000)
    library = make_library(f"{URL}/one")
    assert not (library.open_run("one").path / "rank0000" / "huge.log").exists()
    library.open_run("one")
    assert capsys.readouterr().err.count("too large to copy, left out: rank0000/huge.log (300") == 1


@pytest.mark.parametrize(
    "path", ["../../out.txt", "rank0000/../../../out.txt", ".hidden/x", "a\\b", "x/" * 9 + "y", "a//b"]
)
def test_unsafe_paths_are_not_copied(
    path: str, runs_folder: Path, store: type[Counted], make_library: MakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    listed = Store.list_versions
    monkeypatch.setattr(Store, "list_versions", lambda self: {**listed(self), path: (5, None)})
    library = make_library(f"{URL}/one")
    fetched: list[str] = []
    monkeypatch.setattr(Store, "download_file", lambda self, name, target: fetched.append(name))
    with contextlib.suppress(OSError):
        library.open_run("one")
    assert path not in fetched


@pytest.mark.parametrize("failing", ["run.json", "report.json", "rank0000/metrics.jsonl"])
def test_one_file_that_cannot_be_copied_hides_no_other(
    failing: str,
    runs_folder: Path,
    store: type[Counted],
    make_library: MakeLibrary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_folder(runs_folder, URL)
    download = Store.download_file

    def refuse_one(self: Store, path: str, target: Path) -> None:
        if path == f"single/{failing}":
            raise TdbgError("access denied", "ask")
        download(self, path, target)

    monkeypatch.setattr(Store, "download_file", refuse_one)
    client = Client(make_library())
    assert sorted(row["name"] for row in client.ask("/runs")["runs"]) == NAMES
    for name in NAMES:
        assert client.get(f"/api/v1/runs/{name}/report").status_code == 200, name
    assert capsys.readouterr().err.count("access denied") == 1


def test_names_that_are_a_file_and_a_folder_are_copied_as_far_as_they_go(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a store that knows no folders."""
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    more = {"rank0000/a": (1, 0.0), "rank0000/a/b": (1, 0.0), f"rank0000/{'ü' * 150}": (1, 0.0)}
    listed, download = Store.list_versions, Store.download_file

    def write_more(self: Store, path: str, target: Path) -> None:
        if path not in more:
            download(self, path, target)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x")

    monkeypatch.setattr(Store, "list_versions", lambda self: {**listed(self), **more})
    monkeypatch.setattr(Store, "download_file", write_more)
    folder = make_library(f"{URL}/one").open_run("one").path
    assert (folder / "run.json").exists() and (folder / "rank0000" / "a").is_file()


def test_a_folder_whose_name_begins_like_a_ranks_is_a_run(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary
) -> None:
    put_folder(runs_folder / "captured", f"{URL}/ranker")
    put_folder(runs_folder / NAMES[0], f"{URL}/other")
    assert make_library().list_names() == ["ranker", "other"]


def test_a_run_that_goes_on_is_listed_as_running(
    runs_folder: Path, store: type[Counted], make_library: MakeLibrary
) -> None:
    put_folder(runs_folder / "killed", f"{URL}/live")
    fs, root = fsspec.core.url_to_fs(f"{URL}/live")
    fs.store[fs._strip_protocol(f"{root}/rank0000/events.jsonl")].created = datetime.now(UTC)
    (row,) = Client(make_library()).ask("/runs")["runs"]
    assert row["state"] == "running"


def test_lost_store_is_reported_once(
    runs_folder: Path,
    store: type[Counted],
    make_library: MakeLibrary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    library = make_library(f"{URL}/one")
    library.open_run("one")
    monkeypatch.setattr(remote_runs, "LIST_EVERY_S", 0.0)

    def fail(self: object) -> dict[str, int]:
        raise TdbgError("no answer", "wait")

    monkeypatch.setattr(Store, "list_versions", fail)
    assert library.list_names() == ["one"] and library.open_run("one").path.exists()
    assert capsys.readouterr().err.count("no answer") == 1


def test_nothing_is_left_behind(runs_folder: Path, store: type[Counted], make_library: MakeLibrary) -> None:
    put_folder(runs_folder / NAMES[0], f"{URL}/one")
    library = make_library(f"{URL}/one")
    folder = library.open_run("one").path
    library.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["counted://store/empty"], "there is no run at counted://store/empty"),
        (["nosuch://bucket/x"], "unknown URL scheme"),
        (["s3://user:secret@bucket/x"], "holds a password"),
        (["counted://store/empty", "--control"], "--control needs a run directory on this machine"),
    ],
)
def test_errors_have_two_lines(
    words: list[str], what: str, store: type[Counted], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["view", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and what in said[0] and "secret" not in "".join(said)
