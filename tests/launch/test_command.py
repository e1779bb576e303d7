"""What the command is called, and what is said when it cannot be started."""

import os

import pytest

from tdbg.core.errors import CommandNotFoundError, NotExecutableError, TdbgError
from tdbg.launch import command


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python train.py --epochs 3", "train"),
        ("python -u src/fit_model.py", "fit_model"),
        ("python -m my.package.train", "train"),
        ("python -m my.package.__main__", "package"),
        ("torchrun --nproc-per-node=2 train.py", "train"),
        ("torchrun --nproc-per-node 2 -m my.train", "train"),
        ("python -m torch.distributed.run --nnodes=2 train.py", "train"),
        ("accelerate launch --num_processes 2 scripts/t.py", "t"),
        ("bash jobs/run.sh", "run"),
        ("/usr/bin/env", "env"),
        ("-m", "m"),
        ("./we ird:name!", "we"),
        ("...", "run"),
    ],
)
def test_short_name(line: str, name: str) -> None:
    assert command.short_name(line.split()) == name


def test_short_name_holds_nothing_a_path_cannot(tmp_path) -> None:
    assert command.short_name(["a b:c/d e:f"]) == "d-e-f"


def test_a_command_that_exists_passes(tmp_path) -> None:
    command.check_command(["sh", "-c", "true"], os.environ)


@pytest.mark.parametrize(
    ("word", "kind", "what", "hint"),
    [
        ("no-such-thing", CommandNotFoundError, "command not found: no-such-thing", "check its spelling and PATH"),
        ("./no-such-thing", CommandNotFoundError, "command not found: ./no-such-thing", "check its spelling"),
        ("here.py", CommandNotFoundError, "command not found: here.py", "tdbg run -- python here.py"),
        (
            "./here.py",
            NotExecutableError,
            "cannot execute ./here.py: permission denied",
            "tdbg run -- python ./here.py",
        ),
        ("./job", NotExecutableError, "cannot execute ./job: permission denied", "chmod +x"),
        ("./folder", NotExecutableError, "cannot execute ./folder: it is a directory", "name a program"),
        ("--lr", CommandNotFoundError, "command not found: --lr", "options go before --"),
    ],
)
def test_what_is_said_of_one_that_cannot_be_started(tmp_path, monkeypatch, word, kind, what, hint) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("")
    (tmp_path / "job").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(kind) as caught:
        command.check_command([word], os.environ)
    assert str(caught.value) == what
    assert hint in caught.value.hint


def test_no_command_at_all() -> None:
    with pytest.raises(TdbgError) as caught:
        command.check_command([], os.environ)
    assert caught.value.exit_code == 2
