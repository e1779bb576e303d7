"""Wrong use and a hostile disk: the exit code, what is wrong, and what to do next; training goes on where it can."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TDBG = [sys.executable, "-m", "tdbg", "run"]

TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, int(sys.argv[1]) + 1):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
print("trained", flush=True)
"""

Run = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    for name in [name for name in os.environ if name.startswith(("TDBG_", "TORCHELASTIC_", "SLURM_"))]:
        monkeypatch.delenv(name)


def run_tdbg(*words: str, **kwargs: object) -> Run:
    return subprocess.run([*TDBG, *words], capture_output=True, text=True, timeout=120, **kwargs)  # type: ignore[call-overload]


def assert_refused(done: Run, code: int, what: str, next_: str) -> None:
    """Exactly two lines on stderr, nothing on stdout, and the code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert all(line.startswith("tdbg: ") for line in lines)
    assert what in lines[0] and next_ in lines[1], done.stderr


WRONG = {
    "unknown option": (["--levle", "basic"], "no such option: --levle", "did you mean --level"),
    "unknown flag": (
        ["-f", "LOSS.NULL_MASKIN"],
        "no flag is named 'LOSS.NULL_MASKIN'",
        "did you mean LOSS.NULL_MASKING?",
    ),
    "unknown flag, unlike any": (["-f", "QQQQ"], "no flag is named 'QQQQ'", "tdbg flags list"),
    "unknown short name": (["-f", "debug_memory_usag"], "no flag is named", "did you mean memory_usage?"),
    "unknown flag to switch off": (["--no-flag", "GRADIENT"], "no flag is named 'GRADIENT'", "did you mean GRADIENTS?"),
    "empty value": (["-f", "PROFILER="], "has an empty value", "--flag PROFILER=VALUE"),
    "unknown preset": (["--preset", "numeric"], "no preset is named 'numeric'", "did you mean numerics?"),
    "bad level": (["--level", "basik"], "level cannot be 'basik'", "did you mean basic? choose from: off, basic"),
    "bad inject mode": (["--inject", "yac"], "inject cannot be 'yac'", "did you mean yacs?"),
    "bad severity": (["--fail-on", "fatal"], "fail-on cannot be 'fatal'", "critical"),
    "bad stop": (["--stop-on", "TD-N01"], "no finding has the code or severity 'TD-N01'", "did you mean TD-N0"),
    "bad log level": (["--log-level", "LOUD"], "log-level cannot be 'LOUD'", "choose from"),
    "bad share": (["--max-overhead", "much"], "max-overhead must be a percentage", "such as 1 or 0.3"),
    "share out of range": (["--max-overhead", "0"], "above 0 and at most 100", "such as 1 or 0.3"),
    "bad size": (["--disk-budget", "big"], "not a size: 'big'", "such as 500MB"),
    "not a number": (["--baseline", "x"], "baseline", ""),
    "negative number": (["--baseline", "-3"], "-3 is less than 1", "write a whole number from 1 on"),
    "a name that is a path": (["--name", "a/b"], "invalid run name", "--run-dir"),
    "unknown profile": (["--profile-name", "prod"], "no profile is named 'prod'", "tool.tdbg.profiles.prod"),
    "a path that PYTHONPATH cannot carry": (["--run-dir", "a:b"], "cannot have ':'", "--run-dir"),
    "option without its value": (["--level"], "requires an argument", "tdbg run --help"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_2_and_nothing_is_started(case: str) -> None:
    words, what, next_ = WRONG[case]
    command = [] if case.startswith("option without") else ["--", "touch", "started"]
    assert_refused(run_tdbg(*words, *command), 2, what, next_)
    assert sorted(os.listdir()) == ["train.py"]


@pytest.mark.parametrize("words", [[], ["--"], ["--tee"], ["--level", "basic", "--"]])
def test_no_command_is_2(words: list[str]) -> None:
    assert_refused(run_tdbg(*words), 2, "no command to run", "tdbg run -- python train.py")
    assert sorted(os.listdir()) == ["train.py"]


def test_bad_values_of_other_sources_name_the_source() -> None:
    Path("tdbg.yaml").write_text("level: loud\n")
    assert_refused(run_tdbg("--", "true"), 2, "tdbg.yaml: level cannot be 'loud'", "choose from")
    Path("tdbg.yaml").write_text("levle: basic\n")
    assert_refused(run_tdbg("--", "true"), 2, "tdbg.yaml: unknown setting 'levle'", "level")
    Path("tdbg.yaml").write_text("level: [\n")
    assert_refused(run_tdbg("--", "true"), 2, "cannot read", "correct its YAML")
    Path("tdbg.yaml").unlink()
    assert_refused(
        run_tdbg("--", "true", env={**os.environ, "TDBG_LEVEL": "loud"}),
        2,
        "environment: level cannot be",
        "choose from",
    )
    Path("pyproject.toml").write_text("[tool.tdbg\n")
    assert_refused(run_tdbg("--", "true"), 2, "pyproject.toml", "correct its TOML syntax")


def test_a_flag_the_programs_source_knows_is_no_mistake() -> None:
    Path("train.py").write_text("cfg = {}\nif cfg.DEBUG.MY_OWN_FLAG:\n    pass\n")
    assert run_tdbg("--dry-run", "-f", "MY_OWN_FLAG", "--", sys.executable, "train.py").returncode == 0
    done = run_tdbg("--dry-run", "-f", "MY_OWN_FLAQ", "--", sys.executable, "train.py")
    assert_refused(done, 2, "no flag is named 'MY_OWN_FLAQ'", "did you mean MY_OWN_FLAG?")


def test_a_directory_of_another_run_is_refused_and_left_as_it_was() -> None:
    assert run_tdbg("--run-dir", "d", "-q", "--", "true").returncode == 0
    before = {path: path.read_bytes() for path in Path("d").rglob("*") if path.is_file()}
    assert_refused(
        run_tdbg("--run-dir", "d", "--", "touch", "started"),
        2,
        "already holds a run (true)",
        "choose another --run-dir",
    )
    assert {path: path.read_bytes() for path in Path("d").rglob("*") if path.is_file()} == before
    assert not Path("started").exists()


def test_a_directory_with_other_files_is_refused() -> None:
    Path("d").mkdir()
    Path("d/thesis.tex").write_text("")
    assert_refused(
        run_tdbg("--run-dir", "d", "--", "true"), 2, "is not empty and holds no run", "choose another --run-dir"
    )


def test_a_file_in_the_place_of_the_directory_is_wrong_use() -> None:
    Path("d").write_text("")
    assert_refused(run_tdbg("--run-dir", "d", "--", "true"), 2, "is not a folder", "--run-dir")
    Path("tdbg_runs").write_text("")
    assert_refused(run_tdbg("--", "true"), 2, "is not a folder", "--run-dir")


CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24


def drop_file_privileges() -> None:
    """In a child about to start: root without its power over file permissions."""
    if os.geteuid() == 0 and sys.platform == "linux":
        import ctypes

        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0


def test_a_folder_one_may_not_write_is_125() -> None:
    Path("locked").mkdir(mode=0o555)
    done = run_tdbg("--run-dir", "locked/run", "--", "touch", "started", preexec_fn=drop_file_privileges)
    assert_refused(done, 125, "cannot write the run directory", "choose one that can be written with --run-dir")
    assert "Permission denied" in done.stderr
    done = run_tdbg("--", "touch", "../started", cwd="locked", preexec_fn=drop_file_privileges)
    assert_refused(done, 125, "cannot write the run directory", "--run-dir")
    assert not Path("started").exists()


class Disk:
    """A place with little room: a small tmpfs, or where that may not be mounted, a limit on the size of files."""

    def __init__(self, path: Path, room: int) -> None:
        self.path = path
        self.room = room
        path.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(path)]
        self.mounted = bool(shutil.which("mount")) and subprocess.run(words, capture_output=True).returncode == 0

    def fill_up(self) -> None:
        """Leave no room at all."""
        self.room = 0
        if self.mounted:
            (self.path / "ballast").touch()
            with contextlib.suppress(OSError), open(self.path / "ballast", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass

    def make_readonly(self) -> None:
        """Nothing can be written any more."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True, capture_output=True)

    def limit_file_size(self) -> None:
        """In a child about to start: the limit, where there is no file system of our own."""
        if not self.mounted:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, (self.room, self.room))

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    """Makes places with little room."""
    made: list[Disk] = []

    def make_one(room: int) -> Disk:
        made.append(Disk(tmp_path / f"disk{len(made)}", room))
        return made[-1]

    yield make_one
    for found in made:
        found.unmount()


def test_a_full_disk_at_the_start_is_125(make_disk: Callable[[int], Disk]) -> None:
    place = make_disk(64 << 10)
    place.fill_up()
    done = run_tdbg("--run-dir", str(place.path / "run"), "--", "touch", "started", preexec_fn=place.limit_file_size)
    assert_refused(done, 125, "cannot write the run directory", "choose one that can be written with --run-dir")
    assert not Path("started").exists()


def test_a_disk_with_room_for_run_json_alone_is_125(make_disk: Callable[[int], Disk]) -> None:
    place = make_disk(8 << 10)  # two pages: run.json takes one, the boot file needs two
    room = 3000 if not place.mounted else place.room
    place.room = room
    done = run_tdbg("--run-dir", str(place.path / "run"), "--", "touch", "started", preexec_fn=place.limit_file_size)
    assert_refused(done, 125, "cannot write", "--run-dir")
    assert not Path("started").exists()


def test_a_read_only_file_system_is_125(make_disk: Callable[[int], Disk]) -> None:
    place = make_disk(64 << 10)
    if place.mounted:
        place.make_readonly()
        folder = place.path
    else:
        folder = Path("/System" if sys.platform == "darwin" else "/proc")
    done = run_tdbg("--run-dir", str(folder / "run"), "--", "touch", "started")
    assert_refused(done, 125, "cannot write the run directory", "choose one that can be written with --run-dir")
    assert not place.mounted or "Read-only file system" in done.stderr
    assert not Path("started").exists()


def test_no_space_half_way_costs_records_and_not_the_training(make_disk: Callable[[int], Disk]) -> None:
    place = make_disk(160 << 10)
    folder = place.path / "run"
    words = ["--run-dir", str(folder), "--max-overhead", "100", "--", sys.executable, "train.py", "2000"]
    done = run_tdbg(*words, preexec_fn=place.limit_file_size)
    assert done.returncode == 0, done.stderr
    bare = subprocess.run([sys.executable, "train.py", "2000"], capture_output=True, text=True, timeout=120)
    assert done.stdout == bare.stdout
    said = [line for line in done.stderr.splitlines() if "cannot write events" in line]
    assert len(said) == 1 and "training goes on" in said[0], done.stderr
    lines = (folder / "rank0000" / "events.jsonl").read_bytes().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    assert len(lines) - len(whole) <= 1
    assert sum(event["type"] == "step" for event in whole) > 20
    report = subprocess.run([sys.executable, "-m", "tdbg", "report", str(folder)], capture_output=True, text=True)
    assert report.returncode == 0, report.stderr
    assert "verdict" in report.stdout + report.stderr


def test_no_space_half_way_costs_the_copy_and_not_the_output(make_disk: Callable[[int], Disk]) -> None:
    place = make_disk(64 << 10)
    text = "import sys\nfor i in range(20_000): print(i, 'x' * 20)\nsys.exit(6)"
    words = ["--tee", "--run-dir", str(place.path / "run"), "--", sys.executable, "-c", text]
    done = run_tdbg(*words, preexec_fn=place.limit_file_size)
    assert done.returncode == 6
    assert done.stdout == "".join(f"{i} {'x' * 20}\n" for i in range(20_000))
    lines = done.stderr.splitlines()
    at = next(i for i, line in enumerate(lines) if "stopped writing" in line)
    assert "stdout.log" in lines[at]
    assert lines[at + 1] == "tdbg: the output itself is complete; the run goes on"
    assert (place.path / "run" / "stdout.log").read_text() == done.stdout[
        : (place.path / "run" / "stdout.log").stat().st_size
    ]


def test_a_run_directory_that_vanishes_half_way_costs_the_record_and_not_the_training() -> None:
    text = "import shutil, sys, torch\n" + TRAIN.replace(
        "    if step % 100 == 0:\n", "    if step == 50:\n        shutil.rmtree('run')\n    if step % 100 == 0:\n"
    )
    Path("train.py").write_text(text)
    done = run_tdbg("--run-dir", "run", "--", sys.executable, "train.py", "400")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "trained"
    assert all(line.startswith("tdbg: ") for line in done.stderr.splitlines()), done.stderr
    assert "run.json" in done.stderr


def test_a_file_system_that_turns_read_only_costs_records_and_not_the_training(
    make_disk: Callable[[int], Disk],
) -> None:
    """It turns after the start, before the first step. Where none may be mounted, the folder is locked instead."""
    place = make_disk(4 << 20)
    remount = f"ctypes.CDLL(None).mount(b'tmpfs', {os.fsencode(place.path)!r}, b'tmpfs', 32 | 1, None)"  # MS_REMOUNT | MS_RDONLY
    lock = f"os.chmod({str(place.path / 'run')!r}, 0o555)"
    ruin = f"import ctypes, os\nassert not {remount if place.mounted else lock}\n"
    Path("train.py").write_text(TRAIN.replace("torch.manual_seed(0)\n", ruin))
    words = ["--run-dir", str(place.path / "run"), "--", sys.executable, "train.py", "400"]
    done = run_tdbg(*words, preexec_fn=None if place.mounted else drop_file_privileges)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "trained"
    assert all(line.startswith("tdbg: ") for line in done.stderr.splitlines()), done.stderr
    assert "cannot write" in done.stderr and str(place.path) in done.stderr
    assert not (place.path / "run" / "rank0000").exists()
