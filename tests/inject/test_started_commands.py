"""Which commands are known to share the files of a program under --preflight."""

import os
from typing import Any

import pytest

from tdbg.inject.started_commands import is_redirected, is_start

BOOT = "/runs/one/boot"
ENV = {"PYTHONPATH": f"/elsewhere{os.pathsep}{BOOT}"}


def build_audit_args(event: str, *words: str, env: Any = ENV, executable: str = "") -> tuple[Any, ...]:
    program = executable or words[0]
    forms = {
        "subprocess.Popen": (program, list(words), None, env),
        "os.exec": (program, list(words), env),
        "os.posix_spawn": (program, tuple(words), env),
        "os.spawn": (0, program, list(words), env),
    }
    return forms[event]


@pytest.mark.parametrize("event", ["subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-u"],
        ["-c", "import os"],
        ["-uc", "-I"],
        ["-m", "torch.distributed.run", "-S"],
        ["-um", "tool"],
        ["-X", "dev"],
        ["-Xdev"],
        ["-W", "ignore"],
        ["-P"],
        ["-OO"],
        ["-"],
    ],
    ids=" ".join,
)
def test_python_with_its_start_up_file(event: str, options: list[str]) -> None:
    for name in ("/usr/bin/python3", "python", "/opt/bin/python3.12"):
        assert is_redirected(event, build_audit_args(event, name, *options, "train.py"), BOOT)


@pytest.mark.parametrize("options", ["-I", "-E", "-S", "-uI", "-sE", "-Ic", "-Em", "-X dev -S", "--unknown", "-Z"])
def test_python_without_it(options: str) -> None:
    event = "subprocess.Popen"
    assert is_redirected(event, build_audit_args(event, "python", "train.py", options), BOOT)
    assert not is_redirected(event, build_audit_args(event, "python", *options.split(), "train.py"), BOOT)


@pytest.mark.parametrize(
    "env", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": "/runs/two/boot"}, {b"PYTHONPATH": b"/x"}, None, "none", 3]
)
def test_without_the_folder_of_the_start_up_file(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/x")
    assert not is_redirected("os.exec", build_audit_args("os.exec", "python", "train.py", env=env), BOOT)


@pytest.mark.parametrize("env", [{b"PYTHONPATH": BOOT.encode()}, None])
def test_other_forms_of_the_environment(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", BOOT)
    assert is_redirected("os.exec", build_audit_args("os.exec", "python", "train.py", env=env), BOOT)


@pytest.mark.parametrize(
    "words", [["sh", "-c", "python x.py"], ["pythonic", "x.py"], ["python2", "x.py"], ["git", "log"]]
)
def test_other_commands(words: list[str]) -> None:
    assert not is_redirected("subprocess.Popen", build_audit_args("subprocess.Popen", *words), BOOT)


@pytest.mark.parametrize("event", ["os.system", "subprocess.Popen"])
@pytest.mark.parametrize("args", [("python x.py",), (b"python x.py",)])
def test_what_cannot_be_told_is_not_known(event: str, args: tuple[Any, ...]) -> None:
    assert is_start(event)
    whole = args if event == "os.system" else (None, args[0], None, ENV)
    assert not is_redirected(event, whole, BOOT)


def test_other_events() -> None:
    assert not is_start("open") and not is_start("import")
