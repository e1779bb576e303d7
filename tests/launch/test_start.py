"""tdbg run from end to end: what is kept, what is refused, what comes back."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tdbg.core.config import Settings
from tdbg.core.events import Finding
from tdbg.core.rundir import RunDir
from tdbg.launch.start import Supervision
from tdbg.rules.verdict import Verdict


def read_run_info(shell) -> dict:
    return json.loads((shell.list_runs()[-1] / "run.json").read_text())


def test_run_json_says_what_was_run_and_how_it_ended(shell) -> None:
    subprocess.run(
        "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
        shell=True,
        cwd=shell.folder,
        check=True,
    )
    done = shell.run_python(
        "import os, sys; print(os.getpid()); sys.exit(7)",
        "--api-key=abc",
        options=("-l", "advanced"),
        env={"RANK": "0", "MY_TOKEN": "x"},
    )
    assert done.returncode == 7
    run = read_run_info(shell)
    assert run["command"] == [sys.executable, "x.py", "--api-key=***"]
    assert run["cwd"] == str(shell.folder)
    assert run["exit"] == {"code": 7, "signal": None}
    assert run["child"] == {"pid": int(done.stdout), "host": run["host"]}
    assert run["end"] > run["start"]
    assert run["settings"]["level"] == "advanced" and run["origin"]["level"] == "option"
    assert len(run["git"]["commit"]) == 40 and run["git"]["dirty"] is False
    assert run["versions"]["python"] == sys.version.split()[0]
    assert run["env"].get("RANK") == "0" and "MY_TOKEN" not in run["env"]
    assert run["speaks"] == "supervisor" and run["nodes"] == []
    assert (shell.list_runs()[-1] / "report.json").exists()


def test_a_signal_is_recorded_as_one(shell) -> None:
    assert shell.run_command("sh", "-c", "kill -KILL $$").returncode == 137
    assert read_run_info(shell)["exit"] == {"code": None, "signal": 9}


def test_stdout_is_the_childs_alone_and_tdbgs_lines_are_marked(shell) -> None:
    done = shell.run_python("import sys; print('out'); print('err', file=sys.stderr)")
    assert done.stdout == "out\n"
    first, *rest = done.stderr.splitlines()
    assert first == "err" and rest and all(line.startswith("tdbg: ") for line in rest)


def test_a_command_that_is_not_python_says_so(shell) -> None:
    done = shell.run_command("echo", "hi")
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert "no process reported: not a Python program" in done.stderr


def test_dry_run_does_nothing(shell) -> None:
    done = shell.run_command("touch", "made", options=("--dry-run", "-f", "LR", "--max-overhead", "2"))
    assert done.returncode == 0
    assert os.listdir(shell.folder) == []
    for line in (
        "command: touch made",
        "overhead budget: 2 % of wall time",
        "flag: LR = True",
        "setting: max_overhead = 2.0 (option)",
    ):
        assert line in done.stdout
    assert "PYTHONPATH=" in done.stdout


def test_forbid_flags_refuses_from_any_source(shell) -> None:
    (shell.folder / "pyproject.toml").write_text('[tool.tdbg]\nflags = ["GRADIENTS"]\n')
    done = shell.run_command("touch", "made", options=("--forbid-flags",))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "tdbg: --forbid-flags: GRADIENTS is on",
        "tdbg: switch it off with --no-flag, or in the source that `tdbg doctor` shows",
    ]
    assert not (shell.folder / "made").exists()
    assert shell.run_command("touch", "made", options=("--forbid-flags", "--no-flag", "GRADIENTS")).returncode == 0


def test_a_named_profile_is_used(shell) -> None:
    (shell.folder / "pyproject.toml").write_text('[tool.tdbg]\n[tool.tdbg.profiles.deep]\nlevel = "extreme"\n')
    done = shell.run_command("true", options=("--profile-name", "deep", "--dry-run"))
    assert "level: extreme" in done.stdout
    done = shell.run_command("true", options=("--profile-name", "dep", "--dry-run"))
    assert done.returncode == 2 and "known: deep" in done.stderr


def test_options_need_no_double_dash_before_a_plain_command(shell) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tdbg", "run", "-q", "echo", "--level", "x"],
        cwd=shell.folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "--level x\n")


def test_exec_becomes_the_command(shell) -> None:
    process = shell.start_command(sys.executable, "-c", "import os; print(os.getpid())", options=("--exec",))
    out, err = process.communicate(timeout=30)
    assert (int(out), err, process.returncode) == (process.pid, "", 0)
    run = read_run_info(shell)
    assert (run["speaks"], run["end"]) == ("rank", None)
    assert (shell.list_runs()[-1] / "boot" / "woke").exists()
    assert shell.run_command("sh", "-c", "kill -TERM $$", options=("--exec",)).returncode == -15
    assert shell.run_command("no-such-command", options=("--exec",)).returncode == 127


@pytest.mark.parametrize("option", [("--tee",), ("--stop-on", "critical"), ("--fail-on", "error")])
def test_exec_refuses_what_needs_a_supervisor(shell, option: tuple[str, ...]) -> None:
    done = shell.run_command("true", options=("--exec", *option))
    assert done.returncode == 2
    assert f"{option[0]} needs tdbg to stay running" in done.stderr


def test_quiet_says_one_line(shell) -> None:
    done = shell.run_command("true", options=("--quiet",))
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("tdbg: verdict: ")


def test_a_closed_stderr_changes_nothing(shell) -> None:
    done = shell.run_command("sh", "-c", "exit 6", preexec_fn=lambda: os.close(2))
    assert done.returncode == 6


def test_a_folder_without_git_has_no_git_state(shell) -> None:
    shell.run_command("true", env={"GIT_CEILING_DIRECTORIES": str(shell.folder.parent)})
    assert read_run_info(shell)["git"] is None


def test_git_missing_altogether_is_no_trouble(shell) -> None:
    true = shutil.which("true")
    assert true
    assert shell.run_command(true, env={"PATH": "/nowhere"}).returncode == 0


@pytest.mark.parametrize(
    ("code", "severity", "settings", "expected"),
    [
        (0, "error", {}, 0),
        (0, "error", {"fail_on": "error"}, 1),
        (0, "warning", {"fail_on": "error"}, 0),
        (0, "critical", {"fail_on": "info"}, 1),
        (7, "error", {"fail_on": "error"}, 7),
        (-15, "error", {"fail_on": "error", "stop_on": ["error"]}, 143),
        (0, "error", {"stop_on": ["TD-X001"]}, 1),
        (0, "error", {"stop_on": ["TD-Y"]}, 0),
        (0, "error", {"stop_on": ["warning"]}, 1),
    ],
)
def test_findings_change_only_a_zero(tmp_path, code, severity, settings, expected) -> None:
    verdict = Verdict(run="", findings=[Finding(code="TD-X001", severity=severity, title="")])
    assert Supervision(RunDir(tmp_path), Settings(**settings), leads=True).exit_code(code, verdict) == expected


def test_a_second_agent_of_the_job_joins_and_stays_silent(shell, wait_until) -> None:
    env = {"TORCHELASTIC_RUN_ID": "j1"}
    first = shell.start_command("sh", "-c", "while [ ! -e go ]; do sleep 0.05; done", options=("--tee",), env=env)
    wait_until(lambda: (shell.folder / "tdbg_runs" / "elastic-j1-sh" / "boot" / "sitecustomize.py").exists())
    second = shell.run_command("sh", "-c", "echo two; exit 3", options=("--tee",), env=env)
    assert (second.returncode, second.stdout, second.stderr) == (3, "two\n", "")
    (shell.folder / "go").write_text("")
    _, err = first.communicate(timeout=30)
    assert first.returncode == 0 and "tdbg: verdict" in err
    assert len(shell.list_runs()) == 1
    assert len(read_run_info(shell)["nodes"]) == 1
    assert len(list(shell.list_runs()[0].glob("stdout*.log"))) == 2


RANK = """
import os, time
from pathlib import Path
from tdbg.core.events import Step
from tdbg.core.rundir import EventWriter, claim_rank_folder
folder, _ = claim_rank_folder(Path(os.environ["TDBG_RUN_DIR"]), 0)
writer = EventWriter(lambda: folder, 0, print)
Path("pid").write_text(str(os.getpid()))
for step in range(1, 4): writer.emit(Step(t=time.time(), step=step, loss=1.0))
for step in range(4, 600):
    writer.emit(Step(t=time.time(), step=step, loss="nan", finite=False))
    time.sleep(0.1)
"""


def test_stop_on_ends_what_the_command_started_too(shell, wait_until, is_alive) -> None:
    line = f"{sys.executable} {shell.write_script(RANK)}; true"
    done = shell.run_command(
        "sh", "-c", line, options=("--stop-on", "info"), env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 143, done.stderr
    assert "stopping the command: TD-" in done.stderr
    assert not is_alive(int((shell.folder / "pid").read_text()))
