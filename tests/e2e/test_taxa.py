"""examples/taxa: each fault is named by tdbg, and the same run without it is silent."""

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tdbg.flags import FLAGS
from tests.e2e.conftest import Result, Runner, call, nothing_found

TAXA = Path(__file__).parents[2] / "examples" / "taxa"
TINY = ("DATA.WORDS", 800, "DATA.BATCH_SIZE", 32, "TRAIN.EPOCHS", 2, "TRAIN.WARMUP", 5, "WANDB.PROJECT", "tiny")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """W&B stays here."""
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


@cache
def planted() -> dict[str, Any]:
    """The table of faults, as the example prints it: name -> the row."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from faults import FAULTS;"
        "print(json.dumps({n: [f.flag, f.code, f.settings, f.options, f.ranks, f.resumes] for n, f in FAULTS.items()}))"
    )
    import json

    result = call([sys.executable, "-c", code, str(TAXA)], TAXA)
    assert result.code == 0, result.stderr
    fields = ("flag", "code", "settings", "options", "ranks", "resumes")
    return {name: dict(zip(fields, row, strict=True)) for name, row in json.loads(result.stdout).items()}


def names() -> Iterator[str]:
    """All faults, read from the source: collecting tests starts no process."""
    import re

    return iter(re.findall(r'^@fault\(\s*"([\w-]+)"', (TAXA / "faults.py").read_text(encoding="utf-8"), re.M))


def train(*settings: object, ranks: int = 1, fault: str = "") -> list[str]:
    """The command that trains on few words."""
    start = [sys.executable] if ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    chosen = ["--fault", fault] if fault else []
    return [*start, str(TAXA / "train.py"), *chosen, "--opts", *map(str, (*TINY, *settings))]


def run_fault(watched: Runner, tmp_path: Path, name: str, *, healthy: bool) -> Result:
    """A fault's run, with its settings, its flag and its options; or the same without it."""
    row = planted()[name]
    settings: Sequence[object] = row["settings"]
    if name in ("too-short", "never-validates") and healthy:  # the setting itself is the fault
        settings = {"too-short": ("TRAIN.MAX_STEPS", 36), "never-validates": ()}[name]
    if row["resumes"]:
        first = call(train("TRAIN.EPOCHS", 1, "OUTPUT", tmp_path / "out"), tmp_path)
        assert first.code == 0, first.stderr
        settings = (*settings, "CHECKPOINT.RESUME", tmp_path / "out" / "last.pt")
    flag = ("--flag", row["flag"]) if row["flag"] and row["flag"] != "PROFILER" else ()
    words = train(*settings, ranks=row["ranks"], fault="" if healthy else name)
    return watched(words, (*flag, *row["options"]))


@pytest.mark.parametrize("name", names())
def test_the_fault_is_named(watched: Runner, tmp_path: Path, name: str) -> None:
    result = run_fault(watched, tmp_path, name, healthy=False)
    code = planted()[name]["code"]
    assert code in result.codes, f"{result.codes}\n{result.stderr}"
    assert result.verdict["trouble"] == [] and result.verdict["cost"].get("errors", 0) == 0, result.stderr


@pytest.mark.parametrize("name", names())
def test_health_is_silent(watched: Runner, tmp_path: Path, name: str) -> None:
    result = run_fault(watched, tmp_path, name, healthy=True)
    assert result.code == 0, result.stderr
    nothing_found(result)


def test_every_flag_has_a_fault() -> None:
    assert {row["flag"] for row in planted().values()} - {""} == {flag.name for flag in FLAGS}
    assert list(names()) == list(planted())
