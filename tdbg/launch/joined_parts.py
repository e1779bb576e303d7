"""The run directories that `tdbg join` puts together: what each holds, and whether they are parts of one job.

A part is the run directory of one agent (`tdbg run` on one host). Nothing is written here.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.events import Event, Start
from tdbg.core.files import is_readable
from tdbg.core.ranges import find_gaps, format_ranges
from tdbg.core.rundir import EVENTS, ProcessDir, RunDir, is_process_alive
from tdbg.core.tables import join_limited
from tdbg.launch.live import has_ended
from tdbg.launch.run_follower import Tail
from tdbg.rules.view import SILENT_S, get_launch_number

FIRST_EVENTS = 64  # among which the Start event of a process is
TAIL_BYTES = 64 << 10
# Options of a launcher that differ from host to host in one job.
HOST_OPTIONS = (
    "node-rank",
    "machine-rank",
    "nproc-per-node",
    "num-processes",
    "local-addr",
    "master-addr",
    "main-process-ip",
    "rdzv-endpoint",
    "rdzv-conf",
)
MOST_APART_S = 3600.0  # clocks differ by less, and the agents of one job run at the same time
SAME_JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_PORT")  # that all ranks of one launch share


@dataclass(slots=True)
class Member:
    """One process of a rank, whose folder is copied: ``rank0003``, ``rank0003/attempt1`` or ``rank0003/pid77-vm``."""

    part: "Part"
    process: ProcessDir
    start: Start | None
    begin_t: float  # by the clock of its host, 0 where no event says it
    end_t: float

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.process.rank or 0

    @property
    def launch(self) -> int:
        """Which launch of the job it belongs to."""
        return get_launch_number(self.process, self.start)

    @property
    def job_key(self) -> tuple[object, ...]:
        """What the ranks that ran together have in common."""
        if self.start is None:
            return ()
        return (self.start.world_size, *(self.start.env.get(name, "") for name in SAME_JOB))


@dataclass
class Part:
    """One of the run directories."""

    run: RunDir
    info: dict[str, Any]
    members: list[Member] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.run.place

    @property
    def host(self) -> str:
        """The host it was made on, as far as it says."""
        return str(self.info.get("host") or next((one.start.host for one in self.members if one.start), ""))

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that ran there."""
        return sorted({one.rank for one in self.members if one.process.is_rank})

    @property
    def world_sizes(self) -> set[int]:
        """How many ranks its launches had."""
        return {one.start.world_size for one in self.members if one.start is not None}

    @property
    def begin_t(self) -> float:
        """When the command was started."""
        return _to_time(self.info.get("start")) or min(
            (one.begin_t for one in self.members if one.begin_t), default=0.0
        )

    @property
    def last_t(self) -> float:
        """When it ended, or wrote its last event."""
        return max([_to_time(self.info.get("end")), *(one.end_t for one in self.members)])


def _to_time(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def load_parts(paths: Sequence[str]) -> list[Part]:
    """The parts, that of the lowest rank first. Raises TdbgError for what cannot be joined."""
    parts = [_load_part(path) for path in paths]
    if len(parts) < 2:
        raise TdbgError("tdbg join needs at least two run directories", "name one for each host: tdbg join A B -o OUT")
    _check_distinct(parts)
    parts.sort(key=lambda part: (part.ranks[0], part.begin_t))
    for other in parts[1:]:
        _check_same_job(parts[0], other)
    return parts


def _load_part(path: str) -> Part:
    if not os.path.isdir(path):
        raise TdbgError(f"there is no run directory {path}", "name the directory that `tdbg run` made on each host")
    run = RunDir.open(path)
    part = Part(run, run.read_info())
    part.members = [_read_member(part, folder) for folder in iter_member_folders(run.path)]
    _check_over(part)
    if not part.ranks:
        raise TdbgError(f"no rank wrote events in {path}", "leave it out: there is nothing to join")
    return part


def iter_member_folders(run: Path) -> Iterator[Path]:
    """The folders of ranks, then those of their restarts and of processes that are kept apart."""
    for folder in sorted(run.glob("rank*")):
        if folder.name[4:].isdigit() and folder.is_dir():
            yield folder
            yield from sorted(below for below in folder.iterdir() if is_member_name(below.name) and below.is_dir())


def is_member_name(name: str) -> bool:
    """True for a folder in that of a rank which is another process's."""
    return name.startswith("pid") or (name.startswith("attempt") and name[7:].isdigit())


def _read_member(part: Part, folder: Path) -> Member:
    process = ProcessDir(part.run, folder)
    if not is_readable(folder / EVENTS):
        return Member(part, process, None, 0.0, 0.0)
    first = list(islice(process.iter_events(), FIRST_EVENTS))
    start = next((event for event in first if isinstance(event, Start)), None)
    times = [event.t for event in [*first, *_read_last_events(process)] if isinstance(event.t, int | float)]
    return Member(part, process, start, min(times, default=0.0), max(times, default=0.0))


def _read_last_events(process: ProcessDir) -> list[Event]:
    size = (process.path / EVENTS).stat().st_size
    return Tail(process, max(size - TAIL_BYTES, 0)).read_events()


def _check_over(part: Part) -> None:
    """TdbgError for a run that may still go on: what is copied of it would be half of it."""
    supervisor = part.info.get("supervisor")
    noted = supervisor if isinstance(supervisor, dict) else {}
    alive = is_process_alive(noted.get("pid"), noted.get("host"), noted.get("started"))
    is_fresh = time.time() - part.last_t < SILENT_S
    if not has_ended(part.info) and (alive or is_fresh):
        raise TdbgError(f"{part.name} may still be running: no end is recorded", "join after it has ended")


def _check_distinct(parts: Sequence[Part]) -> None:
    seen: dict[tuple[int, int], Part] = {}
    for part in parts:
        about = os.stat(part.run.path)
        before = seen.setdefault((about.st_dev, about.st_ino), part)
        if before is not part:
            raise TdbgError(f"{part.name} is named twice", "name each run directory once")


def _check_same_job(first: Part, other: Part) -> None:
    """TdbgError unless two parts are of one job, as far as commands, world sizes and launchers' ids tell."""
    hint = "join the directories of one run: the same command, started once on each host"
    if normalize_command(first.info) != normalize_command(other.info):
        raise TdbgError(f"{first.name} and {other.name} ran different commands", hint)
    if max(first.begin_t, other.begin_t) - min(first.last_t, other.last_t) > MOST_APART_S:
        raise TdbgError(f"{first.name} and {other.name} did not run at the same time", hint)
    sizes = first.world_sizes, other.world_sizes
    if all(sizes) and not sizes[0] & sizes[1]:
        text = " and ".join(join_limited(sorted(size)) for size in sizes)
        raise TdbgError(f"{first.name} and {other.name} have different world sizes: {text}", hint)
    keys = [{one.job_key for one in part.members if one.job_key} for part in (first, other)]
    if all(keys) and not keys[0] & keys[1]:
        raise TdbgError(f"{other.name} is of another job than {first.name}: their launchers' ids differ", hint)


def normalize_command(info: Mapping[str, Any]) -> list[str]:
    """The command without what differs from host to host."""
    words = info.get("command")
    kept, left = [], iter([str(word) for word in words] if isinstance(words, list) else [])
    for word in left:
        name, has_value, _ = word.lstrip("-").replace("_", "-").partition("=")
        if not word.startswith("--") or name not in HOST_OPTIONS:
            kept.append(word)
        elif not has_value:
            next(left, None)
    return [os.path.basename(kept[0]), *kept[1:]] if kept else []


class Place(NamedTuple):
    """A process, and its folder in the joined run."""

    member: Member
    folder: str


def place_members(parts: Sequence[Part], offsets: Mapping[str, float]) -> list[Place]:
    """Where each process goes: ranks by their global number, attempts in order of time.

    offsets: by the name of the part, what its clock is ahead. Raises TdbgError where two ran as the same rank at once.
    """
    by_rank: dict[int, list[Member]] = {}
    for part in parts:
        for member in part.members:
            by_rank.setdefault(member.rank, []).append(member)
    return [place for rank in sorted(by_rank) for place in _place_rank(rank, by_rank[rank], offsets)]


def _place_rank(rank: int, members: Sequence[Member], offsets: Mapping[str, float]) -> Iterator[Place]:
    base = f"rank{rank:04d}"
    if len({one.part.name for one in members}) == 1:
        yield from (
            Place(one, "/".join([base, *one.process.path.relative_to(one.part.run.path).parts[1:]])) for one in members
        )
        return
    attempts = sorted(
        (one for one in members if one.process.is_rank), key=lambda one: one.begin_t - offsets.get(one.part.name, 0.0)
    )
    for before, after in pairwise(attempts):
        _check_apart(before, after, offsets)
    for number, one in enumerate(attempts):
        yield Place(one, f"{base}/attempt{number}" if number else base)
    taken: set[str] = set()
    for one in members:
        if not one.process.is_rank:
            yield Place(one, f"{base}/{make_unique(one.process.path.name, taken)}")


def _check_apart(before: Member, after: Member, offsets: Mapping[str, float]) -> None:
    """TdbgError unless one had ended before the other began: else they are no attempts of one rank."""
    ended = before.end_t - offsets.get(before.part.name, 0.0)
    began = after.begin_t - offsets.get(after.part.name, 0.0)
    can_move = before.start is not None and before.start.world_size > 1
    if before.part is not after.part and not (can_move and 0 < ended <= began):
        raise TdbgError(
            f"rank {before.rank} is in both {before.part.name} and {after.part.name}",
            "name the directories of one run, each once",
        )


def make_unique(name: str, taken: set[str]) -> str:
    """A name that is not taken yet; it is from now on."""
    found, number = name, 2
    stem, ending = os.path.splitext(name)
    while found in taken:
        found, number = f"{stem}-{number}{ending}", number + 1  # readers look for the ending
    taken.add(found)
    return found


def list_missing_ranks(parts: Sequence[Part]) -> str:
    """``3, 5-7``: the ranks that are in none of the parts; empty if none is missing, or the number is not known."""
    world = max((size for part in parts for size in part.world_sizes), default=0)
    return format_ranges(find_gaps({rank for part in parts for rank in part.ranks}, world))
