"""Who may write into a run directory, who may read it, and what a link in one can do."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tdbg.core.errors import TdbgError
from tdbg.core.events import Note, Start
from tdbg.core.lines import LineWriter
from tdbg.core.rundir import EventWriter, RunDir, claim_rank_folder, write_json
from tdbg.logs.textlog import TextLog
from tdbg.pages.format.disk import OwnFile
from tests.security.conftest import OTHER, Place, give_away, needs_root

PROGRAM = """
import logging, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    logging.getLogger("program").warning("step %d", step)
"""


def make_run(path: Path) -> RunDir:
    """A run directory with one rank in it."""
    run, _ = RunDir.create(path, {"command": ["python", "train.py"], "settings": {}, "exit": {"code": 0}, "end": 1.0})
    folder, _ = claim_rank_folder(run.path, 0)
    writer = EventWriter(lambda: folder, 0, print)
    writer.emit(Start(t=1.0, host="h", pid=1))
    writer.close()
    return run


def list_everything(run: Path) -> list[Path]:
    return [run, *run.rglob("*")]


# permissions


def test_a_run_is_private_in_all_its_files(private_place: Place) -> None:
    private_place.write_file("train.py", PROGRAM)
    options = ["--tee", "--capture", "*", "-f", "PROFILER", "--run-dir", "r"]
    done = private_place.run_tdbg("run", *options, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    run = private_place.folder / "r"
    kinds = {path.relative_to(run).as_posix().split("/")[0] for path in list_everything(run) if path != run}
    assert {"boot", "rank0000", "hello", "run.json"} <= kinds
    assert list(run.glob("rank0000/pages/**/*")) and list(run.glob("rank0000/traces/*"))
    open_to_others = {path: oct(path.stat().st_mode) for path in list_everything(run) if path.stat().st_mode & 0o077}
    assert not open_to_others


def test_share_opens_a_run_for_reading_alone(private_place: Place) -> None:
    before = os.umask(0)  # the least that a shell may take away
    try:
        done = private_place.run_tdbg(
            "run", "--share", "--tee", "--run-dir", "r", "--", sys.executable, "-c", "print(1)"
        )
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    modes = {stat.S_IMODE(path.stat().st_mode) for path in list_everything(private_place.folder / "r")}
    assert modes <= {0o755, 0o644} and len(modes) == 2


def test_an_empty_folder_that_is_open_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(0o777)
    run = make_run(tmp_path / "r")
    assert not [path for path in list_everything(run.path) if path.stat().st_mode & 0o077]


# another user's


@needs_root
def test_a_run_into_anothers_folder_is_refused(private_place: Place) -> None:
    theirs = private_place.folder / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777)
    give_away(theirs)
    command = ("--", sys.executable, "-c", "open('ran', 'w')")
    for words, env in ((("--run-dir", "theirs"), {}), ((), {"TDBG_RUN_DIR": str(theirs)})):
        done = private_place.run_tdbg("run", *words, *command, **env)
        what, hint = done.stderr.splitlines()
        assert done.returncode == 125 and f"belongs to uid {OTHER}" in what and "--run-dir" in hint
    assert not list(theirs.iterdir()) and not (private_place.folder / "ran").exists()
    assert private_place.run_tdbg("run", "--run-dir", "theirs", *command, TDBG_TRUST=str(theirs)).returncode == 0
    assert (private_place.folder / "ran").exists()


@needs_root
@pytest.mark.parametrize("spoil", [lambda path: give_away(path), lambda path: path.chmod(0o777)], ids=["owner", "all"])
def test_a_folder_of_runs_where_another_could_swap_them_is_refused(private_place: Place, spoil) -> None:
    runs = private_place.folder / "tdbg_runs"
    runs.mkdir()
    spoil(runs)
    done = private_place.run_tdbg("run", "--", "true")
    assert done.returncode == 125 and "tdbg_runs" in done.stderr and "TDBG_TRUST" in done.stderr
    assert private_place.run_tdbg("run", "--", "true", TDBG_TRUST=str(private_place.folder)).returncode == 0
    assert private_place.run_tdbg("run", "--run-dir", "mine", "--", "true").returncode == 0


@needs_root
def test_a_job_of_anothers_directory_is_not_joined(private_place: Place) -> None:
    job = {"TORCHELASTIC_RUN_ID": "j1"}
    assert private_place.run_tdbg("run", "--run-dir", "r", "--", "true", **job).returncode == 0
    run = private_place.folder / "r"
    state = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**state, "end": None, "exit": None, "supervisor": {}}))
    assert private_place.run_tdbg("run", "--run-dir", "r", "--", "true", **job).returncode == 0
    for path in list_everything(run):
        give_away(path)
    done = private_place.run_tdbg("run", "--run-dir", "r", "--", "true", **job)
    assert done.returncode == 125 and f"belongs to uid {OTHER}" in done.stderr


@needs_root
def test_anothers_run_is_read_and_not_written(private_place: Place) -> None:
    run = make_run(private_place.folder / "r").path
    for path in list_everything(run):
        give_away(path)
    before = sorted(path.relative_to(run).as_posix() for path in run.rglob("*"))
    assert private_place.run_tdbg("report", "r").returncode == 0
    assert private_place.run_tdbg("status", "r").returncode == 0
    for words in (["control", "r", "--level", "basic"], ["report", "r", "--note", "mine"]):
        done = private_place.run_tdbg(*words)
        assert done.returncode == 125 and f"belongs to uid {OTHER}" in done.stderr and "TDBG_TRUST" in done.stderr
    (run / "rank0000" / "pages").mkdir()
    assert private_place.run_tdbg("inspect-pages", "recover", "r").returncode == 125
    (run / "rank0000" / "pages").rmdir()
    assert sorted(path.relative_to(run).as_posix() for path in run.rglob("*")) == before


AS_ANOTHER = """
import os, sys
sys.path[:0] = {path!r}
import tdbg.core.events, tdbg.core.rundir, tdbg.cli.control, tdbg.launch.ask, tdbg.launch.live, difflib
from tdbg.cli import main
main(["control", {run!r}, "--level", "nonsense"])
os.setgid({uid}); os.setuid({uid})
sys.stderr.write("now as another\\n")
sys.exit(main(["control", {run!r}, "--level", "basic"]))
"""


@needs_root
def test_roots_run_is_not_written_by_another_even_if_he_could(tmp_path_factory: pytest.TempPathFactory) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tdbg-test-") as folder:
        Path(folder).chmod(0o755)
        run = make_run(Path(folder) / "r").path
        for mode, why in ((0o700, "no permission to read it"), (0o777, "belongs to user root")):
            run.chmod(mode)
            code = AS_ANOTHER.format(path=sys.path, run=str(run), uid=OTHER)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", timeout=60)
            said = done.stderr.partition("now as another")[2]
            assert done.returncode == 125 and why in said, done.stderr


@needs_root
@pytest.mark.parametrize("named_by", ["TDBG_RUN_DIR", "PYTHONPATH"])
def test_no_process_starts_from_anothers_boot(private_place: Place, named_by: str) -> None:
    """A process of this user's whose environment names another's run: nothing is recorded there."""
    assert private_place.run_tdbg("run", "--run-dir", "mine", "--", "true").returncode == 0
    assert private_place.run_tdbg("run", "--run-dir", "theirs", "--", "true").returncode == 0
    mine, theirs = private_place.folder / "mine", private_place.folder / "theirs"
    for path in list_everything(theirs):
        give_away(path)
    boot = theirs if named_by == "PYTHONPATH" else mine
    env = {**os.environ, "PYTHONPATH": str(boot / "boot"), "TDBG_RUN_DIR": str(theirs)}
    done = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout == "1\n" and f"belongs to uid {OTHER}" in done.stderr
    assert not (theirs / "boot" / "woke").exists() and not (mine / "boot" / "woke").exists()


# links

Writer = Callable[[Path, Path], object]  # of a run directory, and the file in it


def append_lines(run: Path, path: Path) -> None:
    LineWriter(lambda: path, 0, lambda text: None).write_line(b"written by tdbg\n")


def append_log(run: Path, path: Path) -> None:
    TextLog(lambda: path).write("written by tdbg\n")


def take_rank(run: Path, path: Path) -> None:
    claim_rank_folder(run, 0)


def write_events(run: Path, path: Path) -> None:
    EventWriter(lambda: path.parent, 0, lambda text: None).emit(Note(code="x", text="written by tdbg"))


def write_tensors(run: Path, path: Path) -> None:
    import torch

    from tdbg.pages.format.safetensors_file import write_safetensors

    write_safetensors(path, {"x": torch.zeros(2)}, {})


def keep_output(run: Path, path: Path) -> None:
    from tdbg.launch.program_rows import ProgramRows
    from tdbg.launch.tee import Stream

    Stream(1, path, 100, ProgramRows(passes_all=True))


def lock_requests(run: Path, path: Path) -> None:
    from tdbg.launch.ask import _lock_requests

    with _lock_requests(path.parent):
        pass


def write_boot(run: Path, path: Path) -> None:
    from tdbg.core.config import Settings
    from tdbg.launch import boot

    boot.write_boot_file(RunDir(run), Settings())


def make_folder(run: Path, path: Path) -> None:
    from tdbg.core import run_files

    run_files.make_folder(path)


# What writes, and a file that it writes.
WRITERS: dict[str, tuple[str, Writer]] = {
    "events": ("rank0000/events.jsonl", write_events),
    "lines": ("rank0000/metrics.jsonl", append_lines),
    "log": ("rank0000/debug_log_rank0.txt", append_log),
    "rank": ("rank0000/owner.json", take_rank),
    "json": ("rank0000/state.json", lambda run, path: write_json(path, {"x": 1})),
    "tensors": ("rank0000/batch.safetensors", write_tensors),
    "page": ("rank0000/pages/p.part", lambda run, path: OwnFile(path)),
    "output": ("stdout.log", keep_output),
    "lock": (".control.lock", lock_requests),
    "boot": ("boot/sitecustomize.py", write_boot),
    "folder": ("rank0000/traces/x", make_folder),
}


def make_victim(tmp_path: Path) -> Path:
    """A folder outside the run, with a file that nobody but its owner may change."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("precious")
    return folder


def is_untouched(folder: Path) -> bool:
    return sorted(path.name for path in folder.iterdir()) == ["file"] and (folder / "file").read_text() == "precious"


def give_up(number: int, frame: object) -> None:
    raise AssertionError("it waits for ever")


def try_to_write(writer: Writer, run: Path, path: Path) -> None:
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        writer(run, path)
    except (OSError, TdbgError):  # refused, aloud; those that never raise count what they drop
        pass
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make_empty_run(path: Path) -> Path:
    return RunDir.create(path, {"command": ["x"]})[0].path


@pytest.mark.parametrize("kind", ["link", "dangling", "second name", "pipe"])
@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_follows_what_lies_in_a_files_place(tmp_path: Path, name: str, kind: str) -> None:
    run, precious = make_empty_run(tmp_path / "run"), make_victim(tmp_path)
    place, writer = WRITERS[name]
    path = run / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(precious / "file")
    elif kind == "dangling":
        path.symlink_to(precious / "new")
    elif kind == "second name":
        path.hardlink_to(precious / "file")
    else:
        os.mkfifo(path)
    try_to_write(writer, run, path)
    assert is_untouched(precious)


@pytest.mark.parametrize("name", [name for name, (place, _) in WRITERS.items() if "/" in place])
def test_no_writer_follows_a_link_in_a_folders_place(tmp_path: Path, name: str) -> None:
    run, precious = make_empty_run(tmp_path / "run"), make_victim(tmp_path)
    place, writer = WRITERS[name]
    (run / place.split("/")[0]).symlink_to(precious)
    try_to_write(writer, run, run / place)
    assert is_untouched(precious)


def test_the_run_directory_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    run = make_run(tmp_path / "link" / "r")
    assert [process.label for process in run.list_processes()] == ["rank0000"]


READ_BY = (["report", "r"], ["status", "r"], ["filter-logs", "r"], ["metrics", "show", "r"], ["report", "r", "--json"])


@pytest.mark.parametrize("words", READ_BY, ids=" ".join)
def test_no_command_reads_through_a_link(private_place: Place, words: list[str]) -> None:
    """A run that was unpacked from an archive: its links lead to what only its reader may read."""
    run = make_run(private_place.folder / "r").path
    secret = private_place.folder / "secret"
    secret.mkdir()
    note = json.dumps({"type": "note", "v": 1, "t": 2.0, "code": "x", "text": "SECRET"})
    crash = json.dumps({"type": "crash", "v": 1, "t": 2.0, "error": "SECRET", "where": "SECRET", "lines": ["SECRET"]})
    row = json.dumps({"k": "row", "t": 2.0, "step": 1, "source": "s", "values": {"SECRET": 1.0}})
    start = (run / "rank0000" / "events.jsonl").read_text()
    for name, text in {
        "events.jsonl": f"{start}{note}\n{crash}\n",
        "info_log_rank0.txt": "2026-11-20T03:06:40.000299 E r0000 s00000001 [SECRET] SECRET\n",
        "metrics.jsonl": f"{row}\n",
        "records.jsonl": json.dumps({"t": 1.0, "message": "SECRET", "level": "ERROR"}) + "\n",
        "notes.jsonl": json.dumps({"t": 1.0, "text": "SECRET"}) + "\n",
    }.items():
        (secret / name).write_text(text)
        if name != "notes.jsonl":
            (run / "rank0000" / name).unlink(missing_ok=True)
            (run / "rank0000" / name).symlink_to(secret / name)
    (run / "rank0001").symlink_to(secret)
    (run / "notes.jsonl").symlink_to(secret / "notes.jsonl")
    done = private_place.run_tdbg(*words)
    assert "SECRET" not in done.stdout + done.stderr and "itself failed" not in done.stderr


def test_a_draft_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    from tdbg.core import run_files

    run, precious = make_empty_run(tmp_path / "run"), make_victim(tmp_path)
    draft = run / "draft"
    draft.hardlink_to(precious / "file")
    with run_files.open_new(draft) as file:
        file.write(b"new")
    assert draft.read_bytes() == b"new" and is_untouched(precious)


@needs_root
def test_nothing_is_written_below_anothers_run(tmp_path: Path) -> None:
    """The one place that all writers go through refuses, also where no command asked first."""
    run = make_empty_run(tmp_path / "run")
    give_away(run)
    for place, writer in WRITERS.values():
        try_to_write(writer, run, run / place)
    assert sorted(path.name for path in run.rglob("*")) == ["run.json"]
