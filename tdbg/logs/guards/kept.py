"""The maps of a whole source tree, kept on disk until one of its files changes."""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tdbg.core.files import parse_json
from tdbg.core.user_cache import make_own_folder, read_own
from tdbg.logs.guards.link import GuardMap
from tdbg.logs.guards.program_files import cache_folder, files_below, maps_below, replace_kept
from tdbg.version import __version__

SETTLED_S = 2.0  # a file changed so lately may change again within the clock of its file system
MAX_BYTES = 64 << 20

KEPT_S = 30 * 86_400.0  # what was written longer ago is made anew where it is still wanted

Stamp = tuple[int, int, int, int]


def tree_maps(root: str, checkers: Sequence[str], pause: Callable[[], object]) -> dict[str, GuardMap]:
    """The map of each file below ``root`` that guards or passes on a call; of others none.

    pause: called again and again.
    Cost: where nothing has changed a look at each file (5 us) and one read; else `maps_below`.
    """
    begun = time.time()
    path, stamps = _name_kept(root, checkers, "json"), _collect_stamps(root, pause)
    kept = _load_maps(str(path), stamps)
    if kept is not None:
        with contextlib.suppress(OSError):
            os.utime(path)  # still wanted
        return kept
    maps = {name: found for name, found in maps_below(root, checkers, pause).items() if found.lines or found.passed_on}
    newest = max((max(stamp[:2]) for stamp in stamps.values()), default=0)
    if newest < (begun - SETTLED_S) * 1e9 and _collect_stamps(root, pause) == stamps:
        replace_kept(path, json.dumps({"root": root, "stamps": stamps, "maps": _encode_maps(maps)}))
    return maps


def find_kept_maps(root: str, checkers: Sequence[str], pause: Callable[[], object]) -> dict[str, GuardMap] | None:
    """What `tree_maps` gives, if it is on disk and nothing has changed since; None if the files have to be read."""
    return _load_maps(str(_name_kept(root, checkers, "json")), _collect_stamps(root, pause))


def wait_until_settled(root: str) -> None:
    """Wait until no file below ``root`` was changed within the last `SETTLED_S`, that long at most: else no map is kept."""
    newest = max((max(stamp[:2]) for stamp in _collect_stamps(root, bool).values()), default=0)
    time.sleep(min(max(newest / 1e9 + SETTLED_S + 0.01 - time.time(), 0.0), SETTLED_S + 0.01))


def forget_old_maps() -> None:
    """Remove what was not used for `KEPT_S`, also by other versions: each change of a file leaves its facts behind."""
    for path in cache_folder().parent.glob("guards-*/*.*"):
        with contextlib.suppress(OSError):
            is_ours = path.suffix in (".json", ".lock") or path.name.startswith(".")  # a draft of a process that died
            if is_ours and path.lstat().st_mtime < time.time() - KEPT_S:
                path.unlink()


@contextlib.contextmanager
def take_turn(root: str, checkers: Sequence[str]) -> Iterator[bool]:
    """True for one process of those that read a tree at the same time; the kernel takes it from one that dies.

    Where the cache cannot be written, or its file system knows no locks, each has its turn.
    """
    import fcntl

    path = _name_kept(root, checkers, "lock")
    if not make_own_folder(path.parent):
        yield True
        return
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield True
        return
    try:
        with contextlib.suppress(OSError):  # another user's
            os.utime(handle)
        yield _change_lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        _change_lock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile holds the same lock
        os.close(handle)


def _change_lock(handle: int, how: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, how)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _name_kept(root: str, checkers: Sequence[str], ending: str) -> Path:
    key = hashlib.blake2b(repr((__version__, root, sorted(checkers))).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"tree-{key}.{ending}"


def _collect_stamps(root: str, pause: Callable[[], object]) -> dict[str, Stamp]:
    """What changes whenever a file does."""
    found: dict[str, Stamp] = {}
    for path in files_below(root):
        pause()
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found[path] = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
    return found


def _encode_maps(maps: Mapping[str, GuardMap]) -> dict[str, object]:
    return {
        path: {
            "lines": {str(line): sorted(flags) for line, flags in found.lines.items()},
            "passed_on": sorted(found.passed_on),
        }
        for path, found in maps.items()
    }


def _load_maps(path: str, stamps: Mapping[str, Stamp]) -> dict[str, GuardMap] | None:
    """What was kept, unless a file has changed since; None also for what cannot be read."""
    try:
        held = parse_json(read_own(Path(path), MAX_BYTES))
        if {name: tuple(stamp) for name, stamp in held["stamps"].items()} != stamps:
            return None
        return {
            name: GuardMap(
                lines={int(line): frozenset(map(str, flags)) for line, flags in one["lines"].items()},
                passed_on=frozenset(map(int, one["passed_on"])),
            )
            for name, one in held["maps"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
