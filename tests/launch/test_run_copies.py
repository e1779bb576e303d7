"""Reading commands of a run on a store: what they print is what they print of the run directory."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tdbg import cli
from tdbg.launch import run_copies
from tdbg.launch.run_upload import RunUpload
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
