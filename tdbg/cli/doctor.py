"""`tdbg doctor`: what tdbg sees where it stands, what is wrong with it, and where each setting comes from."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tdbg.core.command_spec import JSON, Args, Command, Options
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.output import print_json
from tdbg.core.tables import format_cell, print_table

OLDEST_TORCH = (2, 6)
NEEDED = ("typer", "rich", "yacs", "msgspec", "numpy", "safetensors", "psutil", "ijson")
EXTRAS = ("wandb", "tensorboard", "plotly", "starlette", "uvicorn", "pyarrow", "fsspec", "isal", "zstandard")
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "ray")
# TDBG_ variables that are no settings.
OTHER_VARIABLES = ("TDBG_DEBUG",)
SMALL_DISK_BYTES = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: ``ok``, a ``note`` worth knowing, or a ``problem`` and what to do about it."""

    name: str
    found: str
    status: str = "ok"
    next: str = ""


HELP = """Show what tdbg sees here: versions, settings and their sources.

    It looks at this Python, this folder and this environment, changes nothing, and never imports torch. The
    exit code is 1 if something is wrong. A program may run under another Python: what counts there is said
    by `tdbg report` after a run.

    Examples:
        tdbg doctor
        TDBG_LEVEL=advanced tdbg doctor --json
    """
OPTIONS: Options = {"json": JSON}


class DoctorArgs(Args):
    """What `doctor` can be given."""

    json: bool = False


def run_doctor(args: DoctorArgs) -> int:
    """Print checks and settings; 1 if something is wrong."""
    checks = [check for look in CHECKS for check in look()]
    settings, trouble = list_settings()
    checks += trouble
    if args.json:
        print_json("doctor", {"checks": [asdict(check) for check in checks], "settings": settings})
    else:
        print_checks(checks, settings)
    return 1 if any(check.status == "problem" for check in checks) else 0


def print_checks(checks: Iterable[Check], settings: list[dict[str, Any]]) -> None:
    """Two tables: the checks, then the settings."""
    print_table(("check", "status", "found", "next"), [(c.name, c.status, c.found, c.next) for c in checks])
    print()
    print_table(("setting", "value", "from"), [(s["setting"], _format_value(s["value"]), s["from"]) for s in settings])


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(name if on is True else f"{name}={format_cell(on)}" for name, on in value.items()) or "-"
    return format_cell(value) or "-"


def list_settings() -> tuple[list[dict[str, Any]], list[Check]]:
    """The settings a run started here would have; or the first thing that is wrong with their sources."""
    from tdbg.core import config

    try:
        settings, origin = config.resolve_settings({})
    except TdbgError as error:
        return [], [Check("settings", str(error), "problem", error.hint)]
    rows = [{"setting": key, "value": value, "from": origin[key]} for key, value in settings.as_dict().items()]
    return rows, []


def check_interpreter() -> Iterator[Check]:
    """tdbg, Python and the machine."""
    import tdbg
    from tdbg.core.host import platform_name

    yield Check("tdbg", f"{tdbg.__version__} in {Path(tdbg.__file__).parent}")
    yield Check("python", f"{sys.version.split()[0]} at {sys.executable}")
    yield Check("platform", platform_name())


def check_packages() -> Iterator[Check]:
    """torch, what tdbg needs, what it can use."""
    version = version_of("torch")
    if not version:
        yield Check(
            "torch", "not installed here", "note", "a program's own environment may have it; tdbg needs it there"
        )
    else:
        old = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_TORCH
        hint = f"tdbg needs torch {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer" if old else ""
        yield Check("torch", version, "problem" if old else "ok", hint)
    missing = [name for name in NEEDED if not version_of(name)]
    hint = f"python -m pip install {' '.join(missing)}" if missing else ""
    yield Check("libraries", _format_versions(NEEDED), "problem" if missing else "ok", hint)
    yield Check("extras", _format_versions(EXTRAS))


def _format_versions(names: Iterable[str]) -> str:
    found = {name: version_of(name) for name in names}
    absent = [name for name, version in found.items() if not version]
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    return "; ".join(part for part in (there, f"missing: {', '.join(absent)}" if absent else "") if part)


def version_of(package: str) -> str:
    """The installed version, without importing the package; empty if there is none."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def check_launchers() -> Iterator[Check]:
    """Which of the usual launchers are on PATH."""
    import shutil

    yield Check("launchers", ", ".join(name for name in LAUNCHERS if shutil.which(name)) or "none on PATH")


def check_startup_hooks() -> Iterator[Check]:
    """What decides whether tdbg wakes up in a process: PYTHONPATH, sitecustomize, the hook."""
    from importlib.machinery import PathFinder

    from tdbg.launch import startup_files

    yield Check("PYTHONPATH", os.environ.get("PYTHONPATH") or "not set")
    own = PathFinder.find_spec("sitecustomize")
    if own is None or not own.origin:
        yield Check("sitecustomize", "none of your own")
    else:
        yield Check("sitecustomize", own.origin, "note", "tdbg's own runs first and then runs this one")
    there = startup_files.is_installed()
    yield Check(
        "hook", str(startup_files.find_hook_path(None)) if there else "not installed; only `python -I` and `-E` need it"
    )
    if os.environ.get("TDBG_RUN_DIR"):
        yield Check("run", os.environ["TDBG_RUN_DIR"], "note", "this shell is inside a run of tdbg")


def check_run_folder() -> Iterator[Check]:
    """Whether a run directory could be made here, and the room for it."""
    import shutil

    from tdbg.core.rundir import RUNS

    place = Path(os.environ.get("TDBG_RUN_DIR") or RUNS).absolute()
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        yield Check("run directory", f"{there} cannot be written", "problem", "choose another with --run-dir")
        return
    free_bytes = shutil.disk_usage(there).free
    small = free_bytes < SMALL_DISK_BYTES
    hint = "make room, or lower --disk-budget" if small else ""
    yield Check("run directory", f"{place}, {free_bytes / 1e9:.1f} GB free", "note" if small else "ok", hint)


def check_variables() -> Iterator[Check]:
    """TDBG_ variables that mean nothing: a misspelt one is ignored in silence otherwise."""
    from dataclasses import fields

    from tdbg.core.config import Settings

    known = [*(f"TDBG_{item.name.upper()}" for item in fields(Settings)), *OTHER_VARIABLES]
    for name in sorted(os.environ):
        if name.startswith("TDBG_") and name not in known:
            yield Check(name, "no such setting", "problem", suggest_name(name, known, "unset it"))


CHECKS: tuple[Callable[[], Iterator[Check]], ...] = (
    check_interpreter,
    check_packages,
    check_launchers,
    check_startup_hooks,
    check_run_folder,
    check_variables,
)

COMMAND = Command(run_doctor, DoctorArgs, HELP, OPTIONS)
