"""What holds for every test.

Tests of hypothesis have no deadline (machines may be busy) and draw the same examples at every call;
TDBG_TEST_RANDOM=1 draws others each time.
"""

import signal
from collections.abc import Iterator

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
