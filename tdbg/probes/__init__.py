"""Probes: what looks at a training program from inside, each in a file of its own."""

import contextlib
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from tdbg.core.deprecation import renamed_method
from tdbg.core.events import UNAVAILABLE
from tdbg.core.flags import FLAGS, flag_of
from tdbg.core.guard import belongs_to_program
from tdbg.core.observations import Observed, field_lines
from tdbg.core.registry import Registry
from tdbg.runtime.budget import ALWAYS_STEPS
from tdbg.runtime.listener import Listener

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor


class Probe(Listener):
    """One thing that watches. Every method is optional; the monitor calls only those a probe overrides.

    Cost is booked by the monitor. An exception switches the probe off, is recorded once, and never
    reaches the program. A method must not issue a collective and must not synchronise a device.
    Work beyond a few microseconds a step asks `should_sample` first.
    """

    levels: tuple[str, ...] = ()  # levels it belongs to without being asked for by a flag
    every: ClassVar[int] = 1  # steps from look to look where only a level asks for it: more for what changes slowly
    companions: ClassVar[tuple[str, ...]] = ()  # tdbg's probes that a flag turns on together with this one
    observations: ClassVar[tuple[type[Observed], ...]] = ()  # what `emit` may tell
    fields: ClassVar[dict[str, str]] = {}  # of these or of `observe`: name (with its unit) -> a line for docs/probes.md

    _renamed = {**Listener._renamed, "may": "should_sample", "see": "observe", "abstain": "unavailable"}

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "observations" in vars(cls):
            cls.fields = field_lines(cls.observations)

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor
        self._look_steps: dict[str, tuple[int, int]] = {}  # kind of work -> step of the last look, step of the next
        super().__init__(monitor.handle_failure)
        self.read_flags()

    def read_flags(self) -> None:
        """``flags``: those that are on and wake this probe. The monitor has them read anew when they change."""
        wanted = self.monitor.settings.flags
        self.flags = tuple(flag.name for flag in FLAGS if flag.probe == self.name and wanted.get(flag.name))
        self._owner = next(iter(self.flags), flag_of(self.name))

    def threshold(self, name: str) -> float:
        """A bound of this probe's flag, as set or its default."""
        return self.monitor.settings.get_threshold(f"{flag_of(self.name)}.{name}")

    def should_sample(self, kind: str = "") -> bool:
        """True if the running step is one to look at (``--every``, ``--steps``, ``--ranks``) and can be afforded.

        kind: a piece of work whose cost is remembered apart, by `work`; the probe's own if left out.
        """
        if not self.on or not self._is_due():
            return False
        kind = kind or self.name
        inspection = self.monitor.inspection
        if inspection.has_ended_for(type(self)) and not self._is_requested():
            return self._may_look_again(kind)
        if inspection.is_later_look_open and inspection.has_looked_again(type(self)) and not self._is_requested():
            return False
        return self.monitor.should_sample(kind)

    def _is_requested(self) -> bool:
        """True if the level has it, or somebody asked for it by a flag or chose the steps."""
        return self.monitor.settings.level in self.levels or not self.by_level_alone

    def _may_look_again(self, kind: str) -> bool:
        """True at doubling intervals: this probe belongs to no level, and stays after the opening inspection."""
        step = self.monitor.step + 1
        last, due = self._look_steps.get(kind, (0, 0))
        if step != last and (step < due or not self.monitor.should_sample(kind)):
            return False
        self._look_steps[kind] = step, 2 * step
        return True

    @property
    def by_level_alone(self) -> bool:
        """True if a level has it at work, and nobody asked for it by a flag or chose the steps."""
        settings = self.monitor.settings
        return not (self.flags or settings.steps or settings.every)

    def _is_due(self) -> bool:
        """True unless only the level asks, and this step is one to pass over."""
        step = self.monitor.step + 1
        is_early = step <= ALWAYS_STEPS or self.monitor.inspection.is_repeat_open
        return not self.by_level_alone or is_early or step % self.every == 0

    @contextlib.contextmanager
    def work(self, kind: str = "") -> Iterator[None]:
        """Around the work that `should_sample` allowed: remembers what it cost."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.monitor.budget.record_cost(kind or self.name, time.perf_counter() - begun, extra=True)

    def emit(self, seen: Observed, *, flag: str = "", step: int | None = None) -> None:
        """Tell what was seen: an event, and its line in the debug log under the flag's tag.

        flag: where the probe serves several flags. step: if it is not the running one. At most one a step and part,
        with its suffix.
        """
        seen.step = self.monitor.running_step if step is None else step
        self.observe(seen.text(), seen.PART + seen.suffix, seen.level, flag, seen.step, **seen.as_values())

    def observe(
        self, text: str, part: str = "", level: str = "D", flag: str = "", step: int | None = None, **values: Any
    ) -> None:
        """`emit` without a class: for probes of other packages.

        text: the line. level: D, S, I, W or E, as in the log. flag: where the probe serves
        several flags. step: if it is not the running one. values: the facts behind the text; their names stand in ``fields``. At most one a step and part.
        """
        monitor, step = self.monitor, self.monitor.running_step if step is None else step
        monitor.event_buffer.emit_observation(
            self, flag or self._owner, part, text, values, level, step=step, epoch=monitor.epoch
        )

    def unavailable(self, reason: str) -> None:
        """Say once why this probe cannot see what it is there for; to those who asked for it by its flag."""
        if not self.flags:
            return
        self.monitor.note(f"{UNAVAILABLE}{self.name}", f"{flag_of(self.name) or self.name}: {reason}")

    may = renamed_method("may", should_sample)
    see = renamed_method("see", observe)
    abstain = renamed_method("abstain", unavailable)

    def patch(
        self,
        owner: Any,
        name: str,
        *,
        before: "Callable[[tuple[Any, ...], dict[str, object]], None] | None" = None,
        after: "Callable[[float, tuple[Any, ...], dict[str, object], object], None] | None" = None,
        raised: "Callable[[float, tuple[object, ...], dict[str, object], Exception], None] | None" = None,
    ) -> None:
        """Stand in front of ``owner.name``, which keeps its arguments, result and exceptions; for functions of torch use `patch_at`.

        before(args, kwargs); after(seconds, args, kwargs, result); raised(seconds, args, kwargs, error): each is
        timed, booked on this probe and guarded. Nothing is called once the probe is off, while a batch is run
        again, inside a compiled region, or while a CUDA graph is captured. Put back when the probe is detached.
        """
        self.patch_while_due(owner, name, None, before, after, raised)

    def patch_while_due(
        self,
        owner: Any,
        name: str,
        due: Callable[[], bool] | None,
        before: "Callable[[tuple[Any, ...], dict[str, object]], None] | None" = None,
        after: "Callable[[float, tuple[Any, ...], dict[str, object], object], None] | None" = None,
        raised: "Callable[[float, tuple[object, ...], dict[str, object], Exception], None] | None" = None,
    ) -> None:
        """`patch` for a busy function. due: false while nothing is to be called before and after; None for always.

        It runs before each call, untimed, and calls no function of Python's.
        """
        import torch

        from tdbg.runtime.compiler import call_outside_compiler, hide_from_compiler, is_capturing

        guard = self.guard
        if due is not None:
            hide_from_compiler(due)

        def make_wrapper(original: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if (
                    torch.compiler.is_compiling()
                    or not self.on
                    or self.monitor.rerunning
                    or call_outside_compiler(is_capturing)
                ):
                    return original(*args, **kwargs)
                is_due = True
                if due is not None:  # not below the guard, which takes longer than the question
                    try:
                        is_due = due()
                    except BaseException as error:
                        if belongs_to_program(error):
                            raise
                        is_due = False
                        call_outside_compiler(guard.handle_failure, error)
                if before is not None and is_due:
                    call_outside_compiler(guard.call_guarded, self._run_timed, before, args, kwargs)
                begun = time.perf_counter()
                try:
                    result = original(*args, **kwargs)
                except Exception as error:
                    if raised is not None:
                        seconds = time.perf_counter() - begun
                        call_outside_compiler(guard.call_guarded, self._run_timed, raised, seconds, args, kwargs, error)
                    raise
                if after is not None and is_due:
                    call_outside_compiler(
                        guard.call_guarded, self._run_timed, after, time.perf_counter() - begun, args, kwargs, result
                    )
                return result

            return hide_from_compiler(wrapper)

        self.patches.wrap_attribute(owner, name, make_wrapper)

    def patch_at(
        self,
        place: str,
        *,
        before: "Callable[[tuple[object, ...], dict[str, object]], None] | None" = None,
        after: "Callable[[float, tuple[object, ...], dict[str, object], object], None] | None" = None,
        raised: "Callable[[float, tuple[object, ...], dict[str, object], Exception], None] | None" = None,
    ) -> None:
        """`patch` at a place of torch's, one of `torch_hooks.PLACES`."""

        def patch_function(owner: Any, function: str) -> None:
            self.patch(owner, function, before=before, after=after, raised=raised)

        self.for_each_function(place, patch_function)

    def for_each_function(self, place: str, stand: Callable[[Any, str], None], *, name: str = "") -> None:
        """Call ``stand(owner, name)`` for each function of a place of torch's, once the program has loaded it.

        name: of the function, at a place that leaves it open.
        """
        from tdbg.runtime.torch_hooks import PLACES, iter_targets, modules_of

        def handle_loaded_module(module: str) -> None:
            if not self.on:
                return
            found = list(iter_targets(place, module, name))
            for owner, function in found:
                stand(owner, function)
            if not found and not name and module:  # what is told by no path, torch_compat notes itself
                self.monitor.note(f"without-{place}", f"this torch has no {place!r}, which shows {PLACES[place].why}")

        for module in modules_of(place):
            self.monitor.when_imported(
                module, lambda loaded: self.guard.call_guarded(handle_loaded_module, loaded.__name__)
            )
        if not modules_of(place):
            handle_loaded_module("")

    def _run_timed(self, method: Callable[..., None], *args: Any) -> None:
        """Call a method of this probe while tdbg is on, and book its time. Below the probe's guard."""
        if not self.on or not self.monitor.active:
            return
        begun = time.perf_counter()
        try:
            method(*args)
        finally:
            self.monitor.budget.charge(self.name, time.perf_counter() - begun)

    def when_imported(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Call ``then(module)`` now if the program has imported it, else when it does."""
        guard = self.guard
        self.monitor.when_imported(name, lambda module: guard.call_guarded(self._run_timed, then, module))


# The files whose probes the default level has; the others are loaded when a flag or a higher level asks for one.
BASIC = (
    "first_bad",
    "gradients",
    "hang",
    "loader",
    "native_crash",
    "regions",
    "scaler",
    "stack_signal",
    "triggers",
    "compilation",
)
# Those that the opening inspection adds, and takes away when it is over.
OPENING = (
    *("backward", "checkpoint", "data_splits", "dataloader", "forward", "gradient_report", "memory", "model_build"),
    *("optimizer", "rank_batches", "rank_weights", "schedule", "training_loop", "validation", "worker_states"),
)
PROBES: Registry[type[Probe]] = Registry("probe", package="tdbg.probes", group="tdbg.probes")
