"""Which ranks are quiet: nothing has come from them for longer than their steps take, or a probe found them waiting."""

from collections.abc import Sequence
from typing import Any

from tdbg.core.ranges import in_ranges
from tdbg.core.tables import to_json_value
from tdbg.launch.live import RankState, Snapshot

QUIET_S = 45.0  # a rank that takes steps says so every 5 s, one that takes none every 20 s
USUAL_STEPS = 5  # that a quiet rank could have done meanwhile
FIRST_S = 60.0  # before the first steps: compiling and loading take their time


def describe_ranks(snapshot: Snapshot, bounds: Sequence[tuple[float, float]] = ()) -> list[dict[str, Any]]:
    """Each rank as in the status, with ``quiet``: why it counts as quiet, empty while it does not. bounds: of ranks."""
    chosen = [rank for rank in snapshot.ranks if not bounds or in_ranges(rank.rank, bounds)]
    return [to_json_value({**rank.as_dict(snapshot.t), "quiet": describe_silence(rank, snapshot)}) for rank in chosen]


def describe_silence(rank: RankState, snapshot: Snapshot) -> str:
    """Why a rank counts as quiet; empty if it does not, or has ended."""
    if snapshot.ended or not rank.live:
        return ""
    if rank.is_waiting:
        return "it makes no progress"
    limit_s = max(QUIET_S, USUAL_STEPS / rank.rate) if rank.rate else FIRST_S
    silent_s = snapshot.t - rank.last_t
    return f"nothing came from it for {silent_s:.0f} s" if rank.last_t and silent_s > limit_s else ""
