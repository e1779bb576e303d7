"""Places that a URL names, such as ``s3://bucket/run``: known without any library."""

import os
from pathlib import Path, PurePosixPath

from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern

_SCHEME = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL = ("file", "local")
MAX_HOST, MAX_LABEL = 253, 63  # of a name in DNS
_WEBHOOK = lazy_pattern(
    r"(?i)https?://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9](?:[a-z0-9._-]*[a-z0-9.])?)(?::(?P<port>[0-9]{1,5}))?(?:[/?][!-~]*)?"
)


class Url(PurePosixPath):
    """A URL with the manners of a path: ``/``, ``name``, ``parent``, ``relative_to``. Nothing is looked at."""

    __slots__ = ()

    def __str__(self) -> str:
        scheme, _, rest = super().__str__().partition(":")
        root = "/" if scheme in _LOCAL else ""  # a path on this machine is absolute
        return f"{scheme}://{root}{rest.removeprefix('/')}"


def is_url(word: str) -> bool:
    """True for ``s3://bucket`` and ``file:///tmp``; a path is none."""
    return _SCHEME.match(word) is not None


def parse_location(place: str | os.PathLike[str]) -> Path | Url:
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
        raise TdbgError(f"{word!r} is not a URL", "write one such as s3://bucket/folder")
    rest = word[found.end() :]
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise TdbgError(
            f"the {found[1]}:// URL holds a password", "put it in the environment, or in the settings of fsspec"
        )
    if not rest.strip("/") and found[1].lower() != "memory":
        raise TdbgError(f"{word!r} names no bucket or folder", "write one such as s3://bucket/folder")


def check_webhook(word: str) -> None:
    """TdbgError unless a message can be posted to the URL. The URL is a secret, so no error repeats it."""
    scheme, separator, rest = word.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        raise TdbgError("not an http or https URL", "write one such as https://hooks.slack.com/services/...")
    if "@" in rest.partition("/")[0].partition("?")[0]:
        raise TdbgError("a URL with a user or a password is not accepted", "put the secret into the path of the URL")
    found = _WEBHOOK.fullmatch(word)
    if found is None:
        raise TdbgError("the URL has no host, or has invalid characters", "write one such as https://example.org/hook")
    host = found["host"].rstrip(".")
    if len(host) > MAX_HOST or not all(0 < len(label) <= MAX_LABEL for label in host.split(".")):
        raise TdbgError("the host name of the URL is not valid", "write one such as https://example.org/hook")
    if found["port"] is not None and not 0 < int(found["port"]) < 1 << 16:
        raise TdbgError("the port of the URL is out of range", "write one from 1 to 65535, or leave it out")
