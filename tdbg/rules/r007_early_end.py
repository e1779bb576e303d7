"""TD-R007: a rank that ended without an error while others still needed it."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tdbg.core.events import Finding, Start, Traceback
from tdbg.core.observations import Evidence
from tdbg.core.rule_base import Needs
from tdbg.rules import RULES, Rule
from tdbg.rules.text import clip_text, format_ranks
from tdbg.rules.view import ProcessView, View, get_signal_name

CLOCK_S = 1.0  # by which the clocks of two hosts may differ
NOTED_S = 0.3  # so long after a signal it may be noted, on one host
WAITED_S = 30.0  # without a step, before a rank that was ended from outside counts as one that waited
# What a collective says when its other side is gone: torch's own classes, and the backends' plain RuntimeErrors.
OF_COLLECTIVES = re.compile(r"Dist\w*Error")
OF_BACKENDS = re.compile(r"gloo|nccl|ProcessGroup|c10d|monitoredBarrier|by peer", re.IGNORECASE)
VANISHED = "killed (SIGKILL, out of memory), os._exit, or a crash in native code: its launcher did not say how it ended"
BY_PEER = "by peer"
UNKNOWN_EXIT = "with an unknown exit code"


class _Failed(NamedTuple):
    """A rank that went on after another had ended, and did not end well."""

    found: ProcessView
    how: str
    lost_peer: bool  # it failed in a collective; else it only took no further step until it was ended
    waited_s: float


@RULES.add
class EarlyEnd(Rule):
    """Names the first rank that ended, normally or with an unknown exit code, before others failed in a collective.

    What it does: Looks for ranks of one launch that ended without an exception, a signal or a non-zero
    exit code, or of whose end nobody told, while another rank later failed in a collective whose other
    side was gone (lost connection, timeout). If the other rank only stopped taking steps or evaluation
    calls for 30 seconds until it was ended from outside, the finding is a warning. An end after the run was told
    to stop (Ctrl-C, a signal, `--stop-on`) does not count.

    Why it matters: The rank that left says nothing, and the ranks that waited for it raise "Connection closed by
    peer" or a timeout. The traceback on the screen is that of a healthy rank.

    Example:
        TD-R007 error: rank 1 ended with exit code 0 after step 29, and rank 0 then failed in a collective after
        step 29

    What to do: Look for what ends the loop on that rank alone: `sys.exit`, `return` or `break` on a condition of
    its own data, an early stopping that is not agreed on, a loader with fewer batches. Have all ranks decide
    together (`all_reduce` the condition), give them equally many batches (`drop_last`), or use `Join`.

    Thresholds: None for a failed collective; 30 seconds without a step for a rank that was ended from outside.
    """

    code = "TD-R007"
    title = "a rank ended before others that needed it"
    severity = "error"
    grade = Evidence.LOCAL.grade_word
    leads_to = ("TD-R001", "TD-R002", "TD-R003", "TD-R004", "TD-R006")
    listens = (Start,)
    needs = Needs(ranks=2)

    def finish(self, view: View) -> Iterable[Finding]:
        ranks = [
            found for found in view.list_rank_processes() if found.start is not None and found.start.world_size > 1
        ]
        newest = max((found.launch for found in ranks), default=0)
        ranks = [found for found in ranks if found.launch == newest]
        left = sorted((found for found in ranks if _has_left(view, found)), key=lambda found: view.find_end_time(found))
        if not left:
            return ()
        first, left_at = left[0], view.find_end_time(left[0])
        failed = [how for found in ranks if (how := _find_failure(view, found, left_at)) is not None]
        lost_t = [one.found.crash.t for one in failed if one.lost_peer and one.found.crash is not None]
        # Of a rank that vanished only its last event is known: it may have lived until another lost it.
        until = min(lost_t, default=left_at) if _has_vanished(view, first) else left_at
        if any(_has_failed_by_itself(view, found, until) for found in ranks):
            return ()
        sure = [one for one in failed if one.lost_peer]
        ended = "with exit code 0" if view.find_process_exit(first) == 0 else "by itself"
        if _has_vanished(view, first):  # a timeout could have another reason
            ended, failed = UNKNOWN_EXIT, [one for one in sure if BY_PEER in one.how]
        if not failed:
            return ()
        since = min(one.found.crash.t for one in sure if one.found.crash is not None) if sure else float("inf")
        return (
            self._make_left_finding(
                [found for found in left if view.find_end_time(found) <= since + CLOCK_S], ended, sure or failed
            ),
        )

    def _make_left_finding(self, left: list[ProcessView], ended: str, failed: list[_Failed]) -> Finding:
        first, sure = left[0], failed[0].lost_peer
        who = format_ranks(sorted(one.found.rank or 0 for one in failed))
        then = (
            f"{who} then failed in a collective {_format_last_steps(failed)}"
            if sure
            else f"{who} took no step {_format_last_steps(failed)} in the {failed[0].waited_s:.0f} s until the end"
        )
        others = format_ranks(sorted(found.rank or 0 for found in left[1:])) if left[1:] else ""
        return self.make_finding(
            f"rank {first.rank} ended {ended} after step {first.step}, and {then}",
            severity=self.severity if sure else "warning",
            grade=self.grade if sure else Evidence.STATISTICAL.grade_word,
            first_step=first.step,
            rank=first.rank,
            evidence=[
                *[f"rank {one.found.rank}: step {one.found.step}, {one.how}" for one in failed[:4]],
                *([f"also ended: {others}"] if others else []),
            ],
            cause=VANISHED
            if ended == UNKNOWN_EXIT
            else "the rank left the loop by itself: sys.exit, return or break on a local condition, or fewer batches",
            try_next=f"look for the OOM killer in the kernel log (dmesg), and for a native crash in the output of rank {first.rank}"
            if ended == UNKNOWN_EXIT
            else f"look at what rank {first.rank} did after step {first.step}; let all ranks decide together to end",
        )


def _format_last_steps(failed: list[_Failed]) -> str:
    """After which step they failed: one for all, or each rank's own."""
    if len({one.found.step for one in failed}) == 1:
        return f"after step {failed[0].found.step}"
    return "(" + ", ".join(f"rank {one.found.rank} after step {one.found.step}" for one in failed[:4]) + ")"


def _has_failed_by_itself(view: View, found: ProcessView, left_at: float) -> bool:
    """True if a rank failed for a reason of its own before another left: that one was ended by its launcher, and well."""
    crash, (ended_at, code) = found.crash, view.find_exit(found)
    if crash is not None:
        return crash.t <= left_at + CLOCK_S and not _is_of_collective(crash)
    return found.end is None and code != 0 and 0 < ended_at <= left_at


def _is_of_collective(crash: Traceback) -> bool:
    name = crash.exception.rpartition(".")[2]
    if OF_COLLECTIVES.fullmatch(name):
        return True
    return name == "RuntimeError" and OF_BACKENDS.search(crash.message) is not None


def _has_left(view: View, found: ProcessView) -> bool:
    """True for a rank that ended of itself, before the run was told to end."""
    is_left = _has_ended_well(view, found) or _has_vanished(view, found)
    supervisor = view.info.get("supervisor")
    host = supervisor.get("host") if isinstance(supervisor, dict) else None
    margin_s = NOTED_S if host and found.start is not None and found.start.host == host else CLOCK_S
    return is_left and view.find_end_time(found) < view.stop_t - margin_s


def _has_ended_well(view: View, found: ProcessView) -> bool:
    if found.crash is not None or not found.step:
        return False
    if found.end is not None:
        return view.describe_ending(found) == "ended"
    return view.find_process_exit(found) == 0  # os._exit: its launcher told of it


def _has_vanished(view: View, found: ProcessView) -> bool:
    """True for a rank that is gone, and neither it nor its launcher said how."""
    silent = found.end is None and found.crash is None and bool(found.step)
    return silent and view.is_gone(found) and view.find_process_exit(found) is None


def _find_failure(view: View, found: ProcessView, left_at: float) -> _Failed | None:
    """How the rank failed after another had left; None where it did not, or for a reason of its own."""
    crash, code = found.crash, view.find_process_exit(found)
    lost_peer = crash is not None and crash.t >= left_at - CLOCK_S and _is_of_collective(crash)
    if crash is not None and lost_peer and crash.t < view.stop_t:
        return _Failed(found, clip_text(f"{crash.exception}: {crash.message}", 140), True, crash.t - left_at)
    if found.start is None or not (lost_peer or (code or 0) < 0):
        return None
    ended_at = min(view.find_exit(found)[0] or found.t, view.stop_t)
    stepped_at = max(one.t for one in (found.last, found.last_eval, found.start) if one is not None)
    waited_s = ended_at - max(left_at, stepped_at)
    how = get_signal_name(-code) if code is not None and code < 0 else "ended when the run was stopped"
    return _Failed(found, how, False, waited_s) if waited_s >= WAITED_S else None
