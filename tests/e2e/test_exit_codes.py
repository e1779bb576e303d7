"""The exit code of `tdbg run` is the command's own; findings that were asked for change a 0, and nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

TDBG = [sys.executable, "-m", "tdbg", "run"]

PROGRAM = """
import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
how = sys.argv[1]
if how.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, how))
if how == "raise":
    raise ValueError("from the program")
sys.exit(int(how) if how.isdigit() else how)
"""

TRAIN = """
import sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps, bad, code = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for step in range(1, steps + 1):
    x = torch.ones(8, 4)
    if step == bad:
        x[0, 0] = float("nan")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if bad:
        time.sleep(0.02)
sys.exit(code)
"""

# Each rank for itself, so that none waits for the one that ends.
RANKS = """
import os, sys, time, torch
rank, how = int(os.environ["RANK"]), sys.argv[1]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 400):
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
    if rank == 1 and step == 5:
        if how.startswith("code"):
            os._exit(int(how[4:]))
        os.kill(os.getpid(), int(how[6:]))
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "ranks.py").write_text(RANKS)
    for name in [name for name in os.environ if name.startswith(("TDBG_", "TORCHELASTIC_", "SLURM_"))]:
        monkeypatch.delenv(name)


def run_watched(*command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    words = [*TDBG, "--run-dir", "run", *options, "--", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def run_in_bash(*command: str) -> int:
    """What a shell makes of the same command."""
    return subprocess.run(["bash", "-c", '"$@"; exit $?', "bash", *command], capture_output=True).returncode


HOWS = [
    "0",
    "7",
    "255",
    "a message",
    "raise",
    "SIGTERM",
    "SIGSEGV",
    "SIGKILL",
    "SIGABRT",
    "SIGINT",
    "SIGHUP",
    "SIGPIPE",
]


@pytest.mark.parametrize("how", HOWS)
def test_the_commands_own_code_as_a_shell_would_see_it(how: str) -> None:
    command = (sys.executable, "program.py", how)
    assert run_watched(*command).returncode == run_in_bash(*command)


@pytest.mark.parametrize(
    ("how", "expected"), [("0", 0), ("7", 7), ("SIGTERM", 143), ("SIGSEGV", 139), ("SIGKILL", 137), ("SIGINT", 130)]
)
def test_the_codes_by_number(how: str, expected: int) -> None:
    assert run_watched(sys.executable, "program.py", how).returncode == expected


def test_a_traceback_is_the_users_own() -> None:
    command = [sys.executable, "program.py", "raise"]
    direct = subprocess.run(command, capture_output=True, text=True).stderr
    assert run_watched(*command).stderr.startswith(direct)


@pytest.mark.parametrize(
    ("word", "expected", "what", "next_"),
    [
        ("no-such-command", 127, "command not found: no-such-command", "check its spelling and PATH"),
        ("./program.py", 126, "cannot execute ./program.py: permission denied", "tdbg run -- python ./program.py"),
        ("./", 126, "cannot execute ./: it is a directory", "name a program"),
        ("./bad", 127, "cannot execute ./bad: its interpreter is missing", "look at its first line (#!)"),
    ],
)
def test_a_command_that_cannot_start(word: str, expected: int, what: str, next_: str) -> None:
    Path("bad").write_text("#!/no/such/interpreter\n")
    Path("bad").chmod(0o755)
    done = run_watched(word)
    assert done.returncode == expected == run_in_bash(word)
    first, second = done.stderr.splitlines()
    assert first == f"tdbg: {what}" and second.startswith("tdbg: ") and next_ in second
    assert done.stdout == ""


def test_ctrl_c_on_a_terminal_is_one_keyboard_interrupt_and_130() -> None:
    Path("wait.py").write_text(
        "import time\n"
        "try:\n    print('ready', flush=True)\n    for _ in range(1200): time.sleep(0.05)\n"
        "except KeyboardInterrupt:\n    print('once', flush=True)\n    time.sleep(0.5)\n    print('undisturbed', flush=True)\n    raise\n"
    )
    elsewhere = "import signal, sys; del signal.sigwaitinfo; from tdbg.cli import main; sys.exit(main(sys.argv[1:]))"
    for begin, options in (
        (["-m", "tdbg"], []),
        (["-m", "tdbg"], ["--tee"]),
        (["-c", elsewhere], []),
    ):  # macOS: the last
        child = pexpect.spawn(sys.executable, [*begin, "run", *options, "--", sys.executable, "wait.py"], timeout=30)
        child.expect("ready")
        child.sendintr()
        child.expect("undisturbed")
        child.expect(pexpect.EOF)
        child.close()
        assert child.before.count(b"KeyboardInterrupt") == 1
        assert b"tdbg: verdict" in child.before
        assert child.exitstatus == 130


def test_ctrl_c_that_the_program_survives_ends_nothing() -> None:
    Path("deaf.py").write_text(
        "import signal, sys, time\n"
        "noted = []\n"
        "signal.signal(signal.SIGINT, lambda *_: (noted.append(1), print('noted', flush=True)))\n"
        "print('ready', flush=True)\n"
        "until = time.monotonic() + 30\n"
        "while not noted and time.monotonic() < until: time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
        "sys.exit(3)\n"
    )
    child = pexpect.spawn(sys.executable, ["-m", "tdbg", "run", "--", sys.executable, "deaf.py"], timeout=30)
    child.expect("ready")
    child.sendintr()
    child.expect("noted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.before.count(b"noted") == 0  # not a second time
    assert child.exitstatus == 3


def test_suspend_and_resume_from_a_shell() -> None:
    """Ctrl-Z stops tdbg and the program together; fg wakes both."""
    Path("count.py").write_text(
        "import time\nfor i in range(30):\n    print('n', i, flush=True)\n    time.sleep(0.1)\n"
    )
    shell = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], timeout=30, env={**os.environ, "PS1": "PROMPT "})
    shell.expect("PROMPT ")
    shell.sendline(f"{sys.executable} -m tdbg run -q -- {sys.executable} count.py")
    shell.expect("n 3")
    shell.sendcontrol("z")
    shell.expect("Stopped")
    shell.expect("PROMPT ")
    shell.sendline("fg; echo code=$?")
    shell.expect("n 29")
    shell.expect(r"code=(\d+)\r")
    assert shell.match[1] == b"0"
    shell.sendline("exit")
    shell.expect(pexpect.EOF)


def test_sigterm_to_tdbg_gives_the_program_time_to_end_its_own_way() -> None:
    Path("tidy.py").write_text(
        "import signal, sys, time\n"
        "def tidy(*_):\n    time.sleep(0.5)\n    print('saved', flush=True)\n    sys.exit(42)\n"
        "signal.signal(signal.SIGTERM, tidy)\n"
        "print('ready', flush=True)\n"
        # Short sleeps: Python hears a signal that comes just before the system call of a sleep only after that sleep.
        "for _ in range(1200): time.sleep(0.05)\n"
    )
    process = subprocess.Popen([*TDBG, "--", sys.executable, "tidy.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == (b"saved\n", 42)


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        ((), 0, 0),
        (("--fail-on", "critical"), 0, 1),
        (("--fail-on", "critical"), 7, 7),
        (("--fail-on", "never"), 0, 0),
    ],
)
def test_fail_on_changes_only_a_zero(options: tuple[str, ...], code: int, expected: int) -> None:
    done = run_watched(sys.executable, "train.py", "12", "3", str(code), options=options)
    assert done.returncode == expected, done.stderr
    assert "TD-N001" in done.stderr


def test_fail_on_leaves_a_healthy_run_alone() -> None:
    assert run_watched(sys.executable, "train.py", "12", "0", "0", options=("--fail-on", "info")).returncode == 0


def test_stop_on_ends_the_command_and_the_code_is_its_own() -> None:
    done = run_watched(sys.executable, "train.py", "3000", "3", "0", options=("--stop-on", "TD-N001"))
    assert done.returncode == 143, done.stderr
    assert "tdbg: stopping the command: TD-N001 (--stop-on)" in done.stderr
    (ended,) = [
        found for found in json.loads(Path("run/report.json").read_text())["findings"] if found["code"] == "TD-R002"
    ]
    assert ended["cause"] == "tdbg ended the run at TD-N001 (--stop-on)", "nobody else sent that signal"
    graceful = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + TRAIN
    Path("graceful.py").write_text(graceful)
    words = [*TDBG, "--stop-on", "critical", "--", sys.executable, "graceful.py", "3000", "3", "0"]
    assert subprocess.run(words, capture_output=True, timeout=120).returncode == 1


@pytest.mark.parametrize(("how", "said", "code"), [("code5", "exit code 5", 5), ("signal9", "SIGKILL", -9)])
def test_through_torchrun_its_own_code_comes_back_and_the_verdict_names_the_ranks(
    how: str, said: str, code: int
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "ranks.py", how]
    done = run_watched(*torchrun)
    assert done.returncode == 1
    report = json.loads(Path("run/report.json").read_text())
    ends = {row["rank"]: row for row in report["ranks"]}
    assert ends[1]["code"] == code, ends
    lines = [line for line in done.stderr.splitlines() if line.startswith("tdbg:") and "rank 1" in line]
    assert any(said in line or f"exit {code}" in line for line in lines), lines


def test_a_terminal_that_is_closed_ends_tdbg_and_the_program() -> None:
    Path("sleep.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    words = ["-m", "tdbg", "run", "--", sys.executable, "sleep.py"]
    child = pexpect.spawn(sys.executable, words, timeout=30)
    child.expect("up\r\n")  # all of it: a terminal closed within a write fails the write
    os.close(child.child_fd)
    _, status = os.waitpid(child.pid, 0)
    child.closed, child.terminated = True, True
    assert os.waitstatus_to_exitcode(status) == 129
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)
    assert json.loads(next(Path("tdbg_runs").glob("*/run.json")).read_text())["exit"] == {"code": None, "signal": 1}
