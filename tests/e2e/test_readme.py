"""Every command of README.md does what it says there: each is run, in the order in which it stands."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE_S, PROGRAMS, build_environment, run_command

README = Path(__file__).parents[2] / "README.md"
TRAIN = f"{sys.executable} {PROGRAMS / 'readme.py'}"
LIVE = ("status", "control", "stacks")
# What a word in capitals stands for, and what would take too long as it is written.
WORDS = {
    "COMMAND": TRAIN,
    "python train.py": TRAIN,
    "torchrun --nproc-per-node=8 train.py": f"torchrun --standalone --nproc-per-node=2 {PROGRAMS / 'readme.py'}",
    "-f FLAG": "-f GRADIENTS",
    "LOGS": "tdbg_runs",
    "CODE": "TD-N001",
    "[RUN]": "",
    "RUN ": "",
    "[FILE...]": "",
}
WHOLE = {"tdbg flags show": "tdbg flags show GRADIENTS", "tdbg flags scan": f"tdbg flags scan {PROGRAMS}"}
SAID = {
    "run": "verdict:",
    "report": "verdict:",
    "status": "running",
    "stacks": "stacks now",
    "inspect-pages": "layers.0.attn:output",
    "explain": "TD-N001",
    "explain memory": "TD-M001",
    "doctor": "torch",
    "control": "extreme",
}


def list_commands() -> list[str]:
    """All command lines of the page that begin with tdbg, those in its tables with their variants."""
    text = README.read_text(encoding="utf-8")
    found: list[str] = []
    for block in re.findall(r"^```\n(.*?)^```", text, re.S | re.M):
        found += [line for line in block.splitlines() if line.startswith("tdbg ")]
    for row in re.findall(r"^\| (`tdbg .*?) \|", text, re.M):
        first, *others = re.findall(r"`(.*?)`", row)
        for other in others:  # a command of its own, or what stands in the place of the last word
            found.append(other if other.startswith("tdbg ") else f"{first.rpartition(' ')[0]} {other}")
        found.append(first)
    apart = ("tdbg demo", "tdbg view")  # the one is test_demo.py's, the other goes on until Ctrl-C
    return [line for line in dict.fromkeys(found) if not line.startswith(apart)]


def fill_placeholders(line: str) -> list[str]:
    """The words of a line with its placeholders filled in."""
    for word, meant in WORDS.items():
        line = line.replace(word, meant)
    return [word.strip("'") for word in WHOLE.get(line, line).split()]


@pytest.fixture(scope="module")
def command_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are run, one after another."""
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def live_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which a run is going on."""
    place = tmp_path_factory.mktemp("live")
    words = ["tdbg", "run", "--", *TRAIN.split(), "--epochs", "100000", "--until", str(place / "over")]
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=place, env=build_environment({}), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not list(place.glob("tdbg_runs/*/rank0000/events.jsonl")):
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()
            time.sleep(0.2)
        yield place
    finally:
        (place / "over").touch()
        process.communicate(timeout=PATIENCE_S)


def test_the_page_has_commands() -> None:
    heads = {line.split()[1] for line in list_commands()}
    wanted = {"run", "status", "control", "report", "filter-logs", "inspect-pages", "flags", "explain", "doctor"}
    assert heads >= wanted and len(list_commands()) >= 16, list_commands()


@pytest.mark.parametrize("line", list_commands())
def test_every_command_of_the_page_works(command_folder: Path, line: str, request: pytest.FixtureRequest) -> None:
    head, *_ = line.split()[1:]
    words = fill_placeholders(line)
    assert not re.search(r"\b[A-Z]{3,}\b", " ".join(words).replace("TD-N001", "").replace("GRADIENTS", "")), words
    place = request.getfixturevalue("live_folder") if head in LIVE else command_folder
    result = run_command([sys.executable, "-m", *words], place)
    may_find_nothing = head in ("filter-logs", "stacks") or "scan" in words  # a rank before its first step
    assert result.code in ((0, 1) if may_find_nothing else (0,)), (words, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    said = SAID.get(" ".join(words[1:3]), SAID.get(head, ""))
    assert said in result.stdout + result.stderr, (words, result.stdout, result.stderr)


def test_the_page_of_the_viewer_is_served_until_ctrl_c(command_folder: Path) -> None:
    assert "`tdbg view`" in README.read_text(encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "tdbg", "view"], cwd=command_folder, env=build_environment({}), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\S+#token=\S+", address), (address, process.poll())
        with urllib.request.urlopen(address.partition("#")[0], timeout=PATIENCE_S) as page:
            assert "<title>tdbg</title>" in page.read().decode()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, "press Ctrl-C to stop" in said, "Traceback" in said) == (0, True, False), said
