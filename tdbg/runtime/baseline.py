"""--measure-overhead N: what does tdbg cost here? Blocks of steps with it off and on, in pairs, in this program."""

import math
import random
import statistics
import time
from typing import TYPE_CHECKING

from tdbg.core.events import Baseline
from tdbg.core.guard import Guard
from tdbg.runtime.compiler import call_outside_compiler, trace_as_nothing
from tdbg.runtime.torch_hooks import hook_all

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

WARM_UP_STEPS = 10


class Alternation:
    """Switches the monitor off and on in blocks of ``block`` steps, the order of each pair shuffled.

    Off means: every instance hook removed, every other hook returns at once. The ratio is on/off of the
    mean step time, pair by pair; its median is reported with the 95 % interval of a median (order
    statistics). The first steps are not counted.
    """

    def __init__(self, monitor: "Monitor", block: int) -> None:
        self.monitor = monitor
        self.block = block
        self.random = random.Random(0)  # a generator of its own: the program's is not touched
        self.reset_blocks()
        self._guard = Guard("baseline", lambda part, error: self.monitor.handle_failure(part, error))
        hook_all("after-update", self._after_step)

    def reset_blocks(self) -> None:
        """Begin anew (a forked child)."""
        self.seen = 0
        self.ratios: list[float] = []
        self._order: list[bool] = []
        self._times: dict[bool, float] = {}
        self._begun = 0.0
        self._left = 0

    @trace_as_nothing
    def _after_step(self, optimizer: "Optimizer", args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        call_outside_compiler(self._guard.call_guarded, self._count_step, optimizer)

    def _count_step(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer):
            return
        self.seen += 1
        if self.seen < WARM_UP_STEPS:
            return
        now = time.perf_counter()
        if self._left:
            self._left -= 1
            if self._left:
                return
            self._end_block(now)
        self._begin_block()

    def _end_block(self, now: float) -> None:
        on = self._order.pop()
        self._times[on] = now - self._begun
        if not self._order:
            self.ratios.append(self._times[True] / max(self._times[False], 1e-12))

    def _begin_block(self) -> None:
        if not self._order:
            self._order = [True, False]
            self.random.shuffle(self._order)
        self.monitor.set_active(self._order[-1])
        self._left = self.block
        self._begun = time.perf_counter()

    def build_result(self) -> Baseline:
        """The median of on/off and its 95 % interval; None where there are too few pairs."""
        ratios = sorted(self.ratios)
        found = Baseline(block=self.block, pairs=len(ratios))
        if ratios:
            found.ratio = round(statistics.median(ratios), 4)
        if len(ratios) >= 6:  # below that no two order statistics hold 95 %
            low = max(math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))), 0)
            found.low, found.high = round(ratios[low], 4), round(ratios[len(ratios) - 1 - low], 4)
        return found
