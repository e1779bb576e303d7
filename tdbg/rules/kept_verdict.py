"""The verdict that the supervisor of a large run drew, kept so that `tdbg report` need not draw it again.

It counts only while every event file has its size and time of change, and tdbg its rules. To judge a million step records
anew takes more than a minute.
"""

import contextlib
import json
import zlib
from typing import Any

from tdbg.core import run_files
from tdbg.core.rundir import EVENTS, RunDir, write_json
from tdbg.rules import RULES
from tdbg.rules._rule_cards import stamp_sources
from tdbg.rules.verdict import Verdict
from tdbg.version import __version__

FILE, METRICS = "verdict.json", "metrics.jsonl"
LARGE_BYTES = 8 << 20  # of events: less is judged within a second
MAX_BYTES = 64 << 20


def save_verdict(run: RunDir, verdict: Verdict) -> None:
    """Keep the verdict of a large run all of whose ranks wrote their end. OSError as of any writing."""
    sizes = [(process.path / EVENTS).stat().st_size for process in run.list_processes()]
    has_ended = bool(verdict.ranks) and all(row["ended"] == "ended" for row in verdict.ranks)
    if sum(sizes) >= LARGE_BYTES and has_ended and not RULES.list_third_party():
        import msgspec

        kept = {"stamp": _stamp_events(run), "exit": verdict.exit["code"], "verdict": msgspec.to_builtins(verdict)}
        write_json(run.path / FILE, kept)


def load_verdict(run: RunDir) -> Verdict | None:
    """The verdict that was kept; None if there is none, or if it is no longer that of these files."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept: dict[str, Any] = json.loads(run_files.read_bytes(run.path / FILE, MAX_BYTES))
        if kept["stamp"] != _stamp_events(run) or RULES.list_third_party():
            return None
        ended = run.read_info().get("exit")
        code, number = (ended.get("code"), ended.get("signal")) if isinstance(ended, dict) else (ended, None)
        if kept["exit"] == (-number if number else code):
            import msgspec

            return msgspec.convert(kept["verdict"], Verdict)
    return None


def _stamp_events(run: RunDir) -> list[object]:
    """What the verdict depends on."""
    found = 0
    for process in run.list_processes():
        for path in (process.path / EVENTS, process.path / METRICS):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found = zlib.crc32(f"{process.label} {status.st_size} {status.st_mtime_ns};".encode(), found)
    return [__version__, zlib.crc32(json.dumps(stamp_sources(), sort_keys=True).encode()), found]
