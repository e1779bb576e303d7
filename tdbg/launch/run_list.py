"""The runs of a folder: what a list shows of each, and how old ones are removed.

Two small files of each run are read, run.json and report.json; a list of hundreds takes well under a second.
"""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tdbg.core import run_files
from tdbg.core.files import read_json
from tdbg.core.host import host_name
from tdbg.core.rundir import EVENTS, STATE_FILE, RunDir
from tdbg.launch.live import has_ended
from tdbg.rules.verdict import REPORT_FILE
from tdbg.rules.view import SILENT_S, read_info

REMOVED_SUFFIX = ".removed"  # of a run whose removal has begun
ABANDONED_S = 7 * 86_400.0  # a run of another host that has written nothing for this long counts as ended


@dataclass(slots=True, kw_only=True)
class RunEntry:
    """A run in a list. Times in seconds since 1970. duration_s: until now while it goes on.

    title: of the finding that the verdict begins with; empty where there is none, or no verdict (severity is None then,
    "none" where nothing was found). verdict: the same in words, also where there is no finding.
    """

    name: str
    state: str  # running, ended
    start: float | None = None
    duration_s: float | None = None
    command: list[str] = field(default_factory=list)
    severity: str | None = None
    title: str = ""
    verdict: str = ""
    codes: list[str] = field(default_factory=list)
    steps: int | None = None
    loss: float | str | None = None
    exit: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def list_run_paths(folder: Path) -> list[Path]:
    """Run directories in a folder, the newest first. A link is none."""
    found = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        state = os.path.join(entry.path, STATE_FILE)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and not os.path.islink(state):
            try:
                found.append((os.stat(state).st_mtime, Path(entry.path)))
            except OSError:
                continue
    return [path for _, path in sorted(found, reverse=True)]


def describe_run_entry(run: RunDir) -> RunEntry:
    """What a list shows of a run."""
    info, report = read_info(run), _read_report(run)
    start, end = _as_number(info.get("start")), _as_number(info.get("end"))
    is_over = has_ended(info) or _is_silent(run, info)
    until = end if end is not None else None if is_over else time.time()
    ranks = [row for row in _as_list(report.get("ranks")) if isinstance(row, dict)]
    findings = [one for one in _as_list(report.get("findings")) if isinstance(one, dict)]
    ended = report.get("exit")
    lead = _find_lead(findings)
    title = f"{lead.get('code')} {lead.get('title')}" if lead else ""
    return RunEntry(
        name=run.path.name,
        state="ended" if is_over else "running",
        start=start,
        duration_s=max(until - start, 0.0) if start is not None and until is not None else None,
        command=[str(word) for word in _as_list(info.get("command"))],
        severity=str(report.get("worst_severity") or "none") if report else None,
        title=title,
        verdict=title or str(report.get("headline", "")).removeprefix("verdict: ").partition(";")[0],
        codes=[str(one.get("code")) for one in findings],
        steps=max((row["steps"] for row in ranks if isinstance(row.get("steps"), int)), default=None),
        loss=next((row["loss"] for row in ranks if isinstance(row.get("loss"), int | float | str)), None),
        exit=str(ended.get("text", "")) if isinstance(ended, dict) else "",
    )


def _is_silent(run: RunDir, info: dict[str, Any]) -> bool:
    """True if its tdbg is on another host, where it cannot be looked for, and has written nothing for a minute."""
    supervisor = info.get("supervisor")
    if not isinstance(supervisor, dict) or supervisor.get("host") == host_name():
        return False
    written = [process.path / EVENTS for process in run.list_processes()]
    newest = max((path.stat().st_mtime for path in (*written, run.path / STATE_FILE) if path.exists()), default=0.0)
    return time.time() - newest > SILENT_S


def _read_report(run: RunDir) -> dict[str, Any]:
    try:
        found = read_json(run.path / REPORT_FILE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _find_lead(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """The finding that the verdict begins with: what the worst one follows from, if it follows from another."""
    place = 0
    for _ in findings:
        origin = findings[place].get("follows_from")
        cause = origin.get("finding") if isinstance(origin, dict) else None
        if not isinstance(cause, int) or not 0 <= cause < len(findings):
            break
        place = cause
    return findings[place] if findings else {}


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def select_old_runs(
    paths: Sequence[Path], keep: int, older_s: float | None, now: float
) -> tuple[list[Path], list[str]]:
    """The runs that may be removed, and why other old ones are kept. paths: the newest first.

    keep: number of newest runs that stay. older_s: runs that ended, or began, less than this long ago stay too. A run
    that may still be running stays, and so does one of another user. Whether a run of another host still runs is not
    known here: with older_s it counts as ended once it has written nothing for a week and for older_s.
    """
    chosen, kept = [], []
    for path in paths[keep:]:
        info = read_info(RunDir(path))
        try:
            last_t = _as_number(info.get("end")) or path.joinpath(STATE_FILE).stat().st_mtime
            obstacle = run_files.describe_write_obstacle(path)
        except OSError:
            continue  # another removed it meanwhile
        if older_s is not None and now - last_t < older_s:
            continue
        if not has_ended(info) and not (older_s is not None and _is_abandoned(path, info, now - older_s, now)):
            kept.append(f"{path.name} is kept: it may still be running")
        elif obstacle:
            kept.append(f"{path.name} is kept: {obstacle}")
        else:
            chosen.append(path)
    return chosen, kept


def _is_abandoned(path: Path, info: dict[str, object], until: float, now: float) -> bool:
    """True if a run of another host has written nothing since ``until``, and nothing for a week."""
    supervisor = info.get("supervisor")
    if not isinstance(supervisor, dict) or supervisor.get("host") == host_name():
        return False
    try:
        times = [os.lstat(os.path.join(folder, name)).st_mtime for folder, _, names in os.walk(path) for name in names]
    except OSError:  # it changes
        return False
    return max(times, default=now) < min(until, now - ABANDONED_S)


def measure_run(path: Path) -> int:
    """Bytes on disk of a run; links are not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                continue
    return total


def remove_run(path: Path) -> None:
    """Remove a run directory. It is no run from the first moment on, even if this is cut off. Raises OSError.

    No link is followed: neither one that stands for the run, nor one in it.
    """
    if path.is_symlink():
        raise OSError(f"{path} is a link")
    aside = path.with_name(f".{path.name}{REMOVED_SUFFIX}")
    os.rename(path, aside)
    shutil.rmtree(aside)


def remove_leftovers(folder: Path) -> None:
    """Remove what a removal that was cut off left there."""
    for path in folder.glob(f".*{REMOVED_SUFFIX}"):
        if path.is_dir() and not path.is_symlink() and not run_files.describe_write_obstacle(path):
            shutil.rmtree(path, ignore_errors=True)
