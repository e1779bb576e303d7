"""The startup files of `tdbg hook`, for Pythons that do not look at PYTHONPATH.

They are two lines of Python's own kind and the module that both name, `tdbg.inject.startup`, copied because the
environment may lack tdbg. ``.start`` is what Python reads from 3.15 on; there it switches off the line in ``.pth``,
which older ones read (PEP 829). Neither line has code in it besides the call, and none takes code out of a variable.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tdbg.core.errors import TdbgError

MODULE = "tdbg_startup"
FILE = "tdbg_hook.pth"
START_FILE = "tdbg_hook.start"
LINE = f"import {MODULE}; {MODULE}.start()\n"
START_LINE = f"{MODULE}:start\n"


def read_hook_files() -> dict[str, str]:
    """The files of the hook and their text, in the order in which they are written."""
    source = Path(__file__).parents[1] / "inject" / "startup.py"
    return {f"{MODULE}.py": source.read_text(encoding="utf-8"), START_FILE: START_LINE, FILE: LINE}


def find_hook_path(python: str | None) -> Path:
    """Where the hook of an interpreter's environment is; TdbgError if the interpreter cannot be asked."""
    if python is None:
        return Path(sysconfig.get_path("purelib")) / FILE
    question = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    try:
        answer = subprocess.run(
            question, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or f"it failed ({type(error).__name__})"
        raise TdbgError(f"cannot ask {python} for its site-packages: {why}", "name a Python with --python") from None
    return Path(answer.stdout.strip()) / FILE


def install_hook(python: str | None = None) -> Path:
    """Write the hook; returns its path."""
    path = find_hook_path(python)
    for name, text in read_hook_files().items():
        try:
            path.with_name(name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise _build_refused_error("write", path.with_name(name), error) from None
    return path


def remove_hook(python: str | None = None) -> Path | None:
    """Remove the hook; returns its path, or None if there was none."""
    path = find_hook_path(python)
    found = False
    for name in reversed(read_hook_files()):  # the lines first: none may name a module that is gone
        try:
            path.with_name(name).unlink()
            found = True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _build_refused_error("remove", path.with_name(name), error) from None
    return path if found else None


def is_installed() -> bool:
    """True if tdbg's own environment has the hook, as this tdbg writes it."""
    path = find_hook_path(None)
    try:
        return all(path.with_name(name).read_text(encoding="utf-8") == text for name, text in read_hook_files().items())
    except OSError:
        return False


def _build_refused_error(verb: str, path: Path, error: OSError) -> TdbgError:
    where = "another environment" if sys.prefix == sys.base_prefix else "this environment"
    return TdbgError(f"cannot {verb} {path}: {error.strerror or error}", f"check the owner of {where}, or see --python")
