"""One optimizer between two of its updates: what became of the gradients, and what a loop does wrong with them."""

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from tdbg.runtime import tensors

ALL_WINDOWS = 64  # so many first ones are followed, and then a few of each so many: a loop seldom changes its ways
ELEMENTS = 64  # of a gradient, where zeros are told from numbers
TRIES = 40
MAX_PERIOD = 6  # calls that are written once with "x 4" behind them

Mark = tuple[int, int] | None  # a gradient's identity and version; None where there is none


@dataclass(slots=True, weakref_slot=True, eq=False)
class Track:
    """What is known of one optimizer since its last update. The first window is not judged: its begin was not seen."""

    optimizer: "weakref.ref[Optimizer]"
    name: str
    lasting: int  # updates in a row that show a fault before it is told
    windows: int = 0  # updates seen
    looking: bool = True  # the gradients of this window are followed
    backwards: int = 0  # backward calls since the last update
    fresh: int = 0  # those that had a batch of their own
    pending: int = 0  # those whose gradients are still there
    unused: int = 0  # those that no update of any optimizer came after
    thrown: int = 0  # unused ones whose gradients were cleared
    tail: int = 0  # the last clearing took so many with it, and nothing came after it
    repeats: int = 0  # losses sent backward again
    added: bool = False  # a backward pass has changed the gradients that are followed
    reset: bool = True  # no gradient of before the last update is in those that are there
    filled: bool = False  # there were gradients after the last backward
    lost: bool = False  # the update begins with gradients that were cleared
    clip_before: bool = False
    clip_after: bool = False
    inside: bool = False  # backward ran inside the update
    in_backward: bool = False  # the update ran inside backward
    replaced: bool = False  # the update begins with other gradients than the last backward left, and not by clipping
    new_inputs: bool = False  # without a DataLoader: each backward of the last window compared had inputs of its own
    confirmed: bool = False  # gradients left over were seen to be more than zeros (on an accelerator)
    streaks: Counter[str] = field(default_factory=Counter)
    since: dict[str, int] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    _sample: list["weakref.ref[Tensor]"] = field(default_factory=list)
    _left: tuple[Mark, ...] = ()
    _begun: int = 0
    _tries: int = TRIES  # updates and backward calls in which gradients to follow are still looked for

    # the gradients followed

    def choose_sample(self) -> list[Tensor]:
        """Follow two parameters that have gradients, if none is followed yet: then all of its parameters, else none."""
        optimizer = self.optimizer()
        if not self._tries or optimizer is None:
            return []
        self._tries -= 1
        everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found = [parameter for parameter in everything if parameter.grad is not None]
        if not found:
            return []
        self._tries = 0
        self._sample = [weakref.ref(parameter) for parameter in dict.fromkeys((found[0], found[-1]))]
        return everything

    def _collect_grads(self) -> list[Tensor | None]:
        kept = [ref() for ref in self._sample]
        return [parameter.grad for parameter in kept if parameter is not None]

    def _collect_marks(self) -> tuple[Mark, ...]:
        return tuple(None if grad is None else (id(grad), grad._version) for grad in self._collect_grads())

    def is_empty(self) -> bool:
        """True if none of the followed parameters has a gradient."""
        grads = self._collect_grads()
        return bool(grads) and all(grad is None for grad in grads)

    def leftover_is_zero(self) -> bool | None:
        """True if the followed gradients begin with zeros; None where reading them would wait for a device."""
        found = [tensors.local_elements(grad.detach()) for grad in self._collect_grads() if grad is not None]
        if not all(map(tensors.on_host, found)):
            return None
        return not any(bool(grad.flatten()[:ELEMENTS].any()) for grad in found)

    def sum_leftover(self, elements: int) -> Tensor | None:
        """The sum of the magnitudes of some elements, on their device: zero if they are."""
        found = [tensors.local_elements(grad.detach()) for grad in self._collect_grads() if grad is not None]
        sums = [grad.flatten()[:elements].abs().sum().float() for grad in found]
        return torch.stack(sums).sum().reshape(1) if sums else None

    def confirm_leftover(self, there: bool) -> None:
        """What was left over has been read: numbers, or zeros (then nothing is said of it ever)."""
        self.confirmed = True
        if not there:
            self.reported.add("unreset")

    # what happens to them

    def begin_window(self) -> None:
        """The update is over."""
        self.windows += 1
        self.backwards = self.fresh = self.pending = self.unused = self.thrown = self.tail = self.repeats = 0
        self.lost = self.filled = self.added = self.clip_before = self.clip_after = self.inside = False
        self.looking = self.windows < ALL_WINDOWS or self.windows % ALL_WINDOWS < self.lasting + 2
        self.reset = not (self.looking and self._sample)  # nothing followed, nothing said
        self._left = self._collect_marks() if self.looking else ()

    def look_before_backward(self) -> bool:
        """True if gradients of before the last update are still there, and nobody has touched them."""
        if self.reset:
            return False
        now = self._collect_marks()
        if now != self._left or not any(now):
            self.reset = True
        return not self.reset

    def backward_ended(self, *, fresh: bool) -> None:
        """Gradients were added. fresh: a batch was taken since the backward before."""
        self.backwards += 1
        self.fresh += fresh
        self.pending += 1
        self.unused += 1
        self.tail = 0
        if self.looking:
            before, self._left = self._left, self._collect_marks()
            self.added = self.added or before != self._left
            self.filled = any(self._left)

    def record_zeroed(self) -> None:
        """The gradients were cleared."""
        self.thrown += self.unused
        self.tail = self.unused or self.tail
        self.pending = self.unused = 0

    def record_clipped(self) -> None:
        """The gradients were clipped."""
        if self.backwards:
            self.clip_before = True
        else:
            self.clip_after = True

    def about_to_update(self, *, in_backward: bool) -> None:
        """The update begins. in_backward: from inside backward, where an optimizer has its own ways."""
        self.in_backward = self.in_backward or in_backward
        self._begun = self.backwards
        cleared = self.backwards > 0 and self.pending == 0 and self.filled
        self.lost = cleared and (self.is_empty() or self.leftover_is_zero() is not False)
        self.replaced = self.looking and not self.clip_before and self._collect_marks() != self._left

    @property
    def asks_for_inputs(self) -> bool:
        """True if some gradients of this window were cleared, and it is not known whether they were of other batches."""
        return self.looking and self.thrown > 0 and self.pending > 0 and self.fresh == 0 and not self.replaced

    def compare_inputs(self, equal_pairs: float) -> None:
        """The inputs of a window's passes were compared; the same ones twice have a reason, and nothing is said then."""
        self.new_inputs = equal_pairs == 0
        if not self.new_inputs:
            self.reported.add("thrown")

    def judge_window(self, step: int) -> list[str]:
        """The kinds of faults that this window showed; their streaks are counted."""
        self.inside = self.backwards > self._begun
        kept = self.backwards > 0 and not self.in_backward and self.windows > 0
        shown = {
            # not where the program writes the gradients itself, of another precision or part of the model
            "unreset": kept and not self.reset and self.added,
            "emptied": kept and self.lost and not self.inside,
            # each backward had a batch of its own: else the cleared ones served another purpose (attacks, SAM)
            "thrown": kept
            and self.thrown > 0
            and self.pending > 0
            and (self.fresh == self.backwards or (self.asks_for_inputs and self.new_inputs)),
            "late_clip": kept and self.clip_after and not self.clip_before,
            "twice": kept and self.repeats > 0,
        }
        for kind, is_shown in shown.items():
            if is_shown or kind in self.streaks:
                self._count_streak(kind, is_shown, step)
        return [kind for kind, is_shown in shown.items() if is_shown]

    def end_epoch(self, usual: int, step: int) -> tuple[int, int]:
        """Backward calls at the end of an epoch that no update used: (cleared, carried into the next epoch).

        usual: backward calls of an update, mostly.
        """
        dropped = self.tail if 0 < self.tail < usual else 0
        self.thrown -= dropped
        self.tail = 0
        self._count_streak("tail", dropped > 0, step)
        return dropped, self.unused if 0 < self.unused < usual else 0

    def _count_streak(self, kind: str, is_shown: bool, step: int) -> None:
        if not is_shown:
            self.streaks[kind] = 0
            return
        self.streaks[kind] += 1
        if self.streaks[kind] == 1:
            self.since[kind] = step


def compress_calls(calls: Sequence[str]) -> str:
    """``(batch, forward, backward) x 4, clip, step``: calls in order, repetitions once."""
    parts: list[str] = []
    at = 0
    while at < len(calls):
        period, times = _find_repetition(calls, at)
        group = ", ".join(calls[at : at + period])
        parts.append(group if times == 1 else f"({group}) x {times}" if period > 1 else f"{group} x {times}")
        at += period * times
    return ", ".join(parts)


def _find_repetition(calls: Sequence[str], at: int) -> tuple[int, int]:
    """(length, times) of the group that begins here and covers most by repeating itself."""
    best = 1, 1
    for period in range(1, MAX_PERIOD + 1):
        group = calls[at : at + period]
        times = 1
        while calls[at + times * period : at + (times + 1) * period] == group:
            times += 1
        if times > 1 and times * period > best[0] * best[1]:
            best = period, times
    return best
