"""Healthy programs of many kinds, at the default level and with all that there is to look: nothing is found.

TDBG_TEST_RANDOM=1 draws other sizes.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from probes import healthy
from probes.judging import judge_watch

from tdbg.core.flags import FLAGS
from tests.chance import RANDOM

EVERYTHING = {flag.name: True for flag in FLAGS if flag.probe and flag.name not in ("PROFILER", "AUTOGRAD_ANOMALY")}
HOW = {
    "default": {"max_overhead": 3.0},
    "extreme": {"level": "extreme", "max_overhead": 100.0, "flags": EVERYTHING},
}
SEED = random.SystemRandom().randrange(1 << 30) if RANDOM else 0


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", healthy.KINDS)
def test_nothing_is_found(start_watch: Any, tmp_path: Path, kind: str, how: str) -> None:
    watched = start_watch(**HOW[how])
    healthy.run_kind(kind, SEED)
    watched.monitor.finish_run()
    assert [finding.title for finding in judge_watch(watched, tmp_path)] == [], f"seed {SEED}"
