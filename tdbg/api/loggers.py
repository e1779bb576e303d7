"""`tdbg.create_logger`: a logger with tdbg's two files per rank, in a run and outside of one."""

import functools
import logging
import os
from pathlib import Path
from typing import Any

from tdbg.api.session import current_session
from tdbg.core.errors import TdbgError
from tdbg.logs.log_header import LEVELS, STATS
from tdbg.logs.textlog import ROTATE_BYTES, RankLogs


class RankFiles(logging.Handler):
    """Writes records into ``debug_log_rankN.txt``, and INFO and up into ``info_log_rankN.txt`` as well."""

    def __init__(self, folder: Path, rank: int, rotate_bytes: int = ROTATE_BYTES) -> None:
        super().__init__()
        self.place = (folder, rank)
        self._logs = RankLogs(lambda: folder, lambda: rank, rotate_bytes)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a tag that begins its message stands in the tag's column, else the logger's name."""
        try:
            text = self.format(record)
            tag, end, rest = text.partition("] ")
            if not (end and text[0] == "[" and "\n" not in tag):
                tag, rest = f"[{record.name}", text
            letter = max((number, letter) for letter, number in LEVELS.items() if number <= max(record.levelno, 10))[1]
            session = current_session()
            step = session.monitor.user_facing_step if session is not None else 0
            self._logs.write_record(record.created, letter, step, f"{tag}]", rest)
        except Exception:  # a guard, as in every handler of logging
            self.handleError(record)

    def close(self) -> None:
        """Close both files."""
        self._logs.close()
        super().close()


def create_logger(
    output_dir: str | os.PathLike[str], dist_rank: int = 0, name: str = "train", level: int | str = logging.DEBUG
) -> logging.Logger:
    """A logger that writes tdbg's two files of a rank: all records, and INFO and up.

    output_dir: the folder for ``debug_log_rankN.txt`` and ``info_log_rankN.txt``, rotated by size, never cleared.
    dist_rank: N. level: a number or a name, STATS (15, between DEBUG and INFO) among them; the logger has a method
    ``stats`` for it. The same call again gives the same logger. Raises TdbgError for an unknown level. Handlers of the
    program, and whether records propagate, stay as they are. Cost: about 20 us a record.
    """
    if logging.getLevelName(STATS) == f"Level {STATS}":  # the program's own name for 15 stands
        logging.addLevelName(STATS, "STATS")
    logger: Any = logging.getLogger(name)
    try:
        logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (ValueError, TypeError):
        known = ", ".join(sorted(logging.getLevelNamesMapping()))
        raise TdbgError(f"there is no log level {level!r}", f"known: {known}") from None
    if not hasattr(logger, "stats"):
        logger.stats = functools.partial(_log_stats, logger)
    place = (Path(output_dir).absolute(), dist_rank)
    if not any(isinstance(handler, RankFiles) and handler.place == place for handler in logger.handlers):
        logger.addHandler(RankFiles(*place))
    found: logging.Logger = logger
    return found


def _log_stats(logger: logging.Logger, msg: object, *args: object, **kwargs: Any) -> None:
    """Log ``msg`` at STATS."""
    kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
    logger.log(STATS, msg, *args, **kwargs)
