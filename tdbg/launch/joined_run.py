"""`tdbg join`: the run directories that the hosts of one job wrote, put together into one.

It is made under another name beside its place and renamed when it is whole: what is cut off leaves no half run.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.core import run_files
from tdbg.core.errors import TdbgError
from tdbg.core.events import ChildExit, encode
from tdbg.core.run_files import STATE_FILE
from tdbg.core.rundir import EVENTS, RunDir, write_json
from tdbg.core.tables import format_count, format_size
from tdbg.launch import joined_files
from tdbg.launch.joined_clocks import Clock, compare_clocks
from tdbg.launch.joined_files import Plan
from tdbg.launch.joined_parts import Part, list_missing_ranks, load_parts, place_members
from tdbg.launch.provenance import collect_rank_info
from tdbg.rules.text import format_ranks

FIRST_CLOCK = Clock(0.0, 0.0, 0)


class Joined(NamedTuple):
    """What was joined."""

    parts: Sequence[Part]
    clocks: Mapping[str, Clock]  # by the name of the part
    plan: Plan

    def format_lines(self, out: Path) -> list[str]:
        """What was done, a line for each part."""
        size, files = format_size(self.plan.nbytes), format_count(len(self.plan.copies), "file")
        return [
            f"joined {format_count(len(self.parts), 'run directory')} into {out}: {files}, {size} copied",
            *(f"  {part.name}: {self.describe_part(part)}" for part in self.parts),
        ]

    def describe_part(self, part: Part) -> str:
        """Its host, its ranks and its clock."""
        clock = "" if part is self.parts[0] else f", {self.clocks[part.name].describe()}"
        return f"host {part.host}, {format_ranks(part.ranks)}{clock}"

    def list_warnings(self) -> list[str]:
        """What is not as it should be."""
        missing = list_missing_ranks(self.parts)
        return [*([f"no directory holds ranks {missing}"] if missing else []), *self.plan.left_out]


def join_runs(paths: Sequence[str], out: Path) -> Joined:
    """Make one run directory of several. Raises TdbgError for what cannot be joined, and then leaves nothing."""
    _check_out(out)
    parts = load_parts(paths)
    _check_outside(out, parts)
    clocks = {part.name: compare_clocks(parts[0], part) if part is not parts[0] else FIRST_CLOCK for part in parts}
    places = place_members(parts, {name: clock.offset_s or 0.0 for name, clock in clocks.items()})
    plan = joined_files.plan_copies(parts, places, lambda part: clocks[part.name].shift_s)
    joined = Joined(parts, clocks, plan)
    joined_files.check_room(out.parent, plan.nbytes)
    _write_run(joined, out)
    return joined


def _check_out(out: Path) -> None:
    if os.path.lexists(out):
        raise TdbgError(f"{out} already exists", "name a directory that does not exist with -o")
    if not out.parent.is_dir():
        raise TdbgError(f"there is no folder {out.parent}", "create it first, or name another place with -o")


def _check_outside(out: Path, parts: Sequence[Part]) -> None:
    for part in parts:
        if out.resolve().is_relative_to(part.run.path.resolve()):
            raise TdbgError(f"{out} would be inside {part.name}", "name a place outside of the joined directories")


def _write_run(joined: Joined, out: Path) -> None:
    draft = out.with_name(f".{out.name}.joining-{os.getpid()}")
    try:
        draft.mkdir(mode=run_files.PRIVATE_FOLDER)
        run = RunDir(draft)
        for copy in joined.plan.copies:
            joined_files.copy_file(copy, draft)
        for part in joined.parts:
            _write_exit(part, draft, joined.clocks[part.name].shift_s)
        write_json(draft / STATE_FILE, {**_merge_info(joined), "ranks": collect_rank_info(run)})
        _check_out(out)
        os.rename(draft, out)
    except OSError as error:
        raise TdbgError(
            f"cannot join: {error.filename or out}: {error.strerror or error}",
            "nothing was written; mend this and run `tdbg join` again",
        ) from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(draft)


def _write_exit(part: Part, run: Path, shift_s: float) -> None:
    """Keep how the command of a part ended: run.json has room for one of them."""
    child, ended = part.info.get("child"), _read_exit(part)
    if not isinstance(child, dict) or not isinstance(child.get("pid"), int) or ended is None:
        return
    event = ChildExit(t=part.last_t + shift_s, host=str(child.get("host", "")), pid=child["pid"], code=ended)
    name = re.sub(r"[^\w.-]", "_", f"{part.host[:100]}-{child['pid']}", flags=re.ASCII)
    handle = run_files.open_append(run / joined_files.OTHER / name / EVENTS, makes=True)
    with os.fdopen(handle, "ab") as file:
        file.write(encode(event))


def _read_exit(part: Part) -> int | None:
    """The exit code of a part's command, minus the signal that killed it; None where it is not known."""
    ended = part.info.get("exit")
    code, number = (ended.get("code"), ended.get("signal")) if isinstance(ended, dict) else (ended, None)
    if isinstance(number, int) and number:
        return -abs(number)
    return code if isinstance(code, int) else None


def _merge_info(joined: Joined) -> dict[str, Any]:
    """The run.json of the whole: that of the first part, with what the others change."""
    parts, clocks = joined.parts, joined.clocks
    exits = [_read_exit(part) for part in parts]
    bad = next((part for part, code in zip(parts, exits, strict=True) if code), None)
    chosen = (
        bad
        if bad is not None
        else next((part for part, code in zip(parts, exits, strict=True) if code is None), parts[0])
    )
    return {
        **parts[0].info,
        "start": min(part.begin_t + clocks[part.name].shift_s for part in parts),
        "end": max(part.last_t + clocks[part.name].shift_s for part in parts),
        "exit": chosen.info.get("exit"),
        "child": chosen.info.get("child"),
        "supervisor": None,
        "nodes": [part.info.get("supervisor") for part in parts[1:]],
        "joined": {
            "t": time.time(),
            "parts": [
                {
                    "path": part.name,
                    "host": part.host,
                    "ranks": part.ranks,
                    "exit": part.info.get("exit"),
                    "clock": clocks[part.name].as_dict(),
                    "text": joined.describe_part(part),
                }
                for part in parts
            ],
        },
    }
