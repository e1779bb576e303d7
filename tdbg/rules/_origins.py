"""Which rank a NaN or Inf began on, of all that saw it: by the order of their evidence."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tdbg.core.events import MOMENT, REDUCED_GRADIENT, NonFinite
from tdbg.core.observations import Evidence
from tdbg.core.rundir import ProcessDir

# From the surest to the weakest. A rank that saw the value after the reduction, or in its weights a step later, says
# nothing against one that saw it in what is its own.
RERUN, OWN, HERE, WEIGHTS, REDUCED = range(5)
EVIDENCE = (Evidence.LOCATED, Evidence.LOCAL, Evidence.LOCAL, Evidence.FROM_WEIGHTS, Evidence.AFTER_REDUCTION)


class Sighting(NamedTuple):
    """What one process says of its first NaN or Inf."""

    process: ProcessDir
    event: NonFinite
    recovered: bool = False
    records: int = 0  # steps on record so far
    steps: int = 0  # those done

    @property
    def grade(self) -> int:
        """How sure it is that the value began on this rank."""
        event = self.event
        if event.origin == "here":
            return RERUN if event.how == "rerun" else OWN
        if event.origin == "other-rank":
            return REDUCED
        return WEIGHTS if event.weights == "updated" or event.tensor == REDUCED_GRADIENT else HERE

    @property
    def evidence(self) -> Evidence:
        """The same in the words of observations."""
        return EVIDENCE[self.grade]

    @property
    def is_certain(self) -> bool:
        """True if no other rank can know better."""
        return self.event.origin == "here" and self.event.how != "record"


def find_origin(seen: Sequence[Sighting], world: int) -> Sighting:
    """The sighting that the others follow from: at the first step or the one after, the one of the best evidence."""
    lasting = [one for one in seen if not one.recovered] or list(seen)
    first = min(one.event.step for one in lasting)
    near = [one for one in lasting if one.event.step <= first + 1]
    best = min(near, key=lambda one: (one.grade, one.event.step, one.process.sort_key))
    return best if best.grade <= OWN else _find_writing_rank(near, lasting, world) or best


def _find_writing_rank(near: Iterable[Sighting], seen: Sequence[Sighting], world: int) -> Sighting | None:
    """The one rank with bad weights, or reduced gradients, of a step in which the own gradients of all ranks were finite.

    What reached it through the reduction would have reached the others in the same step.
    """
    ruined = [
        one
        for one in near
        if (one.event.weights == "updated" or one.event.origin == "other-rank") and not one.event.until
    ]
    if not ruined or len({one.process.rank for one in seen}) < world:
        return None
    step = min(one.event.step for one in ruined)
    first = [one for one in ruined if one.event.step == step]
    if len(first) != 1 or any(one.event.own_finite < step for one in seen):
        return None
    event = first[0].event
    if event.tensor == MOMENT or event.weights != "updated":
        note = "every rank's own gradients were finite, and no other rank got it: it arose after the reduction"
        return first[0]._replace(event=replace(event, origin="here", phase="gradient", how="check", note=note))
    note = f"the own gradients of all ranks were finite at step {step}, and no other rank's weights changed so"
    written = replace(event, origin="here", phase="weights", step=step + 1, how="check", tensor="weight", note=note)
    return first[0]._replace(event=written)
