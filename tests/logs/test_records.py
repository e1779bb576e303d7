"""Records at emit time, in a real run of the project beside this file: every call behind a flag is found, and no other."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import warm_command

PROJECT = Path(__file__).parent / "project"
FLAGS = (
    "GRADIENTS",
    "DATALOADER",
    "SCHEDULING",
    "LR",
    "VALIDATION",
    "MODEL_BUILD",
    "OWN_THING",
    "LOSS.NULL_MASKING",
    "LOSS.CLASS_WEIGHTING",
)


def build_environment(folder: Path) -> dict[str, str]:
    """Nothing of an outer run, and a cache of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("TDBG_", "PYTHONPATH", "RANK"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    return {**env, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


def run_watched(folder: Path, command: Sequence[str], flags: Sequence[str] = (), *more: str) -> Path:
    """`tdbg run` of a command in ``folder``; returns the run directory."""
    words = [word for flag in flags for word in ("-f", flag)]
    done = subprocess.run(
        warm_command([sys.executable, "-m", "tdbg", "run", "--run-dir", "run", *words, *more, "--", *command]),
        cwd=folder,
        env=build_environment(folder),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    trouble = folder / "run" / "boot" / "errors.log"
    assert not trouble.exists(), trouble.read_text()
    assert "probe_off" not in "".join(path.read_text() for path in (folder / "run").glob("**/events.jsonl"))
    return folder / "run"


def read_records(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"rank{rank:04d}" / "records.jsonl").read_text().splitlines()]


def read_truth(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = folder / "out" / f"truth{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def compute_scores(found: Counter[tuple[str, str]], wanted: Counter[tuple[str, str]]) -> tuple[float, float]:
    """Recall and precision of (flag, text) pairs."""
    right = (found & wanted).total()
    return right / max(wanted.total(), 1), right / max(found.total(), 1)


def count_pairs(lines: Sequence[Mapping[str, Any]], key: str) -> Counter[tuple[str, str]]:
    return Counter((flag, line[key]) for line in lines for flag in line["flags"])


@pytest.fixture(scope="module")
def project_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, run with every flag on."""
    place = tmp_path_factory.mktemp("records") / "project"
    shutil.copytree(PROJECT, place)
    run_watched(place, ["python", "train.py"], FLAGS)
    return place


def test_every_call_behind_a_flag_is_found(project_folder: Path) -> None:
    said, wanted = read_records(project_folder / "run"), read_truth(project_folder)
    recall, precision = compute_scores(count_pairs(said, "message"), count_pairs(wanted, "text"))
    print(f"at emit time: {len(wanted)} calls, recall {recall:.2%}, precision {precision:.2%}")
    assert len(wanted) > 100
    assert (recall, precision) == (1.0, 1.0)


def test_what_a_level_drops_is_written_for_tdbg_alone(project_folder: Path) -> None:
    dropped = Counter(line["text"] for line in read_truth(project_folder) if not line["shown"])
    marked = Counter(line["message"] for line in read_records(project_folder / "run") if line.get("suppressed"))
    own = (project_folder / "out" / "train_rank0.log").read_text()
    assert marked == dropped and dropped.total() >= 6
    assert not any(text in own for text in dropped)
    levels = {line["level"] for line in read_records(project_folder / "run") if line.get("suppressed")}
    assert levels == {"DEBUG", "STATS", "INFO"}


def test_the_programs_own_log_is_what_it_was(project_folder: Path, tmp_path: Path) -> None:
    """Byte for byte, but for its times, also with the flags in the program's own config and no tdbg at all."""
    place = tmp_path / "bare"
    shutil.copytree(PROJECT, place)
    opts = [word for flag in FLAGS for word in (f"DEBUG.{flag}", "True")]
    subprocess.run(
        warm_command([sys.executable, "train.py", *opts]),
        cwd=place,
        env=build_environment(tmp_path),
        check=True,
        timeout=100,
    )

    def without_times(text: str) -> list[str]:
        return [line[24:] if line[:2] == "20" else line for line in text.splitlines()]

    mine, bare = (path / "out" / "train_rank0.log" for path in (project_folder, place))
    assert without_times(mine.read_text()) == without_times(bare.read_text())


def test_steps_phases_and_prints(project_folder: Path) -> None:
    said = read_records(project_folder / "run")
    steps = [line["step"] for line in said if line["message"].startswith("step ")]
    assert steps == [1, 2, 3, 4, 5, 6]  # logged after the update
    assert [line["level"] for line in said if line["message"] == "trained"] == ["STDOUT"]
    assert all(list(line)[:4] == ["time", "level", "rank", "step"] for line in said)
    assert [line["time"] for line in said] == sorted(line["time"] for line in said)


def test_one_flag_alone(tmp_path: Path) -> None:
    place = tmp_path / "project"
    shutil.copytree(PROJECT, place)
    said = read_records(run_watched(place, ["python", "train.py"], ["LOSS.NULL_MASKING"]))
    recall, precision = compute_scores(count_pairs(said, "message"), count_pairs(read_truth(place), "text"))
    assert (recall, precision) == (1.0, 1.0)
    assert {flag for line in said for flag in line["flags"]} == {"LOSS.NULL_MASKING", "LOSS.CLASS_WEIGHTING"}


def test_two_ranks(tmp_path: Path) -> None:
    place = tmp_path / "project"
    shutil.copytree(PROJECT, place)
    command = ["torchrun", "--standalone", "--nproc-per-node=2", "train.py"]
    run_watched(place, command, FLAGS)
    for rank in (0, 1):
        said = read_records(place / "run", rank)
        recall, precision = compute_scores(count_pairs(said, "message"), count_pairs(read_truth(place, rank), "text"))
        print(f"rank {rank}: recall {recall:.2%}, precision {precision:.2%}")
        assert {line["rank"] for line in said} == {rank}
        assert (recall, precision) == (1.0, 1.0)
