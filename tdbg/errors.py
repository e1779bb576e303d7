"""The errors that tdbg raises, under the module name that the documentation gives them."""

from tdbg.core.errors import CommandNotFoundError, LaunchError, NotExecutableError, TdbgError

__all__ = ["CommandNotFoundError", "LaunchError", "NotExecutableError", "TdbgError"]
