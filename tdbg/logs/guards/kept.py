"""The maps of a whole source tree, kept on disk until one of its files changes."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from tdbg.core.files import parse_json, read_small_file
from tdbg.logs.guards.link import GuardMap
from tdbg.logs.guards.program_files import cache_folder, files_below, maps_below, replace_kept
from tdbg.version import __version__

SETTLED_S = 2.0  # a file changed so lately may change again within the clock of its file system
MAX_BYTES = 64 << 20

Stamp = tuple[int, int, int, int]


def tree_maps(root: str, checkers: Sequence[str], pause: Callable[[], object]) -> dict[str, GuardMap]:
    """The map of each file below ``root`` that guards or passes on a call; of others none.

    pause: called again and again.
    Cost: where nothing has changed a look at each file (5 us) and one read; else `maps_below`.
    """
    begun = time.time()
    stamps = _collect_stamps(root, pause)
    path = cache_folder() / f"tree-{_build_cache_key(root, checkers)}.json"
    kept = _load_maps(str(path), stamps)
    if kept is not None:
        return kept
    maps = {name: found for name, found in maps_below(root, checkers, pause).items() if found.lines or found.passed_on}
    newest = max((max(stamp[:2]) for stamp in stamps.values()), default=0)
    if newest < (begun - SETTLED_S) * 1e9 and _collect_stamps(root, pause) == stamps:
        replace_kept(path, json.dumps({"root": root, "stamps": stamps, "maps": _encode_maps(maps)}))
    return maps


def _build_cache_key(root: str, checkers: Sequence[str]) -> str:
    return hashlib.blake2b(repr((__version__, root, sorted(checkers))).encode(), digest_size=16).hexdigest()


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
        held = parse_json(read_small_file(path, MAX_BYTES))
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
