"""What is asked of a live run: the requests in its control.json, written by one command and read by every rank.

The file is replaced by a rename and holds the last requests, each with a number that only grows. A request names
the step from which it holds, so that ranks agree on it without talking to each other.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tdbg.core.config import LEVELS
from tdbg.core.errors import TdbgError
from tdbg.core.files import open_regular
from tdbg.core.rundir import write_json

CONTROL_FILE = "control.json"
VERSION = 1
KEPT = 16
MAX_BYTES = 1_000_000


@dataclass(slots=True, kw_only=True)
class Request:
    """One change of a live run."""

    number: int
    t: float = 0.0  # when it was asked, seconds since 1970
    at_step: int = 0  # the first step it holds for; 0 or one that has passed: at once
    level: str = ""  # empty: as it is
    flags: dict[str, bool | str] = field(default_factory=dict)  # to switch on (or off: False)
    for_steps: int = 0  # then everything is as before; 0: for good
    clear_history: bool = False
    capture_for: int = 0  # so many steps are captured from then on, of what `--capture` names
    profile_for: int = 0  # so many steps are recorded by torch.profiler, after a warm-up
    why: str = ""  # who asks for that: control (or empty), finding


def read_requests(path: Path) -> list[Request]:
    """The requests of a control.json in the order of their numbers; none if there is no file.

    Raises TdbgError for a file that does not hold requests: a rank then keeps to what it has. OSError passes.
    """
    try:
        with open_regular(path) as file:
            data = json.loads(file.read(MAX_BYTES))
        kept = data["requests"] if isinstance(data, dict) else None
        if not isinstance(kept, list):
            raise ValueError("it holds no list of requests")
        return sorted(map(_parse_request, kept), key=lambda request: request.number)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # JSON errors are ValueErrors
        raise TdbgError(f"cannot read {path}: {error}", "remove the file; `tdbg control` writes a new one") from None


def write_requests(path: Path, requests: list[Request]) -> None:
    """Replace the file; only the last requests are kept."""
    write_json(path, {"version": VERSION, "requests": [asdict(request) for request in requests[-KEPT:]]})


def _parse_request(data: object) -> Request:
    if not isinstance(data, Mapping):
        raise ValueError("a request is not a table")
    known = {item.name for item in fields(Request)}
    found = Request(**{key: value for key, value in data.items() if key in known})
    whole = (found.number, found.at_step, found.for_steps, found.capture_for, found.profile_for)
    if not all(type(value) is int and value >= 0 for value in whole):
        raise ValueError("number, at_step, for_steps, capture_for and profile_for must be whole numbers from 0")
    if found.level not in ("", *LEVELS):
        raise ValueError(f"no level is named {found.level!r}")
    if not isinstance(found.why, str):
        raise ValueError("why must be text")
    if not isinstance(found.t, int | float):
        raise ValueError("t must be a time in seconds")
    flags = found.flags
    if not isinstance(flags, dict) or not all(isinstance(value, bool | str) for value in flags.values()):
        raise ValueError("flags must be true, false or text")
    return found
