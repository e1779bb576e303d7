"""The boot folder of a run, and the environment that makes every Python process below start in it."""

import os
from collections.abc import Mapping
from pathlib import Path

from tdbg import version
from tdbg.core import run_files
from tdbg.core.config import Settings, flags_to_env
from tdbg.core.errors import LaunchError, TdbgError
from tdbg.core.rundir import PREFLIGHT_START, RunDir
from tdbg.inject import boot_source, watch_table
from tdbg.launch.bytecode import precompile_boot_file

BOOT = "boot"
BOOT_FILE = "sitecustomize.py"
SILENT = "99"  # above all of its levels
MARK = ("TDBG_RUN_DIR", "TDBG_LAUNCHED_BY")  # together they tell this agent's processes from all others


def write_boot_file(run: RunDir, settings: Settings) -> Path:
    """Write RUN/boot/sitecustomize.py and return its folder; LaunchError where there is no room.

    Agents that join a run write the same text, each by replacement.
    """
    folder = run.path / BOOT
    text = boot_source(str(run.path), str(Path(version.__file__).parents[1]), watch_table(settings))
    try:
        run_files.make_folder(folder)
        run_files.write_atomically(folder / BOOT_FILE, text.encode())
        precompile_boot_file(str(folder / BOOT_FILE))
    except OSError as error:
        raise LaunchError(
            f"cannot write {folder / BOOT_FILE}: {error.strerror or error}",
            "free disk space there, or choose another --run-dir",
        ) from None
    return folder


def check_path(path: Path) -> None:
    """Refuse a run directory that cannot stand on PYTHONPATH."""
    if os.pathsep in str(path):
        raise TdbgError(
            f"a run directory cannot have {os.pathsep!r} in its path: {path}",
            "choose another --run-dir or --name",
        )


def child_env(run: RunDir, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: the boot folder first on PYTHONPATH, and the way to the run.

    In a run inside a run the inner one takes over: the outer boot folder leaves the path. An empty part of the
    path stays: it is the current folder for Python.
    """
    outer = environ.get("TDBG_RUN_DIR", "")
    before = environ.get("PYTHONPATH", "")
    kept = before.split(os.pathsep) if before else []
    if outer:
        kept = [part for part in kept if part != str(Path(outer) / BOOT)]
    env = dict(environ)
    env["PYTHONPATH"] = os.pathsep.join([str(run.path / BOOT), *kept])
    env["TDBG_RUN_DIR"] = str(run.path)
    env["TDBG_LAUNCHED_BY"] = str(os.getpid())
    env.pop("TDBG_FLAGS", None)
    env.pop(PREFLIGHT_START, None)  # of an outer run
    env.pop("TDBG_NOTIFY", None)  # the secret of this process alone
    if settings.flags:
        env["TDBG_FLAGS"] = flags_to_env(settings.flags)
    if settings.preflight:
        env["WANDB_MODE"] = "disabled"
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    if settings.flags.get("PROFILER"):  # torch's recorder writes a line to stderr at each start and stop
        env.setdefault("KINETO_LOG_LEVEL", SILENT)
    return env


def inside_run(environ: Mapping[str, str]) -> bool:
    """True if this very process was started below another `tdbg run`, which set TDBG_RUN_DIR itself."""
    outer = environ.get("TDBG_RUN_DIR", "")
    return bool(outer) and str(Path(outer) / BOOT) in environ.get("PYTHONPATH", "").split(os.pathsep)
