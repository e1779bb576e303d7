"""What it means that no process of a run reported: the words for people, live and in a verdict."""

from tdbg.core.files import open_regular
from tdbg.core.rundir import RunDir
from tdbg.rules.text import clip_text

ERRORS_LOG = "boot/errors.log"
IMPORTING = "boot/importing"  # a process has begun to import torch
SHOWN_CHARS = 140


def explain_silence(run: RunDir, *, over: bool = True) -> tuple[str, str] | None:
    """What is wrong and what to do, if no process has reported; None if one has, or a removed folder cannot tell.

    over: the command has ended; while it runs, what has not happened may still do.
    """
    if not run.path.is_dir():
        return None
    if run.read_hellos() or run.list_processes():
        return None
    if (run.path / ERRORS_LOG).exists():
        why = read_boot_error(run)
        return "no process reported: tdbg could not start in it" + (
            f": {why}" if why else ""
        ), f"see {ERRORS_LOG} in the run directory"
    if (run.path / IMPORTING).exists():
        return (
            f"no process {'reported' if over else 'has reported yet'}: one"
            f" {'ended while it imported torch' if over else 'is importing torch'}",
            "see the end of its output; `python -X importtime -c 'import torch'` shows where an import takes its time",
        )
    if run.has_woken() and not over:
        return (
            "no process has reported yet: Python runs, and has not begun to import torch",
            "is it the command that trains? (a child with an empty environment is not seen)",
        )
    if run.has_woken():
        return (
            "no process reported: Python ran, but none of it imported torch",
            "is it the command that trains? (a child with an empty environment is not seen)",
        )
    if (run.path / "boot" / "old-python").exists():
        return (
            "no process reported: the program's Python is older than 3.11",
            "run the program with Python 3.11 or newer",
        )
    return (
        "no process reported: not a Python program, PYTHONPATH overwritten, or python -I, -E or -S?",
        "append to PYTHONPATH instead of setting it; for -I and -E: `tdbg hook install`; -S cannot be seen",
    )


def read_boot_error(run: RunDir) -> str:
    """The first thing that went wrong while tdbg woke up in a process, in one line; empty if nothing did."""
    try:
        with open_regular(run.path / ERRORS_LOG) as file:
            return clip_text(file.readline(2000).decode("utf-8", "replace").strip(), SHOWN_CHARS)
    except OSError:
        return ""
