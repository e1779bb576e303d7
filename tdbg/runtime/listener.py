"""Who is called at the points of a training step: the methods that a probe may override."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from tdbg.core.deprecation import adopt_old_names
from tdbg.core.events import Step
from tdbg.core.guard import Guard
from tdbg.runtime.patches import Patches

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tdbg.runtime.rerun import Call
    from tdbg.runtime.torch_compat import BatchIterator

LATER_STEPS = 13  # of a look at doubling intervals: TD-G003 asks for ten looks in a row, over twelve steps


class Listener:
    """One thing that the dispatcher calls. Every method is optional; only those that a class overrides are called.

    failed: called once, with the listener and its exception.
    """

    name = ""
    muted: frozenset[str] = frozenset()  # points it is not called at for the time being: `Monitor.mute_points`
    pause_while_profiling: ClassVar[bool] = True  # one that does not pause is called after all others
    ignores: frozenset[str] = muted  # the old names of the two, which other packages may set
    # Seconds a step that its hooks cost without any look; one of the opening inspection stays where these can be paid.
    presence_s: ClassVar[float] = math.inf
    can_be_removed: ClassVar[bool] = True  # where its presence turns out to cost more than that
    is_told_of_updates: bool = False  # at every update, watched or not: no step can be skipped while it is
    inspects_evaluation: ClassVar[bool] = False  # looks at the first evaluation pass, however late in the run it comes
    # Waits, at no cost a step, for the first checkpoint after the opening steps, and for later ones that take long.
    inspects_checkpoint: ClassVar[bool] = False
    # In so many steps of each look at doubling intervals, if it does not stay: what it looks for can begin late in the run.
    comes_back: ClassVar[int] = 0
    rests: ClassVar[bool] = pause_while_profiling
    _renamed: ClassVar[dict[str, str]] = {"ignores": "muted", "rests": "pause_while_profiling"}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adopt_old_names(cls, cls._renamed)
        for old, new in Listener._renamed.items():
            if new in vars(cls):
                setattr(cls, old, vars(cls)[new])

    def __init__(self, failed: "Callable[[Any, BaseException], None]") -> None:
        self.on = True
        self.guard = Guard(self.name, lambda part, error: failed(self, error))
        self.patches = Patches()

    def read_flags(self) -> None:
        """Flags changed, or this listener is new."""

    def attach(self) -> None:
        """Set up patches (`patch`).

        This may happen while torch goes through the hooks of an optimizer: hook none there, neither here nor in
        `detach` (`EveryUpdate` is told of every update).
        """

    def detach(self) -> None:
        """Take everything away; the base class restores the patches."""
        self.on = False
        self.patches.restore()

    def changed(self) -> None:
        """Level or flags changed, and this probe stays; called after `attach` as well."""

    def must_watch(self) -> bool:
        """True if the next call of a root has to be watched whatever that costs: a person asked for it."""
        return False

    def batch_taken(self, batch: Any, wait_s: float, loader_iter: "BatchIterator") -> None:
        """A DataLoader handed out a batch."""

    def call_begins(self, module: "nn.Module", call: "Call") -> None:
        """A root module is about to run."""

    def call_ended(self, module: "nn.Module", call: "Call", output: Any) -> None:
        """A root module returned."""

    def backward_begins(self, loss: "Tensor | None") -> None:
        """Backward is about to run from ``loss`` (None if it is no scalar)."""

    def backward_ended(self) -> None:
        """Backward returned; gradients are there, reduced over ranks under DDP."""

    def update_begins(self, optimizer: "Optimizer") -> None:
        """An optimizer is about to update, its weights still intact."""

    def clip_begins(self, parameters: "list[Tensor]") -> None:
        """Gradients are about to be clipped."""

    def clip_ended(self, total: Any) -> None:
        """Gradients have been clipped; ``total`` is the norm before, as the program was told."""

    def loss_bad(self, step: int) -> None:
        """The loss of a step is not finite, for the first time: the first-bad report comes next."""

    def gradients_bad(self) -> None:
        """Gradients are not finite, and as the backward pass left them: the first-bad report comes next."""

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        """A step ended: fill in the record. Only on steps whose record is written."""

    def record_written(self, record: Step) -> None:
        """A step's record is complete and written; on an accelerator this is one step late."""

    def modules_seen(self, look: Any) -> None:
        """The modules of a step were sampled, which a probe asks for with `ModuleSampler.request`; look: that sampler."""

    def history_cleared(self) -> None:
        """The user asked to forget earlier steps."""

    def after_step(self, optimizer: "Optimizer") -> None:
        """A step ended, recorded or not: forget what belongs to it."""

    def switched_off(self) -> None:
        """tdbg is switched off for a while: leave nothing in place that costs."""

    def run_ends(self) -> None:
        """The process leaves in good order: say what is still to be said."""

    def forked(self) -> None:
        """This is a new process: forget everything."""
