"""The samples that the supervisor takes of its host show the rank that has too many threads."""

import os

import pytest

from tdbg.rules._host_pressure import describe_pressure, read_samples
from tests.e2e.conftest import Runner, build_torchrun_command


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="without /proc nothing is sampled")
def test_the_threads_of_each_rank_are_sampled(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("pressed_ranks", "--samples", "3"))
    samples = read_samples(result.run_dir, os.uname().nodename)
    since_t = next(row["t"] for row in samples if row["threads"].get("1", 0) >= row["threads"].get("0", 0) + 8)
    (line,) = describe_pressure(samples, 1, since_t, "1")
    assert line.startswith("on its host: rank 1 has ") and ", OMP_NUM_THREADS=1)" in line, samples
    assert all(row["others"] >= 0 and row["load"] > 0 for row in samples)
