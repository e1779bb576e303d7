"""A job that its launcher restarts: how each attempt went."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tdbg.core.rundir import restart_count
from tdbg.rules.view import ProcessView, View


def describe_restarts(view: View, hellos: Iterable[Mapping[str, object]]) -> str:
    """``attempt 0 failed at step 4 (rank 1: RuntimeError); attempt 1 ended at step 8``; empty without a restart.

    Attempts are also known by processes that failed before their first step, and by what the launcher told any process.
    hellos: what the processes said first (`RunDir.read_hellos`).
    """
    launches: defaultdict[int, list[ProcessView]] = defaultdict(list)
    for found in view.list_rank_processes():
        for one in view.list_attempts(found):
            launches[one.launch].append(one)
    begun: defaultdict[int, set[str]] = defaultdict(set)  # attempt -> processes, by host and number
    for hello in hellos:
        if isinstance(environ := hello.get("env"), dict) and (number := restart_count(environ)) not in launches:
            begun[number].add(f"{hello.get('host')}-{hello.get('pid')}")
    parts = {number: _describe_attempt(view, number, found) for number, found in launches.items()}
    if launches:
        parts |= {number: _describe_early_failure(view, number, names) for number, names in begun.items() if number}
        if begun and not view.over and max(begun) == max(parts):
            parts[max(begun)] = f"attempt {max(begun)} has begun"
    return "; ".join(parts[number] for number in sorted(parts)) if len(parts) > 1 else ""


def _describe_early_failure(view: View, number: int, names: set[str]) -> str:
    """``attempt 1 took no step (rank 0: RuntimeError)``, with the first exception that nobody caught in it."""
    crashes = [found.crash for found in view.processes.values() if found.process.path.name in names and found.crash]
    if not crashes:
        return f"attempt {number} took no step"
    first = min(crashes, key=lambda crash: crash.t)
    who = "" if first.rank is None else f"rank {first.rank}: "
    return f"attempt {number} took no step ({who}{first.exception.rpartition('.')[2]})"


def _describe_attempt(view: View, number: int, processes: Sequence[ProcessView]) -> str:
    failed = [found for found in processes if view.describe_ending(found) not in ("ended", "running")]
    if not failed:
        verb = "is" if any(view.describe_ending(found) == "running" for found in processes) else "ended"
        return f"attempt {number} {verb} at step {max(found.step for found in processes)}"

    def sort_key(found: ProcessView) -> tuple[bool, float]:  # whom the launcher ended, did not begin it
        return view.describe_ending(found) == "SIGTERM", found.crash.t if found.crash is not None else found.t

    first = min(failed, key=sort_key)
    return f"attempt {number} failed at step {first.step} (rank {first.rank}: {view.describe_ending(first)})"
