"""The startup file of `tdbg hook`: one line in site-packages that runs a run's boot file where PYTHONPATH cannot."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tdbg.errors import TdbgError

FILE = "tdbg_hook.pth"
# Python runs a line that begins with "import". Outside `tdbg run` it costs one look at the environment;
# where PYTHONPATH did its work, the boot folder is on sys.path and nothing is left to do.
LINE = (
    "import os, sys; tdbg_boot = os.path.join(os.environ.get('TDBG_RUN_DIR') or os.sep, 'boot', 'sitecustomize.py'); "
    "'TDBG_RUN_DIR' in os.environ and os.path.dirname(tdbg_boot) not in sys.path and os.path.isfile(tdbg_boot) and "
    "exec(compile(open(tdbg_boot).read(), tdbg_boot, 'exec'), {'__name__': 'tdbg_boot', '__file__': tdbg_boot})\n"
)


def place(python: str | None) -> Path:
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


def install(python: str | None = None) -> Path:
    """Write the hook; returns its path."""
    path = place(python)
    try:
        path.write_text(LINE, encoding="utf-8")
    except OSError as error:
        raise _refused("write", path, error) from None
    return path


def remove(python: str | None = None) -> Path | None:
    """Remove the hook; returns its path, or None if there was none."""
    path = place(python)
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused("remove", path, error) from None
    return path


def installed() -> bool:
    """True if tdbg's own environment has the hook, as this tdbg writes it."""
    try:
        return place(None).read_text(encoding="utf-8") == LINE
    except OSError:
        return False


def _refused(verb: str, path: Path, error: OSError) -> TdbgError:
    where = "another environment" if sys.prefix == sys.base_prefix else "this environment"
    return TdbgError(f"cannot {verb} {path}: {error.strerror or error}", f"is {where} yours to change? see --python")
