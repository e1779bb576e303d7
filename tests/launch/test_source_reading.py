"""The process beside the command that reads the program's source, and the rank that waits for it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tdbg.inject.maps import FREE_S, Maps
from tdbg.launch.source_reading import SourceReader, find_script
from tdbg.logs.guards.kept import find_kept_maps, forget_old_maps, take_turn, tree_maps, wait_until_settled
from tdbg.logs.guards.program_files import maps_below
from tdbg.logs.guards.reader import CHECKERS

RUN = find_spec("torch.distributed.run")
INSTALLED = (RUN and RUN.origin) or ""
FILES = 60
FILE = "\n".join(f"def log_part_{number}(cfg, value):\n    print('part', value + {number})\n" for number in range(60))
TALK = "import logging\ndef say(text):\n    logging.getLogger('talk').warning(text)\n"
# The caller in this file decides that the line in talk.py is guarded, so the whole tree has to be known.
TRAIN = """
import json, sys, threading, time
from pathlib import Path
import torch
from talk import say

class Config: DEBUG = type("Debug", (), {"AMP": True})
cfg = Config()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train_steps(count):
    for _ in range(count):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
train_steps(20)
if cfg.DEBUG.AMP:
    say("scale is 1")
kept, until = Path(sys.argv[1]), time.monotonic() + 100.0
process_s, thread_s = time.process_time(), time.thread_time()
while not list(kept.glob("*/*/tree-*.json")) and time.monotonic() < until:
    train_steps(5)
    time.sleep(0.05)
print(json.dumps({"beside_s": time.process_time() - process_s - (time.thread_time() - thread_s)}), flush=True)
time.sleep(1.0)
"""
# A rank beside which nobody reads: what its thread takes of the CPU in three seconds, and whether it ends once asked to.
ALONE = """
import json, sys, time
from tdbg.inject.maps import Maps
maps = Maps((), lambda: None, lambda part, error: None)
begun = time.process_time() - time.thread_time()
assert maps.is_pending(sys.argv[1])
time.sleep(3.0)
seen = {"took_s": time.process_time() - time.thread_time() - begun, "is_busy": maps.busy}
maps.wait_for_thread(100.0)
print(json.dumps({**seen, "is_pending": maps.is_pending(sys.argv[1])}))
"""


@pytest.fixture
def large_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program among many files that nobody has read, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "program"
    root.mkdir()
    for number in range(FILES):
        (root / f"part_{number}.py").write_text(f"# {number}\n{FILE}")
    (root / "talk.py").write_text(TALK)
    (root / "train.py").write_text(TRAIN)
    return root


def test_no_rank_reads_a_large_tree(large_tree: Path, tmp_path: Path) -> None:
    """Seen: in the first run of a program among 1,200 files the thread that read them took two thirds of 16 s."""
    begun = time.thread_time()
    maps_below(large_tree, CHECKERS)
    alone_s = time.thread_time() - begun
    for file in (tmp_path / "cache").glob("*/*/*"):
        file.unlink()
    words = ["-m", "tdbg", "run", "-q", "--run-dir", str(tmp_path / "run"), "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path / "cache")], cwd=large_tree, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    beside_s = json.loads(done.stdout.splitlines()[-1])["beside_s"]
    assert beside_s < alone_s / 2, (beside_s, alone_s)
    records = [json.loads(line) for line in (tmp_path / "run/rank0000/records.jsonl").read_text().splitlines()]
    assert [one["flags"] for one in records if one["message"] == "scale is 1"] == [["AMP"]]


def test_the_reader_ends_when_it_is_told(large_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(large_tree)
    reader = SourceReader(["python", "train.py"], CHECKERS)
    pid = reader._pid
    assert _becomes_nice(pid)
    reader.end_reading()
    assert not Path(f"/proc/{pid}").exists()
    reader.end_reading()


def _becomes_nice(pid: int) -> bool:
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        if os.getpriority(os.PRIO_PROCESS, pid) == 19:
            return True
        time.sleep(0.01)
    return False


def test_one_reads_at_a_time(large_tree: Path) -> None:
    with take_turn(str(large_tree), CHECKERS) as first, take_turn(str(large_tree), CHECKERS) as second:
        assert first and not second
    with take_turn(str(large_tree), CHECKERS) as third:
        assert third


def test_a_forked_process_keeps_nobody_from_a_turn(large_tree: Path) -> None:
    """As a loader worker that is started meanwhile: it has the lock's file open for the rest of the training."""
    with take_turn(str(large_tree), CHECKERS) as first:
        assert first
        pid = os.fork()
        if pid == 0:
            time.sleep(60.0)
            os._exit(0)
    try:
        with take_turn(str(large_tree), CHECKERS) as second:
            assert second
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_what_is_still_wanted_outlives_its_age(large_tree: Path, tmp_path: Path) -> None:
    assert tree_maps(str(large_tree), CHECKERS, bool) and find_kept_maps(str(large_tree), CHECKERS, bool) is None
    wait_until_settled(str(large_tree))
    tree_maps(str(large_tree), CHECKERS, bool)
    for file in (tmp_path / "cache").glob("*/*/*"):
        os.utime(file, (1.0, 1.0))
    tree_maps(str(large_tree), CHECKERS, bool)
    forget_old_maps()
    assert find_kept_maps(str(large_tree), CHECKERS, bool) is not None


def test_without_a_cache_each_reads(large_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with take_turn(str(large_tree), CHECKERS) as first, take_turn(str(large_tree), CHECKERS) as second:
        assert first and second


def test_a_rank_without_a_reader_takes_its_time(large_tree: Path) -> None:
    """The training is to have the interpreter: what is free, then one part in a hundred, until somebody waits.

    In a process of its own: what other tests left running in this one would be counted too.
    """
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(large_tree / "talk.py")], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["is_busy"] and seen["took_s"] < FREE_S + 0.5 and not seen["is_pending"], seen


def test_what_a_file_says_alone_gives_way_to_the_tree(large_tree: Path) -> None:
    file = str(large_tree / "talk.py")
    maps = Maps((), lambda: None, lambda part, error: None)
    assert maps.is_pending(file)
    maps.use_single_maps([file])
    alone = maps.get_map(file)
    assert not maps.is_pending(file) and alone is not None and alone.passed_on
    maps.wait_for_thread(100.0)
    whole = maps.get_map(file)
    assert not maps.is_pending(file) and whole is not None and whole is not alone and whole.passed_on


def test_who_is_late_reads_beside_another(large_tree: Path) -> None:
    maps = Maps((), lambda: None, lambda part, error: None)
    with take_turn(str(large_tree), ()) as is_ours:
        assert is_ours and maps.is_pending(str(large_tree / "talk.py"))
        maps.wait_for_thread(100.0)
        assert not maps.is_pending(str(large_tree / "talk.py"))


def test_it_says_while_it_waits(large_tree: Path) -> None:
    """So that records do not wait for ever."""
    told = threading.Event()
    maps = Maps((), lambda: None, lambda part, error: None, told.set)
    with take_turn(str(large_tree), ()):
        assert maps.is_pending(str(large_tree / "talk.py"))
        assert told.wait(30.0)
    maps.wait_for_thread(100.0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["python", "train.py", "other.py"], "train.py"),
        (["torchrun", "--nproc-per-node=2", "train.py"], "train.py"),
        (["python", "-m", "inner.go"], "inner/go.py"),
        (["python", "-m", "inner"], "inner/__main__.py"),
        (["python", "-m", "torch.distributed.run", "train.py"], "train.py"),
        (["python", INSTALLED, "train.py"], "train.py"),
        (["python", INSTALLED], None),
        (["python", "missing.py"], None),
        (["python", "-m"], None),
        (["python", "-c", "pass"], None),
        ([], None),
    ],
)
def test_the_script_of_a_command(
    words: list[str], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    for name in ("train.py", "other.py", "inner/go.py", "inner/__main__.py"):
        (tmp_path / name).touch()
    assert find_script(words) == (found and str(tmp_path / found))
