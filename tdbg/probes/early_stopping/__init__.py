"""EARLY_STOPPING: each check of an early stopper: the metric, the best, patience, the decision."""

import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from tdbg.core.events import number
from tdbg.core.observations.early_stopping import StoppingCheck
from tdbg.probes import PROBES
from tdbg.probes.early_stopping.stoppers import (
    METHODS,
    Course,
    State,
    as_number,
    find_metric,
    list_parameters,
    read_state,
)
from tdbg.probes.updates import EveryUpdate

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor

LIGHTNING = ("lightning.pytorch.callbacks.early_stopping", "pytorch_lightning.callbacks.early_stopping")
HUGGING_FACE = "transformers.trainer_callback"
IGNITE = "ignite.handlers.early_stopping"
KNOWN = ("lightning.", "pytorch_lightning.", "transformers.", "ignite.", "tdbg.")
SEARCH_AT = (1, 100)  # updates before which the program's own stoppers are looked for
MAX_STOPPERS = 16
MAX_CLASSES = 8
ALWAYS_REPORTED = 50  # checks of a stopper; later ones only where something happens or it can be afforded

Reading = tuple[str, float | None, State]  # name and value of the metric, and what the stopper keeps now


@PROBES.add
class EarlyStopping(EveryUpdate):
    """Every check of an early stopper, the program's own or a library's.

    Reads:  Lightning's EarlyStopping, Hugging Face's EarlyStoppingCallback, ignite's handler; of the program any class
            named like ``EarlyStopping`` that has no base or stands in a module of its own: the arguments of its
            check, and its plain attributes after it.
    Emits:  CHECK, a line a check; the rule speaks of the faults in it.
    Cost:   20 us a check; a search among the classes of the process, 3 ms, before the updates 1 and 100.
    Limits: a loop's own counter without a class is not seen, nor a class that keeps patience under names nobody
            uses. Ignite's value is known when it is the best. A metric on an accelerator is read after the stopper
            has compared it, so nothing waits for it.
    Source: Prechelt 1998, "Early Stopping - But When?" (patience).
    """

    name = "early-stopping"
    levels = ("advanced", "extreme")
    observations = (StoppingCheck,)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._courses: dict[int, tuple[object, Course]] = {}  # id -> (weak reference, or the stopper, ...)
        self._patched: weakref.WeakSet[type] = weakref.WeakSet()
        self._running: list[tuple[int, State]] = []
        self._updates = 0

    def forked(self) -> None:
        self._courses.clear()
        self._running.clear()

    def attach(self) -> None:
        super().attach()
        for name in LIGHTNING:
            self.when_imported(name, self._watch_lightning)
        self.when_imported(HUGGING_FACE, self._watch_hugging_face)
        self.when_imported(IGNITE, self._watch_ignite)

    def _watch_lightning(self, module: Any) -> None:
        if not hasattr(getattr(module, "EarlyStopping", None), "_evaluate_stopping_criteria"):
            self.unavailable("this version of Lightning keeps its early stopping elsewhere")
            return
        self._watch_method(module.EarlyStopping, "_evaluate_stopping_criteria", _read_lightning, read_state)

    def _watch_hugging_face(self, module: object) -> None:
        if hasattr(module, "EarlyStoppingCallback"):
            self._watch_method(module.EarlyStoppingCallback, "on_evaluate", _read_hugging_face, read_state)

    def _watch_ignite(self, module: object) -> None:
        if hasattr(module, "EarlyStopping"):
            self._watch_method(module.EarlyStopping, "__call__", _read_ignite, read_state)

    # the program's own

    def before_update(self, optimizer: Optimizer) -> None:
        self._updates += 1
        if self._updates in SEARCH_AT:
            with self.work():
                self._watch_named_classes()

    def _watch_named_classes(self) -> None:
        """Watch the classes named like early stoppers among those that are defined by now."""
        found = [cls for cls in _iter_classes() if _is_named_stopper(cls)]
        for cls in found:
            found += cls.__subclasses__()
            known = f"{cls.__module__}.".startswith(KNOWN)
            if not known and len(self._patched) < MAX_CLASSES and cls not in self._patched:
                self._patched.add(cls)
                self._watch_own(cls)

    def _watch_own(self, cls: type) -> None:
        for name in METHODS:
            method = vars(cls).get(name)
            if isinstance(method, FunctionType):
                self._watch_method(cls, name, _Own(list_parameters(method)), read_state)

    # checks

    def _watch_method(
        self, cls: type, name: str, read: Callable[..., Reading | None], before_it: Callable[[object], State]
    ) -> None:
        """Be there whenever this method of a stopper runs."""

        def record_state(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            self._running.append((id(args[0]), before_it(args[0])))

        def handle_result(seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
            if not self._running:
                return
            key, earlier = self._running.pop()
            if self._running or key != id(args[0]):
                return  # a method that another one of the stopper calls
            reading = read(earlier, result, *args, **kwargs)
            if reading is not None:
                self._handle_check(args[0], earlier, *reading)

        def handle_error(seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception) -> None:
            self._running.clear()

        self.patch(cls, name, before=record_state, after=handle_result, raised=handle_error)

    def _find_course(self, stopper: object, name: str) -> Course:
        kept, course = self._courses.get(id(stopper), (None, None))
        if course is None or (isinstance(kept, weakref.ref) and kept() is not stopper) or course.name != name:
            while len(self._courses) >= MAX_STOPPERS:
                del self._courses[next(iter(self._courses))]
            course = Course(name)
            self._courses[id(stopper)] = _make_weak_reference(stopper), course
        return course

    def _handle_check(self, stopper: object, before: State, name: str, value: float | None, after: State) -> None:
        course = self._find_course(stopper, name)
        step = self.monitor.step
        fault = course.add_check(value, before, after, step)
        if course.checks > ALWAYS_REPORTED and not fault and not after.stop and not self.should_sample():
            return
        check = StoppingCheck(
            stopper=type(stopper).__name__,
            check=course.checks,
            metric=name,
            value=number(value),
            best=number(after.best),
            first=number(course.first),
            counter=after.counter,
            patience=after.patience,
            mode=after.mode,
            better=course.direction,
            stop=after.stop,
        )
        if fault:
            check.fault, check.streak, check.since = fault, course.streaks[fault], course.since[fault]
        self.emit(check, step=step)


class _Own:
    """Reads a check of a class that the program defines itself."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(
        self, before: State, result: object, stopper: object, *args: object, **kwargs: object
    ) -> Reading | None:
        now = read_state(stopper)
        if now.patience is None or (now.counter is None and now.best is None):
            return None
        name, value = find_metric(stopper, self.names, args, kwargs)
        if value is None and now.counter == before.counter and now.best == before.best:
            return None  # a question about the state, no check
        return name, value, _update_state(now, stop=now.stop or (result is True and _is_reached(now)))


def _read_lightning(before: State, result: Any, stopper: Any, current: object) -> Reading:
    return stopper.monitor, as_number(current), _update_state(read_state(stopper), stop=bool(result[0]))


def _read_hugging_face(
    before: State,
    result: object,
    callback: object,
    args: Any,
    state: Any,
    control: object,
    metrics: Any = None,
    **more: object,
) -> Reading | None:
    name = args.metric_for_best_model or ""
    value = (metrics or {}).get(name if name.startswith("eval_") else f"eval_{name}")
    if value is None:
        return None
    now = read_state(callback)
    mode = "max" if args.greater_is_better else "min"
    # the control's flag is set at the last step as well, whatever this callback says
    return (
        name,
        as_number(value),
        _update_state(now, best=as_number(state.best_metric), mode=mode, stop=_is_reached(now)),
    )


def _read_ignite(before: State, result: object, handler: object, *args: object, **kwargs: object) -> Reading:
    now = read_state(handler)
    improved = now.best is not None and now.counter == 0
    return "", now.best if improved else None, _update_state(now, stop=_is_reached(now))


def _is_reached(state: State) -> bool:
    return state.counter is not None and state.patience is not None and state.counter >= state.patience


def _update_state(state: State, **changes: object) -> State:
    """The state, with some things better known."""
    parts = {name: getattr(state, name) for name in State.__dataclass_fields__}
    return State(**{**parts, **changes})


def _is_named_stopper(cls: type) -> bool:
    return "earlystop" in cls.__name__.lower().replace("_", "")


def _iter_classes() -> Iterator[type]:
    """Classes without a base, wherever they are, and all that stand in the program's own modules."""
    yield from type.__subclasses__(object)
    for name in _list_own_modules():
        held = getattr(sys.modules.get(name), "__dict__", {})
        yield from (value for value in list(held.values()) if issubclass(type(value), type))


def _list_own_modules() -> list[str]:
    """Names of the modules that are no library's: their package lies outside of Python's own folders."""
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    own: dict[str, bool] = {}
    found = []
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package not in own:
            file = getattr(sys.modules.get(package), "__dict__", {}).get("__file__")
            own[package] = isinstance(file, str) and not file.startswith(libraries)
        if own[package]:
            found.append(name)
    return found


def _make_weak_reference(stopper: object) -> object:
    try:
        return weakref.ref(stopper)
    except TypeError:  # slots without __weakref__: told apart by identity alone
        return None
