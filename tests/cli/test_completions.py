"""The committed completion scripts, each in its real shell: a shell that is missing fails the test."""

import os
import re
import subprocess
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "completions"

# What is typed before TAB, and the one way to go on.
CASES = [
    ("tdbg ru", "tdbg run"),
    ("tdbg do", "tdbg doctor"),
    ("tdbg --ver", "tdbg --version"),
    ("tdbg flags sh", "tdbg flags show"),
    ("tdbg run --lev", "tdbg run --level"),
    ("tdbg run -f LOSS.NU", "tdbg run -f LOSS.NULL_MASKING"),
    ("tdbg run --flag LOSS.TAX", "tdbg run --flag LOSS.TAXONOMY_SMOOTHING"),
    ("tdbg run --flag=GRAD", "tdbg run --flag=GRADIENTS"),
    ("tdbg run -f LR -f AUG", "tdbg run -f LR -f AUGMENTATION"),
    ("tdbg run -l adv", "tdbg run -l advanced"),
    ("tdbg run --level=ext", "tdbg run --level=extreme"),
    ("tdbg run --preset gr", "tdbg run --preset gradnorm"),
    ("tdbg run --inject yac", "tdbg run --inject yacs"),
    ("tdbg run --fail-on crit", "tdbg run --fail-on critical"),
    ("tdbg run --stop-on crit", "tdbg run --stop-on critical"),
    ("tdbg run --stop-on TD-N002", "tdbg run --stop-on TD-N002"),
    ("tdbg run --run-dir fold", "tdbg run --run-dir folder"),
    ("tdbg run --tee --mea", "tdbg run --tee --measure-overhead"),
    ("tdbg flags show AUTO", "tdbg flags show AUTOGRAD_ANOMALY"),
    ("tdbg explain TD-R006", "tdbg explain TD-R006"),
    ("tdbg report 2026", "tdbg report 20261121-031500-train"),
    ("tdbg report --json 2026", "tdbg report --json 20261121-031500-train"),
    ("tdbg demo --fault backw", "tdbg demo --fault backward-nan"),
    ("tdbg hook install --python scr", "tdbg hook install --python script.py"),
    # the wrapped command: its own words, with and without `--`
    ("tdbg run sha256s", "tdbg run sha256sum"),
    ("tdbg run -- sha256s", "tdbg run -- sha256sum"),
    ("tdbg run -l basic sha256sum scr", "tdbg run -l basic sha256sum script.py"),
    ("tdbg run -f LR -- sha256sum scr", "tdbg run -f LR -- sha256sum script.py"),
    ("tdbg run -f A=3 -- sha256sum scr", "tdbg run -f A=3 -- sha256sum script.py"),
]


@pytest.fixture(scope="module")
def completion_folder(tmp_path_factory) -> Path:
    """A folder with a run, a folder and a file."""
    folder = tmp_path_factory.mktemp("place")
    run = folder / "tdbg_runs" / "20261121-031500-train"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (folder / "folder").mkdir()
    (folder / "script.py").write_text("")
    return folder


def build_environment(home: Path) -> dict[str, str]:
    """No start-up file of the user's, no colours."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "LANG": "C.UTF-8", "INPUTRC": "/dev/null"}


class Typist:
    """An interactive shell at a terminal: types, presses TAB, and reads what the line has become."""

    def __init__(self, argv: list[str], setup: str, place: Path) -> None:
        self.shell = pexpect.spawn(
            argv[0], argv[1:], env=build_environment(place), cwd=str(place), encoding="utf-8", timeout=10, echo=False,
            dimensions=(50, 400),
        )  # fmt: skip
        self.shell.sendline(f"{setup}; echo 'SET'UP")
        self.shell.expect("SETUP\r?\n")

    def complete_line(self, line: str) -> str:
        """The line after TAB. Ctrl-A and Ctrl-E then wrap it into an echo: the shell itself says it."""
        self.shell.send(f"{line}\t\x01echo 'LI''NE<'\x05'>'\r")
        self.shell.expect(r"LINE< ?([^\r\n]*?) ?>\r?\n")
        return self.shell.match.group(1)


@pytest.fixture(scope="module")
def bash_typist(completion_folder):
    typist = Typist(["bash", "--norc", "--noprofile", "-i"], f"PS1='> '; source {SCRIPTS}/tdbg.bash", completion_folder)
    yield typist
    typist.shell.close(force=True)


@pytest.fixture(scope="module")
def zsh_typist(completion_folder):
    setup = f"PS1='> '; unsetopt beep; fpath=({SCRIPTS} $fpath); autoload -Uz compinit; compinit -u -D"
    typist = Typist(["zsh", "-f", "-i"], setup, completion_folder)
    yield typist
    typist.shell.close(force=True)


@pytest.mark.parametrize(("line", "whole"), CASES)
def test_bash(bash_typist, line, whole):
    assert bash_typist.complete_line(line).rstrip("/") == whole


@pytest.mark.parametrize(("line", "whole"), CASES)
def test_zsh(zsh_typist, line, whole):
    assert zsh_typist.complete_line(line).rstrip("/") == whole


def complete_in_fish(line: str, place: Path) -> list[str]:
    """What fish offers for the last word."""
    code = f"source {SCRIPTS}/tdbg.fish; complete -C {line!r}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        capture_output=True,
        text=True,
        cwd=place,
        env=build_environment(place),
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


@pytest.mark.parametrize(("line", "whole"), CASES)
def test_fish(completion_folder, line, whole):
    assert whole.rpartition(" ")[2] in [offer.rstrip("/") for offer in complete_in_fish(line, completion_folder)]


def test_fish_offers_nothing_else(completion_folder):
    assert complete_in_fish("tdbg run -f LOSS.NU", completion_folder) == ["LOSS.NULL_MASKING"]
    assert complete_in_fish("tdbg run --max-overhead ", completion_folder) == []
    assert complete_in_fish("tdbg flags ", completion_folder) == ["doctor", "list", "scan", "show"]


def list_bash_offers(words: list[str], place: Path) -> list[str]:
    """Every offer for the last of ``words``, from the function that TAB calls."""
    line = " ".join(f"'{word}'" for word in words)
    code = (
        f"source {SCRIPTS}/tdbg.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
        '_tdbg 2>/dev/null; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, cwd=place, timeout=60)
    return done.stdout.split()


def test_a_family_and_all_its_flags_are_offered(completion_folder):
    from tdbg.core.flags import FLAGS

    offers = list_bash_offers(["tdbg", "run", "-f", ""], completion_folder)
    assert set(offers) == {"LOSS"} | {flag.name for flag in FLAGS}


def test_every_option_is_offered(completion_folder):
    from tdbg.cli import generate

    for page in generate.all_pages():
        offers = list_bash_offers([*page.words, "-"], completion_folder)
        assert set(offers) == {name for option in page.options for name in option.names}, page.path


def test_after_the_wrapped_command_begins_no_option_of_ours_is_offered(completion_folder):
    assert list_bash_offers(["tdbg", "run", "--", "python", "--"], completion_folder) == []
    assert complete_in_fish("tdbg run -- sha256sum --lev", completion_folder) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_its_script_without_a_word(shell):
    script = SCRIPTS / {"bash": "tdbg.bash", "zsh": "_tdbg", "fish": "tdbg.fish"}[shell]
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_script_calls_tdbg():
    for script in SCRIPTS.iterdir():
        lines = [line.strip() for line in script.read_text().splitlines()]
        assert not [
            line for line in lines if re.match(r"(command )?tdbg ", line) or "$(tdbg" in line or "(tdbg " in line
        ]
