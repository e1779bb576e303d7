"""Level and flags of a run: what is on, and with ``--control`` what shall be."""

from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal

import msgspec

from tdbg.core.config import read_flags
from tdbg.core.control import Request
from tdbg.core.errors import TdbgError
from tdbg.core.flags import FLAGS, LEVELS, Flag
from tdbg.core.tables import to_json_value
from tdbg.launch.ask import send_request
from tdbg.launch.live import read_snapshot
from tdbg.viewer.answers.debug import WhichRun
from tdbg.viewer.routes import API, ConflictError, route
from tdbg.viewer.run_answers import RequestSent
from tdbg.viewer.run_library import Served

Level = Literal["off", "basic", "advanced", "extreme"]
MAX_STEPS = 10**15


class FlagState(msgspec.Struct, kw_only=True):
    """A debug flag of a run. probe: what it wakes, empty if a program alone sees it. observations: so far.

    by_level: the flag is off, and the level of the run wakes its probe.
    """

    name: str
    summary: str
    probe: str
    is_on: bool
    by_level: bool
    observations: int


class FlagStates(msgspec.Struct, kw_only=True):
    """Level and flags of a run now."""

    state: str
    level: str
    flags: list[FlagState]


class Change(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What shall hold from the next step that all ranks can reach: a level, flags on or off, for so many steps (0: for good)."""

    level: Literal["", "off", "basic", "advanced", "extreme"] = ""
    flags: dict[str, bool] = {}
    for_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEPS)] = 0


@route("GET", f"{API}/runs/{{run}}/flags")
def show_flags(served: Served, run: str) -> FlagStates:
    """The level and each debug flag: whether it is on, and how often its probe observed something."""
    found = served.runs.open_run(run)
    snapshot = read_snapshot(found, first_rank_alone=True)
    rank = snapshot.ranks[0] if snapshot.ranks else None
    settings = snapshot.settings
    on = set(rank.flags if rank else (name for name, value in settings.flags.items() if value is not False))
    level = rank.level if rank else settings.level
    started = {name for name, value in settings.flags.items() if value is not False}
    looks = served.drawings.get_drawing(found).report["looks"]
    return FlagStates(
        state="ended" if snapshot.ended else "running",
        level=level,
        flags=[
            FlagState(
                name=flag.name,
                summary=flag.summary,
                probe=flag.probe or "",
                is_on=flag.name in on,
                by_level=flag.name not in on and level != "off" and _is_woken(flag, level, looks, started),
                observations=looks.get(flag.name, {}).get("count", 0),
            )
            for flag in FLAGS
        ],
    )


def _is_woken(flag: Flag, level: str, looks: Mapping[str, Any], started: Container[str]) -> bool:
    """True if the level wakes the probe of a flag, or its opening inspection did and nobody asked for the flag itself."""
    is_of_level = bool(flag.level) and level in LEVELS[LEVELS.index(flag.level) :]
    return is_of_level or (flag.name not in started and looks.get(flag.name, {}).get("count", 0) > 0)


@route("POST", f"{API}/runs/{{run}}/flags", changes=True, answers=RequestSent)
def change_flags(served: Served, run: str, body: Change) -> dict[str, Any]:
    """Change level and flags of a live run, as `tdbg control`; the answer does not wait for the ranks."""
    found = served.runs.open_run(run)
    known = tuple(read_snapshot(found, first_rank_alone=True).settings.flags)
    flags = read_flags([f"{name}={'true' if value else 'false'}" for name, value in body.flags.items()], known)
    return _send(served, run, Request(number=0, level=body.level, flags=flags, for_steps=body.for_steps))


@route("POST", "/debug/level/{level}", changes=True, answers=RequestSent)
def change_level(served: Served, level: Level, query: WhichRun) -> dict[str, Any]:
    """Change the level of a live run: off, basic, advanced or extreme."""
    return _send(served, served.runs.open_newest(query.run).path.name, Request(number=0, level=level))


@route("POST", "/debug/clear", changes=True, answers=RequestSent)
def clear_history(served: Served, query: WhichRun) -> dict[str, Any]:
    """Clear the last steps that each rank of a live run keeps for reports."""
    return _send(served, served.runs.open_newest(query.run).path.name, Request(number=0, clear_history=True))


def _send(served: Served, run: str, wish: Request) -> dict[str, Any]:
    opened = served.runs.open_run(run)
    try:
        found: dict[str, Any] = to_json_value(send_request(opened, wish, wait_s=0).as_dict())
    except TdbgError as error:
        raise ConflictError(str(error), error.hint) from None
    return found
