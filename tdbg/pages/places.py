"""Where pages are, as a person names them: a path, or nothing for the newest run."""

import os
from collections.abc import Sequence

from tdbg.errors import TdbgError
from tdbg.pages.reader import PageSet


def newest() -> str:
    """The newest run under ./tdbg_runs."""
    from tdbg.rundir import RunDir

    return str(RunDir.open(None).path)


def opened(paths: Sequence[str]) -> PageSet:
    """The pages at the one path that is named. Raises TdbgError for none and for several."""
    if len(paths) > 1:
        raise TdbgError(f"{len(paths)} paths were given", "name one run, folder or page")
    return PageSet.open(paths[0] if paths else newest())


def is_place(word: str) -> bool:
    """True if a word names something on the disk rather than a key."""
    return os.path.exists(word)
