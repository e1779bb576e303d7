"""`tdbg run --serve`: the viewer of a run while it goes on, and a run that does not care what becomes of it."""

import json
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pytest

from tdbg.core.command_spec import fill_bare_options
from tdbg.core.errors import TdbgError
from tdbg.launch import serving

WAITS = """
import pathlib, time
pathlib.Path("begun").touch()
until = time.monotonic() + 50
while not pathlib.Path("go").exists() and time.monotonic() < until:
    time.sleep(0.05)
raise SystemExit(3)
"""
ADDRESS = re.compile(r"^tdbg: the viewer of this run: (http://127\.0\.0\.1:(\d+))/runs/\S+/overview#token=(\S+)$")


class ServedRun:
    """A run that waits, and the address that it said."""

    def __init__(self, shell: Any, *options: str) -> None:
        self.folder: Path = shell.folder
        shell.write_script(WAITS)
        command = ("python", "x.py")
        self.process: subprocess.Popen[str] = shell.start_command(*command, options=(*options, "--run-dir", "r"))

    def read_address(self) -> tuple[str, str]:
        """Where it serves, and the token."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            found = ADDRESS.match(line.rstrip("\n"))
            if found:
                return found[1], found[3]
        raise AssertionError("no address was said")

    def find_viewer(self) -> psutil.Process:
        (found,) = [one for one in psutil.Process(self.process.pid).children() if "view" in one.cmdline()]
        return found

    def end(self) -> tuple[int, str]:
        """Let the program end; the exit code, and what else was said."""
        (self.folder / "go").touch()
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def ask(base: str, token: str, path: str) -> Any:
    body = json.dumps({"token": token}).encode()
    session = json.load(urlopen(Request(f"{base}/api/v1/session", body)))["session"]
    return json.load(urlopen(Request(f"{base}/api/v1{path}", headers={"Authorization": f"Bearer {session}"})))


def test_the_viewer_is_there_while_the_run_goes_on(shell: Any) -> None:
    run = ServedRun(shell, "--serve")
    base, token = run.read_address()
    viewer = run.find_viewer()
    assert not any(name.startswith("TDBG_") for name in viewer.environ())
    assert ask(base, token, "/runs/r/status")["state"] == "running"
    code, said = run.end()
    assert code == 3 and "Traceback" not in said
    with pytest.raises(URLError):
        urlopen(f"{base}/runs")
    assert not viewer.is_running()


def test_a_viewer_that_is_killed_costs_the_run_nothing(shell: Any) -> None:
    run = ServedRun(shell, "--serve", "0")
    run.read_address()
    run.find_viewer().kill()
    code, said = run.end()
    assert code == 3 and "Traceback" not in said and "--serve" not in said


def test_the_viewer_ends_when_the_supervisor_is_killed(shell: Any) -> None:
    run = ServedRun(shell, "--serve")
    run.read_address()
    viewer = run.find_viewer()
    run.process.kill()
    run.process.communicate(timeout=60)
    until = time.monotonic() + 20
    while viewer.is_running() and viewer.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.05)
    assert not viewer.is_running() or viewer.status() == psutil.STATUS_ZOMBIE


def test_a_port_that_is_taken_is_refused_before_the_run(shell: Any) -> None:
    with socket.socket() as taken:
        taken.bind((serving.LOOPBACK, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = shell.run_command("touch", "begun", options=("--serve", port, "--run-dir", "r"))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and port in done.stderr
    assert not (shell.folder / "begun").exists() and not (shell.folder / "r").exists()


def test_without_the_extra_it_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PACKAGES", ("starlette", "no_package_of_this_name"))
    with pytest.raises(TdbgError, match="--serve needs no_package_of_this_name") as caught:
        serving.check_serving(0, replace=False)
    assert caught.value.hint == "install the extra: pip install 'tdbg[view]'" and caught.value.exit_code == 2


def test_with_exec_nobody_is_left_to_serve(shell: Any) -> None:
    done = shell.run_command("true", options=("--serve", "--exec"))
    assert done.returncode == 2 and "--serve needs tdbg to stay running" in done.stderr


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--serve -- python x.py", "--serve 0 -- python x.py"),
        ("--serve python x.py", "--serve 0 python x.py"),
        ("--serve 8000 -- python x.py", "--serve 8000 -- python x.py"),
        ("--serve --tee -- x", "--serve 0 --tee -- x"),
        ("--serve=8000 -- x", "--serve=8000 -- x"),
        ("--name --serve -- x", "--name --serve -- x"),
        ("-- x --serve", "-- x --serve"),
        ("x --serve y", "x --serve y"),
        ("--serve", "--serve 0"),
    ],
)
def test_the_port_may_be_left_out(typed: str, read: str) -> None:
    from tdbg.cli.run import COMMAND

    assert fill_bare_options(COMMAND, typed.split()) == read.split()
