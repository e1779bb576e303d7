"""The grammar of metric keys: the one place that writes a key, and the one that reads it.

`GRAMMAR` is the grammar as data; docs and the schema test read it. A key is a text such as ``val/acc1_taxa_L10``;
where a metric ends and its task begins is decided by the names of metrics that are known: the longest one that
fits is the metric. Names that this process made are known to it too.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from tdbg.core.errors import TdbgError

WORD = r"\w[\w.:@%+=\-]*"
PATTERN = re.compile(rf"(?P<prefix>{WORD})/(?:(?P<middle>{WORD})/)?(?P<name>{WORD})")
PHASES = ("train", "val", "val_mask_meta", "test")
MASKED = "val_mask_"  # val_mask_<COMPONENT>: validation with one component masked
CATEGORIES = ("pipeline", "schedule", "gradnorm", "loss", "lr")  # prefixes of last values, not of phases
LAST = ("lr", "learning_rate", "loss_scale", "epoch", "step", "global_step")  # of a phase, and last values all the same
CORE = "core"
AVERAGED = "step_avg_"
TEXT = "_str"
# Metrics that the tracker, the logger and `tdbg run` itself make; their underscores begin no task.
METRICS = (
    "loss",
    "loss_scale",
    "accuracy",
    "chain_accuracy",
    "partial_chain_accuracy",
    "chain_acc_pct",
    "f1",
    "precision",
    "recall",
    "auc",
    "lr",
    "weight",
    "grad_norm",
    "grad_norm_clipped",
    "epoch_duration_sec",
    "avg_samples_per_sec",
    "samples_per_sec",
    "eta_sec",
    "step_ms",
    "data_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "host_mb",
    "device_mb",
    "device_peak_mb",
    "samples",
)
# How names of times, rates and memory end: what differs on any machine, and says nothing of the model.
OF_MACHINE = ("_ms", "_sec", "_mb", "_s", "_seconds", "_time", "_gb", "runtime", "_per_second")
NUMBERED = re.compile(r"acc\d+")  # acc1, acc3, acc5, ...
CORE_METRICS = ("loss", "accuracy", "acc1", "acc3", "acc5", "chain_accuracy", "partial_chain_accuracy")
UNITS = ("pct", "frac", "ms", "sec", "mb", "per_sec")
UNIT_SPELT = dict.fromkeys(("%", "percent", "percentage", "per cent"), "pct")
UNIT_SPELT |= dict.fromkeys(("fraction", "ratio", "share"), "frac")
UNIT_SPELT |= dict.fromkeys(("msec", "millisecond", "milliseconds"), "ms")
UNIT_SPELT |= dict.fromkeys(("s", "secs", "second", "seconds"), "sec")
UNIT_SPELT |= {word: word for word in UNITS}  # in capitals
GRAMMAR = (  # what, its form, an example
    ("key", 'prefix "/" name', "train/loss"),
    ("phase", "train | val | val_mask_meta | val_mask_<COMPONENT> | any name of your own", "val_mask_SPATIAL/loss"),
    ("category", " | ".join(CATEGORIES), "lr/group0"),
    ("name of a metric", "metric", "val/chain_accuracy"),
    ("name of a task's metric", 'metric "_" task', "val/acc1_taxa_L10"),
    ("name of an average since the last write", '"step_avg_" metric [ "_" task ]', "train/step_avg_loss"),
    ("name in a subset", 'subset "/" [ "step_avg_" ] metric [ "_" task ]', "val/europe/acc1"),
    ("text", 'name "_str"', "schedule/mixup_group_str"),
    ("copy for dashboards", '"core/" phase "_" metric [ "/" task ]', "core/val_acc1/taxa_L10"),
)
MAX_LEARNED = 10_000
MAX_LENGTH = 500
_metrics: set[str] = set(METRICS)
_phases: set[str] = set(PHASES)

Fields = tuple[str, str, str, str, bool, bool, bool]  # phase, metric, task, subset, averaged, core, text


class KeyGrammarError(TdbgError):
    """A key, or a part of one, that the grammar does not have."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(
            what, hint or "a key is PHASE/METRIC, PHASE/METRIC_TASK or PHASE/SUBSET/METRIC: val/acc1_genus"
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Key:
    """The name of one series of numbers, in its parts. Equal to another key if both are written alike.

    phase: a phase, or one of `CATEGORIES`. averaged: the value is a mean since the last write. core: the copy for
    dashboards. text: the value is no number. A metric whose name holds its task, `acc1_genus`, is parted as in a text.
    Raises KeyGrammarError for parts that could not be read back as they are.
    """

    phase: str
    metric: str
    task: str = ""
    subset: str = ""
    averaged: bool = False
    core: bool = False
    text: bool = False
    _written: str = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        fields = (self.phase, self.metric, self.task, self.subset, self.averaged, self.core, self.text)
        written = _format_key(*fields)
        object.__setattr__(self, "_written", written)
        object.__setattr__(self, "_hash", hash(written))
        if _parse_fields(written) == fields:
            return
        if (
            not self.task
            and not self.core
            and _parse_fields(written) == (self.phase, *split_name(self.metric), *fields[3:])
        ):
            for name, part in zip(("metric", "task"), split_name(self.metric), strict=True):
                object.__setattr__(self, name, part)
        else:
            _register_names(self.phase, self.metric)
            found = _parse_fields(written)
            if found != fields:
                raise _make_misread_error(written, fields, found)

    @classmethod
    def parse(cls, text: str) -> "Key":
        """The key that a text names. Raises KeyGrammarError if it names none. Cost: 0.1 us for a text seen before."""
        return _parse_key(text)

    def __str__(self) -> str:
        return self._written

    def __repr__(self) -> str:
        return f"Key({self._written!r})"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self._written == other._written if isinstance(other, Key) else NotImplemented

    def __reduce__(self) -> tuple[type["Key"], Fields]:
        return Key, (self.phase, self.metric, self.task, self.subset, self.averaged, self.core, self.text)

    def __lt__(self, other: "Key") -> bool:
        return self._written < other._written

    @property
    def prefix(self) -> str:
        """What stands before the first slash."""
        return CORE if self.core else self.phase

    @property
    def of_phase(self) -> bool:
        """True if it belongs to a phase, not to a category of last values."""
        return self.phase not in CATEGORIES

    @property
    def unit(self) -> str:
        """The unit that the metric's name ends in; empty if it does not."""
        return unit_of(self.metric)

    @property
    def of_last(self) -> bool:
        """True for last values, which are never averaged: categories other than ``loss``, and `LAST` of a phase."""
        return self.metric in LAST if self.of_phase else self.phase != "loss"

    def average(self) -> "Key":
        """The same key for a mean since the last write; last values keep theirs."""
        if self.core or self.text or self.of_last:
            return self
        return Key(self.phase, self.metric, self.task, self.subset, averaged=True)


def build_key(prefix: str, name: str) -> Key:
    """The key of a name below a prefix, which is put there once: ``gradnorm/loss`` stays what it is."""
    return Key.parse(name if name.startswith(f"{prefix}/") else f"{prefix}/{name}")


def core_alias(key: Key) -> Key | None:
    """The copy of a key for dashboards, if it is one of the chosen ones (`CORE_METRICS`), without ``step_avg_``."""
    if key.core or key.text or key.subset or not key.of_phase or key.metric not in CORE_METRICS:
        return None
    return Key(key.phase, key.metric, key.task, core=True)


def is_key(text: str) -> bool:
    """True if the grammar has it."""
    try:
        _parse_key(text)
    except KeyGrammarError:
        return False
    return True


def unit_named(unit: object, of: str) -> str:
    """A unit as a program says it: one of `UNITS`, or one word of its own. Raises TdbgError for anything else."""
    if isinstance(unit, str) and unit in ("", *UNITS):
        return unit
    if isinstance(unit, str) and (known := UNIT_SPELT.get(unit.strip().lower())):
        raise TdbgError(f"the unit of {of!r} cannot be {unit!r}", f"write {known}")
    if not isinstance(unit, str) or not re.fullmatch(r"[^\W\d_][\w./%-]{0,19}", unit):
        raise TdbgError(f"the unit of {of!r} cannot be {unit!r}", f"write one of {', '.join(UNITS)}, or a word")
    return unit


def unit_of(metric: str) -> str:
    """The unit that a metric's name ends in, such as ms in ``step_ms``; empty if it does not."""
    return next((unit for unit in reversed(UNITS) if metric.endswith(f"_{unit}")), "")


@lru_cache(maxsize=65_536)
def _parse_key(text: str) -> Key:
    return Key(*_parse_fields(text))


def _format_key(phase: str, metric: str, task: str, subset: str, averaged: bool, core: bool, text: bool) -> str:
    """The one spelling."""
    if core:
        return f"{CORE}/{phase}_{metric}/{task}" if task else f"{CORE}/{phase}_{metric}"
    begin = f"{phase}/{subset}/" if subset else f"{phase}/"
    name = f"{AVERAGED if averaged else ''}{metric}{'_' if task else ''}{task}"
    return f"{begin}{name}{TEXT if text else ''}"


@lru_cache(maxsize=65_536)
def _parse_fields(written: str) -> Fields:
    """The inverse of `_format_key`."""
    parts = PATTERN.fullmatch(written) if len(written) <= MAX_LENGTH else None
    if parts is None:
        raise KeyGrammarError(f"{written[:80]!r} is not a metric key")
    prefix, middle, name = parts["prefix"], parts["middle"] or "", parts["name"]
    if prefix == CORE:
        phase, metric = _split_core(written, middle or name)
        return phase, metric, name if middle else "", "", False, True, False
    if middle == prefix:
        raise KeyGrammarError(f"{written!r} has its prefix twice", f"write {prefix}/{name}")
    text = name.endswith(TEXT)
    name = name.removesuffix(TEXT)
    averaged = name.startswith(AVERAGED)
    name = name.removeprefix(AVERAGED)
    if not name or name.startswith(AVERAGED) or name.endswith(TEXT):
        raise KeyGrammarError(f"{written!r} has no metric name, or repeats step_avg_ or _str")
    metric, task = split_name(name)
    return prefix, metric, task, middle, averaged, False, text


def _is_known_metric(metric: str) -> bool:
    return metric in _metrics or NUMBERED.fullmatch(metric) is not None


def split_name(name: str) -> tuple[str, str]:
    """Metric and task: the longest known metric that a task may follow; without one, all of it is the metric."""
    if not _is_known_metric(name):
        end = name.rfind("_")
        while end > 0:
            if end + 1 < len(name) and _is_known_metric(name[:end]):
                return name[:end], name[end + 1 :]
            end = name.rfind("_", 0, end)
    return name, ""


def _split_core(written: str, head: str) -> tuple[str, str]:
    """Phase and metric of ``val_mask_meta_loss``: known ones first, else parted at the first underscore."""
    splits = [(head[:at], head[at + 1 :]) for at, sign in enumerate(head) if sign == "_" and 0 < at < len(head) - 1]
    splits = [split for split in splits if not split[1].startswith(AVERAGED) and split[0] not in (*CATEGORIES, CORE)]
    if not splits or f"_{AVERAGED}" in head:
        raise KeyGrammarError(f"{written!r} is not a valid core/ key", "write core/PHASE_METRIC: core/val_loss")
    phased = [split for split in splits if split[0] in _phases or split[0].startswith(MASKED)]
    measured = [split for split in splits if _is_known_metric(split[1])]
    both = [split for split in phased if split in measured]
    return (both or measured or phased[-1:] or splits)[0]


def _register_names(phase: str, metric: str) -> None:
    """Know the names that this process made, so that what it wrote is read as it was meant."""
    if len(_metrics) + len(_phases) >= MAX_LEARNED:
        return
    _metrics.add(metric)
    if phase not in CATEGORIES:
        _phases.add(phase)
    _parse_fields.cache_clear()
    _parse_key.cache_clear()


def _make_misread_error(written: str, fields: Fields, found: Fields) -> KeyGrammarError:
    names = ("phase", "metric", "task", "subset", "averaged", "core", "text")
    at = next(index for index, (one, other) in enumerate(zip(fields, found, strict=True)) if one != other)
    return KeyGrammarError(
        f"{written!r} is ambiguous: its {names[at]} {fields[at]!r} would be read as {found[at]!r}",
        f"choose another name for the {names[at]}",
    )
