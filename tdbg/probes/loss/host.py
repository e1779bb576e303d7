"""Who watches this process, as far as a diagnostic has to know: which flags are on, and where its words go.

Nobody at first: then the variable TDBG_FLAGS counts, and words go to the logger ``tdbg``. The floor above puts a
host of its own here, in a run and where the Python API is used.
"""

import logging
import os
from typing import Any

from tdbg.errors import TdbgError
from tdbg.flags import Value

LOG = logging.getLogger("tdbg")
LEVELS = {"D": 10, "S": 15, "I": 20, "W": 30, "E": 40}


class Host:
    """A process that nobody watches."""

    def __init__(self) -> None:
        self.flags = flags_of_variable()  # in force now, by name; the watch changes it in place

    def looks(self) -> bool:
        """True if the running step and this rank are to be looked at."""
        return True

    def take(self, flag: str) -> None:
        """A flag that is on is used by the program."""

    def line(self, mark: str, text: str, level: str = "D") -> None:
        """A record under a tag."""
        LOG.log(LEVELS[level], "%s %s", mark, text)

    def event(self, flag: str, part: str, text: str, values: dict[str, Any], level: str = "D") -> None:
        """A record that is kept as an event as well."""
        from tdbg.flags import tag

        self.line(tag(flag, part), text, level)


def flags_of_variable() -> dict[str, Value]:
    """The flags of TDBG_FLAGS; none if it cannot be read."""
    text = os.environ.get("TDBG_FLAGS", "")
    if not text:
        return {}
    from tdbg.config import flags_from_env

    try:
        return flags_from_env(text)
    except (TdbgError, ValueError):  # nothing that is wrong with it reaches the program
        return {}


NOBODY = Host()
current: Host = NOBODY


def enter(host: Host) -> None:
    """From now on this host is asked and told."""
    global current
    current = host
