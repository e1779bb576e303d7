"""Which source tree a file of the program belongs to."""

import os
import tempfile

from tdbg.inject.console_level import PACKAGES


def find_source_root(path: str, main: str, cwd: str) -> str:
    """The tree a file belongs to: the current folder, that of the script ``main``, or else its own package's (or itself)."""
    for base in (cwd, os.path.dirname(main)):
        inside = os.path.join(base, "")
        if path.startswith(inside) and main.startswith(inside) and base not in _list_wide_folders():
            return base
    folder = os.path.dirname(path)
    if not os.path.exists(os.path.join(folder, "__init__.py")):
        return path if folder in _list_wide_folders() else folder
    while os.path.exists(os.path.join(os.path.dirname(folder), "__init__.py")):
        folder = os.path.dirname(folder)
    return folder


def _list_wide_folders() -> tuple[str, ...]:
    """Folders that hold more than one program."""
    return ("/", os.path.expanduser("~"), tempfile.gettempdir(), *(folder.rstrip(os.sep) for folder in PACKAGES))
