"""How far the clocks of the hosts of one job are apart, by the steps that their ranks did together.

Ranks that average gradients end a step at nearly the same moment, whatever their clocks say: the median of the differences
over all common steps is what one clock is ahead of another. Where the differences vary, a clock was set on the way, or the
ranks do not wait for each other: then nothing is aligned, and that is said.
"""

import statistics
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from tdbg.core.events import Step
from tdbg.core.tables import format_count
from tdbg.launch.joined_parts import Member, Part

MOST_STEPS = 200_000  # of a process that are read
LEAST_STEPS = 3
BLOCK_STEPS, MOST_BLOCKS = 5, 16
RANKS_READ = 2  # of each part and launch
AGREE_S = 0.05  # clocks closer than this are left as they are
MOST_SPREAD_S = 0.5
MOST_OFFSET_S = 1e9  # more is no clock

StepTimes = dict[tuple[int, int], float]  # (launch, step) -> when it ended


class Clock(NamedTuple):
    """What is known of the clock of a part, beside that of the first."""

    offset_s: float | None  # what it is ahead; None where that is not known
    spread_s: float
    steps: int

    @property
    def shift_s(self) -> float:
        """What has to be added to its times; 0 where the clocks agree, or nothing is known."""
        return -self.offset_s if self.offset_s is not None and abs(self.offset_s) > AGREE_S else 0.0

    def describe(self) -> str:
        """Its state in words."""
        shared = format_count(self.steps, "common step")
        if self.offset_s is None:
            if self.steps < LEAST_STEPS:
                return f"clock not aligned: {shared} with the first directory, and {LEAST_STEPS} are needed"
            return f"clock not aligned: over {shared} its difference varies by {self.spread_s:.3g} s"
        if not self.shift_s:
            return f"clock agrees within {max(abs(self.offset_s), self.spread_s) * 1e3:.0f} ms over {shared}"
        word = "ahead" if self.offset_s > 0 else "behind"
        return f"clock {abs(self.offset_s):.3f} s {word} (measured over {shared}); its times are shifted"

    def as_dict(self) -> dict[str, object]:
        """Plain data for run.json."""
        return {"offset_s": self.offset_s, "spread_s": self.spread_s, "steps": self.steps, "shift_s": self.shift_s}


def compare_clocks(first: Part, other: Part) -> Clock:
    """What the clock of a part is ahead of that of the first one."""
    here, there = _read_step_times(first), _read_step_times(other)
    common = sorted(here.keys() & there.keys())
    differences = [there[key] - here[key] for key in common]
    if len(differences) < LEAST_STEPS:
        return Clock(None, 0.0, len(differences))
    spread_s = measure_spread(differences)
    if not spread_s <= MOST_SPREAD_S or not abs(differences[0]) <= MOST_OFFSET_S:  # nor where one is NaN
        return Clock(None, spread_s, len(differences))
    return Clock(statistics.median(differences), spread_s, len(differences))


def measure_spread(differences: Sequence[float]) -> float:
    """How far medians of consecutive blocks are apart; of few steps the range of the middle half. One odd step is none."""
    size = max(len(differences) // MOST_BLOCKS, BLOCK_STEPS)
    medians = [statistics.median(differences[at : at + size]) for at in range(0, len(differences) - size + 1, size)]
    if len(medians) < 2:
        low, _, high = statistics.quantiles(differences, n=4, method="inclusive")
        return high - low
    return max(medians) - min(medians)


def _read_step_times(part: Part) -> StepTimes:
    """When the steps of a part's ranks ended, by its clock."""
    times: dict[tuple[int, int], list[float]] = {}
    for member in _select_members(part):
        steps = (event for event in member.process.iter_events() if isinstance(event, Step) and event.phase == "train")
        for event in islice(steps, MOST_STEPS):
            times.setdefault((member.launch, event.step), []).append(event.t)
    return {key: statistics.median(found) for key, found in times.items()}


def _select_members(part: Part) -> Sequence[Member]:
    """Some ranks of each launch that had more than one."""
    chosen: dict[int, list[Member]] = {}
    for member in part.members:
        if member.process.is_rank and member.start is not None and member.start.world_size > 1:
            chosen.setdefault(member.launch, []).append(member)
    return [member for found in chosen.values() for member in found[:RANKS_READ]]
