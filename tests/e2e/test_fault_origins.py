"""Six of the generated faults of benchmarks/fault_origins.py: the verdict names step, rank and kind of origin."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SEED = 17
KINDS = ("input", "forward", "loss", "backward", "gradient", "weights")


@pytest.fixture(scope="module")
def fault_origins_module() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("fault_origins")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_origin_is_the_generators(fault_origins_module: Any, kind: str, tmp_path: Path) -> None:
    """The first run of its kind in the seed's sequence that is short; DDP and FSDP2 are both among the six."""
    parallel = "fsdp2" if kind in ("gradient", "loss") else "ddp"
    specs = (fault_origins_module.generate_spec(SEED, index) for index in range(1000))
    spec = next(
        spec for spec in specs if (spec.kind, spec.parallel, spec.world) == (kind, parallel, 2) and 10 < spec.step < 40
    )
    assert fault_origins_module.judge_verdict(spec, fault_origins_module.run_spec(spec, tmp_path / "run")) == ""
