"""`tdbg completions`: a new shell completes after `install`, and `remove` leaves every file as it was."""

import subprocess
from pathlib import Path

import pytest

from tdbg.cli import main
from tests.cli.test_completions import ROOT

STARTUP = {"bash": ".bashrc", "zsh": ".zshrc"}
SCRIPT = {
    "bash": ".local/share/tdbg/completions/tdbg.bash",
    "zsh": ".local/share/tdbg/completions/_tdbg",
    "fish": ".config/fish/completions/tdbg.fish",
}
# Prints the completions of `tdbg rep` (of zsh: the function that is bound), as a new interactive shell has them.
PROBES = {
    "bash": ["bash", "-ic", "COMP_WORDS=(tdbg rep); COMP_CWORD=1; _tdbg; echo ${COMPREPLY[@]}"],
    "zsh": ["zsh", "-ic", "[[ $_comps[tdbg] == _tdbg ]] && echo report"],
    "fish": ["fish", "-c", "complete -C 'tdbg rep' | string split -f1 \\t"],
}


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("shell", SCRIPT)
def test_a_new_shell_completes_after_install(shell: str, home_folder: Path) -> None:
    assert main(["completions", "install", "--shell", shell]) == 0
    done = subprocess.run(PROBES[shell], cwd=home_folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["report"], done


@pytest.mark.parametrize("shell", SCRIPT)
def test_install_says_what_it_wrote_and_a_second_call_writes_nothing(
    shell: str, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completions", "install", "--shell", shell]) == 0
    files = [SCRIPT[shell], *([STARTUP[shell]] if shell in STARTUP else [])]
    expected = [f"written: {home_folder / name}" for name in files]
    assert capsys.readouterr().out.splitlines() == [*expected, f"start a new {shell} to use them"]
    before = {name: (home_folder / name).read_bytes() for name in files}
    assert main(["completions", "install", "--shell", shell]) == 0
    assert capsys.readouterr().out == f"the completions for {shell} are up to date\n"
    assert {name: (home_folder / name).read_bytes() for name in files} == before
    committed = ROOT / "completions" / Path(SCRIPT[shell]).name
    assert before[SCRIPT[shell]] == committed.read_bytes(), "the script is the one of the wheel"


@pytest.mark.parametrize("shell", STARTUP)
@pytest.mark.parametrize("text", [b"", b"alias ll='ls -l'\n", b"no line end", b"caf\xe9\n"])
def test_remove_leaves_the_startup_file_as_it_was(shell: str, text: bytes, home_folder: Path) -> None:
    startup = home_folder / STARTUP[shell]
    startup.write_bytes(text)
    assert main(["completions", "install", "--shell", shell]) == 0
    assert text in startup.read_bytes()
    assert main(["completions", "remove", "--shell", shell]) == 0
    assert startup.read_bytes() in (text, text + b"\n") and not (home_folder / SCRIPT[shell]).exists()
    assert main(["completions", "remove", "--shell", shell]) == 1


def test_a_linked_startup_file_stays_a_link(home_folder: Path) -> None:
    (home_folder / "dotfiles").write_text("set -o vi\n")
    (home_folder / ".bashrc").symlink_to(home_folder / "dotfiles")
    assert main(["completions", "install", "--shell", "bash"]) == 0
    assert (home_folder / ".bashrc").is_symlink() and "tdbg" in (home_folder / "dotfiles").read_text()


def test_the_shell_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, home_folder: Path) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completions", "install"]) == 0
    assert (home_folder / SCRIPT["fish"]).is_file()


@pytest.mark.parametrize(
    ("words", "shell", "says"),
    [
        (["--shell", "bsh"], "/bin/bash", "--shell cannot be 'bsh'\ntdbg: did you mean bash?"),
        ([], "/bin/tcsh", "no completions for the shell 'tcsh'"),
        ([], "", "no completions for the shell 'unknown'"),
    ],
)
def test_an_unknown_shell_is_wrong_use(
    words: list[str], shell: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert main(["completions", "install", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_in_the_place_of_the_startup_file_is_told(
    home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home_folder / ".bashrc").mkdir()
    assert main(["completions", "install", "--shell", "bash"]) == 2
    assert f"cannot read {home_folder / '.bashrc'}" in capsys.readouterr().err
