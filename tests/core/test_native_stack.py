"""What ``faulthandler`` wrote: the call and the line of the program that a crash is named with."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tdbg
from tdbg.core.native_stack import NATIVE_STACK, CrashPlace, read_crash_place

FOREIGN = """Fatal Python error: Aborted

Thread 0x00007f42f3e146c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Thread 0x00007f4313bc7b80 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 39 in main
  File "/home/me/train.py", line 45 in <module>

Extension modules: numpy (total: 1)
"""


def write_stack(folder: Path, text: str) -> Path:
    folder.chmod(0o700)
    (folder / NATIVE_STACK).write_text(text, encoding="utf-8")
    return folder


def test_a_crash_outside_python_is_where_the_main_thread_was(tmp_path: Path) -> None:
    place = read_crash_place(write_stack(tmp_path, FOREIGN))
    assert place == CrashPlace("all_reduce", "distributed_c10d.py", "train.py:39 in main")
    assert place.is_collective


@pytest.mark.parametrize("folder", [str(Path(tdbg.__file__).parent), "/elsewhere/site-packages/tdbg", "/src/tdbg"])
def test_a_wrapper_of_tdbgs_is_no_line_of_the_program(tmp_path: Path, folder: str) -> None:
    wrapper = f'  File "{folder}/probes/__init__.py", line 163 in wrapper\n'
    text = FOREIGN.replace('  File "/home/me/train.py", line 39', wrapper + '  File "/home/me/train.py", line 39')
    place = read_crash_place(write_stack(tmp_path, text))
    assert place == CrashPlace("all_reduce", "distributed_c10d.py", "train.py:39 in main")


def test_the_thread_that_crashed_counts_before_the_main_thread(tmp_path: Path) -> None:
    text = FOREIGN.replace("Thread 0x00007f42f3e146c0", "Current thread 0x00007f42f3e146c0")
    place = read_crash_place(write_stack(tmp_path, text))
    assert place == CrashPlace("wait", "threading.py", "") and not place.is_collective


def test_the_last_of_several_crashes_counts(tmp_path: Path) -> None:
    """A loader's worker shares the file with its rank."""
    place = read_crash_place(write_stack(tmp_path, FOREIGN.replace("line 39", "line 7") + FOREIGN))
    assert place is not None and place.where == "train.py:39 in main"


@pytest.mark.parametrize("text", ["", "Fatal Python error: ", "Fatal Python error: Aborted\n\n", "\0\xff Thread 0x"])
def test_half_a_file_names_nothing(tmp_path: Path, text: str) -> None:
    assert read_crash_place(write_stack(tmp_path, text)) is None


def test_no_file_names_nothing(tmp_path: Path) -> None:
    assert read_crash_place(tmp_path) is None


def test_what_this_python_writes_is_understood(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import faulthandler, os, signal\n"
        f"faulthandler.enable(open({str(tmp_path / NATIVE_STACK)!r}, 'w'))\n"
        "def update():\n"
        "    os.kill(os.getpid(), signal.SIGABRT)\n"
        "update()\n"
    )
    done = subprocess.run([sys.executable, str(program)], env={**os.environ}, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGABRT
    assert read_crash_place(write_stack(tmp_path, (tmp_path / NATIVE_STACK).read_text())) == CrashPlace(
        "", "train.py", "train.py:4 in update"
    )
