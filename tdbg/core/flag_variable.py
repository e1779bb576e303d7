"""The variable TDBG_FLAGS outside of a run: every name that holds counts, and every word that does not is named."""

import sys
from collections.abc import Mapping

from tdbg.core import flags as flag_table
from tdbg.core.config import flags_from_env
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages

VARIABLE = "TDBG_FLAGS"
_warned: set[str] = set()


def read_flag_variable(environ: Mapping[str, str]) -> dict[str, flag_table.Value]:
    """The flags that TDBG_FLAGS switches on in this process.

    A name that the table does not have is named on stderr, once, and kept: `tdbg.flag` may be asked for it, since a
    program can have flags of its own. Below `tdbg run` the variable is JSON, whose names were checked before launch.
    Raises nothing.
    """
    text = environ.get(VARIABLE, "").strip()
    if text.startswith("{"):
        try:
            return flags_from_env(text)
        except ValueError as error:
            _warn_once(environ, text, f"{VARIABLE} is not valid JSON, so no flag is on: {error}", "write A,B=3")
            return {}
    found: dict[str, flag_table.Value] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.update(flag_table.parse_flag(word))
        except TdbgError as error:
            name, _, value = word.partition("=")
            if word.endswith("="):
                _warn_once(environ, word, f"{VARIABLE}: {error}", f"write {name} or {name}=VALUE; other flags apply")
                continue
            found[flag_table.canonical(name)] = {"": True, "true": True, "false": False}.get(value.lower(), value)
            only = f"it applies only where the program calls tdbg.flag({name!r}); the other flags still apply"
            _warn_once(environ, word, f"{VARIABLE}: {error}", f"{error.hint}\n{only}")
    return found


def _warn_once(environ: Mapping[str, str], word: str, what: str, hint: str) -> None:
    """Say it once, in one process of a job: not in its loader workers, not on each of its ranks."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    is_child = multiprocessing is not None and multiprocessing.parent_process() is not None
    rank = next((environ[name] for name in ("RANK", "SLURM_PROCID") if name in environ), "0")
    if word in _warned or is_child or rank != "0":
        return
    _warned.add(word)
    print_messages(what, *hint.splitlines())
