"""Which rank of how many a process is, before a process group says so."""

import sys
from types import ModuleType

import pytest

from tdbg.inject.identity import is_ray_process
from tdbg.inject.on.torch_ import get_rank_and_world_size
from tdbg.inject.tracebacks import describe_exception


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"SLURM_NTASKS": "4"}, (0, 1)),  # one program in a job of four tasks
        ({"SLURM_NTASKS": "3", "SLURM_PROCID": "2"}, (2, 1)),  # three programs that know nothing of each other
        ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"}, (1, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_NTASKS": "4"}, (1, 2)),
        ({"RANK": "\N{SUPERSCRIPT TWO}", "WORLD_SIZE": "\N{SUPERSCRIPT TWO}"}, (0, 1)),  # a digit, and no number
    ],
)
def test_tasks_are_ranks_of_one_training_only_where_the_program_says_so(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: tuple[int, int]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_NTASKS", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert get_rank_and_world_size() == expected


def test_what_ray_starts_is_no_rank_before_it_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    assert not is_ray_process()  # the driver
    monkeypatch.setattr(sys, "argv", ["/x/ray/_private/workers/default_worker.py", "--node-ip-address=10.0.0.1"])
    assert is_ray_process() and describe_exception(ValueError("late"), "logged", 0).rank is None
