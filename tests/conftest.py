"""What holds for every test."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def hangups_count() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, and would be in every child a test starts: tdbg leaves it so, as it should."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
