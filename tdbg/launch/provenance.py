"""What run.json says about where a run came from: command, versions, git state, host."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tdbg.core.config import Settings
from tdbg.core.events import Start
from tdbg.core.host import host_name, platform_name
from tdbg.core.redaction import count_masked, redact_argv, redact_flags
from tdbg.core.registry import points_of
from tdbg.core.rundir import RunDir, allowed_env
from tdbg.launch.git_state import read_state
from tdbg.launch.join import describe_process
from tdbg.version import __version__


def collect_provenance(
    settings: Settings, origin: Mapping[str, str], command: Sequence[str], environ: Mapping[str, str], *, speaks: str
) -> dict[str, object]:
    """The fields of run.json that are known before the start. speaks: supervisor, or rank under --exec."""
    found = {
        "command": redact_argv(command),
        "cwd": os.getcwd(),
        "settings": {**settings.as_dict(), "flags": redact_flags(settings.flags)},
        "origin": dict(origin),
        "versions": {"tdbg": __version__, "python": sys.version.split()[0], "platform": platform_name()},
        "host": host_name(),
        "start": time.time(),
        "end": None,
        "exit": None,
        "supervisor": describe_process(),
        "speaks": speaks,
        "third_party_probes": points_of("tdbg.probes"),  # a rank does not look for them itself
        **({"third_party_debuggers": points_of("tdbg.debuggers")} if settings.debugger else {}),
        "env": allowed_env(environ),
        "git": None,
    }
    return {**found, "blotted_out": sum(count_masked(found[part]) for part in ("command", "settings", "env"))}


def git_state(timeout_s: float) -> dict[str, object] | None:
    """Commit, branch and whether tracked files differ; None outside a repository."""
    return read_state(Path.cwd(), timeout_s)


def collect_rank_info(run: RunDir) -> dict[str, dict[str, Any]]:
    """What each rank computed on: host, device, versions; of its latest attempt, from its Start event."""
    found: dict[str, dict[str, Any]] = {}
    for process in run.list_processes():
        if not process.is_rank:
            continue
        start = next((event for event in process.iter_events() if isinstance(event, Start)), None)
        if start is not None:
            found[str(process.rank)] = {
                "host": start.host,
                "pid": start.pid,
                "attempt": start.attempt,
                "device": start.device,
                "python": start.python,
                "torch": start.torch,
            }
    return found
