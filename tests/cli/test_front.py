"""The thin front: it says exactly what the whole command line would say, without loading it."""

import os
import subprocess
import sys

import pytest

from tdbg import __main__ as front
from tdbg import cli


@pytest.mark.parametrize("line", ([], ["--help"], ["-h"], ["--version"]), ids=str)
def test_it_says_what_the_command_line_says(line, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(line) == 0
    whole = capsys.readouterr().out
    assert front._run_front_end(line) == 0
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize("line", ("--help", "--version"))
def test_it_loads_no_parser(line):
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "tdbg", line], capture_output=True, text=True)
    assert done.returncode == 0 and "typer" not in done.stderr and "tdbg.cli" not in done.stderr


@pytest.mark.parametrize(
    "line",
    (
        "flags list",
        "explain TD-N001",
        "doctor",
        "trust --list",
        "run -q -- true",
        "run --help",
        "trace --help",
        "trace",
    ),
)
def test_a_plain_line_of_any_command_loads_no_parser(line, tmp_path):
    code = "import sys; from tdbg.cli import main; main(sys.argv[1:]); sys.exit('typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", (["--help", "run"], ["run", "--help"], ["--version", "x"], ["--verbose"], ["flags"]))
def test_everything_else_goes_to_the_command_line(line):
    assert front._ready_text(line) == ""


def test_without_the_generated_text_the_command_line_answers(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(front, "__file__", str(tmp_path / "__main__.py"))
    assert front._run_front_end(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: tdbg [OPTIONS] COMMAND ...")


def test_windows_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(os, "name", "nt")
    assert front.main() == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Windows is not supported" in err


def test_the_console_script_is_this_front():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="tdbg")
    assert script.value == "tdbg.__main__:main"
