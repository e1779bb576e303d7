"""`tdbg.create_logger`: two files per rank, the fixed header, rotation, STATS."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tdbg
from tdbg.api.loggers import RankFiles
from tdbg.core.errors import TdbgError
from tdbg.logs.formats import FORMATS, detect_format


@pytest.fixture
def logger_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A logger of the test's own, closed at its end."""
    found = request.node.name
    yield found
    logger = logging.getLogger(found)
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()


def test_two_files_with_the_fixed_header(tmp_path: Path, logger_name: str) -> None:
    logger: Any = tdbg.create_logger(tmp_path / "logs", 3, logger_name)
    logger.debug("[DEBUG_MEMORY] %d MB", 5)
    logger.stats("figures")
    logger.info("two\nlines")
    logger.error("bad", exc_info=ValueError("x"))
    logger.critical("[no tag")
    debug = (tmp_path / "logs" / "debug_log_rank3.txt").read_bytes()
    assert [line[27:].decode() for line in debug.splitlines() if line[:1] != b" "] == [
        "D r0003 s00000000 [DEBUG_MEMORY] 5 MB",
        f"S r0003 s00000000 [{logger_name}] figures",
        f"I r0003 s00000000 [{logger_name}] two",
        f"E r0003 s00000000 [{logger_name}] bad",
        f"C r0003 s00000000 [{logger_name}] [no tag",
    ]
    assert detect_format(debug) is FORMATS["tdbg"]
    info = (tmp_path / "logs" / "info_log_rank3.txt").read_bytes()
    assert info == debug[debug.index(b" I r0003") - 26 :] and b"ValueError: x" in info


def test_the_same_call_gives_the_same_logger(tmp_path: Path, logger_name: str) -> None:
    first = tdbg.create_logger(tmp_path, 0, logger_name, "stats")
    again = tdbg.create_logger(tmp_path, 0, logger_name, "INFO")
    assert first is again and len(again.handlers) == 1 and again.level == logging.INFO
    assert logging.getLevelName(15) == "STATS"


@pytest.mark.parametrize(
    ("level", "letters"), [("DEBUG", "DSIWEC"), ("STATS", "SIWEC"), ("INFO", "IWEC"), ("ERROR", "EC")]
)
def test_each_level_can_be_asked_for(tmp_path: Path, logger_name: str, level: str, letters: str) -> None:
    """Seen: STATS was a choice of the command line, and defined nowhere."""
    logger: Any = tdbg.create_logger(tmp_path, 0, logger_name)
    for call in (logger.debug, logger.stats, logger.info, logger.warning, logger.error, logger.critical):
        call("x")
    command = [sys.executable, "-m", "tdbg", "filter-logs", str(tmp_path / "debug_log_rank0.txt"), "--level", level]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert [line.split()[1] for line in done.stdout.splitlines()] == list(letters)
    files = {"debug": "DSIWEC", "info": "IWEC"}
    for file, there in files.items():
        lines = (tmp_path / f"{file}_log_rank0.txt").read_text().splitlines()
        assert [line.split()[1] for line in lines] == list(there)


def test_an_unknown_level(tmp_path: Path, logger_name: str) -> None:
    with pytest.raises(TdbgError, match="no log level 'LOUD'"):
        tdbg.create_logger(tmp_path, 0, logger_name, "LOUD")


def test_the_caller_of_stats_is_the_caller(tmp_path: Path, logger_name: str) -> None:
    seen: list[str] = []
    logger: Any = tdbg.create_logger(tmp_path, 0, logger_name)
    logger.addFilter(lambda record: seen.append(record.filename) or True)
    logger.stats("x")
    assert seen == ["test_loggers.py"]


def test_rotation(tmp_path: Path, logger_name: str) -> None:
    logger = logging.getLogger(logger_name)
    logger.propagate = False
    logger.addHandler(RankFiles(tmp_path, 0, rotate_bytes=2_000))
    for number in range(300):
        logger.warning("line %d", number)
    parts = sorted(path.name for path in tmp_path.glob("debug_log*"))
    assert parts == ["debug_log_rank0.txt", *(f"debug_log_rank0.txt.{part}" for part in (1, 2, 3, 4))]
    assert all(path.stat().st_size <= 2_000 for path in tmp_path.iterdir())


def test_no_torch_is_loaded(tmp_path: Path) -> None:
    code = f"import sys, tdbg; tdbg.create_logger({str(tmp_path)!r}).info('x'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert (tmp_path / "info_log_rank0.txt").exists()
