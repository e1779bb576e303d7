"""Whose steps are counted: the optimizers of a program, and the one among them that makes the steps."""

import weakref
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor
from torch.optim import Optimizer

from tdbg.runtime.root_modules import list_alive
from tdbg.runtime.tensors import has_no_data

OTHER_OPTIMIZER_TAKES_OVER = 16
PHASES = 2  # after so many changes of the one that counts, optimizers are known to take turns of many updates:
NEXT_TAKES_OVER = 2  # then the next one takes over with its second update in a row


class Optimizers:
    """The optimizers alive. The main one is the first that steps, or is of the class that was asked for.

    wanted: name of that class, or empty. note: (code, text), said once per code.
    """

    def __init__(self, wanted: str, note: Callable[[str, str], None]) -> None:
        self._wanted = wanted
        self._note = note
        self._alive: weakref.WeakKeyDictionary[Optimizer, None] = weakref.WeakKeyDictionary()
        self._main: weakref.ref[Optimizer] | None = None
        self._main_idle = 0  # updates of others since its last
        self._in_a_row: tuple[weakref.ref[Optimizer] | None, int] = None, 0  # updates of one of them
        self._taken_over = 0
        self._taken_at = 0  # steps done when the main one took over
        self._others: set[str] = set()  # classes of optimizers that stepped and are not the one that counts
        self._awaited: list[
            tuple[list[weakref.ref[Tensor]], Callable[[], None]]
        ] = []  # parameters that nobody holds yet

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(list_alive(self._alive))  # another thread may build one meanwhile

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, optimizer: Optimizer) -> None:
        """One was built, or is met for the first time."""
        self._alive[optimizer] = None
        if self._awaited:
            self._report_held(optimizer)

    def when_held(self, parameters: Iterable[Tensor], then: Callable[[], None]) -> None:
        """Call ``then`` once an optimizer that is built or met from now on holds one of these."""
        self._awaited.append(([weakref.ref(parameter) for parameter in parameters], then))

    def _report_held(self, optimizer: Optimizer) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        waiting, self._awaited = self._awaited, []
        for refs, then in waiting:
            if any(parameter is not None and id(parameter) in held for parameter in (ref() for ref in refs)):
                then()
            else:
                self._awaited.append((refs, then))

    def find_main(self) -> Optimizer | None:
        """The optimizer whose steps are counted, once it has stepped and while it lives."""
        return self._main() if self._main is not None else None

    def is_main(self, optimizer: Optimizer) -> bool:
        """True for the optimizer whose steps are counted."""
        main = self._main() if self._main is not None else None
        if main is not None and main is not optimizer:
            return False
        wanted = self._wanted
        return not wanted or type(optimizer).__name__.lower() == wanted.lower()

    def claim_main(self, optimizer: Optimizer) -> None:
        """The main optimizer steps: from now on no other one is it, while this one lives."""
        if self._main is None or self._main() is None:
            self._main = weakref.ref(optimizer)

    def main_stepped(self) -> None:
        """A step was counted."""
        self._main_idle = 0
        self._in_a_row = None, 0

    def other_stepped(self) -> None:
        """An update that is not counted."""
        self._main_idle += 1

    def give_way(self, optimizer: Optimizer, step: int) -> None:
        """After 16 updates of others in a row the steps of the last one count from now on, unless a class was asked for.

        After two if optimizers have taken turns before, and the one that counts has had a long turn. step: steps done.
        """
        self._others.add(type(optimizer).__name__)
        before, times = self._in_a_row
        times = times + 1 if before is not None and before() is optimizer else 1
        self._in_a_row = weakref.ref(optimizer), times
        if self._main_idle == OTHER_OPTIMIZER_TAKES_OVER:
            self.note_missing_class()
        had_its_turn = self._taken_over >= PHASES and step - self._taken_at >= OTHER_OPTIMIZER_TAKES_OVER
        is_next = had_its_turn and times >= NEXT_TAKES_OVER
        if (is_next or self._main_idle >= OTHER_OPTIMIZER_TAKES_OVER) and not self._wanted:
            self._taken_over, self._taken_at = self._taken_over + 1, step
            self._main = weakref.ref(optimizer)
            name = type(optimizer).__name__
            self._note("step-optimizer", f"the optimizer counted so far is idle; steps of {name} count from now on")

    def note_missing_class(self) -> None:
        """Say so, if only others than the optimizer that was asked for have stepped."""
        if self._main is None and self._wanted and self._others:
            seen = ", ".join(sorted({*self.list_class_names(), *self._others}))
            self._note(
                "step-optimizer",
                f"no optimizer of class {self._wanted} has stepped, so no step was counted; seen: {seen}",
            )

    @staticmethod
    def is_rehearsal(optimizer: Optimizer) -> bool:
        """True if its parameters hold no data (meta device, fake tensors): its steps compute shapes, and nothing more."""
        try:
            return has_no_data(optimizer.param_groups[0]["params"][0])
        except (AttributeError, LookupError, TypeError):  # an optimizer of another kind, or an empty one
            return False

    def list_class_names(self) -> list[str]:
        """Class names of the optimizers alive."""
        return [type(optimizer).__name__ for optimizer in self]

    def find_owner(self, parameters: list[Tensor]) -> Optimizer | None:
        """The optimizer that holds the first of these parameters."""
        for optimizer in self:
            if parameters and any(parameters[0] is p for group in optimizer.param_groups for p in group["params"]):
                return optimizer
        return None

    def collect_held_ids(self) -> set[int]:
        """The parameters that optimizers hold, by id."""
        return {id(p) for optimizer in self for group in optimizer.param_groups for p in group["params"]}
