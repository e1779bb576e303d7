"""Asking a live run for another level or other flags: what is asked, from which step, and who has done it."""

import contextlib
import errno
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tdbg.core import control, run_files
from tdbg.core.control import CONTROL_FILE, Request
from tdbg.core.errors import TdbgError
from tdbg.core.events import Switch
from tdbg.core.host import host_name
from tdbg.core.output import print_messages
from tdbg.core.rundir import EVENTS, RunDir
from tdbg.launch.live import RankState, Snapshot, read_snapshot
from tdbg.launch.run_follower import Tail

LOCK_FILE = ".control.lock"
LOCK_PATIENCE_S = 10.0
POLLED_EVERY_S = 0.5  # by the ranks, at the end of a step
SIGN_OF_LIFE_S = 6.0  # a rank that steps writes something at least this often, and a second may pass until it is read
MARGIN_S = 1.0
MARGIN_OVER_HOSTS_S = 5.0  # a shared file system shows a new file late
LOOK_EVERY_S = 0.1
LOOK_AT_ALL_EVERY_S = 2.0
PATIENCE_S = 30.0  # beyond the time the step is likely to take
LONGEST_WAIT_S = 90.0


@dataclass(slots=True)
class Answer:
    """What came of a request."""

    request: Request
    asked: list[RankState]  # the ranks that went on when it was made
    switched: dict[int, Switch] = field(default_factory=dict)  # by rank
    ended: list[int] = field(default_factory=list)  # ranks that ended before they answered
    likely_s: float | None = None  # until its step, as far as the rate tells
    waited: bool = True

    @property
    def missing(self) -> list[RankState]:
        """Ranks that go on and have not answered."""
        return [rank for rank in self.asked if rank.rank not in self.switched and rank.rank not in self.ended]

    @property
    def late(self) -> dict[int, Switch]:
        """Ranks that switched at another step than they were asked to."""
        return {rank: switch for rank, switch in self.switched.items() if switch.late}

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "number": self.request.number,
            "at_step": self.request.at_step,
            "level": self.request.level,
            "flags": self.request.flags,
            "for_steps": self.request.for_steps,
            "clear_history": self.request.clear_history,
            "profile_for": self.request.profile_for,
            "switched": [
                {"rank": rank, "step": switch.step, "level": switch.level, "late": switch.late}
                for rank, switch in sorted(self.switched.items())
            ],
            "missing": [rank.rank for rank in self.missing] if self.waited else [],
            "ended": self.ended,
            "waited": self.waited,
        }


def send_request(run: RunDir, wish: Request, wait_s: float | None = None) -> Answer:
    """Write a request into a live run, and wait for the ranks to have done it.

    wish: its number is given here; its step too, where it names none.
    wait_s: how long to wait; None: until it is likely done and some, unless that is too long. 0: not at all.
    Raises TdbgError where nothing can be asked: the run has ended, is at level off, or belongs to another.
    """
    run.check_ownership()
    check_changeable(read_snapshot(run))
    with _lock_requests(run.path):
        path = run.path / CONTROL_FILE
        before = _read_requests(path)
        snapshot = read_snapshot(run)
        request = _complete_request(wish, before, snapshot)
        tails = {rank.rank: _tail_of(rank) for rank in snapshot.live}
        try:
            control.write_requests(path, [*before, request])
        except OSError as error:
            raise _not_writable(run.path, error) from None
    answer = Answer(request, snapshot.live)
    answer.likely_s = _likely_s(request, snapshot)
    _wait_for_ranks(run, answer, tails, _compute_patience(answer, wait_s))
    return answer


def check_changeable(snapshot: Snapshot) -> None:
    """TdbgError if the run cannot be asked for anything."""
    path = snapshot.run.path
    if snapshot.ended or (snapshot.ranks and not snapshot.live):
        raise TdbgError(
            f"the run {path} has ended ({snapshot.exit_text or 'all its ranks have'})",
            f"only a live run can be changed; `tdbg report {path}` shows its result",
        )
    if snapshot.settings.level == "off":
        raise TdbgError(
            f"the run {path} was started at level off, so its level cannot be raised",
            "restart it with --level basic; `tdbg control --level off` or `--level basic` can then change it",
        )
    if snapshot.settings.baseline:
        raise TdbgError(
            f"the run {path} measures the overhead of tdbg (--measure-overhead), which a change would distort",
            "start it without --measure-overhead",
        )


def common_step(ranks: Sequence[RankState], now: float) -> int:
    """The first step that no rank has begun when all of them have read a request written now; 0 without ranks.

    Each rank is taken to be as far as its rate since its last sign of life brings it.
    """
    hosts = {host_name(), *(rank.host for rank in ranks)}
    margin_s = MARGIN_S if len(hosts) == 1 else MARGIN_OVER_HOSTS_S
    likely = 0
    for rank in ranks:
        silent_s = min(max(now - rank.last_t, 0.0), SIGN_OF_LIFE_S)
        ahead = rank.fastest * (silent_s + POLLED_EVERY_S + margin_s)
        likely = max(likely, rank.step + math.ceil(ahead) + 2)  # a poll may come a step late, and is not a step
    return likely


def _complete_request(wish: Request, before: list[Request], snapshot: Snapshot) -> Request:
    """The request with its number, time and step."""
    done = max(snapshot.live, key=lambda rank: rank.step, default=None)
    if wish.at_step and done is not None and wish.at_step <= done.step:
        raise TdbgError(
            f"step {wish.at_step} has passed: rank {done.rank} has completed step {done.step}",
            "name a later step, or leave out --at-step: tdbg then chooses a step that all ranks can still reach",
        )
    # Numbers go on where a lost or broken file left off: they are at least the time.
    number = max([int(time.time()), *(request.number + 1 for request in before)])
    now = time.time()  # not the snapshot's: on a busy machine it may be old
    return replace(wish, number=number, t=now, at_step=wish.at_step or common_step(snapshot.live, now))


def _read_requests(path: Path) -> list[Request]:
    """The requests made before; a file that cannot be read is replaced, and that is said."""
    try:
        return control.read_requests(path)
    except TdbgError as error:
        print_messages(f"{error}; the file is replaced and earlier requests are lost")
    except OSError as error:
        raise _not_writable(path.parent, error) from None
    return []


@contextlib.contextmanager
def _lock_requests(folder: Path) -> Iterator[None]:
    """Keep other `tdbg control` commands out while the requests are read and written."""
    import fcntl

    try:
        handle = run_files.open_file(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _not_writable(folder, error) from None
    until = time.monotonic() + LOCK_PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    break  # a file system without locks: as good as it gets
            if time.monotonic() > until:
                raise TdbgError(f"another `tdbg control` is changing {folder}", "try again when it is done")
            time.sleep(LOOK_EVERY_S)
        yield
    finally:
        os.close(handle)


def _not_writable(folder: Path, error: OSError) -> TdbgError:
    what = f"cannot write to the run {folder}: {error.strerror or error}"
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return TdbgError(what, "correct that, and try again")
    return TdbgError(
        f"{what}{_format_owner(folder)}", "only a user who can write to the run directory can change it: ask its owner"
    )


def _format_owner(folder: Path) -> str:
    try:
        owner = folder.owner()
    except (OSError, KeyError):
        return ""
    return f" (it belongs to {owner})"


# waiting for the ranks


def _tail_of(rank: RankState) -> Tail:
    """What the rank will write from now on."""
    try:
        return Tail(rank.process, (rank.process.path / EVENTS).stat().st_size)
    except OSError:
        return Tail(rank.process)


def _likely_s(request: Request, snapshot: Snapshot) -> float | None:
    """Seconds until the slowest rank is at the request's step; None if no rate is known."""
    waits = [(request.at_step - rank.step) / rank.rate for rank in snapshot.live if rank.rate]
    return max([0.0, *waits]) if waits else None


def _compute_patience(answer: Answer, wait_s: float | None) -> float:
    if not answer.asked:
        return 0.0
    if wait_s is not None:
        return wait_s
    likely_s = answer.likely_s or 0.0
    return likely_s + PATIENCE_S if likely_s + PATIENCE_S <= LONGEST_WAIT_S else 0.0


def _wait_for_ranks(run: RunDir, answer: Answer, tails: dict[int, Tail], patience_s: float) -> None:
    """Until every rank has answered, ended, or patience has."""
    answer.waited = patience_s > 0
    until = time.monotonic() + patience_s
    look_at_all = time.monotonic() + LOOK_AT_ALL_EVERY_S
    while answer.missing and time.monotonic() < until:
        time.sleep(min(LOOK_EVERY_S, max(until - time.monotonic(), 0.0)))
        _read_switches(answer, tails)
        if time.monotonic() > look_at_all and answer.missing:
            look_at_all = time.monotonic() + LOOK_AT_ALL_EVERY_S
            alive = {rank.rank for rank in read_snapshot(run).live}
            _read_switches(answer, tails)  # what a rank said before it ended counts
            answer.ended += [rank.rank for rank in answer.missing if rank.rank not in alive]


def _read_switches(answer: Answer, tails: dict[int, Tail]) -> None:
    for rank in answer.missing:
        for event in tails[rank.rank].read_events():
            if isinstance(event, Switch) and event.asked == answer.request.number:
                answer.switched[rank.rank] = event
