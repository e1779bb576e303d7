"""What starts two ranks on one machine: Ray Train, accelerate, Lightning Fabric, torch.multiprocessing."""

import sys
from functools import partial
from pathlib import Path

from tests.e2e.conftest import build_environment
from tests.e2e.places.answers import judge_answer, print_answer, read_first_finding, run_quietly
from tests.e2e.rank_table.__main__ import run_case
from tests.e2e.rank_table.cases import Case

HERE = Path(__file__).parent
HANG_S = 15.0  # tdbg's own limit
KINDS = {"none": "healthy", "sleep": "one rank asleep", "raise": "one rank raises"}


def try_ray(folder: Path) -> list[bool]:
    """Two workers of Ray Train."""
    program = (sys.executable, str(HERE / "ray_train.py"), "nan", "60", str(folder / "results"))
    env = build_environment({"RAY_USAGE_STATS_ENABLED": "0"})
    run_quietly(sys.executable, "-m", "tdbg", "run", "--run-dir", "ray", "--", *program, cwd=folder, env=env)
    said = read_first_finding(folder / "ray")
    return [judge_answer("TorchTrainer, 2 workers, NaN on rank 1", said, "TD-N001", "rank 1")]


def try_ranks(by: str, folder: Path) -> list[bool]:
    """Two ranks of this launcher: a healthy run, and faults whose answer has the rank and the line."""
    return [try_kind(by, kind, folder) for kind in KINDS]


def try_kind(by: str, kind: str, folder: Path) -> bool:
    wrong, said, _, _ = run_case(Case(kind, 2, by, HANG_S), folder)
    return print_answer(f"{by}, 2 ranks, {KINDS[kind]}", f"{said}; {wrong}" if wrong else said, not wrong)


try_accelerate, try_fabric, try_spawn = (partial(try_ranks, by) for by in ("accelerate", "fabric", "spawn"))
