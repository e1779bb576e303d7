"""--tee: the command sees what it always saw, the terminal shows it byte for byte, and a copy is kept."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

# A bar and lines whose bytes do not hang on the clock, on both streams.
BAR = """
import os, sys
from tqdm import tqdm
class Still(tqdm):
    @property
    def format_dict(self):
        return {**super().format_dict, "elapsed": self.n / 100, "rate": None}
for i in Still(range(400), mininterval=0, miniters=1, file=getattr(sys, sys.argv[1]), dynamic_ncols=True):
    if i % 50 == 0:
        Still.write(f"line {i} \\u2713", file=sys.stdout)
print("\\x1b[31mred\\x1b[0m", sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(sys.stdout.fileno()))
print("tabs\\tand\\r\\nreturns", end="")
"""


def run_on_terminal(words: list[str], folder: Path, **kwargs: object) -> tuple[bytes, int | None]:
    """Everything a terminal shows of a command, and its exit code."""
    child = pexpect.spawn(words[0], words[1:], cwd=str(folder), dimensions=(33, 91), timeout=60, **kwargs)
    child.expect(pexpect.EOF)
    child.close()
    return child.before, child.exitstatus


def find_newest_run(shell) -> Path:
    return shell.list_runs()[-1]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_tqdm_bar_is_byte_for_byte_that_of_a_direct_run(shell, stream: str) -> None:
    program = [sys.executable, shell.write_script(BAR), stream]
    direct, _ = run_on_terminal(program, shell.folder)
    teed, code = run_on_terminal(shell.build_command(*program, options=("--tee", "--quiet")), shell.folder)
    shown, _, verdict = teed.partition(b"tdbg: verdict")
    assert code == 0
    assert len(direct) > 20_000
    assert shown == direct + b" " * 91 + b"\r\x1b[K"  # the row that the program did not end is left to it
    assert verdict.count(b"tdbg:") == 0
    log = (find_newest_run(shell) / "stdout.log").read_bytes()
    assert log.replace(b"\n", b"\r\n") == direct  # what the terminal itself adds
    assert b"91" in log and b"True True" in log


def test_streams_that_differ_stay_apart_and_stay_what_they_were(shell) -> None:
    """stdout on a terminal, stderr in a file."""
    text = "import sys; print('to out', sys.stdout.isatty()); print('to err', sys.stderr.isatty(), file=sys.stderr)"
    words = shell.build_command(sys.executable, shell.write_script(text), options=("--tee", "--quiet"))
    line = " ".join(words) + " 2>err.txt"
    shown, code = run_on_terminal(["sh", "-c", line], shell.folder)
    assert (shown, code) == (b"to out True\r\n", 0)
    assert (shell.folder / "err.txt").read_text().splitlines()[0] == "to err False"
    assert (find_newest_run(shell) / "stdout.log").read_bytes() == b"to out True\n"
    assert (find_newest_run(shell) / "stderr.log").read_bytes() == b"to err False\n"


def test_pipes_stay_pipes(shell) -> None:
    text = "import os, sys, stat; print(sys.stdout.isatty(), stat.S_ISFIFO(os.fstat(1).st_mode)); sys.stderr.write('e')"
    done = shell.run_python(text, options=("--tee", "--quiet"))
    assert done.stdout == "False True\n"
    assert done.stderr.startswith("etdbg:")
    assert (find_newest_run(shell) / "stderr.log").read_text() == "e"


def test_one_stream_for_both_keeps_their_order(shell) -> None:
    text = "import os\nfor i in range(2000):\n    os.write(1 + i % 2, b'%d\\n' % i)"
    words = shell.build_command(sys.executable, shell.write_script(text), options=("--tee", "--quiet"))
    done = subprocess.run(words, cwd=shell.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    expected = b"".join(b"%d\n" % i for i in range(2000))
    assert done.stdout.startswith(expected)
    assert (find_newest_run(shell) / "stdout.log").read_bytes() == expected
    assert not (find_newest_run(shell) / "stderr.log").exists()


def test_large_binary_output_arrives_whole(shell) -> None:
    text = "import os, sys; sys.stdout.buffer.write(bytes(range(256)) * 40_000)"
    words = shell.build_command(sys.executable, shell.write_script(text), options=("--tee", "--quiet"))
    done = subprocess.run(words, cwd=shell.folder, capture_output=True, timeout=60)
    assert done.stdout == bytes(range(256)) * 40_000
    assert (find_newest_run(shell) / "stdout.log").read_bytes() == done.stdout


def test_a_window_that_changes_its_size_is_followed(shell) -> None:
    text = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: None)\n"
        "print('size', *os.get_terminal_size(), flush=True)\n"
        "while os.get_terminal_size().columns != 120: time.sleep(0.05)\n"
        "print('size', *os.get_terminal_size())\n"
    )
    words = shell.build_command(sys.executable, shell.write_script(text), options=("--tee", "--quiet"))
    child = pexpect.spawn(words[0], words[1:], cwd=str(shell.folder), dimensions=(24, 80), timeout=30)
    child.expect("size 80 24")
    child.setwinsize(40, 120)
    child.expect("size 120 40")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_reader_that_leaves_ends_the_program_as_it_would_without_tdbg(shell) -> None:
    text = "import sys\nfor i in range(10**7): print(i)"
    program = f"{sys.executable} {shell.write_script(text)}"
    tdbg = " ".join(shell.build_command(*program.split(), options=("--tee", "--quiet")))
    for line in (program, tdbg):
        done = subprocess.run(
            ["bash", "-c", f"{line} | head -n 2; echo ${{PIPESTATUS[0]}}"],
            cwd=shell.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.splitlines() == ["0", "1", "1"]
        assert "BrokenPipeError" in done.stderr


def test_tdbg_ends_with_the_command_even_if_a_grandchild_keeps_the_stream(shell) -> None:
    text = "import subprocess; subprocess.Popen(['sleep', '30']); print('done')"
    begun = time.monotonic()
    done = shell.run_python(text, options=("--tee", "--quiet"))
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert time.monotonic() - begun < 10


IMPATIENT = (
    "import sys; from tdbg.launch import tee; tee.AT_MOST_S = 1.0; from tdbg.__main__ import main; sys.exit(main())"
)


def read_late(shell, text: str, wait_s: float) -> tuple[bytes, float]:
    """What a reader gets that begins to read after ``wait_s`` seconds, and after how many more tdbg has ended.

    tdbg waits 1 s, not 10, for processes that outlive the command.
    """
    options = ("--tee", "--quiet")
    words = [
        sys.executable,
        "-c",
        IMPATIENT,
        *shell.build_command(sys.executable, shell.write_script(text), options=options)[3:],
    ]
    with subprocess.Popen(words, cwd=shell.folder, stdout=subprocess.PIPE) as run:
        time.sleep(wait_s)
        begun = time.monotonic()
        return run.communicate(timeout=60)[0], time.monotonic() - begun


def test_a_slow_reader_gets_everything(shell) -> None:
    """What fits into the pipes is written at once, so the command ends long before its output is read."""
    size = 3 * 65536 - 1000
    assert read_late(shell, f"print('x' * {size})", 4.0)[0] == b"x" * size + b"\n"
    assert (find_newest_run(shell) / "stdout.log").stat().st_size == size + 1


@pytest.mark.parametrize(("size", "pause_s", "wait_s"), [(10, 0.1, 0.0), (65536, 0.002, 0.0), (65536, 0.002, 4.0)])
def test_tdbg_ends_although_a_grandchild_goes_on_writing(shell, size: int, pause_s: float, wait_s: float) -> None:
    """Whether it writes a little now and then or all the time, and whether the reader is slow or not."""
    text = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        f"    while True: os.write(1, b'y' * {size}); time.sleep({pause_s})\n"
        "time.sleep(0.5)\n"
    )
    output, took_s = read_late(shell, text, wait_s)
    assert set(output) == set(b"y")
    assert took_s < 8.0


def test_last_words_of_a_grandchild_are_kept(shell) -> None:
    text = (
        "import os, time\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    while os.getppid() == parent: time.sleep(0.01)\n"
        "    time.sleep(0.1)\n"
        "    os.write(1, b'late\\n')\n"
        "    os._exit(0)\n"
    )
    assert shell.run_python(text, options=("--tee", "--quiet")).stdout == "late\n"


def test_the_copy_ends_at_the_disk_budget_and_the_output_does_not(shell) -> None:
    done = shell.run_python("print('x' * 999); print('y' * 5000)", options=("--tee", "--disk-budget", "2kB"))
    assert done.stdout == "x" * 999 + "\n" + "y" * 5000 + "\n"
    assert "the disk budget is used up" in done.stderr
    assert "the output itself is complete; the run goes on" in done.stderr
    assert done.returncode == 0


def test_a_stream_that_is_closed_stays_closed(shell) -> None:
    text = "import os, sys\ntry: os.fstat(1)\nexcept OSError: sys.exit(44)"
    done = shell.run_command(
        sys.executable, shell.write_script(text), options=("--tee",), preexec_fn=lambda: os.close(1)
    )
    assert done.returncode == 44
