"""Which configuration files count, and for what: files are read as their owner's, and only trusted ones act.

A ``pyproject.toml`` or ``tdbg.yaml`` comes with a cloned repository, so it belongs to whoever cloned it and says what
a stranger wrote. Two checks follow. A file that somebody else may change is not read (`read_owned_file`). Options that run,
send or load something, or name where tdbg writes, count only from the command line, the environment, the user's own
folder (`user_folder`), or a folder that the user has allowed once with ``tdbg trust`` (`is_trusted`).
"""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.output import print_messages
from tdbg.core.ownership import TRUST, describe_risk, describe_writers, is_below, is_exempt

MAX_BYTES = 4_000_000
MARK = b"tdbg"  # what a pyproject.toml that concerns tdbg has in it
USER_FILE = "config.toml"
TRUSTED_FILE = "trusted.json"
_reported: set[str] = set()


class Source(NamedTuple):
    """One place settings come from: its name for `tdbg doctor`, and its raw values."""

    name: str
    values: dict[str, Any]
    folder: Path | None = None  # of a configuration file that is not the user's own: it may not run, send or load


def pyproject_sources(start: Path, profile: str = "") -> list[Source]:
    """``[tool.tdbg]`` of the nearest pyproject.toml at or above ``start``; then the named profile, if asked."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        data = read_owned_file(path, quiet_without=MARK)
        if data is None:
            continue
        table = _parse_toml(path, data).get("tool", {}).get("tdbg", {})
        sources = _sources_of_table(path, table, profile, folder)
        if profile and len(sources) < 2 and not (sources and sources[0].name.endswith(f" profile {profile}")):
            raise TdbgError(
                f"no profile is named {profile!r} in {path}",
                f"known: {', '.join(table.get('profiles', {})) or 'none'}; a profile is a table "
                f"[tool.tdbg.profiles.{profile}]",
            )
        return sources
    if profile:
        raise TdbgError(
            f"no profile is named {profile!r}: there is no pyproject.toml here or above",
            f"write a table [tool.tdbg.profiles.{profile}] into pyproject.toml",
        )
    return []


def _sources_of_table(path: Path, table: Mapping[str, Any], profile: str, folder: Path | None) -> list[Source]:
    values = {key: value for key, value in table.items() if key != "profiles"}
    sources = [Source(str(path), values, folder)] if values else []
    profiles = table.get("profiles", {})
    if profile and profile in profiles:
        sources.append(Source(f"{path} profile {profile}", dict(profiles[profile]), folder))
    return sources


def yaml_source(start: Path) -> list[Source]:
    """``tdbg.yaml`` of the current folder, read with yacs (so values have their YAML types)."""
    path = start / "tdbg.yaml"
    data = read_owned_file(path)
    if data is None:
        return []
    import yaml
    from yacs.config import CfgNode

    try:
        tree = CfgNode(yaml.safe_load(data.decode("utf-8")) or {})
    except (yaml.YAMLError, AssertionError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TdbgError(
            f"cannot read {path}: {first}", "correct its YAML; it should hold keys such as `level: basic`"
        ) from None
    return [Source(str(path), dict(tree), start)]


def user_source() -> list[Source]:
    """``config.toml`` of the user's own folder: the keys of ``[tool.tdbg]``, without that header."""
    folder = user_folder()
    if folder is None:
        return []
    path = folder / USER_FILE
    data = read_owned_file(path, of_user=True)
    return [] if data is None else _sources_of_table(path, _parse_toml(path, data), "", None)


def user_folder() -> Path | None:
    """The user's own configuration of tdbg: ``~/.config/tdbg``, or below XDG_CONFIG_HOME; None without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # relative, it would be the current folder's
        base = os.path.join(os.path.expanduser("~"), ".config")
    return Path(base, "tdbg") if os.path.isabs(base) else None


def _parse_toml(path: Path, data: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TdbgError(f"cannot read {path}: {error}", "correct its TOML syntax, or move the file away") from None


def read_owned_file(path: Path, quiet_without: bytes = b"", *, of_user: bool = False) -> bytes | None:
    """What a configuration file holds; None if there is none, or if somebody else may change it: one line says that.

    quiet_without: a file without these bytes is passed over without the line.
    of_user: it is in the user's own folder, where no list of trusted folders counts.
    Raises TdbgError for a file that cannot be read. The file is opened once, and checked after it is open.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of that name must not hold us up
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        risk = _risk_of_unreadable(path)
        if risk:
            print_message_once(f"{path} is not read: {risk}")
            return None
        raise TdbgError(
            f"cannot read {path}: {error.strerror}", f"make it readable: chmod u+r {path}; or move it away"
        ) from None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return None
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise TdbgError(
            f"cannot read {path}: it has more than {MAX_BYTES} bytes",
            "move it away: it is too large for a configuration file",
        )
    risk = find_risk(path, found, [] if of_user else _trusted_owners(path.parent))
    if not risk:
        return data
    if quiet_without in data:
        print_message_once(f"{path} is not read: {risk}; if you trust it, set {TRUST}={path.absolute()}")
    return None


def find_risk(path: Path, found: os.stat_result, owners: list[int]) -> str:
    """Why a configuration file that was found is not relied on, in words; "" if it is."""
    if is_exempt(path):
        return ""
    risk = describe_risk(found, owners)
    if risk:
        return risk
    try:
        risk = describe_risk(os.stat(path.parent), owners)
    except OSError:
        risk = "its owner cannot be determined"
    return f"its folder is not safe: {risk}" if risk else ""


def _risk_of_unreadable(path: Path) -> str:
    try:
        return describe_risk(os.stat(path))
    except OSError:
        return "you have no permission to open its folder"


def print_message_once(text: str) -> None:
    """Say a line; settings may be resolved twice for one command."""
    if text not in _reported:
        _reported.add(text)
        print_messages(text)


# folders that the user has allowed once


class Trusted(NamedTuple):
    """A folder whose configuration may run, send and load: its real path, and its owner when it was allowed."""

    path: str
    owner: int


def is_trusted(folder: Path) -> bool:
    """True if the user has allowed a folder, or one above it, and it still belongs to who owned it then."""
    return any(True for _ in _find_trusted_parents(folder))


def _trusted_owners(folder: Path) -> list[int]:
    return [record.owner for record in _find_trusted_parents(folder)]


def _find_trusted_parents(folder: Path) -> list[Trusted]:
    real = os.path.realpath(folder)
    return [
        record for record in load_trusted() if is_below(real, record.path) and _owner_of(record.path) == record.owner
    ]


def _owner_of(path: str) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:
        return -1


def load_trusted() -> list[Trusted]:
    """The folders allowed by this user; none where the list itself may be changed by others."""
    folder = user_folder()
    data = None if folder is None else read_owned_file(folder / TRUSTED_FILE, of_user=True)
    if data is None:
        return []
    try:
        kept = json.loads(data)["folders"]
        return [Trusted(str(entry["path"]), int(entry["owner"])) for entry in kept]
    except (ValueError, KeyError, TypeError, RecursionError):
        print_message_once(f"{folder}/{TRUSTED_FILE} is damaged and not read: `tdbg trust DIR` writes a new one")
        return []


def add_trusted(folder: Path) -> Trusted:
    """Allow a folder; TdbgError if there is none, or if everyone may write it."""
    real = os.path.realpath(folder)
    try:
        found = os.stat(real)
    except OSError as error:
        raise TdbgError(
            f"cannot trust {folder}: {error.strerror}", "name a folder that exists and that you may read"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise TdbgError(f"cannot trust {folder}: it is not a folder", "name the folder that the configuration is in")
    writers = describe_writers(found)
    if writers:
        raise TdbgError(f"cannot trust {folder}: {writers}", f"remove that permission first: chmod go-w {real}")
    added = Trusted(real, found.st_uid)
    _write_trusted([*(record for record in load_trusted() if record.path != real), added])
    return added


def remove_trusted(folder: Path) -> bool:
    """Withdraw what `add_trusted` allowed; False if the folder was not in the list."""
    named = {os.path.realpath(folder), str(folder)}
    before = load_trusted()
    kept = [record for record in before if record.path not in named]
    if len(kept) == len(before):
        return False
    _write_trusted(kept)
    return True


def _write_trusted(records: list[Trusted]) -> None:
    """Replace the list in one step, readable by the user alone."""
    import tempfile

    folder = user_folder()
    if folder is None:
        raise TdbgError("HOME is not set, so no list of trusted folders can be kept", "set HOME to your home")
    entries = [{"path": record.path, "owner": record.owner} for record in records]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=folder, prefix=f".{TRUSTED_FILE}.")  # 0600
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "folders": entries}, file, indent=1)
            file.write("\n")
        os.replace(draft, folder / TRUSTED_FILE)
    except OSError as error:
        raise TdbgError(
            f"cannot write {folder / TRUSTED_FILE}: {error.strerror}",
            f"check the permissions of {folder} and the free space on its disk",
        ) from None
