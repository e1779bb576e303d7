"""Where the threads of this process are, in Python."""

import linecache
import os
import sys
import sysconfig
import threading
import traceback
from types import FrameType

from tdbg.core.frames import OWN_FOLDER, get_line

MAX_FRAMES = 60
MAX_THREADS = 64
FOREIGN = tuple(
    os.path.abspath(path) + os.sep for name, path in sysconfig.get_paths().items() if name in ("stdlib", "purelib")
)
PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def format_all_stacks() -> dict[str, list[str]]:
    """Every other thread's Python stack, outermost frame first, by the thread's name. Cost: 1 ms and more."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found: dict[str, list[str]] = {}
    for ident, frame in list(sys._current_frames().items())[:MAX_THREADS]:
        if ident == threading.get_ident():
            continue
        lines = traceback.format_stack(frame, MAX_FRAMES)
        found[f"{names.get(ident, 'thread')} ({ident})"] = [line.rstrip() for line in lines]
    return found


def get_frame(ident: int) -> FrameType | None:
    """The innermost frame of a thread; None if it runs no Python."""
    return sys._current_frames().get(ident)


def locate_frame(frame: FrameType | None) -> str:
    """``train.py:41 in main``: the innermost line of the program's own, or of whatever runs."""
    own = frame
    while own is not None and is_foreign_file(own.f_code.co_filename):
        own = own.f_back
    found = own or frame
    if found is None:
        return ""
    return f"{os.path.basename(found.f_code.co_filename)}:{get_line(found)} in {found.f_code.co_name}"


def is_foreign_file(file: str) -> bool:
    """True for the standard library, installed packages, tdbg and code without a file."""
    return file.startswith((*FOREIGN, OWN_FOLDER, "<")) or any(part in file for part in PACKAGES)


def is_running(frame: FrameType | None, function: str) -> bool:
    """True if a function of this name is on the stack."""
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


def read_source_line(frame: FrameType | None) -> str:
    """The source line that the innermost frame is at, if it can be read."""
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, get_line(frame))
