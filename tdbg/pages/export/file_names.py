"""Safe file names from keys and paths that may hold anything. Standard library alone."""

import hashlib
from pathlib import PurePosixPath

PART_BYTES = 120  # of one name; file systems take 255
PATH_BYTES = 900
FREE = frozenset("._-+=,@~()[]{}# ")


def file_path(*texts: str) -> PurePosixPath:
    """A relative path below which nothing escapes: each text is one name, and a ``/`` in the last one begins another.

    Letters and digits of any script stay; what a shell, another system or a terminal might take for more becomes ``_``.
    No name is empty, hidden, ``.`` or ``..``. What is too long is cut, and told apart by a hash.
    """
    *names, last = texts
    found = [_sanitize_name(text) for text in names] + [_sanitize_name(text) for text in last.split("/")]
    path = PurePosixPath(*found)
    if len(str(path).encode()) > PATH_BYTES:
        path = PurePosixPath(
            *map(_sanitize_name, names), f"{_sanitize_name(last.replace('/', '_'))[:80]}-{_hash_text(last)}"
        )
    return path


def _sanitize_name(text: str) -> str:
    found = "".join(sign if sign.isalnum() or sign in FREE else "_" for sign in text).strip(" ")
    found = f"_{found[1:]}" if found[:1] in ("", ".", "-", "~") else found.rstrip(".") or "_"
    if len(found.encode()) > PART_BYTES:
        found = found.encode()[: PART_BYTES - 20].decode("utf-8", "ignore") + f"-{_hash_text(text)}"
    return found


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class UniqueNames:
    """Names that are given once each: a second one gets ``~2``. Names that differ in case alone are the same name."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def make_unique(self, name: str) -> str:
        """The name, or the next of its kind that is free."""
        found, count = name, self._given.get(name.casefold(), 0)
        while found.casefold() in self._given:
            count += 1
            found = f"{name}~{count + 1}"
        self._given[name.casefold()] = count
        self._given.setdefault(found.casefold(), 0)
        return found
