"""Wrong values of options end in two lines and exit code 2, before anything is started, written or sent."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tdbg
from tests.e2e.conftest import build_environment

TREE = str(Path(tdbg.__file__).parent.parent)
NUMBERS = [
    "",
    " ",
    "nan",
    "-nan",
    "inf",
    "-inf",
    "-1",
    "-0.5",
    "1e999",
    "9" * 400,
    "2GB",
    "1s",
    "0x10",
    "²",
    "1,5",
    "--",
]
RUN = [
    *(["--allowance", value] for value in NUMBERS),
    ["--allowance"],
    *(["--on-finding", value] for value in ("", "\n", "'", "no-such-command", "./none.sh", ".", "$HOME/x", "ü")),
    *(
        ["--notify", value]
        for value in ("", "x", "http://", "http:///x", "ftp://h/x", "http://h:0/", "http://a..b/", "http://ü/")
    ),
    *(["--to", value] for value in ("", " ", ",", "wandbb", "csv", "wandb,", "\udcff", "a/b", "x" * 9000)),
    ["--to", "tensorboard", "--to", "none"],
    *([f"--preflight={value}"] for value in ("", "1", "no")),
    ["--preflight", "--exec"],
    ["--preflight", "--level", "off"],
    ["--preflight", "--capture", "layers.*:output"],
    ["--preflight", "--measure-overhead", "10"],
    ["--preflight", "--to", "tensorboard"],
    ["--preflight", "-f", "PROFILER"],
    ["--preflight", "-f", "PROFILER=nan"],
    ["--preflight", "--allowance", "nan"],
    ["--preflight", "--disk-budget", "0"],
    ["--preflight", "--no-preflight"],
]
ENVIRONMENT = [
    *(("TDBG_ALLOWANCE", value) for value in ("nan", "-1", "2GB", "1e999", "0x10")),
    *(("TDBG_TO", value) for value in ("wandbb", "tensorboard,none", "a/b", "☃")),
    *(("TDBG_NOTIFY", value) for value in ("x", "ftp://h/x", "http://", "http://h:99999/")),
    *(("TDBG_ON_FINDING", value) for value in ("'", " ", "a\\")),  # one that is not there fails when it is to run
    *(("TDBG_PREFLIGHT", value) for value in ("maybe", "2", "☃")),
]
REPORT = [
    *(["--html", name] for name in ("", " ", ".", "/", "one", "-", "mine.html", "link.html", "pipe.html", "loop.html")),
    *(
        ["--html", name]
        for name in ("none/x.html", "mine.html/x", "http://h/x.html", "x" * 300, "one/x.txt", "one/run.json")
    ),
    *(["--html", name, "--force"] for name in ("one", "pipe.html", "one/run.json", "one/rank0000/events.jsonl", " ")),
    ["--html"],
    *([f"--{form}={value}"] for form in ("markdown", "all", "json") for value in ("", "1")),
    ["--markdown", "--json"],
    ["--markdown", "--json", "--note", "a note"],
    ["--html", "none/x.html", "--note", "a note"],
    ["--html", "new.html", "--note", " "],
    ["--html", "new.html", "--to", "none"],
    ["--html", "new.html", "--fail-on", "severe"],
    ["--to", "tensorboard", "--html", "none/x.html"],
    ["--note", "a note", "--to", "none"],
]


def list_contents(folder: Path) -> dict[str, object]:
    """Everything below a folder: links, what files hold, and the rest by name."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        is_file = path.is_file() and not path.is_symlink()
        found[str(path)] = path.read_bytes() if is_file else (os.readlink(path) if path.is_symlink() else "")
    return found


def run_tdbg(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tdbg", *words]
    env = build_environment({"PYTHONPATH": TREE, "PYTHONDONTWRITEBYTECODE": "1", **variables})
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def assert_refused(done: "subprocess.CompletedProcess[str]") -> None:
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 2), done.stderr[:2000]
    assert all(line.startswith("tdbg: ") and len(line) < 500 for line in lines)


@pytest.mark.parametrize("options", RUN, ids=lambda words: ascii(" ".join(words))[1:50])
def test_run_starts_nothing(tmp_path: Path, options: list[str]) -> None:
    assert_refused(run_tdbg(tmp_path, "run", *options, "--", sys.executable, "-c", "open('started', 'w')"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), ENVIRONMENT, ids=ascii)
def test_a_wrong_value_of_the_environment_starts_nothing(tmp_path: Path, name: str, value: str) -> None:
    words = [sys.executable, "-c", "open('started', 'w')"]
    done = run_tdbg(tmp_path, "run", "--", *words, **{name: value})
    assert_refused(done)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, and files of other kinds."""
    folder = tmp_path_factory.mktemp("recorded")
    program = "import torch; p = torch.nn.Linear(2, 1); o = torch.optim.SGD(p.parameters(), 0.1)\n"
    program += "for _ in range(3): p(torch.ones(1, 2)).sum().backward(); o.step(); o.zero_grad()"
    done = run_tdbg(folder, "run", "--run-dir", "one", "--", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    (folder / "mine.html").write_text("mine")
    (folder / "link.html").symlink_to("mine.html")
    (folder / "loop.html").symlink_to("loop.html")
    os.mkfifo(folder / "pipe.html")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("options", REPORT, ids=lambda words: ascii(" ".join(words))[1:50])
def test_report_writes_nothing(recorded: Path, options: list[str]) -> None:
    before = list_contents(recorded)
    assert_refused(run_tdbg(recorded, "report", "one", *options))
    assert list_contents(recorded) == before


@pytest.mark.parametrize("run", ["none", "mine.html", "pipe.html", "loop.html", "empty", "", "ü☃", "x" * 300])
@pytest.mark.parametrize("options", [["--html", "new.html"], ["--markdown"], ["--all"]], ids=" ".join)
def test_a_report_of_what_is_no_run_writes_nothing(recorded: Path, run: str, options: list[str]) -> None:
    (recorded / "empty").mkdir(exist_ok=True)
    before = list_contents(recorded)
    assert_refused(run_tdbg(recorded, "report", run, *options))
    assert list_contents(recorded) == before


@pytest.mark.parametrize("name", ["new.html", "ü☃.html", "\udcff.html", "odd\n\x1b[2J.html"])
def test_a_page_with_an_odd_name_is_written(recorded: Path, name: str) -> None:
    done = run_tdbg(recorded, "report", "one", "--html", name)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "\x1b" not in done.stderr and (recorded / name).read_bytes().startswith(b"<!")
    (recorded / name).unlink()
