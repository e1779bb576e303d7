"""The boot folder and the command's environment."""

import os
import sys
from pathlib import Path

import pytest

from tdbg.core.config import Settings, flags_from_env
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.rundir import RunDir
from tdbg.launch import boot


def test_the_boot_file_is_one_python_can_read_and_names_the_run(tmp_path: Path) -> None:
    folder = boot.write_boot_file(RunDir(tmp_path), Settings())
    text = (folder / "sitecustomize.py").read_text()
    compile(text, "sitecustomize.py", "exec")
    assert repr(str(tmp_path)) in text
    assert sorted(os.listdir(folder)) == ["__pycache__", "sitecustomize.py"]


def test_a_folder_that_cannot_be_written_is_125(tmp_path: Path) -> None:
    (tmp_path / "boot").write_text("a file in its place")
    with pytest.raises(LaunchError, match=r"cannot write .*sitecustomize\.py"):
        boot.write_boot_file(RunDir(tmp_path), Settings())


def test_the_environment_gets_the_boot_folder_first_and_the_users_path_as_it_was(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for nothing in ({}, {"PYTHONPATH": ""}):
        assert boot.child_env(run, Settings(), nothing)["PYTHONPATH"] == str(tmp_path / "boot")
    env = boot.child_env(run, Settings(), {"PYTHONPATH": "/a::/b:", "HOME": "/h"})
    assert env["PYTHONPATH"] == f"{tmp_path / 'boot'}:/a::/b:"  # Python takes an empty part for the current folder
    assert env["HOME"] == "/h"
    assert env["TDBG_RUN_DIR"] == str(tmp_path)
    assert "TDBG_FLAGS" not in env


def test_flags_keep_their_types_on_the_way(tmp_path: Path) -> None:
    flags = {"GRADIENTS": True, "LR": False, "PROFILER": "3"}
    env = boot.child_env(RunDir(tmp_path), Settings(flags=flags), {"TDBG_FLAGS": "OLD"})
    assert flags_from_env(env["TDBG_FLAGS"]) == flags


def test_in_a_run_inside_a_run_the_outer_boot_folder_leaves_the_path(tmp_path: Path) -> None:
    outer = boot.child_env(RunDir(Path("/outer")), Settings(), {"PYTHONPATH": ":/a"})
    assert boot.inside_run(outer) and not boot.inside_run({"TDBG_RUN_DIR": "/outer"})
    inner = boot.child_env(RunDir(tmp_path), Settings(), outer)
    assert inner["PYTHONPATH"] == f"{tmp_path / 'boot'}::/a"


def test_a_path_that_pythonpath_cannot_carry_is_refused() -> None:
    with pytest.raises(TdbgError, match="cannot have ':'"):
        boot.check_path(Path("/a:b"))


def test_a_run_inside_a_run_has_a_directory_of_its_own(shell) -> None:
    inner = shell.build_command(sys.executable, "-c", "print('inner')", options=("--run-dir", "inner", "--quiet"))
    done = shell.run_command(*inner, options=("--run-dir", "outer", "--quiet"))
    assert (done.returncode, done.stdout) == (0, "inner\n")
    assert (shell.folder / "inner" / "boot" / "woke").exists()
    again = shell.run_command(*shell.build_command("true"), options=("--run-dir", "outer2"))
    assert again.returncode == 0, again.stderr
    assert len(shell.list_runs()) == 1  # the inner one, under its usual name


def test_the_recorder_of_torch_is_silent_where_it_is_asked_for(tmp_path: Path) -> None:
    run, on = RunDir(tmp_path), Settings(flags={"PROFILER": True})
    assert boot.child_env(run, on, {})["KINETO_LOG_LEVEL"] == boot.SILENT
    assert boot.child_env(run, on, {"KINETO_LOG_LEVEL": "0"})["KINETO_LOG_LEVEL"] == "0", "the user's own"
    assert "KINETO_LOG_LEVEL" not in boot.child_env(run, Settings(flags={"PROFILER": False}), {})
