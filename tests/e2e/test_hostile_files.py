"""Every command that reads x every bad kind of file: an exit code, two lines, bounded memory and time; never a traceback."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import hostile_files
from tests.e2e.hostile_files import MAX_MB, MAX_S, PACKED, PLAIN

PROGRAM = """
import logging, torch
logging.basicConfig(level=logging.INFO)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    logging.info("loss %s", loss.item())
"""
LOG = b'2026-11-20 03:06:40,000 - rank0 - root - ERROR - [DEBUG_FORWARD] loss 1\n{"rank":0,"t":1}\n'


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound run, and a sound trace."""
    base = tmp_path_factory.mktemp("good")
    (base / "train.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "tdbg", "run", "-q", "--run-dir", "run", "--capture", "**:output"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TDBG_", "SLURM_"))}
    subprocess.run([*words, "--", sys.executable, "train.py"], cwd=base, env=env, check=True, timeout=120)
    (base / "run" / "findings.jsonl").write_text('{"t":1.0,"code":"TD-N001","severity":"error","title":"x 1"}\n')
    (base / "run" / "notes.jsonl").write_text('{"t":1.0,"text":"x 1"}\n')
    return base


def make_trace() -> bytes:
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": at * 100 + 1, "dur": 90, "args": {"a": 1}}
        for at in range(3)
        for cat, name in (("user_annotation", f"ProfilerStep#{at}"), ("cpu_op", "aten::add"))
    ]
    return json.dumps({"schemaVersion": 1, "rank": 0, "traceEvents": events}).encode()


class Runner:
    """The process that runs the cases of a test."""

    def __init__(self, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, hostile_files.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def __call__(self, *words: str) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (words, "the process died")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


@pytest.fixture
def command_runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A process for each test: in that of all of them the commands before a case have left 160 MB behind."""
    runner = Runner(tmp_path_factory.mktemp("cases"))
    yield runner
    runner.close()


def assert_sound_answer(done: dict[str, Any], what: str) -> None:
    """What holds of every command and every file."""
    assert done["code"] in (0, 1, 2), f"{what}: {done}"
    lines = done["err"].splitlines()
    assert not any("Traceback" in line or "itself failed" in line for line in lines), f"{what}: {done}"
    assert all(line.startswith("tdbg: ") for line in lines), f"{what}: {done}"
    most = 25 if what.startswith("inspect-pages") else 2  # pages that cannot be read are named, then what to do
    assert 2 <= len(lines) <= most or done["code"] != 2, f"{what}: {done}"
    assert done["s"] < MAX_S and done["mb"] < MAX_MB, f"{what}: {done}"


def replace_with_bad(path: Path, kind: str, make: Any, good: bytes) -> None:
    """Put a bad file in the place of a good one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path, good)


LOGS = (["filter-logs", "-f", "FORWARD"], ["filter-logs", "--silent"], ["filter-logs", "--errors"])
PAGE = ["report", "--force", "--html", "report.html"]
TEXTS = (["report", "--markdown"], ["report", "--all"])
# files of a run -> the commands that read them
RUN_FILES: dict[str, tuple[list[str], ...]] = {
    "run.json": (["report"], *TEXTS, PAGE, ["status"], ["flags", "doctor"], ["metrics", "show"], LOGS[1]),
    "rank0000/events.jsonl": (["report"], *TEXTS, PAGE, ["status"], ["flags", "doctor"]),
    "rank0000/metrics.jsonl": (["metrics", "show"], ["metrics", "sanity"], ["report"]),
    "rank0000/records.jsonl": (["flags", "doctor"], *LOGS),
    "rank0000/debug_log_rank0.txt": LOGS,
    "rank0000/owner.json": (["status"],),
    "findings.jsonl": (["status"], ["report"]),
    "notes.jsonl": (["report"], PAGE),
    "hello/x.json": (["report"], ["status"]),
}


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_bad_file_in_a_run_directory(name: str, sound_run: Path, command_runner: Runner, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound_run / "run", run)
    path = run / name
    sound = path.read_bytes() if path.exists() else b'{"rank":0,"t":1}\n'
    trouble = []
    for kind, make in PLAIN.items():
        replace_with_bad(path, kind, make, sound)
        for command in RUN_FILES[name]:
            try:
                assert_sound_answer(command_runner(*command, str(run)), f"{' '.join(command)} with {name}: {kind}")
            except AssertionError as error:
                trouble.append(str(error).partition("\n")[0][:600])
    assert not trouble, "\n".join(trouble)


VIEWS = (
    ["-f", "FORWARD", "-o", "/dev/null"],
    ["--stats"],
    ["--silent"],
    ["--errors"],
    ["--collapse", "-o", "/dev/null"],
    ["--diverge"],
)


def test_a_bad_log(command_runner: Runner, tmp_path: Path) -> None:
    trouble = []
    for kind, make in {**PLAIN, **{f"{kind}.gz": make for kind, make in PACKED.items()}}.items():
        path = tmp_path / ("x.log.gz" if kind.endswith(".gz") else "x.log")
        replace_with_bad(path, kind, make, LOG)
        if kind == "fifo":
            continue  # a log may be one; it waits for who writes
        for view in VIEWS:
            try:
                assert_sound_answer(command_runner("filter-logs", str(path), *view), f"{' '.join(view)}: {kind}")
            except AssertionError as error:
                trouble.append(str(error).partition("\n")[0][:600])
        path.unlink() if not path.is_dir() else shutil.rmtree(path)
    assert not trouble, "\n".join(trouble)


def test_a_bad_trace(command_runner: Runner, tmp_path: Path) -> None:
    trouble = []
    sound = make_trace()
    (tmp_path / "good").mkdir()
    other = tmp_path / "good" / "other.pt.trace.json"
    other.write_bytes(sound)
    for kind, make in {**PLAIN, **{f"{kind}.gz": make for kind, make in PACKED.items()}}.items():
        path = tmp_path / ("x.pt.trace.json.gz" if kind.endswith(".gz") else "x.pt.trace.json")
        replace_with_bad(path, kind, make, sound)
        for command in (
            ["show"],
            ["advise"],
            ["flame"],
            ["compare", str(other)],
            ["slice", "--step", "1", "--force", "-o", str(tmp_path / "out.json")],
        ):
            try:
                assert_sound_answer(command_runner("trace", *command, str(path)), f"{' '.join(command)}: {kind}")
            except AssertionError as error:
                trouble.append(str(error).partition("\n")[0][:600])
        path.unlink() if not path.is_dir() else shutil.rmtree(path)
    assert not trouble, "\n".join(trouble)


def test_a_bad_file_of_another_kind(command_runner: Runner, sound_run: Path, tmp_path: Path) -> None:
    """Maps of flags, sources, page files and their journals, rows of metrics."""
    trouble = []
    log = tmp_path / "good.log"
    log.write_bytes(LOG)
    pages = tmp_path / "run"
    shutil.copytree(sound_run / "run", pages)
    page_files = [path for path in sorted((pages / "rank0000" / "pages").rglob("*")) if path.is_file()]
    assert page_files
    places = [
        (
            tmp_path / "flags.toml",
            b"x = 1\n",
            [["filter-logs", str(log), "-f", "FORWARD", "--map", str(tmp_path / "flags.toml")]],
        )
    ]
    places += [(tmp_path / "source" / "x.py", b"x = 1\n", [["flags", "scan", str(tmp_path / "source")]])]
    rows = tmp_path / "rows.jsonl"
    places += [
        (rows, b'{"step":1,"rank":0,"t":1}\n', [["metrics", way, str(rows)] for way in ("show", "sanity", "dump")])
    ]
    for path in page_files:
        ways = ["ls", "verify", "stats"]
        places += [(path, path.read_bytes(), [["inspect-pages", way, str(pages)] for way in ways])]
    for path, sound, commands in places:
        path.parent.mkdir(exist_ok=True)
        for kind, make in PLAIN.items():
            replace_with_bad(path, kind, make, sound)
            for words in commands:
                try:
                    assert_sound_answer(command_runner(*words), f"{' '.join(words)} {path.name}: {kind}")
                except AssertionError as error:
                    trouble.append(str(error).partition("\n")[0][:600])
        path.unlink() if not path.is_dir() else shutil.rmtree(path)
        path.write_bytes(sound)
    assert not trouble, "\n".join(trouble)


def test_a_rank_beyond_all_numbers_costs_nothing(command_runner: Runner, tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("2026-11-20 03:06:40,000 ERROR [rank3] a\n2026-11-20 03:06:41,000 ERROR [rank9999999] b\n")
    for view in VIEWS:
        done = command_runner("filter-logs", str(log), *view)
        assert_sound_answer(done, " ".join(view))
        assert len(done["err"]) < 2000 and done["out"] < 2000 and done["grown_mb"] < 30, done


def test_gzip_is_told_what_is_wrong_with_it(command_runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(LOG * 5000)[:-300])
    done = command_runner("filter-logs", str(path), "--stats")
    assert "damaged" in done["err"] or "middle" in done["err"], done
