"""The source files of a program: which matter, what they say (kept on disk by content), and their maps."""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tdbg.core.files import MAX_JSON_BYTES, describe_failure, parse_json, read_small_file
from tdbg.core.guard import undo_on_error
from tdbg.core.user_cache import find_cache_home, make_own_folder, read_own
from tdbg.logs.guards.facts import VERSION, Facts, decode_facts
from tdbg.logs.guards.link import GuardMap, link_facts
from tdbg.logs.guards.reader import CHECKERS, parse_facts

MAX_FILE_BYTES = 2 << 20
MAX_FILES = 5_000
MAX_FOLDERS = 20_000
SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages", "tdbg_runs", "wandb", "build", "dist"}
# What a file that matters contains; each begins with a literal, for which the search is fast.
PROMISING = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rb"DEBUG(?:\s*[.\[,)]|[.\w]*[\"'])",
        rb"debug(?:\s*[.\[]|(?<=[\"']debug)[\"']|(?<=\.debug)_\w|_flag)",
        rb"tdbg\b",
        rb"def \w*(?:[Ll]og|print|say|debug|info|stats|[Ww]arn|write)\w*\(",  # it may pass messages on
    )
)


def ignore_unreadable(path: str, why: str) -> None:
    """What is told of files that cannot be read where nobody asked for them: nothing."""


def files_below(
    root: str | os.PathLike[str], on_unreadable: Callable[[str, str], object] = ignore_unreadable
) -> Iterator[str]:
    """The Python files of a source tree: no environments, caches or hidden folders; a bounded number of them.

    ``on_unreadable`` is called with the path of a folder that cannot be listed, and why.
    """
    if not os.path.isdir(root):
        yield str(root)
        return

    def report_unreadable(error: OSError) -> None:
        on_unreadable(str(error.filename), describe_failure(error))

    count = 0
    for folders_seen, (folder, folders, names) in enumerate(os.walk(root, onerror=report_unreadable)):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED
            and not any(os.path.exists(os.path.join(folder, name, mark)) for mark in ("pyvenv.cfg", "run.json"))
        )  # fmt: skip
        for name in sorted(names):
            if name.endswith(".py"):
                count += 1
                yield os.path.join(folder, name)
        if count > MAX_FILES or folders_seen > MAX_FOLDERS:
            return


def maps_below(
    root: str | os.PathLike[str],
    checkers: Sequence[str] = CHECKERS,
    pause: Callable[[], object] = bool,
    on_unreadable: Callable[[str, str], object] = ignore_unreadable,
) -> dict[str, GuardMap]:
    """The maps of all files of a source tree that ask for flags.

    pause: called again and again.
    on_unreadable: called with the path of what cannot be read, a file or a folder, and why.
    """
    facts: dict[str, Facts] = {}
    others: list[str] = []
    for path in files_below(root, on_unreadable):
        pause()
        try:
            source = read_small_file(path, MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            on_unreadable(path, describe_failure(error))
            continue
        if is_promising(source, checkers):
            facts[path] = facts_of(path, checkers, source)
        else:
            others.append(path)
    return link_facts(facts, (text for path in others if (text := source_of(path)) is not None), pause)


def map_of(path: str | os.PathLike[str], checkers: Sequence[str] = CHECKERS) -> GuardMap:
    """The map of one file by itself; an empty one if it cannot be read."""
    name = str(path)
    return link_facts({name: facts_of(name, checkers)})[name]


def source_of(path: str) -> bytes | None:
    """A file's bytes, if it can be read and is not far too big for one that a person wrote."""
    try:
        return read_small_file(path, MAX_FILE_BYTES)
    except (OSError, ValueError):
        return None


def is_promising(source: bytes, checkers: Sequence[str] = CHECKERS) -> bool:
    """False for a file that cannot ask for a flag; cheap."""
    return any(pattern.search(source) for pattern in PROMISING) or any(name.encode() in source for name in checkers)


def facts_of(path: str, checkers: Sequence[str] = CHECKERS, source: bytes | None = None) -> Facts:
    """The facts of a file, from the cache if its text was met before; never raises."""
    source = source_of(path) if source is None else source
    if source is None or not is_promising(source, checkers):
        return Facts()
    key = hashlib.blake2b(source + repr(sorted(checkers)).encode(), digest_size=16).hexdigest()
    kept = cache_folder() / f"{key}.json"
    try:
        return decode_facts(parse_json(read_own(kept, MAX_JSON_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    facts = parse_facts(source, checkers)
    replace_kept(kept, json.dumps(asdict(facts)))
    return facts


def cache_folder() -> Path:
    """Where facts are kept, by version and Python: another parser may count lines differently."""
    return find_cache_home() / f"guards-v{VERSION}-py{sys.version_info[0]}{sys.version_info[1]}"


def replace_kept(path: Path, text: str) -> None:
    """Put a file into the cache; where there is no home, no room or somebody else's folder, it is made anew next time."""
    if not make_own_folder(path.parent):
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError), undo_on_error(lambda: draft.unlink(missing_ok=True)):
        draft.unlink(missing_ok=True)  # of a process that died and had this number
        with open(draft, "x", encoding="utf-8", opener=_open_private) as file:
            file.write(text)
        os.replace(draft, path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
