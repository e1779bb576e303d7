"""The events of a run: typed records that a rank writes and every command reads.

A rank writes with the standard library alone; readers decode with msgspec. Events are facts that a
rank saw. What they mean is a `Finding`, derived from them by rules, live and offline alike.
JSON has no NaN: a non-finite number is written as the string ``"nan"``, ``"inf"`` or ``"-inf"``.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

from tdbg.core.redaction import redact_text, redact_value

Number = float | str  # a float, or "nan", "inf", "-inf"

EVENT_TYPES: dict[str, type["Event"]] = {}
E = TypeVar("E", bound="Event")


def doc(text: str, default: object = None, *, factory: Any = None) -> Any:
    """A dataclass field with its line in docs/events.md."""
    if factory is not None:
        return field(default_factory=factory, metadata={"doc": text})
    return field(default=default, metadata={"doc": text})


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Event:
    """What every event carries.

    How events are shown and compared is written here once, and how one is made when the first of its class is: doing it for
    every class would double the time of the import, and a process that reads events makes none.
    """

    TYPE: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    t: float = doc("wall clock, seconds since 1970", 0.0)

    def __repr__(self) -> str:
        values = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self))
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, item.name) == getattr(other, item.name) for item in fields(self))

    __hash__ = None  # type: ignore[assignment]


@dataclass_transform(kw_only_default=True)
def event_type(cls: type[E]) -> type[E]:
    """Make a class of events and enter it in the table of types (a decorator)."""
    made = dataclass(slots=True, kw_only=True, repr=False, eq=False, init=False)(cls)
    _defer_init(made)
    EVENT_TYPES[made.TYPE] = made
    return made


def _defer_init(cls: Any) -> None:
    """Have the first event of a class make the class's ``__init__``."""

    def __init__(self: Event, **values: object) -> None:
        if hasattr(
            sys, "last_type"
        ):  # making code now has Python forget that Ctrl-C ended the program: exit 1, not 130
            _set_fields(self, values)
            return
        known: list[Any] = [
            (item.name, item.type, field(default=item.default, default_factory=item.default_factory))
            for item in fields(cls)
        ]
        made: Any = make_dataclass(cls.__name__, known, kw_only=True, repr=False, eq=False)
        cls.__init__ = made.__init__
        made.__init__(self, **values)

    cls.__init__ = __init__


def _set_fields(event: Event, values: dict[str, object]) -> None:
    """What the ``__init__`` of a dataclass does, without making any code."""
    for item in fields(event):
        if item.name in values:
            value = values.pop(item.name)
        elif item.default_factory is not MISSING:
            value = item.default_factory()
        elif item.default is not MISSING:
            value = item.default
        else:
            raise TypeError(f"{type(event).__name__} needs {item.name}")
        setattr(event, item.name, value)
    if values:
        raise TypeError(f"{type(event).__name__} has no {', '.join(values)}")


@event_type
class Start(Event):
    """A process became a rank: it is about to write its first step."""

    TYPE: ClassVar[str] = "start"

    rank: int = doc("global rank", 0)
    local_rank: int | None = doc("rank on its node, if the launcher sets it")
    world_size: int = doc("number of ranks", 1)
    attempt: int = doc("0 for the first start, then the number of the restart", 0)
    host: str = doc("host name", "")
    pid: int = doc("process id", 0)
    argv: list[str] = doc("the program's own command line", factory=list)
    python: str = doc("Python's version", "")
    torch: str = doc("torch's version", "")
    device: dict[str, Any] = doc(
        "accelerator: name, compute capability, driver, memory_mb, cuda and cudnn versions; cpu: threads", factory=dict
    )
    env: dict[str, str] = doc("launcher variables, from an allow-list (RANK, WORLD_SIZE, SLURM_...)", factory=dict)
    startup_ms: float = doc("time tdbg took to start in this process", 0.0)


@event_type
class Params(Event):
    """The names behind the vectors of later step records; written anew when the set changes."""

    TYPE: ClassVar[str] = "params"

    names: list[str] = doc("parameter names, in the order of grad_norms", factory=list)
    numel: list[int] = doc("number of elements of each parameter", factory=list)
    modules: int = doc("number of modules below the root modules", 0)
    roots: list[str] = doc("class names of the root modules", factory=list)
    optimizers: list[str] = doc("class names of the optimizers seen", factory=list)


@event_type
class Step(Event):
    """One step: an ``optimizer.step()`` of the first optimizer, or in evaluation a call of the root."""

    TYPE: ClassVar[str] = "step"

    step: int = doc("step number, from 1; in evaluation the last training step, else the call's number", 0)
    phase: str = doc("train or eval", "train")
    epoch: int | None = doc("number of the pass over the training DataLoader, from 0, if there is one")
    batch: int | None = doc("batches taken from the loader in this epoch")
    batches: int | None = doc("length of the loader, if it has one")
    call: int | None = doc("in evaluation: number of the call of the root module")
    loss: Number | None = doc(
        "sum of the losses on which backward() was called in this step, unscaled; first closure evaluation only"
    )
    micro: int = doc("number of backward calls (gradient accumulation, closures)", 0)
    other_losses: list[Number] = doc("losses of the other optimizers since the previous record", factory=list)
    lr: list[Number] = doc("learning rate of each parameter group", factory=list)
    grad_norm: Number | None = doc(
        "total L2 norm before clipping (of this rank's shard if sharded; first closure evaluation only)"
    )
    grad_norms: list[Number] | None = doc("L2 norm per parameter, on sampled steps; -1 where there is no gradient")
    sharded: bool = doc("gradients are shards (FSDP): combine norms over ranks", False)
    finite: bool | None = doc("true if the loss and the gradients checked are finite; null if none was read")
    checked: str = doc("which gradients were checked: all, some (small tensors only) or none", "none")
    scale: Number | None = doc("loss scale of GradScaler")
    skipped: bool = doc("GradScaler skipped the update", False)
    skipped_in_a_row: int = doc("number of consecutive skipped updates, including this one", 0)
    loader_ms: float | None = doc("time spent waiting for batches")
    forward_ms: float | None = doc("host time in root modules")
    backward_ms: float | None = doc("host time in backward")
    optimizer_ms: float | None = doc("host time in optimizer.step (with a closure: forward and backward too)")
    step_ms: float | None = doc("time since the end of the previous step")
    host_mb: float | None = doc("resident memory of the process")
    device_mb: float | None = doc("allocated accelerator memory")
    device_peak_mb: float | None = doc("peak allocated accelerator memory so far")
    samples: int | None = doc("number of samples: size(0) of the root's first input tensor, summed over calls")


@event_type
class NonFinite(Event):
    """The first NaN or Inf of a rank, located while the weights were intact where that was possible."""

    TYPE: ClassVar[str] = "nonfinite"

    step: int = doc("the step in which it happened", 0)
    until: int = doc("last of the unwatched steps in which it may have happened; 0: it happened in `step`", 0)
    phase: str = doc(
        "where: input, forward, loss, backward, gradient, optimizer, weights (written between two updates);"
        " empty: unknown",
        "",
    )
    kind: str = doc("nan, inf or nan+inf", "")
    module: str = doc("path of the module, if known", "")
    module_class: str = doc("its class", "")
    operation: str = doc("the operation that produced it, such as aten.sqrt or SqrtBackward0", "")
    line: str = doc("file:line of that operation in the program (for a backward operation: of its forward)", "")
    code: str = doc("source text of that line", "")
    parameter: str = doc("the parameter whose gradient is not finite, if known", "")
    tensor: str = doc("which tensor: input[0], output, grad_input, ...", "")
    origin: str = doc("where it began: here, other-rank (the local gradients are finite) or unknown", "unknown")
    own_finite: int = doc("last step in which this rank's own gradients were finite after backward; 0: unknown", 0)
    how: str = doc("how it was located: rerun (of the batch), bracket (indirectly) or check", "check")
    count: int | None = doc("non-finite elements in that tensor")
    numel: int | None = doc("elements of that tensor")
    shape: list[int] = doc("its shape", factory=list)
    dtype: str = doc("its dtype", "")
    rows: list[int] = doc(
        "positions along its dimension 0 that hold all non-finite elements, at most eight; empty if they are more, or"
        " more than half",
        factory=list,
    )
    dataset: str = doc("the dataset that `samples` counts in", "")
    samples: list[int] = doc(
        "the dataset's indices of these rows, if other samples in their place make the pass finite",
        factory=list,
    )
    loss: Number | None = doc("the step's loss")
    bad_params: list[str] = doc("parameters with non-finite gradients, at most 8", factory=list)
    bad_param_count: int = doc("number of parameters with non-finite gradients", 0)
    last_good: dict[str, Any] = doc("step, loss, grad_norm and lr of the last finite record", factory=dict)
    batch: str = doc("folder-relative path of the saved batch", "")
    weights: str = doc("weights at the time of the search for the cause: intact, updated or unknown", "unknown")
    eval: bool = doc("true if it was seen in evaluation", False)
    during: str = doc("train or eval", "train")
    note: str = doc("what could not be found out, and why", "")
    ring: list[dict[str, Any]] = doc("the last step records before it (without vectors)", factory=list)

    @property
    def rows_are_samples(self) -> bool:
        """True if dimension 0 of the tensor counts samples: of what modules take and return, and of its gradient."""
        return self.phase in ("input", "forward") or (
            self.phase == "backward" and self.tensor.startswith("gradient of input")
        )


@event_type
class Observation(Event):
    """What one probe saw in one step. The keys of ``values`` are the probe's own: docs/probes.md lists them."""

    TYPE: ClassVar[str] = "observation"

    probe: str = doc("the probe's name", "")
    flag: str = doc("the debug flag that enables the probe; empty if only levels enable it", "")
    part: str = doc("kind of observation, as in the tag of its debug log line: SUMMARY, PASS, ...", "")
    step: int = doc("the step that was running, or the last one done", 0)
    epoch: int | None = doc("number of the pass over the training DataLoader, from 0, if known")
    text: str = doc("the line in the debug log, without header and tag", "")
    values: dict[str, Any] = doc("observed values by field name", factory=dict)


@event_type
class Switch(Event):
    """Level or flags of this rank changed while it ran."""

    TYPE: ClassVar[str] = "switch"

    step: int = doc("the last step done before the change", 0)
    level: str = doc("the level after the change", "")
    flags: dict[str, Any] = doc("the flags that are on after the change", factory=dict)
    why: str = doc(
        "control, capture or profile (requested by control or a finding), trigger, api, or end (a temporary change ended)",
        "",
    )
    asked: int = doc("for control: the number of the request", 0)
    late: bool = doc("true if this rank had already passed the step at which all ranks were to switch", False)


@event_type
class Trigger(Event):
    """A condition came true: what was done about it."""

    TYPE: ClassVar[str] = "trigger"

    step: int = doc("the step whose record made the condition true", 0)
    condition: str = doc("the condition as written, or the name of a built-in one", "")
    values: dict[str, Any] = doc("the fields that the condition uses, with their values", factory=dict)
    action: str = doc("what was done", "")
    batch: str = doc("folder-relative path of the saved batch", "")
    dump: str = doc("folder-relative path of the last step records and the history of tensors", "")
    stop: bool = doc("true if the command was to be stopped", False)


@event_type
class Injection(Event):
    """A debug flag (or another setting) reached the program's own configuration."""

    TYPE: ClassVar[str] = "injection"

    flag: str = doc("the flag", "")
    status: str = doc(
        "set (changed), already (had the value), rejected, own (already on in the program, not requested)", "set"
    )
    where: str = doc("where it was set: yacs, omegaconf, argparse, jsonargparse or env, and the key", "")
    old: Any = doc("value before")
    new: Any = doc("value after")
    hint: str = doc("for rejected: what the program accepts instead", "")
    rank: int | None = doc("RANK of the process, if it has one")
    pid: int = doc("process id", 0)


@event_type
class Traceback(Event):
    """An exception that ended the process, or that the program logged and swallowed."""

    TYPE: ClassVar[str] = "traceback"

    step: int = doc("last step done", 0)
    exception: str = doc("class name", "")
    message: str = doc("its text, at most 2,000 characters", "")
    lines: list[str] = doc("the traceback, at most 60 lines", factory=list)
    how: str = doc("uncaught, thread (it ended a thread), logged or printed", "uncaught")
    where: str = doc("file:line of the innermost frame in the program's own code (not in a package)", "")
    pid: int = doc("process id", 0)
    rank: int | None = doc("rank of the process, if known before its first step", None)


@event_type
class Cost(Event):
    """tdbg's own cost in this process, so far."""

    TYPE: ClassVar[str] = "cost"

    step: int = doc("last step done", 0)
    evals: int = doc("calls of root modules without gradients, recorded or not, except during away_ms", 0)
    own_ms: float = doc("time inside tdbg's hooks, including the calls into and out of them", 0.0)
    wall_ms: float = doc("wall time since tdbg started", 0.0)
    startup_ms: float = doc(
        "start-up, opening files, and CPU time of the thread that reads the source; not in own_ms", 0.0
    )
    report_ms: float = doc("locating non-finite values (re-running the batch); not in own_ms", 0.0)
    checks_ms: float = doc(
        "checks of this rank's own gradients before they are reduced, in every step: not in own_ms", 0.0
    )
    capture_ms: float = doc("capturing tensors (`--capture`), in the program's own threads: not in own_ms", 0.0)
    diagnostics_ms: float = doc("diagnostics that the program calls (`tdbg.probes.loss`): not in own_ms", 0.0)
    records_ms: float = doc("storing the program's own log records (last cost event only); not in own_ms", 0.0)
    budget_pct: float = doc("current budget in % of the run's time", 0.0)
    earned_ms: float = doc("time that the budgets in force so far have allowed", 0.0)
    inspection_ms: float = doc("part of own_ms that the opening inspection took from its allowance", 0.0)
    allowance_ms: float = doc("time the opening inspection may use in addition to the budget", 0.0)
    inspected: list[str] = doc("the probes that the opening inspection added", factory=list)
    stayed: list[str] | None = doc(
        "those of them that the budget pays for after the inspection; null where that is not known"
    )
    sampled: int = doc("number of steps in which all gradients were checked", 0)
    away_ms: float = doc("time without hooks on root modules, because the hooks cost more than the budget", 0.0)
    away_steps: int = doc(
        "number of steps in away_ms; they are counted, and their losses checked but for those below", 0
    )
    unchecked_losses: int = doc(
        "losses of such steps that were not checked, because that costs more than the budget", 0
    )
    by_part: dict[str, float] = doc("own_ms by part of tdbg", factory=dict)
    errors: int = doc("number of exceptions inside tdbg that were swallowed", 0)
    dropped: int = doc("events not written (disk budget, full disk)", 0)
    level: str = doc("the level in force", "")
    flags: list[str] = doc("the flags that are on", factory=list)


@event_type
class Baseline(Event):
    """The paired ratio of blocks of steps with tdbg on and off, in this very program."""

    TYPE: ClassVar[str] = "baseline"

    block: int = doc("steps per block", 0)
    pairs: int = doc("pairs of blocks", 0)
    ratio: float | None = doc("median over the pairs of time with tdbg on / time with it off")
    low: float | None = doc("lower end of the 95 % interval of the median")
    high: float | None = doc("upper end of the 95 % interval of the median")


@event_type
class ProbeOff(Event):
    """A part of tdbg raised, was switched off, and training went on."""

    TYPE: ClassVar[str] = "probe_off"

    probe: str = doc("name of the part of tdbg that raised", "")
    error: str = doc("class and text of the exception", "")
    lines: list[str] = doc("its traceback, at most 20 lines", factory=list)


@event_type
class ChildExit(Event):
    """A launcher's child ended badly: its own exit code or signal, which the launcher may hide."""

    TYPE: ClassVar[str] = "child_exit"

    host: str = doc("host name", "")
    pid: int = doc("the child's process id", 0)
    code: int = doc("exit code, or minus the signal's number", 0)


@event_type
class Plan(Event):
    """How many steps the program means to do, where a framework says so."""

    TYPE: ClassVar[str] = "plan"

    steps: int | None = doc("planned optimizer steps")
    epochs: float | None = doc("planned epochs")
    source: str = doc("framework that reported the plan", "")


@event_type
class Note(Event):
    """Something a reader should know: vectors sampled for the disk budget, hooks inactive, ..."""

    TYPE: ClassVar[str] = "note"

    code: str = doc("stable slug", "")
    text: str = doc("one sentence", "")
    step: int = doc("last step done", 0)


@event_type
class End(Event):
    """The rank's process ends in good order (a killed one has none)."""

    TYPE: ClassVar[str] = "end"

    step: int = doc("steps done", 0)
    reason: str = doc("exit, exception or stopped", "exit")
    loss: Number | None = doc("last loss that was read, whether its step was recorded or not", None)
    loss_step: int = doc("step of that loss", 0)
    recent_losses: list[float] = doc(
        "losses of the last steps whose losses were checked, at most 100, recorded or not; only those already on the host",
        factory=list,
    )
    recent_steps: list[int] = doc(
        "step of each loss in recent_losses; empty in runs of older versions, whose losses are those of the last steps",
        factory=list,
    )


@event_type
class Metric(Event):
    """A number the program itself measured and gave to `tdbg.metric`."""

    TYPE: ClassVar[str] = "metric"

    step: int = doc("the step that was running; after an update, and in evaluation, the last one done", 0)
    name: str = doc("name given by the program; conditions use it as metric.NAME", "")
    value: Number = doc("the number", 0.0)


@event_type
class Anomaly(Event):
    """What a debugger of the Python API found in one of its calls: the first 1,000 of a kind, then every 1,000th."""

    TYPE: ClassVar[str] = "anomaly"

    step: int = doc("the step that was running; after an update, and in evaluation, the last one done", 0)
    debugger: str = doc("general (PyTorchDebugger), training or diffusion", "")
    kind: str = doc("what is wrong: non-finite, explosion, vanishing, loss, latents, autograd, exception, ...", "")
    text: str = doc("the same in words", "")
    count: int = doc("so many of this kind were found by debuggers of this sort in this process, this one included", 1)


@event_type
class Trace(Event):
    """A window of torch.profiler is over, and its trace is written (or the program's own, taken over)."""

    TYPE: ClassVar[str] = "trace"

    file: str = doc("folder-relative path of the trace; .gz is added once it is compressed", "")
    bytes: int = doc("its size before compression", 0)
    phase: str = doc("what a step is: train (optimizer step), eval (root call) or batches (API batch)", "train")
    first_step: int = doc("the first step that was recorded", 0)
    steps: int = doc("number of steps that were recorded completely", 0)
    wanted: int = doc("number of steps requested", 0)
    kind: str = doc("light, memory, shapes, stacks, flops or full; empty for the program's own profiler", "")
    why: str = doc("requested by: schedule, control, finding or program (its own profiler or call)", "schedule")
    ended: str = doc("why the window ended before its last step; empty if it did not", "")
    steps_ms: list[float] = doc("how long each recorded step took", factory=list)
    outside_ms: float | None = doc("median time of the last steps outside any window")
    pause_ms: float = doc("time the program was paused while the window was closed and written", 0.0)


MAX_STEP = 1 << 53  # of what is computed with: no program gets there, and a longer number may not fit a float
SEVERITIES = ("info", "warning", "error", "critical")
MOMENT = "moment in the optimizer"  # `NonFinite.tensor` where that holds what the gradient was
REDUCED_GRADIENT = "gradient after the reduction"  # the same, of a rank that could not look before
UNAVAILABLE = (
    "abstains-"  # how the code of a Note begins in which a probe, whose name follows, says why it sees nothing
)
NO_BACKWARD = "no-backward"  # the code of a Note: gradients were set without a backward pass, so no loss was checked
JOINS_UNEVEN = "uneven-inputs"  # the program uses Join
STOPPED = "stopped-before-update"  # the code of a Note: tdbg ended the process before a bad update, as it was asked to


@dataclass(slots=True, kw_only=True)
class Finding:
    """What a rule concluded, with its evidence. Codes are stable."""

    code: str
    severity: str
    title: str
    first_step: int | None = None
    rank: int | None = None
    phase: str = ""
    module: str = ""
    evidence: list[str] = field(default_factory=list)
    cause: str = ""
    try_next: str = ""
    grade: str = ""  # how the evidence knows it, a word of `observations.Evidence`; empty where the rule does not say
    attempt: int | None = None  # of a job that its launcher restarts, from 0; None where it is of no certain one

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def number(value: float | None) -> Number | None:
    """A float as JSON can carry it."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def as_float(value: Number | None) -> float | None:
    """The inverse of `number`."""
    return float(value) if value is not None else None


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
_NAMES: dict[type[Event], tuple[tuple[str, object], ...]] = {}


def _list_field_defaults(cls: type[Event]) -> tuple[tuple[str, object], ...]:
    if cls not in _NAMES:
        _NAMES[cls] = tuple((item.name, item.default) for item in fields(cls))
    return _NAMES[cls]


def encode(event: Event) -> bytes:
    """One JSON line. ``type`` and ``v`` come first; fields at their default are left out, and so is an empty list
    that says no more than none would.

    Non-finite floats may be given as floats: they are written as strings. Cost: about 10 us for a
    step record.
    """
    cls = type(event)
    record: dict[str, Any] = {"type": cls.TYPE, "v": cls.VERSION}
    for name, default in _list_field_defaults(cls):
        value = getattr(event, name)
        if value is not default and value != default and (value or default is None or value.__class__ is not list):
            record[name] = value
    if cls is not Step and cls is not Params:  # they hold numbers, and names of parameters
        record = _mask_secrets(record)
        if isinstance(event, Injection):
            record |= {
                name: redact_value(event.flag, value)
                for name in ("old", "new")
                if isinstance(value := record.get(name), str)
            }
    try:
        text = _ENCODER.encode(record)
    except (ValueError, TypeError):  # a NaN somewhere, or a value only repr can show
        text = _ENCODER.encode(plain(record))
    if "\\ud" in text:  # a lone surrogate, from a file name that is not UTF-8, makes the line unreadable
        text = _ENCODER.encode(replace_lone_surrogates(plain(record)))
    return text.encode("ascii") + b"\n"


def replace_lone_surrogates(value: Any) -> Any:
    """Nested plain data whose strings can be written as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {replace_lone_surrogates(key): replace_lone_surrogates(item) for key, item in value.items()}
    return [replace_lone_surrogates(item) for item in value] if isinstance(value, list) else value


def _mask_secrets(value: object) -> Any:
    """The same with what looks like a secret in its texts masked; names of its keys say nothing here."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {key: _mask_secrets(item) for key, item in value.items()}
    return [_mask_secrets(item) for item in value] if isinstance(value, list) else value


def plain(value: object) -> Any:
    """Nested values as JSON can carry them: non-finite numbers as words, what is no data by its repr."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    return repr(value)[:200]


_DECODERS: dict[str, Any] = {}


def decode(line: bytes) -> Event | None:
    """The event of one complete line, or None for a line of an unknown type or a torn one.

    Unknown fields are ignored, so that a newer writer stays readable. Needs msgspec.
    """
    import msgspec

    if not line.startswith(b'{"type":"'):
        return None
    name = line[9 : line.find(b'"', 9)].decode("ascii", "replace")
    if name not in EVENT_TYPES:
        return None
    if name not in _DECODERS:
        _DECODERS[name] = msgspec.json.Decoder(EVENT_TYPES[name])
    try:
        event: Event = _DECODERS[name].decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return event


def _type_name(kind: object) -> str:
    """``list[str]`` and ``float | None`` as they are written in this file."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def describe() -> Iterator[tuple[type[Event], list[tuple[str, str, str]]]]:
    """Every event type with (field, type, text) rows: the source of docs/events.md."""
    for cls in EVENT_TYPES.values():
        rows = [(item.name, _type_name(item.type), item.metadata["doc"]) for item in fields(cls)]
        yield cls, rows
