"""tdbg debugs PyTorch training and evaluation runs, with no change to their code."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdbg.api import flag as flag

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the Python API on first use: ``import tdbg`` alone stays free of cost."""
    if name.startswith("_"):
        raise AttributeError(name)
    from tdbg import api

    try:
        return getattr(api, name)
    except AttributeError:
        raise AttributeError(f"module 'tdbg' has no attribute {name!r}") from None
