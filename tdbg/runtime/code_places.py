"""Which line of the program a call comes from: the innermost frame outside torch and tdbg."""

import os
from functools import lru_cache
from types import FrameType

import torch

from tdbg.core.frames import OWN_FOLDER, get_line

TORCH = os.path.dirname(torch.__file__) + os.sep
MAX_FRAMES = 60


def is_torch(frame: FrameType) -> bool:
    """True for a frame of torch's own Python code."""
    return frame.f_code.co_filename.startswith(TORCH)


def is_tdbg(frame: FrameType) -> bool:
    """True for a frame of tdbg's own code."""
    return frame.f_code.co_filename.startswith(OWN_FOLDER)


def program_frame(frame: FrameType | None) -> FrameType | None:
    """The first frame, outwards from this one, that belongs to neither torch nor tdbg."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        file = frame.f_code.co_filename
        if not file.startswith((TORCH, OWN_FOLDER, "<")):
            return frame
        frame = frame.f_back
    return None


def program_line(frame: FrameType | None) -> str:
    """``file:line`` of that frame; empty where there is none. The file as seen from the working directory."""
    found = program_frame(frame)
    return f"{short_path(found.f_code.co_filename)}:{get_line(found)}" if found is not None else ""


def raising_line(error: BaseException) -> str:
    """``file:line`` of the program at which the error arose, or that called into torch or tdbg for it."""
    place, found = error.__traceback__, ""
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        if not file.startswith((TORCH, OWN_FOLDER, "<")):
            found = f"{short_path(file)}:{place.tb_lineno or get_line(place.tb_frame)}"
        place = place.tb_next
    return found


@lru_cache(maxsize=1024)
def short_path(file: str) -> str:
    """A file below the working directory (as it was at first) without that directory, any other as it is."""
    here = os.path.join(os.getcwd(), "")
    return file.removeprefix(here)
