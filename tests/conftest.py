"""What holds for every test."""

import signal
from collections.abc import Iterator

import pytest


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
