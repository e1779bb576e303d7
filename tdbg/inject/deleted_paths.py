"""`--preflight`: which paths the program has deleted or moved, though they stand where they were.

Each Python process of the program on this host adds to one journal and reads what the others have added, so that a file
that one of them deletes is gone for all. A record is a kind, a path and a zero byte.
"""

import os

from tdbg.core import run_files

FILE, FOLDER, MADE_AGAIN = b"-", b"/", b"+"
END = b"\0"  # no path holds one


class DeletedPaths:
    """The paths that are gone. Its methods run inside `FileOverlay.bypass_patches`, where `os` works as ever."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._read_bytes = 0
        self._paths: set[str] = set()
        self._folders: set[str] = set()  # nothing that stood below them is there, also where they are made again

    def __bool__(self) -> bool:
        return bool(self._paths)

    def read_new_records(self) -> None:
        """Take over what other processes have added. Called before each answer that depends on it."""
        try:
            if os.stat(self._journal).st_size <= self._read_bytes:
                return
            with run_files.open_read(self._journal) as file:
                start = self._read_bytes
                file.seek(start)
                whole = file.read().rpartition(END)[0]
        except OSError:  # nothing was deleted yet
            return
        for record in whole.split(END) if whole else ():
            self._apply_record(record[:1], os.fsdecode(record[1:]))
        self._read_bytes = start + len(whole) + len(END) if whole else start

    def add(self, path: str, *, is_folder: bool) -> None:
        """A path is gone. Raises OSError if the journal cannot be written."""
        self._append_record(FOLDER if is_folder else FILE, path)

    def discard(self, path: str) -> None:
        """A path is made again."""
        if path in self._paths:
            self._append_record(MADE_AGAIN, path)

    def is_gone(self, path: str) -> bool:
        """True if the path, or a folder that it was in, was deleted or moved."""
        return path in self._paths or any(path.startswith(f"{folder}{os.sep}") for folder in self._folders)

    def _apply_record(self, kind: bytes, path: str) -> None:
        if kind == MADE_AGAIN:
            self._paths.discard(path)
            return
        self._paths.add(path)
        if kind == FOLDER:
            self._folders.add(path)

    def _append_record(self, kind: bytes, path: str) -> None:
        handle = run_files.open_append(self._journal, makes=True)
        try:
            os.write(handle, kind + os.fsencode(path) + END)
        finally:
            os.close(handle)
        self._apply_record(kind, path)
