"""The run directory: who may make it, who may write where, and what survives."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.events import Note, Step
from tdbg.core.rundir import (
    EventWriter,
    RunDir,
    claim_rank_folder,
    env_rank,
    is_process_alive,
    process_start,
    read_events,
)


def make_run_dir(path: Path, job: str = "") -> RunDir:
    return RunDir.create(path, {"command": ["python", "train.py"]}, job=job)[0]


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    make_run_dir(tmp_path / "run")
    with pytest.raises(TdbgError, match=r"already holds a run \(python train.py\)") as caught:
        make_run_dir(tmp_path / "run")
    assert "--run-dir" in caught.value.hint
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(TdbgError, match="not empty"):
        make_run_dir(tmp_path / "full")


def test_agents_of_one_job_join(tmp_path: Path) -> None:
    first, joined = RunDir.create(tmp_path / "run", {"command": ["a"]}, job="42")
    assert not joined
    again, joined = RunDir.create(tmp_path / "run", {"command": ["b"]}, job="42")
    assert joined and again.read_info()["command"] == ["a"]
    with pytest.raises(TdbgError):
        RunDir.create(tmp_path / "run", {"command": ["c"]}, job="43")
    assert first.read_info()["schema"] == 1


def test_of_many_agents_at_once_one_creates(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    def agent() -> None:
        outcomes.append(RunDir.create(tmp_path / "run", {"command": ["x"]}, job="j")[1])

    threads = [threading.Thread(target=agent) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] + [True] * 7
    assert [name for name in os.listdir(tmp_path / "run") if name != "run.json"] == []


def test_a_place_that_cannot_be_written_is_a_launch_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot write the run directory") as caught:
        make_run_dir(tmp_path / "file" / "run")
    assert caught.value.exit_code == 125 and "--run-dir" in caught.value.hint


def test_opening_finds_the_newest_a_name_or_a_file_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TdbgError, match="there is no run under"):
        RunDir.open()
    make_run_dir(Path("tdbg_runs/one"))
    two = make_run_dir(Path("tdbg_runs/two"))
    os.utime("tdbg_runs/one/run.json", (1, 1))
    assert RunDir.open().path == two.path
    assert RunDir.open("one").path == Path("tdbg_runs/one")
    (two.path / "rank0000").mkdir()
    assert RunDir.open(two.path / "rank0000").path == two.path
    with pytest.raises(TdbgError, match="there is no run nowhere"):
        RunDir.open("nowhere")
    with pytest.raises(TdbgError, match="not a run directory"):
        RunDir.open(tmp_path)
    (two.path / "run.json").write_text("{")
    with pytest.raises(TdbgError, match="cannot read"):
        two.read_info()


def write_steps(path: Path, count: int, budget: int = 0) -> tuple[EventWriter, list[str]]:
    trouble: list[str] = []
    writer = EventWriter(lambda: path, budget, trouble.append)
    for step in range(1, count + 1):
        writer.emit(Step(t=1.0, step=step, grad_norms=[0.5] * 20))
    return writer, trouble


def test_nothing_is_opened_before_there_is_something_to_write(tmp_path: Path) -> None:
    writer = EventWriter(lambda: tmp_path / "rank0000", 0, print)
    assert list(tmp_path.iterdir()) == []
    writer.emit(Note(code="x", text="y"))
    assert writer.path == tmp_path / "rank0000" / "events.jsonl"
    assert len(list(read_events(writer.path))) == 1


def test_the_disk_budget_thins_out_and_says_so(tmp_path: Path) -> None:
    writer, trouble = write_steps(tmp_path, 2000, budget=100_000)
    path = tmp_path / "events.jsonl"
    assert path.stat().st_size <= 100_000
    found = list(read_events(path))
    notes = [event.code for event in found if isinstance(event, Note)]
    assert notes == ["disk-vectors", "disk-steps"]
    steps = [event for event in found if isinstance(event, Step)]
    assert steps[0].grad_norms is not None and steps[-1].grad_norms is None
    assert steps[-1].step > 1000, "it thins out, it does not just stop"
    assert writer.dropped > 0 and trouble == []


def test_ranks_that_sample_on_odd_steps_keep_every_tenth_vector(tmp_path: Path) -> None:
    writer = EventWriter(lambda: tmp_path, 1_000_000, print)
    writer.emit(Note(code="x", text="y"))
    writer.written_bytes = 600_000
    for step in range(1, 201, 2):
        writer.emit(Step(t=1.0, step=step, grad_norms=[0.5] * 20))
    steps = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, Step)]
    assert len(steps) == 100
    assert [step.step for step in steps if step.grad_norms is not None] == list(range(19, 201, 20))


def test_a_full_disk_is_said_once_and_is_no_error(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from tdbg.core.events import Step\n"
        "from tdbg.core.rundir import EventWriter\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        f"writer = EventWriter(lambda: Path({str(tmp_path)!r}), 0, lambda text: print('said', text))\n"
        "for step in range(100): writer.emit(Step(t=1.0, step=step))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "writer.emit(Step(t=1.0, step=777))\n"
        "print('dropped', writer.dropped)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["said", "dropped"]
    steps = [event.step for event in read_events(tmp_path / "events.jsonl") if isinstance(event, Step)]
    assert steps == list(range(len(steps))) or steps[:-1] == list(range(len(steps) - 1))


def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    writer, _ = write_steps(tmp_path, 3)
    path = tmp_path / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"type":"step","v":1,"t":1.0,"st')
    assert [event.step for event in read_events(path) if isinstance(event, Step)] == [1, 2, 3]
    writer.close()


def test_the_first_to_step_is_the_rank_a_living_twin_is_kept_apart_a_dead_one_succeeded(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from tdbg.core.rundir import claim_rank_folder; print(*claim_rank_folder(Path({str(tmp_path)!r}), 3)); input()"
    first = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline().split()[0].endswith("rank0003")
    folder, attempt = claim_rank_folder(tmp_path, 3)
    assert folder.name.startswith(f"pid{os.getpid()}-") and attempt == 0
    folder, attempt = claim_rank_folder(tmp_path, 3, restart=1)
    assert (folder.name, attempt) == ("attempt1", 1), "the launcher counts a restart: the old one is on its way out"
    first.communicate("\n")
    code = f"from pathlib import Path; from tdbg.core.rundir import claim_rank_folder; print(*claim_rank_folder(Path({str(tmp_path)!r}), 3))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pid" in done.stdout or "attempt" in done.stdout


def test_a_later_process_of_the_same_rank_is_the_next_attempt(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from tdbg.core.rundir import claim_rank_folder; print(claim_rank_folder(Path({str(tmp_path)!r}), 0)[1])"
    seen = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert [int(text) for text in seen] == [0, 1, 2]


def test_a_program_that_replaced_itself_is_the_next_attempt(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tdbg.core.rundir import claim_rank_folder\n"
        f"print(os.getpid(), claim_rank_folder(Path({str(tmp_path)!r}), 0)[1], flush=True)\n"
        "if len(sys.argv) < 4: os.execv(sys.executable, [sys.executable, '-c', os.environ['CODE'], *sys.argv[1:], 'x'])"
    )
    command = [sys.executable, "-c", code, "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "CODE": code})
    seen = [line.split() for line in done.stdout.splitlines()]
    assert len({pid for pid, _ in seen}) == 1
    assert [int(attempt) for _, attempt in seen] == [0, 1, 2]


def test_a_link_made_without_an_answer_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the server linked, the answer was lost, and the second try finds the name taken."""
    link = os.link

    def twice(source: Path, path: Path, **how: Any) -> None:
        link(source, path, **how)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", twice)
    assert claim_rank_folder(tmp_path, 0) == (tmp_path / "rank0000", 0)


@pytest.mark.parametrize("number", sorted({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}))
def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(source: Path, path: Path, **how: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    make_run_dir(tmp_path / "run", job="42")
    assert RunDir.create(tmp_path / "run", {"command": ["b"]}, job="42")[1]
    with pytest.raises(TdbgError, match="already holds a run"):
        make_run_dir(tmp_path / "run", job="43")
    test_of_many_agents_at_once_one_creates(tmp_path / "many")
    assert claim_rank_folder(tmp_path / "run", 0)[1] == 0
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert claim_rank_folder(tmp_path / "run", 0)[0].name.startswith("pid1-"), "the owner lives"


def test_other_trouble_with_a_link_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, path: Path, **how: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LaunchError, match="cannot write the run directory"):
        make_run_dir(tmp_path / "run")


def test_processes_are_listed_in_order(tmp_path: Path) -> None:
    run = make_run_dir(tmp_path / "run")
    for name in ("rank0010", "rank0002", "rank0002/attempt1", "rank0002/pid7-host", "other/host-9"):
        (run.path / name).mkdir(parents=True, exist_ok=True)
        (run.path / name / "events.jsonl").touch()
    found = run.list_processes()
    assert [process.label for process in found] == [
        "rank0002", "rank0002/attempt1", "rank0002/pid7-host", "rank0010", "other/host-9",
    ]  # fmt: skip
    assert [(process.rank, process.attempt, process.is_rank) for process in found] == [
        (2, 0, True), (2, 1, True), (2, 0, False), (10, 0, True), (None, 0, False),
    ]  # fmt: skip


def test_the_rank_comes_from_the_launcher() -> None:
    assert env_rank({"RANK": "3", "LOCAL_RANK": "1"}) == 3
    assert env_rank({"SLURM_PROCID": "5"}) == 5
    assert env_rank({"RANK": ""}) is None
    assert env_rank({"RANK": "\N{SUPERSCRIPT TWO}", "LOCAL_RANK": "1"}) == 1


def test_a_reused_pid_is_not_the_old_process() -> None:
    mine = process_start(os.getpid())
    assert mine and mine == process_start(os.getpid())
    child = subprocess.Popen(["sleep", "60"])
    time.sleep(0.02)
    assert process_start(child.pid) not in ("", mine)
    child.kill()
    child.wait()
    assert process_start(child.pid) == ""


def test_whether_a_noted_process_lives() -> None:
    here, pid = socket.gethostname(), os.getpid()
    assert is_process_alive(pid, here, process_start(pid)) and is_process_alive(pid, here)
    assert is_process_alive(pid, here, "before") is False, "the number was taken again"
    assert (
        is_process_alive(2**22 + 1, here) is False
        and is_process_alive(None, here) is False
        and is_process_alive(0, here) is False
    )
    assert is_process_alive(pid, "elsewhere") is None and is_process_alive(None, None) is None


def test_a_program_that_closes_every_file_keeps_its_own_clean(tmp_path: Path) -> None:
    writer, trouble = write_steps(tmp_path / "rank0000", 3)
    fd = writer._fd
    os.close(fd)
    theirs = os.open(tmp_path / "checkpoint.bin", os.O_WRONLY | os.O_CREAT)
    assert theirs == fd, "the number was taken again"
    for step in range(4, 7):
        writer.emit(Step(t=1.0, step=step))
    os.close(theirs)
    assert (tmp_path / "checkpoint.bin").read_bytes() == b""
    steps = [event.step for event in read_events(tmp_path / "rank0000" / "events.jsonl") if isinstance(event, Step)]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert trouble == []
    writer.close()


def test_a_run_is_found_by_the_name_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("20261121-031500-live", "20261121-041500-live", "20261121-051500-other"):
        RunDir.create(Path("tdbg_runs") / folder, {})
    assert RunDir.open("live").path.name == "20261121-041500-live"
    with pytest.raises(TdbgError, match="there is no run ive"):
        RunDir.open("ive")
