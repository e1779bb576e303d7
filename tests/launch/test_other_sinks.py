"""`--to` with sinks of other packages: taken if they take runs, refused in two lines if not, and never in the way."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tdbg
from tdbg.core import sink_files
from tdbg.core.errors import TdbgError
from tdbg.core.rundir import RunDir
from tdbg.launch import sending
from tests.e2e.conftest import build_environment

TREE = Path(tdbg.__file__).parent.parent
SINKS = '''
import json
import os
import sys
import time
from pathlib import Path

from tdbg.metrics.sinks import MetricSink
from tdbg.metrics.sinks.base import SinkDisabled

print("a line that the import prints")


class Kept(MetricSink):
    """Keeps what it gets in a file of the run directory."""

    name = "kept"

    def __init__(self, path, about):
        self.path, self.got = path, [about]

    @classmethod
    def open_for_run(cls, run):
        print("a line that opening prints")
        about = {"name": run.name, "command": list(run.command), "level": run.level, "flags": dict(run.flags)}
        return cls(run.folder / f"{cls.name}.json", {**about, "own_runs": list(run.own_runs)})

    def write(self, row):
        self.got.append({"step": row.step, "keys": sorted(row.values)})

    def add_finding(self, finding):
        self.got.append({"code": finding["code"]})

    def add_report(self, headline, markdown):
        self.got.append({"headline": headline, "markdown": markdown})

    def describe_place(self):
        return f"the file {self.path.name}"

    def close(self):
        self.path.write_text(json.dumps(self.got))


class Silent(MetricSink):
    """Overrides one method alone."""

    name = "silent"

    @classmethod
    def open_for_run(cls, run):
        return cls()


class Off(Silent):
    name = "off-today"

    @classmethod
    def open_for_run(cls, run):
        raise SinkDisabled("THEIRS_MODE=off")


class FailsToOpen(Silent):
    name = "fails-to-open"

    @classmethod
    def open_for_run(cls, run):
        raise RuntimeError("no server\\nof that name")


class FailsToWrite(Kept):
    name = "fails-to-write"

    def write(self, row):
        raise OSError(28, "No space left on device", "there")


class FailsAtFinding(Kept):
    name = "fails-at-finding"

    def add_finding(self, finding):
        raise KeyError(finding["code"])


class FailsAtReport(Silent):
    name = "fails-at-report"

    def add_report(self, headline, markdown):
        sys.exit(0)


class FailsToClose(Silent):
    name = "fails-to-close"

    def close(self):
        raise ConnectionResetError("the server has gone")


class EndsTheProcess(Silent):
    name = "ends-the-process"

    def write(self, row):
        os._exit(0)


class NoClass(Silent):
    name = "returns-no-sink"

    @classmethod
    def open_for_run(cls, run):
        return None


class TakesNoRuns(MetricSink):
    name = "takes-no-runs"


class NeedsMore(Silent):
    name = "needs-more"
    package = "a_package_that_is_not_there"


class Unsayable(Silent):
    name = "not / a name"


def a_function():
    """No sink."""


class NoSink:
    name = "no-sink"


instance = Kept(Path(), {})
'''
FAILURES = {
    "fails-to-open": "RuntimeError: no server of that name",
    "fails-to-write": "No space left on device: there",
    "fails-at-finding": "KeyError: 'TD-N001'",
    "fails-at-report": "SystemExit: 0",
    "fails-to-close": "ConnectionResetError: the server has gone",
    "ends-the-process": "the sending process exited with code 0",
    "returns-no-sink": "AttributeError: 'NoneType' object has no attribute 'write'",
}
REFUSED = {
    "takes-no-runs": ("--to takes-no-runs: this sink cannot receive runs", "choose from: tensorboard, wandb, "),
    "no-sink": ("--to no-sink: this sink cannot receive runs", "choose from: tensorboard, wandb, "),
    "csv": ("--to csv: this sink cannot receive runs", "choose from: tensorboard, wandb"),
    "needs-more": (
        "--to needs-more: the package a_package_that_is_not_there is not installed in tdbg's environment",
        "install it: pip install a_package_that_is_not_there",
    ),
    "raises": ("--to raises: the sink raises_:Sink cannot be loaded (ValueError: boom)", "repair its package, or "),
    "exits": ("--to exits: the sink exits_:Sink cannot be loaded (SystemExit: 0)", "repair its package, or "),
    "vanished": ("--to vanished: the sink vanished_:Sink cannot be loaded (ModuleNotFoundError: ", "repair its "),
    "lacks": ("--to lacks: the sink theirs:Lacking cannot be loaded (AttributeError: ", "repair its package, or "),
    "function": ("--to function: the sink theirs:a_function cannot be loaded (AttributeError: ", "repair its "),
    "kepd": ("--to: unknown sink 'kepd'", "did you mean kept? choose from: tensorboard, wandb, "),
    "wandb,tensorboard": ("--to: unknown sink 'wandb,tensorboard'", "repeat the option: --to wandb --to tensorboard"),
    "a\0b": ("--to: unknown sink 'a\\x00b'", "choose from: tensorboard, wandb"),
    "a/b": ("--to: unknown sink 'a/b'", "choose from: tensorboard, wandb"),
    "a" * 100_000: (f"--to: unknown sink '{'a' * 60}...'", "choose from: tensorboard, wandb"),
    "mlflow": ("--to: unknown sink 'mlflow'", "choose from: tensorboard, wandb, "),
}
STEPS = 12
PROGRAM = f"""
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, {STEPS + 1}):
    batch = torch.full((8, 4), float("nan") if step == 9 else 0.5)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained", step)
raise SystemExit(7)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package that registers every sink of `SINKS`, and some that fail at import."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    names = {
        "kept": "Kept",
        "silent": "Silent",
        "off-today": "Off",
        "fails-to-open": "FailsToOpen",
        "fails-to-write": "FailsToWrite",
        "fails-at-finding": "FailsAtFinding",
        "fails-at-report": "FailsAtReport",
        "fails-to-close": "FailsToClose",
        "ends-the-process": "EndsTheProcess",
        "returns-no-sink": "NoClass",
        "takes-no-runs": "TakesNoRuns",
        "needs-more": "NeedsMore",
        "unsayable": "Unsayable",
        "lacks": "Lacking",
        "function": "a_function",
        "no-sink": "NoSink",
    }
    points = [f"{name} = theirs:{found}\n" for name, found in names.items()]
    points += [f"{name} = {name}_:Sink\n" for name in ("raises", "exits", "vanished")]
    (info / "entry_points.txt").write_text("[tdbg.metric_sinks]\n" + "".join(points))
    (folder / "theirs.py").write_text(SINKS)
    (folder / "raises_.py").write_text("raise ValueError('boom')\n")
    (folder / "exits_.py").write_text("import sys\nsys.exit(0)\n")
    return folder


def run_tdbg(folder: Path, site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = build_environment({"PYTHONPATH": f"{site}{os.pathsep}{TREE}"})
    command = [sys.executable, "-m", "tdbg", *words]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def sent(site: Path, tmp_path_factory: pytest.TempPathFactory) -> "tuple[subprocess.CompletedProcess[str], RunDir]":
    """One run that is sent to every sink, whether that works or not."""
    folder = tmp_path_factory.mktemp("sent")
    (folder / "train.py").write_text(PROGRAM)
    names = ["kept", "silent", "off-today", *FAILURES]
    options = [word for name in names for word in ("--to", name)]
    done = run_tdbg(
        folder, site, "run", "--run-dir", "run", *options, "--", sys.executable, "train.py", "--token", "s3cret"
    )
    return done, RunDir(folder / "run")


def test_the_program_is_not_touched(sent: "tuple[subprocess.CompletedProcess[str], RunDir]") -> None:
    done, _ = sent
    assert (done.returncode, done.stdout) == (7, f"trained {STEPS}\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_a_sink_gets_steps_findings_and_the_report(sent: "tuple[subprocess.CompletedProcess[str], RunDir]") -> None:
    done, run = sent
    about, *got = json.loads((run.path / "kept.json").read_text())
    assert about["name"] == "run" and about["level"] == "basic" and about["own_runs"] == []
    assert about["command"][-3:] == ["train.py", "--token", "***"]
    steps = [one for one in got if "step" in one]
    assert [one["step"] for one in steps] == list(range(1, STEPS + 1))
    assert all(key.startswith("tdbg/") for one in steps for key in one["keys"])
    assert "TD-N001" in [one["code"] for one in got if "code" in one]
    assert got[-1]["markdown"].startswith("#") and "NaN" in got[-1]["headline"]
    said = [line for line in done.stderr.splitlines() if line.startswith("tdbg: --to ")]
    assert sum("the report to the file kept.json" in line for line in said) == 1
    assert sum("the report to the sink silent" in line for line in said) == 1
    assert "tdbg: --to off-today: nothing was sent: THEIRS_MODE=off" in said


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_line(sent: "tuple[subprocess.CompletedProcess[str], RunDir]", name: str) -> None:
    done, run = sent
    said = [line for line in done.stderr.splitlines() if f"--to {name}" in line]
    (line,) = said
    assert line.startswith(f"tdbg: --to {name}: {FAILURES[name]}")
    assert line.endswith(f"; try again: `tdbg report {run.path.resolve()} --to {name}`")
    assert FAILURES[name] in "".join(one["error"] for one in sink_files.list_outcomes(run.path, name))


def test_a_sink_that_fails_is_closed_all_the_same(sent: "tuple[subprocess.CompletedProcess[str], RunDir]") -> None:
    _, run = sent
    assert (run.path / "fails-to-write.json").exists() and (run.path / "fails-at-finding.json").exists()


def test_what_a_sink_prints_is_no_part_of_the_report(
    sent: "tuple[subprocess.CompletedProcess[str], RunDir]", site: Path
) -> None:
    _, run = sent
    done = run_tdbg(run.path.parent, site, "report", "run", "--to", "kept", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert "a line that opening prints" in done.stderr


@pytest.mark.parametrize("name", ["fails-to-open", "fails-at-report", "fails-to-close"])
def test_report_says_what_failed(
    sent: "tuple[subprocess.CompletedProcess[str], RunDir]", site: Path, name: str
) -> None:
    _, run = sent
    done = run_tdbg(run.path.parent, site, "report", "run", "--to", name)
    lines = [line for line in done.stderr.splitlines() if "a line that" not in line]
    assert done.returncode == 2 and len(lines) == 2, done.stderr
    assert FAILURES[name] in lines[0] and "try again" in lines[1]


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package, for processes that this one starts."""
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{TREE}")
    return site


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name)[:20])
def test_what_cannot_be_opened_is_refused_before_the_start(installed: Path, name: str) -> None:
    what, hint = REFUSED[name]
    with pytest.raises(TdbgError) as refused:
        sending.check_packages([name])
    assert str(refused.value).startswith(what) and refused.value.hint.startswith(hint)
    assert refused.value.exit_code == 2 and "\n" not in f"{refused.value}{refused.value.hint}"


@pytest.mark.parametrize("name", ["kept", "fails-to-open"])
def test_a_sink_is_not_opened_before_the_end(installed: Path, name: str) -> None:
    sending.check_packages([name])


@pytest.mark.parametrize("command", ["run", "report"])
@pytest.mark.parametrize("name", ["takes-no-runs", "raises", "kepd", "", " ", "a/b", "*", "../x", "naïve", "unsayable"])
def test_a_refusal_has_two_lines(tmp_path: Path, site: Path, command: str, name: str) -> None:
    words = ["--", sys.executable, "-c", "open('started', 'w')"] if command == "run" else []
    if command == "report":
        RunDir.create(tmp_path / "run", {"command": ["x"], "start": 1.0})
        words = ["run"]
    done = run_tdbg(tmp_path, site, command, "--to", name, *words)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    lines = [line for line in done.stderr.splitlines() if "a line that" not in line]
    assert len(lines) == 2 and "--to" in done.stderr, done.stderr
    assert not (tmp_path / "started").exists() and not (tmp_path / "tdbg_runs").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import time\ntime.sleep(600)\n", "took more than 1 s"),
        ("import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(600)\n", "took more than 1 s"),
        ("import os\nos._exit(0)\n", "ended the process with code 0"),
        ("import os\nos._exit(3)\n", "ended the process with code 3"),
        ("import os\nos.abort()\n", "ended the process with code -6"),
    ],
    ids=["hangs", "hangs-for-good", "exit-0", "exit-3", "abort"],
)
def test_an_import_that_never_returns_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    info = tmp_path / "worse-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: worse\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tdbg.metric_sinks]\nworse = worse:Sink\n")
    (tmp_path / "worse.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{TREE}")
    if "sleep" in text:
        monkeypatch.setattr(sending, "LIMIT_S", 1.0)
    begun = time.monotonic()
    with pytest.raises(TdbgError, match=says) as refused:
        sending.check_packages(["worse"])
    assert refused.value.hint == "repair its package, or leave out --to worse"
    assert time.monotonic() - begun < 60
