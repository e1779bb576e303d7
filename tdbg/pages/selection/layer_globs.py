"""Select tensors by globs over paths. Standard library alone."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_short

ENDS = (":", "/", ".")  # what may follow the name of a layer in the path of its tensor


def match_layers(globs: Sequence[str]) -> Callable[[str], bool]:
    """True for the paths that one of the globs means; for all if there is none.

    A glob means a whole path (``layers.*.attn:output``), or a layer with all that was kept of it (``layers.4``). A path
    as it is written means itself, also one with brackets in it.
    """
    whole = [glob.rstrip("/") for glob in globs if glob]
    if not whole:
        return lambda path: True
    known: dict[str, bool] = {}  # a run has few paths, and many tensors of each

    def is_chosen(path: str) -> bool:
        found = known.get(path)
        if found is None:
            found = known[path] = any(_is_match(glob, path) for glob in whole)
        return found

    return is_chosen


def _is_match(glob: str, path: str) -> bool:
    if path == glob or fnmatchcase(path, glob) or any(fnmatchcase(path, f"{glob}{end}*") for end in ENDS):
        return True
    return path.startswith(tuple(glob + end for end in ENDS))  # a name may hold brackets


def paths_below(path: str, paths: Iterable[str]) -> list[str]:
    """Those of the paths that begin with this one, and go on behind it."""
    return [name for name in paths if name.startswith(tuple(path + end for end in ENDS))]


def split_words(given: Iterable[str]) -> list[str]:
    """Values that may be repeated, and joined by commas."""
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def unknown_layer_error(globs: Sequence[str], known: Iterable[str]) -> TdbgError:
    """The error for globs that mean nothing, with the nearest of the known paths."""
    import difflib

    names = list(known)
    near = difflib.get_close_matches(globs[0], names, n=3, cutoff=0.3) or names[:3]
    shown = ", ".join(format_short(name) for name in near)
    hint = f"there are: {shown}" if shown else "`tdbg inspect-pages ls` shows what was captured"
    return TdbgError(f"no tensor is named {', '.join(format_short(glob) for glob in globs)}", hint)
