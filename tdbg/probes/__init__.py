"""Probes: what looks at a training program from inside, each in a file of its own."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from tdbg.core.events import Step
from tdbg.core.flags import FLAGS, flag_of
from tdbg.core.guard import Guard
from tdbg.core.registry import Registry
from tdbg.probes.budget import ALWAYS_STEPS
from tdbg.probes.patches import Patches

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from tdbg.probes.modules import ModuleLook
    from tdbg.probes.monitor import Monitor
    from tdbg.probes.rerun import Call


class Probe:
    """One thing that watches. Every method is optional; the monitor calls only those a probe overrides.

    Cost is booked by the monitor. An exception switches the probe off, is recorded once, and never
    reaches the program. A method must not issue a collective and must not synchronise a device.
    Work beyond a few microseconds a step asks `may` first.
    """

    name = ""
    levels: tuple[str, ...] = ()  # levels it belongs to without being asked for by a flag
    ignores: frozenset[str] = frozenset()  # points it is not told of for the time being: `Monitor.ignore`
    rests: ClassVar[bool] = True  # while a profiler records; one that does not is told of a call after all others
    every: ClassVar[int] = 1  # steps from look to look where only a level asks for it: more for what changes slowly
    fields: ClassVar[dict[str, str]] = {}  # what `see` may tell: name (with its unit) -> a line for docs/probes.md

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor
        self.on = True
        self.guard = Guard(self.name, lambda part, error: self.monitor.failed(self, error))
        self.patches = Patches()
        self.read_flags()

    def read_flags(self) -> None:
        """``flags``: those that are on and wake this probe. The monitor has them read anew when they change."""
        wanted = self.monitor.settings.flags
        self.flags = tuple(flag.name for flag in FLAGS if flag.probe == self.name and wanted.get(flag.name))
        self._owner = next(iter(self.flags), flag_of(self.name))

    def threshold(self, name: str) -> float:
        """A bound of this probe's flag, as set or its default."""
        return self.monitor.settings.threshold(f"{flag_of(self.name)}.{name}")

    def may(self, kind: str = "") -> bool:
        """True if the running step is one to look at (``--every``, ``--steps``, ``--ranks``) and can be afforded.

        kind: a piece of work whose cost is remembered apart, by `work`; the probe's own if left out.
        """
        if not self.on or not self._is_due():
            return False
        return self.monitor.may(kind or self.name)

    @property
    def by_level_alone(self) -> bool:
        """True if a level has it at work, and nobody asked for it by a flag or chose the steps."""
        settings = self.monitor.settings
        return not (self.flags or settings.steps or settings.every)

    def _is_due(self) -> bool:
        """True unless only the level asks, and this step is one to pass over."""
        step = self.monitor.step + 1
        return not self.by_level_alone or step <= ALWAYS_STEPS or step % self.every == 0

    @contextlib.contextmanager
    def work(self, kind: str = "") -> Iterator[None]:
        """Around the work that `may` allowed: remembers what it cost."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.monitor.budget.learn(kind or self.name, time.perf_counter() - begun, extra=True)

    def see(
        self, text: str, part: str = "", level: str = "D", flag: str = "", step: int | None = None, **values: Any
    ) -> None:
        """Tell what was seen: an Observation event, and its line in the debug log under the flag's tag.

        text: the line. level: D, S, I, W or E, as in the log. flag: where the probe serves
        several flags. step: if it is not the running one. values: the facts behind the text; their names stand in ``fields``. At most one a step and part.
        """
        monitor, step = self.monitor, self.monitor.running_step if step is None else step
        monitor.outbox.observe(self, flag or self._owner, part, text, values, level, step=step, epoch=monitor.epoch)

    def abstain(self, reason: str) -> None:
        """Say once why this probe cannot see what it is there for; to those who asked for it by its flag."""
        if not self.flags:
            return
        self.monitor.note(f"abstains-{self.name}", f"{flag_of(self.name) or self.name}: {reason}")

    def patch(
        self,
        owner: Any,
        name: str,
        *,
        before: "Callable[[tuple[Any, ...], dict[str, Any]], None] | None" = None,
        after: "Callable[[float, tuple[Any, ...], dict[str, Any], Any], None] | None" = None,
        raised: "Callable[[float, tuple[Any, ...], dict[str, Any], Exception], None] | None" = None,
    ) -> None:
        """Stand in front of ``owner.name``, which keeps its arguments, result and exceptions.

        before(args, kwargs); after(seconds, args, kwargs, result); raised(seconds, args, kwargs, error): each is
        timed, booked on this probe and guarded. Nothing is called once the probe is off, while a batch is run
        again, or inside a compiled region. Put back when the probe is detached.
        """
        import torch

        from tdbg.probes.compiler import hide, unseen

        guard = self.guard

        def make(original: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if not self.on or torch.compiler.is_compiling() or self.monitor.rerunning:
                    return original(*args, **kwargs)
                if before is not None:
                    unseen(guard.call, self._run_timed, before, args, kwargs)
                begun = time.perf_counter()
                try:
                    result = original(*args, **kwargs)
                except Exception as error:
                    if raised is not None:
                        seconds = time.perf_counter() - begun
                        unseen(guard.call, self._run_timed, raised, seconds, args, kwargs, error)
                    raise
                if after is not None:
                    unseen(guard.call, self._run_timed, after, time.perf_counter() - begun, args, kwargs, result)
                return result

            return hide(wrapper)

        self.patches.wrap(owner, name, make)

    def _run_timed(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of this probe while tdbg is on, and book its time. Below the probe's guard."""
        if not self.on or not self.monitor.active:
            return
        begun = time.perf_counter()
        try:
            method(*args)
        finally:
            self.monitor.budget.spend(self.name, time.perf_counter() - begun)

    def when_imported(self, name: str, then: Callable[[Any], None]) -> None:
        """Call ``then(module)`` now if the program has imported it, else when it does."""
        guard = self.guard
        self.monitor.when_imported(name, lambda module: guard.call(self._run_timed, then, module))

    def attach(self) -> None:
        """Set up patches (`patch`).

        This may happen while torch goes through the hooks of an optimizer: hook none there, neither here nor in
        `detach` (`EveryUpdate` is told of every update).
        """

    def changed(self) -> None:
        """Level or flags changed, and this probe stays; called after `attach` as well."""

    def detach(self) -> None:
        """Take everything away; the base class restores the patches."""
        self.on = False
        self.patches.restore()

    def must_watch(self) -> bool:
        """True if the next call of a root has to be watched whatever that costs: a person asked for it."""
        return False

    def batch_taken(self, batch: Any, wait_s: float, loader_iter: Any) -> None:
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

    def gradients_bad(self) -> None:
        """Gradients are not finite, and as the backward pass left them: the first-bad report comes next."""

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        """A step ended: fill in the record. Only on steps whose record is written."""

    def record_written(self, record: Step) -> None:
        """A step's record is complete and written; on an accelerator this is one step late."""

    def modules_seen(self, look: "ModuleLook") -> None:
        """The modules of a step were looked at, which a probe asks for with `ModuleLook.want`."""

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


# The files whose probes the default level has; the others are loaded when a flag or a higher level asks for one.
BASIC = ("first_bad", "gradients", "loader", "regions", "scaler", "triggers")
PROBES: Registry[type[Probe]] = Registry("probe", package="tdbg.probes", group="tdbg.probes")
