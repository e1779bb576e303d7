"""Which tensors are meant: globs over paths, and keys. Standard library alone."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from tdbg.errors import TdbgError
from tdbg.pages.tables import short

ENDS = (":", "/", ".")  # what may follow the name of a layer in the path of its tensor


def by_layer(globs: Sequence[str]) -> Callable[[str], bool]:
    """True for the paths that one of the globs means; for all if there is none.

    A glob means a whole path (``layers.*.attn:output``), or a layer with all that was kept of it (``layers.4``).
    """
    whole = [glob.rstrip("/") for glob in globs if glob]
    more = [f"{glob}{end}*" for glob in whole for end in ENDS]
    if not whole:
        return lambda path: True
    return lambda path: any(fnmatchcase(path, glob) for glob in (*whole, *more))


def words(given: Iterable[str]) -> list[str]:
    """Values that may be repeated, and joined by commas."""
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def no_layer(globs: Sequence[str], known: Iterable[str]) -> TdbgError:
    """The error for globs that mean nothing, with the nearest of the known paths."""
    names = list(known)
    near = difflib.get_close_matches(globs[0], names, n=3, cutoff=0.3) or names[:3]
    shown = ", ".join(short(name) for name in near)
    hint = f"there are: {shown}" if shown else "`tdbg inspect-pages ls` shows what was captured"
    return TdbgError(f"no tensor is named {', '.join(short(glob) for glob in globs)}", hint)
