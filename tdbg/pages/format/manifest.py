"""MANIFEST.json: the run and format version of the pages in a folder. Standard library alone."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.files import open_regular
from tdbg.pages.format import disk
from tdbg.pages.format.file_format import FORMAT, JOURNAL_NAME, MAJOR, MANIFEST, MINOR, PAGE_NAME

LARGEST_BYTES = 1 << 20


class VersionError(TdbgError):
    """The files are of a major version of the format that this tdbg does not know."""


def check_run(folder: Path, run: str) -> None:
    """TdbgError if the folder holds the pages of another run, or pages that nobody can tell whose they are.

    A folder that is not there, or holds other files, will do. Raises OSError where it cannot be read.
    """
    try:
        names = os.listdir(folder)  # first: another rank may be making the manifest, and pages after it
    except FileNotFoundError:
        return
    found = load_manifest(folder)
    if found is not None:
        if found.get("run") != run:
            raise TdbgError(
                f"{folder} holds the pages of another run, {found.get('run')!r}", "choose another folder, or remove it"
            )
        return
    strays = [name for name in names if JOURNAL_NAME.fullmatch(name) or PAGE_NAME.fullmatch(name)]
    if strays:
        raise TdbgError(
            f"{folder} holds pages ({strays[0]}, ...), but no {MANIFEST} to say which run they belong to",
            f"`tdbg inspect-pages recover {folder}` makes one; or choose another folder",
        )


def load_manifest(folder: Path) -> dict[str, object] | None:
    """The folder's manifest; None where there is none. Raises TdbgError for another kind of file or version."""
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_BYTES)
    except FileNotFoundError:
        return None
    return parse_manifest(text, path)


def parse_manifest(text: bytes, path: object) -> dict[str, object]:
    """A manifest out of its text. Raises TdbgError if it is none, or of a version that cannot be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise TdbgError(f"{path} is not the manifest of a page folder", "choose another folder")
    check_version(found.get("version"), path)
    return found


def check_version(version: object, path: object) -> None:
    """TdbgError for a major version that this tdbg does not know; a newer minor one only adds fields."""
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR:
        raise VersionError(
            f"{path} is of version {major!r} of the page format; this tdbg reads version {MAJOR}",
            "read it with the tdbg that wrote it, or a newer one",
        )


def publish_manifest(folder: Path, about: Mapping[str, object]) -> int:
    """Write the manifest, unless there is one; returns its bytes. Raises OSError; TdbgError if it is another run's."""
    path = folder / MANIFEST
    if path.exists():
        check_run(folder, str(about["run"]))
        return path.stat().st_size
    record = {"format": FORMAT, "version": {"major": MAJOR, "minor": MINOR}, **about}
    text = json.dumps(record, ensure_ascii=True, indent=1) + "\n"
    import socket  # 3 ms that no reader needs

    ready = folder / f".{MANIFEST}.{socket.gethostname()}.{os.getpid()}"
    with run_files.open_new(ready) as file:
        file.write(text.encode("ascii"))
    try:
        disk.publish_file(ready, path)
    except FileExistsError:
        check_run(folder, str(about["run"]))
    finally:
        ready.unlink(missing_ok=True)
    return len(text)
