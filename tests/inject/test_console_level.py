"""`--log-level`: the console prints more or less; files, levels and other people's loggers stay as they are."""

import textwrap
from typing import Any

import pytest

PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
log = logging.getLogger("train")
log.setLevel(logging.INFO)
file = logging.FileHandler("out.log", mode="w"); logging.getLogger().addHandler(file)
def speak():
    for level in (10, 15, 20, 30, 40): log.log(level, str(level))
"""


def run_program(run: Any, text: str = "", program: str = PROGRAM, env: Any = None) -> tuple[list[str], str]:
    path = run.path.parent / "s.py"
    path.write_text(program + textwrap.dedent(text))
    done = run.run_python(str(path), env=env)
    assert (done.returncode, run.boot_errors) == (0, ""), done.stderr
    log = run.path.parent / "out.log"
    return [line.split()[-1] for line in done.stdout.splitlines()], log.read_text() if log.exists() else ""


@pytest.mark.parametrize(
    ("level", "then"),
    [
        ("", ["20", "30", "40"]),
        ("DEBUG", ["10", "15", "20", "30", "40"]),
        ("STATS", ["15", "20", "30", "40"]),
        ("INFO", ["20", "30", "40"]),
        ("ERROR", ["40"]),
    ],
)
def test_console_changes_and_the_file_does_not(make_run: Any, level: str, then: list[str]) -> None:
    run = make_run(log_level=level)
    assert run_program(run, "speak()") == (then, "20\n30\n40\n")


def test_handler_levels_are_overruled_on_the_console_alone(make_run: Any) -> None:
    text = """
    logging.getLogger().handlers[0].setLevel(logging.ERROR); file.setLevel(logging.ERROR)
    speak(); print(log.level, log.getEffectiveLevel(), logging.getLogger().handlers[0].level)
    """
    run = make_run(log_level="DEBUG")
    assert run_program(run, text) == (["10", "15", "20", "30", "40", "40"], "40\n")


def test_stats_has_its_name(make_run: Any) -> None:
    run = make_run(log_level="STATS")
    assert run_program(run, "print(logging.getLevelName(15))")[0] == ["STATS"]
    own = make_run(log_level="STATS")
    program = "import logging; logging.addLevelName(15, 'MINE'); print(logging.getLevelName(15))"
    assert run_program(own, program=program)[0] == ["MINE"]


def test_installed_packages_keep_their_levels(make_run: Any) -> None:
    text = """
    import yacs.config, asyncio
    for name in ("yacs.config", "asyncio", "mine.own", "__main__"): logging.getLogger(name).debug(name)
    """
    assert run_program(make_run(log_level="DEBUG"), text)[0] == ["mine.own", "__main__"]


@pytest.mark.parametrize(
    "text",
    [
        "logging.disable(logging.CRITICAL)",
        "log.disabled = True",
        "log.propagate = False; log.addHandler(logging.NullHandler())",
        "logging.getLogger().handlers[0].addFilter(lambda record: False)",
    ],
)
def test_what_the_program_silences_stays_silent(make_run: Any, text: str) -> None:
    assert run_program(make_run(log_level="DEBUG"), f"{text}\nspeak()")[0] == []


def test_without_any_handler(make_run: Any) -> None:
    """Python's last resort, which writes to stderr."""
    run = make_run(log_level="INFO")
    path = run.path.parent / "s.py"
    path.write_text("import logging\nlog = logging.getLogger('train'); log.debug('a'); log.info('b'); log.error('c')")
    assert run.run_python(str(path)).stderr == "b\nc\n"


def test_rich_handlers_count_as_console(make_run: Any) -> None:
    program = """
import logging, sys
from rich.console import Console
from rich.logging import RichHandler
handler = RichHandler(console=Console(file=sys.stdout), show_time=False, show_path=False, show_level=False)
logging.basicConfig(level="WARNING", handlers=[handler], format="%(message)s")
logging.getLogger("train").debug("seen")
"""
    assert run_program(make_run(log_level="DEBUG"), program=program)[0] == ["seen"]
