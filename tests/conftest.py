"""What holds for every test.

Tests of hypothesis have no deadline (machines may be busy) and draw the same examples at every call;
TDBG_TEST_RANDOM=1 draws others each time. With CI set, a package that a test needs and that is not here is an error:
the test extra has them all, and what is skipped would count as passed.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.chance import RANDOM
from tests.warm import WARMTH

settings.register_profile(
    "tdbg",
    deadline=None,
    derandomize=not RANDOM,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tdbg")

# Tests play everything on the host, where a program that finds a device would use it; `pytest tests/cuda` uses it.
# Workers do not see the command's words: the process that starts them decides, and they inherit what it decided.
in_worker = "PYTEST_XDIST_WORKER" in os.environ
if Path("/dev/nvidiactl").exists() and not in_worker and not any("cuda" in Path(word).parts for word in sys.argv):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

if os.environ.pop("CI", ""):  # tests that play a terminal play a user's: in CI tdbg has no colours and no live line
    os.environ["PYTEST_NO_SKIPS"] = "1"  # for the workers as well
if os.environ.get("PYTEST_NO_SKIPS"):
    pytest.importorskip = import_module

STARTS_PROCESSES = re.compile(
    r"\b(subprocess|Popen|pexpect|multiprocessing|spawn|fork\w*|watched|torchrun|program|make_run|program_runner|private_place"
    r"|run_on_terminal)\b"
)


@cache
def starts_processes(path: Path) -> bool:
    """True if a test file names what starts a process: itself, or a fixture that does."""
    return "e2e" in path.parts or STARTS_PROCESSES.search(path.read_text(encoding="utf-8")) is not None


LONG = {"e2e", "viewer", "test_contributing.py"}  # folders and files
LAST_CHARACTERS = 3000  # of a failure's text, printed when it happens


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is quick, and put the long files first, so that neither worker is left alone with one at the end."""
    for item in items:
        if not starts_processes(item.path) and not item.get_closest_marker("slow"):
            item.add_marker("quick")
    items.sort(key=lambda item: not LONG.intersection(item.path.parts))


class FailurePrinter:
    """Prints each failure when it happens: a run that is ended from outside, at CI's time limit, has said its failures."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and (terminal := self._config.pluginmanager.get_plugin("terminalreporter")):
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            terminal.write_line(report.longreprtext[-LAST_CHARACTERS:])


def pytest_configure(config: pytest.Config) -> None:
    if not in_worker:
        config.pluginmanager.register(FailurePrinter(config))


@pytest.fixture(autouse=True)
def choose_warmth(request: pytest.FixtureRequest) -> None:
    """A test marked ``cold`` starts fresh interpreters."""
    WARMTH.wanted = request.node.get_closest_marker("cold") is None


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """What one test compiled is no business of the next, in whatever folder: tdbg asks torch for it."""
    yield
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None and utils.counters["stats"]["unique_graphs"]:
        sys.modules["torch._dynamo"].reset()
        utils.counters.clear()


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, behind a shell's ``&`` SIGINT and SIGQUIT, and so they would be in every child that
    a test starts: tdbg leaves it so, as it should."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)}
    for number, handler in before.items():
        if handler is signal.SIG_IGN or number == signal.SIGHUP:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
