"""tdbg debugs PyTorch training and evaluation runs, with no change to their code."""

TYPE_CHECKING = False  # what `typing` says, without its import: this file loads in every process of a run
if TYPE_CHECKING:
    from tdbg.api import flag as flag

__version__ = "0.1.0"

API = ("flag",)  # the names of tdbg.api; any other is a submodule or an error


def __getattr__(name: str) -> object:
    """Load the Python API on first use: ``import tdbg`` alone stays free of cost."""
    if name not in API:
        raise AttributeError(f"module 'tdbg' has no attribute {name!r}")
    import tdbg.api

    return getattr(tdbg.api, name)
