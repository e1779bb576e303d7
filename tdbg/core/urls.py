"""Places that a URL names, such as ``s3://bucket/run``: known without any library."""

import os
from pathlib import Path, PurePosixPath

from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern

_SCHEME = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL = ("file", "local")


class Url(PurePosixPath):
    """A URL with the manners of a path: ``/``, ``name``, ``parent``, ``relative_to``. Nothing is looked at."""

    __slots__ = ()

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition(":")
        return f"{scheme}://{rest.removeprefix('/')}"


def is_url(word: str) -> bool:
    """True for ``s3://bucket`` and ``file:///tmp``; a path is none."""
    return _SCHEME.match(word) is not None


def located(place: str | os.PathLike[str]) -> Path | Url:
    """The path or the URL that a person means; ``file:///tmp/run`` is the path. TdbgError for one with a password."""
    word = os.fspath(place)
    found = _SCHEME.match(word)
    if found is None:
        return Path(word)
    check_url(word)
    return Path(word[found.end() :]) if found[1].lower() in _LOCAL else Url(word)


def check_url(word: str) -> None:
    """TdbgError for what is no URL, names no place, or holds a password. The password is not repeated."""
    found = _SCHEME.match(word)
    if found is None:
        raise TdbgError(f"{word!r} is no URL", "write one such as s3://bucket/folder")
    rest = word[found.end() :]
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise TdbgError(
            f"a URL of {found[1]} holds a password", "keep it in the environment, or in the settings of fsspec"
        )
    if not rest.strip("/") and found[1].lower() != "memory":
        raise TdbgError(f"{word!r} names no place", "write one such as s3://bucket/folder")
