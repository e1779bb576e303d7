"""Resolve ``KEY`` or ``KEY/tensor``, where both may hold slashes."""

from tdbg.pages.selection.locations import Selected, select_datapoints

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tdbg.pages.read.datapoint import Datapoint
    from tdbg.pages.read.page_set import PageSet

LOOKED_AT = 20_000  # keys that are compared for a suggestion
NEAR = 5


class TensorTarget:
    """datapoints: those of the key. path: what was written behind it. tensors: the paths that this means."""

    __slots__ = ("datapoints", "key", "path", "tensors")

    def __init__(self, key: str, path: str, datapoints: "list[Datapoint]", tensors: "list[str]") -> None:
        self.key, self.path, self.datapoints, self.tensors = key, path, datapoints, tensors


def resolve_target(pages: "PageSet", word: str, question: Selected) -> TensorTarget | None:
    """The longest key that there is, with the tensors that the rest names; None if there is no such key.

    If the rest names no tensor of any such key, the longest key is given with no tensors. Of a single datapoint, such as
    a plain safetensors file, the key may be left out.
    """
    first: TensorTarget | None = None
    for key, path in _iter_splits(word):
        datapoints = list(select_datapoints(pages.find(key), question))
        if datapoints:
            found = TensorTarget(key, path, datapoints, match_tensors(datapoints, path))
            if found.tensors or not path:
                return found
            first = first or found
    return first or _resolve_without_key(pages, word, question)


def _resolve_without_key(pages: "PageSet", word: str, question: Selected) -> TensorTarget | None:
    from itertools import islice

    datapoints = list(islice(select_datapoints(pages, question), 2))
    tensors = match_tensors(datapoints, word) if len(datapoints) == 1 else []
    return TensorTarget(str(datapoints[0].key), word, datapoints, tensors) if tensors else None


def match_tensors(datapoints: "Iterable[Datapoint]", path: str) -> "list[str]":
    """The tensors that a path names: itself, those below it, or a pattern such as ``layers.*:output``."""
    paths = list(dict.fromkeys(name for datapoint in datapoints for name in datapoint.tensors))
    if not path or path in paths:
        return [path] if path else paths
    from fnmatch import fnmatchcase

    from tdbg.pages.selection.layer_globs import paths_below

    found = paths_below(path, paths)
    if found or not any(sign in path for sign in "*?["):
        return found
    return [name for name in paths if fnmatchcase(name, path)]


def near_keys(pages: "PageSet", word: str, question: Selected) -> "list[str]":
    """Keys that a person may have meant; the first ones if none is like it."""
    import difflib
    from itertools import islice

    every = (str(datapoint.key) for datapoint in select_datapoints(pages.rows(), question))
    keys = list(dict.fromkeys(islice(every, LOOKED_AT)))
    number = _parse_number(word.partition("/")[0])
    numbers = [key for key in keys if _parse_number(key) is not None]
    if number is not None and numbers:
        return sorted(numbers, key=lambda key: abs((_parse_number(key) or 0) - number))[:NEAR]
    wanted = {name: None for key, _ in _iter_splits(word) for name in difflib.get_close_matches(key, keys, NEAR)}
    return (list(wanted) or keys)[:NEAR]


def near_paths(datapoints: "Sequence[Datapoint]", path: str) -> "list[str]":
    """Tensors that a person may have meant; the first ones if none is like it."""
    import difflib

    paths = match_tensors(datapoints, "")
    return difflib.get_close_matches(path, paths, NEAR, 0.4) or paths[:NEAR]


def _iter_splits(word: str) -> "Iterator[tuple[str, str]]":
    """Every way to part a word in a key and a path, the longest key first."""
    yield word, ""
    at = word.rfind("/")
    while at > 0:
        yield word[:at], word[at + 1 :]
        at = word.rfind("/", 0, at)


def _parse_number(word: str) -> int | None:
    digits = word.removeprefix("-")
    return int(word) if digits.isdecimal() and len(digits) < 19 else None
