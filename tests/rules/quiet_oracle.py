"""Which rank others wait for, each wait compared with each other episode: slow, and easy to check."""

from collections.abc import Iterator, Sequence

from tdbg.rules._quiet_cases import (
    SURE,
    WAITING,
    Case,
    Episode,
    OtherRanks,
    _is_crossed,
    _is_rarer,
    _is_waiting_along,
    is_behind,
    is_mismatch,
)


def find_cases_slowly(episodes: Sequence[Episode], other_ranks: OtherRanks, over: bool) -> Iterator[Case]:
    """Every wait in which it is known who was missing."""
    for wait in episodes:
        if wait.state not in WAITING:
            continue
        others = [other for other in episodes if other.is_concurrent_with(wait) and wait.has_member(other.rank)]
        behind = [other for other in others if is_behind(other, wait)]
        missing = [other for other in behind if other.state == "elsewhere"] or behind
        together = [wait, *(other for other in others if _is_waiting_along(other, wait))]
        if missing and all(is_mismatch(other, wait) or _is_crossed(other, wait) for other in missing):
            if len(missing) > len(together) or (len(missing) == len(together) and not _is_rarer(missing[0], wait)):
                continue
            yield Case(together, missing, is_mutual=len(missing) == len(together))
        elif missing:
            yield Case(together, missing)
        else:
            heard = {wait.rank, *(other.rank for other in others)}
            members = wait.seen.ranks or range(wait.seen.size or len(other_ranks.endings))
            silent = {rank: other_ranks.endings.get(rank, "never took a step") for rank in members if rank not in heard}
            here = {rank: how for rank, how in silent.items() if rank not in other_ranks.elsewhere}
            if over and wait.over_t is None and wait.state in SURE and silent:
                yield Case(together, silent=here, elsewhere=() if here else sorted(silent))
