"""examples/taxa: each fault is named by tdbg, and the same run without it is silent."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.flags import FLAGS, tag
from tdbg.launch import metrics_findings
from tdbg.rules.rule_engine import judge_run
from tests.chance import pick_share
from tests.e2e.conftest import Result, run_command

TAXA = Path(__file__).parents[2] / "examples" / "taxa"
TINY = ("DATA.WORDS", 800, "DATA.BATCH_SIZE", 32, "TRAIN.EPOCHS", 2, "TRAIN.WARMUP", 5, "WANDB.PROJECT", "tiny")


WANDB = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
GRADNORM = ("LOSS.GRADNORM.ENABLED", True, "LOSS.GRADNORM.INTERVAL", 2)
HEALTHY: dict[str, tuple[object, ...]] = {  # of faults whose setting is the fault, or a part of it
    "too-short": ("TRAIN.MAX_STEPS", 36),
    "never-validates": (),
    "gradnorm-collapse": GRADNORM,
}
CALM: dict[str, tuple[str, ...]] = {  # options; a rank that starts a second late, on a busy machine, is late indeed
    "rank-skew": ("--threshold", "DISTRIBUTED.quiet_s=6"),
}
SILENT = ("PROFILER",)  # writes no line where all goes well


@cache
def load_faults() -> dict[str, Any]:
    """The table of faults, as the example prints it: name -> the row."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from faults import FAULTS;"
        "print(json.dumps({n: [n, f.flag, f.code, f.settings, f.options, f.ranks, f.resumes] for n, f in FAULTS.items()}))"
    )
    result = run_command([sys.executable, "-c", code, str(TAXA)], TAXA)
    assert result.code == 0, result.stderr
    fields = ("name", "flag", "code", "settings", "options", "ranks", "resumes")
    return {name: dict(zip(fields, row, strict=True)) for name, row in json.loads(result.stdout).items()}


def iter_fault_names() -> Iterator[str]:
    """All faults, read from the source: collecting tests starts no process."""
    return iter(re.findall(r'^@fault\(\s*"([\w-]+)"', (TAXA / "faults.py").read_text(encoding="utf-8"), re.M))


def build_train_command(*settings: object, ranks: int = 1, fault: str = "") -> list[str]:
    """The command that trains on few words."""
    start = [sys.executable] if ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
    chosen = ["--fault", fault] if fault else []
    return [*start, str(TAXA / "train.py"), *chosen, "--opts", *map(str, (*TINY, *settings))]


def choose_settings(row: dict[str, Any], *, healthy: bool) -> tuple[object, ...]:
    """What a fault needs to show; where a setting itself is the fault, the healthy run has another."""
    if healthy and row["name"] in HEALTHY:
        return HEALTHY[row["name"]]
    return tuple(row["settings"])


def run_watched(place: Path, flags: Sequence[str], options: Sequence[str], words: Sequence[str]) -> Result:
    """A command under `tdbg run`, in a folder of its own."""
    chosen = [word for flag in flags for word in ("--flag", flag)]
    command = [sys.executable, "-m", "tdbg", "run", "--run-dir", str(place / "run"), *chosen, *options, "--", *words]
    result = run_command(command, place, WANDB)
    result.folder = place / "run"
    return result


def prepare_resume(row: dict[str, Any], place: Path) -> tuple[object, ...]:
    """The settings of a run that goes on from a checkpoint, once that is made."""
    if not row["resumes"]:
        return ()
    first = run_command(build_train_command("TRAIN.EPOCHS", 1, "OUTPUT", place / "out"), place)
    assert first.code == 0, first.stderr
    return ("CHECKPOINT.RESUME", place / "out" / "last.pt")


def judge_result(result: Result) -> tuple[list[str], Any]:
    """All codes, those of the metrics too, and the verdict."""
    found = metrics_findings.add_metrics_findings(judge_run(result.run_dir), result.run_dir)
    return [finding.code for finding in found.findings], found


@pytest.mark.parametrize("name", iter_fault_names())
def test_the_fault_is_named(tmp_path: Path, name: str) -> None:
    row = load_faults()[name]
    settings = (*choose_settings(row, healthy=False), *prepare_resume(row, tmp_path))
    flags = [row["flag"]] if row["flag"] not in ("", "PROFILER") else []
    result = run_watched(
        tmp_path, flags, row["options"], build_train_command(*settings, ranks=row["ranks"], fault=name)
    )
    codes, found = judge_result(result)
    assert row["code"] in codes, f"{codes}\n{result.stderr}"
    assert found.trouble == [] and found.cost.get("errors", 0) == 0, result.stderr


Group = tuple[tuple[object, ...], tuple[str, ...], int, bool]


@pytest.fixture(scope="module")
def healthy_runner(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """The run without its fault: of those with the same settings and options one, with all of their flags on."""
    rows = load_faults()
    groups: dict[Group, list[str]] = {}
    for name, row in rows.items():
        groups.setdefault(get_group(row), []).append(name)
    done: dict[Group, Result] = {}

    def run_healthy(name: str) -> Result:
        group = get_group(rows[name])
        if group not in done:
            settings, options, ranks, _ = group
            place = tmp_path_factory.mktemp("healthy")
            flags = {rows[other]["flag"] for other in groups[group]} - {"", "PROFILER"}
            words = build_train_command(*settings, *prepare_resume(rows[name], place), ranks=ranks)
            done[group] = run_watched(place, sorted(flags), options, words)
        return done[group]

    return run_healthy


def get_group(row: dict[str, Any]) -> Group:
    options = CALM.get(row["name"], tuple(row["options"]))
    return choose_settings(row, healthy=True), options, row["ranks"], row["resumes"]


@pytest.mark.parametrize("name", pick_share(iter_fault_names(), 3))
def test_health_is_silent(healthy_runner: Callable[[str], Result], name: str) -> None:
    result = healthy_runner(name)
    codes, found = judge_result(result)
    assert result.code == 0, result.stderr
    assert codes == [] and found.trouble == [] and found.cost.get("errors", 0) == 0, result.stderr
    row = load_faults()[name]
    if row["flag"] not in ("", *SILENT):
        logs = [path.read_text(encoding="utf-8") for path in result.folder.glob("rank*/debug_log_rank*.txt")]
        assert any(tag(row["flag"]).rstrip("]") in text for text in logs), "the flag was at work"


def test_every_flag_has_a_fault() -> None:
    assert {row["flag"] for row in load_faults().values()} - {""} == {flag.name for flag in FLAGS}
    assert list(iter_fault_names()) == list(load_faults())


def test_the_page_has_the_table() -> None:
    text = (TAXA / "README.md").read_text(encoding="utf-8")
    for name, row in load_faults().items():
        assert f"| `{name}` | {row['flag'] or 'none needed'} | {row['code']} |" in text


def test_two_ranks_say_the_same(tmp_path: Path) -> None:
    """Both ranks hold the figures of the whole validation part, and record all their flags."""
    result = run_watched(
        tmp_path, ["LOSS.NULL_MASKING"], (), build_train_command("LOSS.NULL_MASKING.ENABLED", True, ranks=2)
    )
    assert result.code == 0, result.stderr
    last = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(result.folder.glob("rank*/metrics.jsonl"))
    ]
    figures = [
        [
            row["values"]["val/loss"]
            for row in rows
            if "val/acc1_family" in row.get("values", {}) and row["source"] != "text"  # the log says it too
        ]
        for rows in last
    ]
    assert len(figures) == 2 and figures[0] and figures[0] == figures[1]
    for rank in (0, 1):
        text = (result.folder / f"rank{rank:04d}" / f"debug_log_rank{rank}.txt").read_text(encoding="utf-8")
        assert all(f"[DEBUG_NULL_MASKING_{part}]" in text for part in ("INPUT", "INTERNAL", "SUMMARY"))
