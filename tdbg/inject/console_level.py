"""``--log-level``: what the program's own console log shows, without a change to its log files.

The levels the program sets stay what they are, for whoever asks. Two methods of Logger are chained:
one lets a record be made that the console alone will print, the other decides per handler.
A lower level opens the program's own loggers; those of installed packages keep the levels the program
gave them, or a DEBUG console would drown in theirs. A higher level quiets every logger's console.
"""

import functools
import os
import sys
import sysconfig
from types import ModuleType
from typing import TYPE_CHECKING

from tdbg.core.frames import without_own_frames
from tdbg.core.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from logging import Handler, Logger, LogRecord

PART = "log-level"
STATS = 15
LEVELS = {"DEBUG": 10, "STATS": STATS, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
INSTALLED = (  # also what a .pth file or PYTHONPATH brings
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    *(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")),
)
PACKAGES = tuple({os.path.join(path, "") for path in INSTALLED})
SITE = tuple(path for path in PACKAGES if os.path.basename(path.rstrip(os.sep)) in ("site-packages", "dist-packages"))


def arrive(logging: ModuleType) -> None:
    """Chain Logger for the level the run asks for."""
    from tdbg.inject.agent import get_agent

    level = LEVELS.get(get_agent().settings.log_level)
    if level is None:
        return
    if logging.getLevelName(STATS) == f"Level {STATS}":  # the program's own name for 15 stands
        logging.addLevelName(STATS, "STATS")
    console = Console(logging, level)
    _let_records_be_made(logging, console)
    _choose_handlers(logging, console)


class Console:
    """Knows which handlers print to the user's console, and which loggers are the program's own."""

    def __init__(self, logging: ModuleType, level: int) -> None:
        self.logging = logging
        self.level = level
        self._own: dict[str, bool] = {}

    def is_console(self, handler: object) -> bool:
        """True for a handler whose stream, or whose rich console, is this process's stdout or stderr."""
        stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
        if stream is None or isinstance(handler, self.logging.FileHandler):
            return False
        if stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            return True
        try:
            return stream.fileno() in (1, 2)
        except (AttributeError, OSError, ValueError):
            return False

    def is_own(self, name: str) -> bool:
        """True unless the logger is named after an installed package or a module of Python's."""
        package = name.partition(".")[0]
        if package == self._main_package():
            return True
        if package not in self._own:
            module = sys.modules.get(package)
            if module is None:  # not imported, perhaps not yet: no reason to remember the answer
                return True
            path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
            self._own[package] = not str(path).startswith(PACKAGES)
        return self._own[package]

    def _main_package(self) -> str:
        """The package of ``python -m package.module``: the program's own, installed or not."""
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        return str(spec.name).partition(".")[0] if spec is not None else "__main__"

    def should_force_record(self, logger: "Logger", level: int) -> bool:
        """Whether a record of this level is made although the logger's own level drops it."""
        if level < self.level or logger.disabled or logger.manager.disable >= level:
            return False  # logging.disable() is the program's own last word
        return self.is_own(logger.name)

    def select_handlers(self, logger: "Logger", record: "LogRecord") -> "list[Handler] | None":
        """The handlers that get the record; None for a logger without any, of which Python itself says so."""
        handlers = list(_iter_handlers(logger))
        if not handlers and self.logging.lastResort is not None:
            handlers = [self.logging.lastResort]
        if not handlers:
            return None
        allowed = record.levelno >= logger.getEffectiveLevel()
        return [handler for handler in handlers if self.should_print(logger, handler, record, allowed)]

    def should_print(self, logger: "Logger", handler: "Handler", record: "LogRecord", allowed: bool) -> bool:
        """Whether ``handler`` prints ``record``; ``allowed`` says what the logger's own level says."""
        if not self.is_console(handler):
            return bool(allowed and record.levelno >= handler.level)
        if record.levelno < self.level:
            return False
        return self.is_own(logger.name) or bool(allowed and record.levelno >= handler.level)


def _let_records_be_made(logging: ModuleType, console: Console) -> None:
    real, guard = logging.Logger.isEnabledFor, Guard(PART)

    @functools.wraps(real)
    def isEnabledFor(self: "Logger", level: int) -> bool:
        return real(self, level) or bool(guard.call_guarded(console.should_force_record, self, level))

    logging.Logger.isEnabledFor = isEnabledFor


def _choose_handlers(logging: ModuleType, console: Console) -> None:
    """Logger.callHandlers, with the console's level in the place of the handler's."""
    real, guard = logging.Logger.callHandlers, Guard(PART)

    @functools.wraps(real)
    @without_own_frames
    def callHandlers(self: "Logger", record: "LogRecord") -> None:
        chosen = guard.call_guarded(console.select_handlers, self, record)
        if chosen is None:
            real(self, record)
            return
        for handler in chosen:
            handler.handle(record)

    logging.Logger.callHandlers = callHandlers


def _iter_handlers(logger: "Logger") -> "Iterator[Handler]":
    """The handlers a record of ``logger`` goes to: its own, then its parents', as far as it propagates."""
    node: Logger | None = logger
    while node:
        yield from node.handlers
        node = node.parent if node.propagate else None
