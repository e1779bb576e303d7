"""What holds for every test.

Tests of hypothesis have no deadline (machines may be busy) and draw the same examples at every call;
TDBG_TEST_RANDOM=1 draws others each time. With CI set, a package that a test needs and that is not here is an error:
the test extra has them all, and what is skipped would count as passed.
"""

import os
import signal
from collections.abc import Iterator
from importlib import import_module

import pytest
from chance import RANDOM
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tdbg",
    deadline=None,
    derandomize=not RANDOM,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tdbg")

if os.environ.get("CI"):
    pytest.importorskip = import_module


@pytest.fixture(autouse=True)
def signals_count() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, behind a shell's ``&`` SIGINT and SIGQUIT, and so they would be in every child that
    a test starts: tdbg leaves it so, as it should."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN or number == signal.SIGHUP:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
