"""What every diagnostic of a loss shares: its report, its switch, the guard around it, and how it is told."""

import functools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch

from tdbg.core.deprecation import renamed_method
from tdbg.core.errors import TdbgError
from tdbg.core.events import plain
from tdbg.core.flags import expand, tag
from tdbg.core.guard import Guard
from tdbg.probes import PROBES, Probe
from tdbg.runtime import run_context
from tdbg.runtime.compiler import is_capturing

MAX_REPORTED = 1000  # kinds of findings that are handed on; each once
EVIDENCE = 12


@PROBES.add
class Loss(Probe):
    """Diagnostics of losses that the program calls itself: `tdbg.probes.loss`.

    Reads:  the tensors that the program gives to its functions, while their flag is on.
    Emits:  a record a call under the flag's tag, its last part kept as an event; new findings with it.
    Cost:   off below 1 us a call. On 0.1 to 1 ms a call, booked apart from the budget: the program asks for it.
    Limits: it sees what it is given. On an accelerator values are read, which waits.
    Source: docs/loss.md; each function names the paper.
    """

    name = "loss"
    fields: ClassVar[dict[str, str]] = {
        "faults": "findings that are new in this process: code, title, what, evidence, cause, try_next",
        "name": "of the loss or GradNorm, where the program gave one",
        "training": "null masking: training (True) or validation",
        "samples": "samples looked at",
        "nulls": "of them without a label, summed over tasks",
        "masked": "of them left out of the loss",
        "position": "place in a gradual schedule, 0 to 1",
        "nodes": "of the label hierarchy",
        "roots": "of them without a parent",
        "depth": "of the deepest node; a root has 0",
        "classes": "how many",
        "largest": "distance",
        "broken": "triples of classes that break the triangle inequality",
        "row_error": "largest distance of a row's sum from 1",
        "kept": "least mass that stays on the true class",
        "loss": "with smoothing, or the weighted sum, in nats",
        "plain_loss": "without smoothing, in nats",
        "ratio": "largest to smallest class weight",
        "exponent": "slope of log(weight) over log(count), all weightings together",
        "share": "of the loss that comes from the largest contributor",
        "weights": "of the tasks, in their order",
        "rates": "relative inverse training rates, in the order of the tasks",
        "drift": "largest change of a task's weight since the first update",
        "values": "how many values were written",
        "peak_mb": "most memory during the update (accelerators)",
        "saved_mb": "bytes saved for backward by the extra passes",
        "stays_mb": "memory after the update less memory before it",
    }


@dataclass(slots=True)
class Fault:
    """One thing that is wrong, as a diagnostic saw it; `tdbg explain CODE` has its page."""

    code: str
    title: str
    severity: str = "warning"
    what: str = ""  # the task, class or part it is about: a fault is handed on once for each
    evidence: list[str] = field(default_factory=list)
    cause: str = ""
    try_next: str = ""

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def format_lines(self) -> str:
        """As it stands in the log."""
        more = [f"  {line}" for line in self.evidence]
        more += [f"  cause: {self.cause}"] if self.cause else []
        more += [f"  try: {self.try_next}"] if self.try_next else []
        return "\n".join([f"{self.code} {self.severity}: {self.title}", *more])

    lines = renamed_method("lines", format_lines)


@dataclass(slots=True, kw_only=True)
class Report(ABC):
    """What one call of a diagnostic found out.

    findings: what is wrong, empty where all is well.
    """

    flag: ClassVar[str]
    part: ClassVar[str]  # of the tag of its last record, which is kept as an event

    findings: list[Fault] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Plain data, as JSON can carry it: NaN and Inf as words."""
        found = {
            item.name: _to_plain_data(getattr(self, item.name)) for item in fields(self) if item.name != "findings"
        }
        return {**found, "findings": [fault.as_dict() for fault in self.findings]}

    @abstractmethod
    def records(self) -> list[tuple[str, str]]:
        """(part of the tag, text) of every record; the last one is kept as an event, with `collect_event_values`."""

    def collect_event_values(self) -> dict[str, object]:
        """The few figures that are kept with the run; their names stand in the fields of the probe."""
        return {}


def _to_plain_data(value: Any) -> object:
    """Nested reports as dictionaries, in plain data."""
    if isinstance(value, list):
        return [_to_plain_data(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: _to_plain_data(getattr(value, item.name)) for item in fields(value)}
    return plain(value)


P = ParamSpec("P")
R = TypeVar("R", bound=Report)

STATES: dict[tuple[str, ...], Any] = {}  # what diagnostics keep from call to call: (diagnostic, name, ...) -> state
MAX_STATES = 1000
_reported: set[tuple[str, ...]] = set()
called_flags: set[str] = set()  # those of diagnostics that the program calls, each while its flag is on


def forget() -> None:
    """Forget what earlier calls left: counts, first weights, memory of earlier updates, findings told already."""
    STATES.clear()
    _reported.clear()
    called_flags.clear()


os.register_at_fork(after_in_child=lambda: Guard("loss diagnostics").call_guarded(forget))

S = TypeVar("S")


def get_state(make: Callable[[], S], *key: str) -> S:
    """What a diagnostic keeps under this key, made on first use; too many keys begin anew."""
    if key not in STATES:
        if len(STATES) >= MAX_STATES:
            STATES.clear()
        STATES[key] = make()
    found: S = STATES[key]
    return found


def is_on(flag: str) -> bool:
    """True while the flag is on: for arguments of a diagnostic that cost something to make.

    flag: any spelling that `tdbg run --flag` takes, a family (``LOSS``) too; TdbgError for one that does not exist.
    Inside torch.compile a constant False. Cost: below 1 us.
    """
    if torch.compiler.is_compiling():
        return False
    flags = run_context.current.flags
    return any(flags.get(name, False) is not False for name in _expand_flag(flag))


@functools.cache
def _expand_flag(flag: str) -> tuple[str, ...]:
    return expand(flag)


def diagnostic(flag: str, *, once: bool = False) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """A function that makes a report, as a diagnostic: nothing while its flag is off, told and guarded while it is on.

    once: it is called at the beginning, where ``--steps`` and ``--every`` do not choose.
    """

    def make_diagnostic(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def call_diagnostic(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if torch.compiler.is_compiling():
                return None
            always = "always" in kwargs and bool(kwargs["always"])
            if run_context.current.flags.get(flag, False) is False and not always:
                return None
            return make_report(flag, lambda: function(*args, **kwargs), always=always, once=once)

        return call_diagnostic

    return make_diagnostic


def make_report(flag: str, make: Callable[[], R], *, always: bool, once: bool = False) -> R | None:
    """Make a report, and tell it where the flag is on and the step is one to look at."""
    who = run_context.current
    is_due = run_context.current.flags.get(flag, False) is not False
    if is_due:
        who.record_flag_use(flag)
        called_flags.add(flag)
        is_due = who.is_step_selected(any_step=once)
    if not (is_due or always) or is_capturing():
        return None
    begun = time.perf_counter()
    try:
        with torch.no_grad():
            report = make()
        if is_due:
            write_report(report, who)
        return report
    except Exception as error:
        if always:
            raise
        if is_due:
            _log_failure(flag, error, who)  # guard: a debug call must not end the training it speaks of
        return None
    finally:
        who.record_time(time.perf_counter() - begun)


def _log_failure(flag: str, error: Exception, who: run_context.NullContext) -> None:
    hint = f"; {error.hint}" if isinstance(error, TdbgError) and error.hint else ""
    text = f"(no report: {error if isinstance(error, TdbgError) else f'{type(error).__name__}: {error}'}{hint})"
    if _is_new(flag, text):
        who.log_line(tag(flag), text, "W")
        who.record_note(
            f"no-report:{flag}", f"a call of {flag} gave no report: {text[1:-1].removeprefix('no report: ')}"
        )


def write_report(report: Report, who: run_context.NullContext) -> None:
    """Write every record of a report; findings stand in the last, and each kind goes into its event once."""
    *before, (part, text) = report.records()
    for name, lines in before:
        who.log_line(tag(report.flag, name), lines)
    new = [fault for fault in report.findings if _is_new(fault.code, fault.what)]
    text = "\n".join([text, *(fault.format_lines() for fault in report.findings)])
    values = plain(report.collect_event_values())
    if new:
        values["faults"] = [fault.as_dict() for fault in new]
    who.record_observation(Loss, report.flag, part, text, values, "W" if new else "D")


def _is_new(*key: str) -> bool:
    if key in _reported or len(_reported) >= MAX_REPORTED:
        return False
    _reported.add(key)
    return True


def build_argument_error(what: str, hint: str) -> TdbgError:
    """What is said of arguments that do not fit together."""
    return TdbgError(what, hint)
