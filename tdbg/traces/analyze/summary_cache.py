"""The summary of a trace, cached in a file beside it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.traces.summary import VERSION, Summary

if TYPE_CHECKING:
    from typing import Any

LARGE = 64 << 20  # bytes; no index is as large
SMALL = 1 << 20  # bytes of a trace that is read again as fast as an index would be


def load_summary(
    path: str | os.PathLike[str],
    *,
    trees: bool = False,
    build: "Callable[[Path, bool], Summary] | None" = None,
    keep: bool = True,
) -> Summary:
    """The summary of a trace: the one kept beside it if that is of this very file, else made now and kept.

    trees: it is to tell which operator called which, too. keep: False leaves the folder as it is.

    Where the folder cannot be written, nothing is kept and nothing said. Raises TdbgError for a file that cannot be
    read or is no trace.
    """
    trace = Path(path)
    try:
        state = trace.stat()
    except OSError as error:
        raise TdbgError(f"{trace}: {error.strerror or error}", "name a trace that can be read") from None
    key = [VERSION, state.st_size, state.st_mtime_ns]
    kept = _read_cached(get_index_path(trace), key)
    if kept is not None and (kept.nested or not trees):
        kept.path = os.fspath(path)
        return kept
    found = (build or _build_summary)(trace, trees)
    if keep and state.st_size >= SMALL:
        _write_cache(get_index_path(trace), key, found, state.st_mode & 0o666)
    return found


def find_cached(trace: Path) -> Summary | None:
    """The summary that is kept beside a trace, with its calls, if it is of this very file."""
    try:
        state = trace.stat()
    except OSError:
        return None
    kept = _read_cached(get_index_path(trace), [VERSION, state.st_size, state.st_mtime_ns])
    return kept if kept is not None and kept.nested else None


def get_index_path(trace: Path) -> Path:
    """Where the index of a trace is."""
    return trace.with_name(f".{trace.name}.tdbg-index")


def _build_summary(trace: Path, trees: bool) -> Summary:
    from tdbg.traces.analyze.summary_builder import summarize_trace

    return summarize_trace(trace, trees=trees)


def _read_cached(path: Path, key: "list[Any]") -> Summary | None:
    """What is kept, if it is of this key; anything else is as if there were none."""
    import msgspec

    try:
        if not 0 < path.stat().st_size <= LARGE:
            return None
        stored, found = msgspec.msgpack.decode(run_files.read_bytes(path), type=tuple[list[int], msgspec.Raw])
        return msgspec.msgpack.decode(found, type=Summary) if stored == key else None
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _write_cache(path: Path, key: "list[Any]", found: Summary, mode: int) -> None:
    """mode: who may read the trace may read its index."""
    import msgspec

    try:
        data = msgspec.msgpack.encode((key, found))
        run_files.write_atomically(path, data, permissions=mode)
    except (OSError, OverflowError, UnicodeError):
        pass  # a folder of somebody else, a full disk, or what no index can hold: the next look takes as long as this
