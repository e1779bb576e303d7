"""Where a rank was in Python when native code ended it: what ``faulthandler`` wrote into the rank's folder."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from tdbg.core import run_files
from tdbg.core.frames import OWN_FOLDER
from tdbg.core.lazy_pattern import lazy_pattern

NATIVE_STACK = "native_stack.txt"
STACKS_NOW = "stacks_now.txt"  # what was asked for
MAX_BYTES = 1 << 18
CRASH = "Fatal Python error: "
THREAD = lazy_pattern(r"^(Current thread|Thread) 0x")
FRAME = lazy_pattern(r'^  File "(.*)", line (\d+) in (.*)$')
PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/torch/distributed/", "<")
COLLECTIVES = "distributed_c10d.py"
OWN_PART = lazy_pattern(r"/tdbg/(probes|runtime|inject|debuggers|core)/")


class CrashPlace(NamedTuple):
    """The innermost call, and the innermost line of the program's own; empty where there is none."""

    function: str
    file: str
    where: str

    @property
    def is_collective(self) -> bool:
        """True if torch.distributed was waiting for other ranks."""
        return self.file == COLLECTIVES


def read_crash_place(folder: Path) -> CrashPlace | None:
    """Where the process of this folder crashed last; None if nothing is on record."""
    try:
        data = run_files.read_bytes(folder / NATIVE_STACK, MAX_BYTES)
    except OSError:
        return None
    text = data.decode("utf-8", "replace")
    at = text.rfind(CRASH)
    return _locate_crash(text[at:].splitlines()) if at >= 0 else None


def _is_own_file(file: str) -> bool:
    """True for a file of tdbg's, here or on the machine of the run: its wrappers stand between program and torch."""
    return file.startswith(OWN_FOLDER) or OWN_PART.search(file) is not None


def _locate_crash(lines: list[str]) -> CrashPlace | None:
    """The thread that crashed, or, where that one ran no Python, the main thread, which stands last."""
    threads: list[tuple[bool, list[re.Match[str]]]] = []
    for line in lines:
        thread = THREAD.match(line)
        if thread is not None:
            threads.append((thread[1] == "Current thread", []))
        elif threads and (frame := FRAME.match(line)) is not None and not _is_own_file(frame[1]):
            threads[-1][1].append(frame)
    crashed = [frames for current, frames in threads if current and frames]
    frames = crashed[-1] if crashed else next((frames for _, frames in reversed(threads) if frames), [])
    if not frames:
        return None
    own = next((frame for frame in frames if not any(part in frame[1] for part in PACKAGES)), None)
    where = f"{os.path.basename(own[1])}:{own[2]} in {own[3]}" if own is not None else ""
    return CrashPlace(frames[0][3] if own is not frames[0] else "", os.path.basename(frames[0][1]), where)
