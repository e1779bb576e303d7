"""Debuggers: each takes one thing out of a model while it works on a datapoint, and lives in a file of its own.

Every public class of the package can be imported from here; it is loaded when it is first asked for.
"""

import sys
from typing import TYPE_CHECKING

from tdbg.core.registry import Registry

if TYPE_CHECKING:
    from tdbg.debuggers.base import BaseDebugger

# By name, as `--capture` and third parties (entry points of that group) spell them.
DEBUGGERS: "Registry[type[BaseDebugger]]" = Registry("debugger", package="tdbg.debuggers", group="tdbg.debuggers")


def __getattr__(name: str) -> object:
    """The class or function of that name in one of the package's files."""
    if not name.startswith("_"):
        DEBUGGERS.load()
        for module in [module for path, module in sys.modules.items() if path.startswith(f"{__name__}.")]:
            found: object = vars(module).get(name)
            if getattr(found, "__module__", "") == module.__name__:
                globals()[name] = found
                return found
    broken = "".join(f"; {path} cannot be imported: {error}" for path, error in DEBUGGERS.broken.items())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{broken}")
