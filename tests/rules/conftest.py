"""What the tests of the rules share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streams import Stream


@pytest.fixture
def make_stream(tmp_path: Path) -> Callable[..., Stream]:
    """Makes a run directory to write events into."""
    return lambda **settings: Stream(tmp_path / "run", **settings)


@pytest.fixture
def one_rank(make_stream: Callable[..., Stream]) -> tuple[Stream, str]:
    """A run with one rank, and the rank's folder."""
    run: Any = make_stream()
    return run, run.begin_rank()
