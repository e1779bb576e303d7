"""What a drawing of a run is worth: of which state of its files, and whether of all events."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from streams import Stream

from tdbg.core.rundir import RunDir
from tdbg.viewer import drawings
from tdbg.viewer.drawings import FAILED, Drawing, Drawings, Stamp, stamp_run
from tdbg.viewer.run_library import RunLibrary
from tdbg.viewer.sampled_events import SampledReader
from tests.viewer.conftest import Client

PATIENCE_S = 60


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that ended well."""
    stream = Stream(tmp_path / "one")
    folder = stream.begin_rank(0)
    stream.emit_steps(folder, [2.0] * 50)
    stream.end_process(folder, 50)
    stream.run.update_info(end=time.time(), exit={"code": 0, "signal": None})
    return stream.run


def wait_for_process(found: Drawings) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while found._process is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_drawing_of_files_as_they_were_is_not_final(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Drawings()
    assert found.get_drawing(run).is_final
    monkeypatch.setattr(drawings, "REST", 1e9)
    with open(run.path / "rank0000" / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("{}\n")
    old = found.get_drawing(run)
    assert old.is_whole and not old.is_final


def test_the_end_of_a_run_changes_its_stamp_though_no_file_does(run: RunDir) -> None:
    gone = {"pid": 4_000_000, "host": os.uname().nodename, "started": "1"}
    run.update_info(end=None, exit=None, supervisor={**gone, "pid": os.getpid(), "started": ""})
    living = stamp_run(run)[0]
    run.update_info(supervisor=gone)
    assert living[-1] != stamp_run(run)[0][-1]


def test_a_drawing_that_fails_is_said_and_not_tried_again_at_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawings, "LARGE_BYTES", 0)
    monkeypatch.setattr(drawings.sys, "executable", "/bin/false")
    found = Drawings()
    assert not found.get_drawing(run).is_whole
    wait_for_process(found)
    (run.path / "report.json").unlink(missing_ok=True)
    assert f"{FAILED}: exit 1" in found.get_drawing(run).report["trouble"]
    assert found._process is None  # no second try of the same files


def test_a_process_that_prints_something_else_is_a_failure(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawings, "LARGE_BYTES", 0)
    monkeypatch.setattr(drawings.sys, "executable", "/bin/echo")
    found = Drawings()
    found.get_drawing(run)
    wait_for_process(found)
    (run.path / "report.json").unlink(missing_ok=True)
    assert f"{FAILED}: it printed something else than a drawing" in found.get_drawing(run).report["trouble"]


def test_a_large_run_is_drawn_beside_the_server_by_the_installed_code(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted = tmp_path / "tdbg"
    planted.mkdir()
    (planted / "__init__.py").write_text("open('ran', 'w')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drawings, "LARGE_BYTES", 0)
    found = Drawings()
    found.get_drawing(run)
    wait_for_process(found)
    assert found.get_drawing(run).is_final and not (tmp_path / "ran").exists()


def test_counts_of_a_sample_are_not_given_for_those_of_the_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(run.path.parent)
    assert client.get("/debug/training/summary").json()["total_steps"] == 50
    monkeypatch.setattr(drawings, "LARGE_BYTES", 0)
    monkeypatch.setattr(Drawings, "_start_drawing", lambda *_: None)
    answer = Client(run.path.parent).get("/debug/training/summary")
    assert answer.status_code == 409 and "ask again" in answer.json()["try_next"]


def test_no_step_of_a_sample_comes_twice(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "wide")
    folder = stream.begin_rank(0)
    stream.emit_steps(folder, [2.0] * 3000, grad_norms=[1.0] * 400)
    process = next(iter(stream.run.list_processes()))
    steps = [event.step for event in SampledReader(1).read_events(process) if hasattr(event, "loss")]
    assert len(steps) > 100 and steps == sorted(set(steps)) and steps[-1] == 3000


def test_one_run_does_not_wait_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Stream(tmp_path / name).run for name in ("slow", "quick")]
    begun, end, drawn = threading.Event(), threading.Event(), []

    def draw_whole(run: RunDir, stamp: Stamp) -> Drawing:
        drawn.append(run.path.name)
        if run.path.name == "slow":
            begun.set()
            assert end.wait(PATIENCE_S)
        return Drawing({}, {}, stamp, True)

    monkeypatch.setattr(drawings, "draw_whole", draw_whole)
    found = Drawings()
    waiting = [threading.Thread(target=found.get_drawing, args=(runs[0],)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert begun.wait(PATIENCE_S)
    assert found.get_drawing(runs[1]).is_final
    end.set()
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert drawn == ["slow", "quick"], "three who ask for one run have it drawn once"


@pytest.mark.parametrize("where", [".", "../one", "one"])
def test_a_run_has_its_name_however_it_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.chdir(run.path.parent if where == "one" else run.path)
    library = RunLibrary(where)
    assert library.list_names() == ["one"] and library.open_run("one").path == run.path.resolve()
    assert json.loads((library.folder / "one" / "run.json").read_text(encoding="utf-8"))
