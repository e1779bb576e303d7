"""The debug flags: the one table that help, completion, filter and docs read."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tdbg.core.errors import TdbgError, suggest_name

LEVELS = ("off", "basic", "advanced", "extreme")  # how much is looked at, from nothing to everything


class Threshold(NamedTuple):
    """A bound that a probe or rule of a flag goes by, settable with ``--threshold FLAG.name=VALUE``."""

    name: str
    default: float
    summary: str
    low: float = 0.0  # the smallest value that makes sense
    high: float = float("inf")


class Flag(NamedTuple):
    """A dotted name under DEBUG that a user can switch on, such as ``LOSS.NULL_MASKING``."""

    name: str
    group: str
    summary: str
    help: str  # when to use it
    aliases: tuple[str, ...] = ()  # short names people know from other tools
    probe: str = ""  # the probe it wakes; empty if it only opens the program's own log lines
    default: bool = False
    thresholds: tuple[Threshold, ...] = ()
    own: bool = False  # tdbg acts on it itself, without a probe
    level: str = ""  # the lowest level that wakes the probe without the flag; empty if none does
    values: tuple[str, ...] = ()  # words it takes besides true and false
    takes_text: bool = False  # its value is a text, which is checked elsewhere

    @property
    def works_alone(self) -> bool:
        """True if it does all of its work in a program that knows nothing of it.

        Flags of losses have a probe besides: they are also the program's, for the diagnostics that it calls.
        """
        return self.own or (bool(self.probe) and self.group != "losses")

    @property
    def leaf(self) -> str:
        """The last part of the name, unique over the table."""
        return self.name.rpartition(".")[2]

    @property
    def tag(self) -> str:
        """The mark its log lines carry."""
        return tag(self.name)


FLAGS: tuple[Flag, ...] = (
    Flag(
        "SCHEDULING",
        "components",
        "Log every decision of the training schedule: what is due, when, and why.",
        "Use it when validation, checkpoints or learning-rate changes come at the wrong step, or not at all.",
        probe="schedule",
        level="advanced",
    ),
    Flag(
        "CHECKPOINT",
        "components",
        "Log saves and loads: path, bytes, seconds, missing, unexpected and resized keys.",
        "Use it when a resumed run does not continue where it stopped, or a load is silently partial.",
        probe="checkpoint",
        level="advanced",
    ),
    Flag(
        "DATALOADER",
        "components",
        "Log loader waits, batch shapes, dtypes and ranges, workers and samplers.",
        "Use it when the accelerator starves, batches repeat, labels are out of range or a worker dies.",
        aliases=("data_loading",),
        probe="dataloader",
        level="advanced",
        thresholds=(Threshold("wait_share", 0.5, "share of time spent waiting to report, 0 to 1", high=1.0),),
    ),
    Flag(
        "AUGMENTATION",
        "components",
        "Log each transform: its order, device, time, and the value range before and after.",
        "Use it when images look wrong to the model, or the input pipeline is slow.",
        probe="augmentation",
        level="extreme",
        thresholds=(Threshold("slow_share", 0.6, "share of a fetch in one transform to report, 0 to 1", high=1.0),),
    ),
    Flag(
        "OPTIMIZER",
        "components",
        "Log parameter groups, hyperparameters, update ratios and parameters that are never updated.",
        "Use it when part of a model does not learn, or weight decay hits the wrong parameters.",
        probe="optimizer",
        level="extreme",
    ),
    Flag(
        "DISTRIBUTED",
        "components",
        "Log each collective's order, bytes and time, and the one that a hung job waits in (TD-R006).",
        "Use it when a job hangs, ranks drift apart, or one rank makes all others wait. "
        "It also logs the process groups; tdbg itself issues no collective.",
        probe="distributed",
        level="extreme",
        thresholds=(
            Threshold(
                "quiet_s",
                30.0,
                "seconds without progress after which a rank is reported even if it is busy, unless it is in a debugger",
                low=1.0,
            ),
            Threshold(
                "hang_s",
                15.0,
                "seconds without progress after which a hang is reported, with or without the flag; "
                "longer once the run has shown longer pauses",
                low=1.0,
            ),
        ),
    ),
    Flag(
        "MODEL_BUILD",
        "components",
        "Log the module tree as it is built: parameters, initial statistics, shared and dead ones.",
        "Use it when a model has an unexpected size or shape, or starts from bad initial values.",
        probe="model-build",
        level="advanced",
        thresholds=(
            Threshold("init_ratio", 10.0, "a weight's standard deviation this many times He's is reported", low=1.0),
            Threshold("unused_steps", 8.0, "updates after which a parameter without any gradient is reported", low=1.0),
        ),
    ),
    Flag(
        "TRAINING_LOOP",
        "components",
        "Log epoch and phase boundaries, accumulation, zero_grad and the order of calls.",
        "Use it when a hand-written loop may forget, repeat or reorder a call.",
        probe="training-loop",
        level="extreme",
        thresholds=(
            Threshold("lasting", 3.0, "updates in a row that must show a fault before it is reported", low=2.0),
        ),
    ),
    Flag(
        "VALIDATION_METRICS",
        "metrics",
        "Log what each validation pass computed, per phase, task and subset.",
        "Use it when validation metrics look wrong, stale or too good.",
        own=True,
    ),
    Flag(
        "DUMP_METRICS",
        "metrics",
        "Dump the whole state of the metrics at each validation.",
        "Use it when an average, a best value or a count cannot be explained from the logs.",
        own=True,
    ),
    Flag(
        "WANDB_METRICS",
        "metrics",
        "Log what is sent to Weights & Biases: keys, types, steps, failures.",
        "Use it when a chart stays empty, jumps back in steps, or a key goes missing.",
        probe="wandb-metrics",
        level="extreme",
    ),
    Flag(
        "LOSS.TAXONOMY_SMOOTHING",
        "losses",
        "Log the label hierarchy, its distance matrix and the smoothed targets.",
        "Use it when hierarchical label smoothing puts mass on the wrong classes. "
        "For torch's own losses it shows label_smoothing and the sums of soft targets; "
        "for more, call the taxonomy_ functions of tdbg.probes.loss in the program.",
        probe="loss-calls",
    ),
    Flag(
        "LOSS.NULL_MASKING",
        "losses",
        "Log how null-labelled samples are found, counted and masked out of the loss.",
        "Use it when samples without a label change the loss, or masking seems not to happen. "
        "For torch's own losses it counts ignored and zero-weighted targets; "
        "for more, call null_masking of tdbg.probes.loss in the program.",
        probe="loss-calls",
        thresholds=(
            Threshold(
                "null_index", -1.0, "the class index that stands for 'no label'; -1: none", low=-1.0, high=2.0**31
            ),
        ),
    ),
    Flag(
        "LOSS.CLASS_WEIGHTING",
        "losses",
        "Log class weights, effective sample numbers and each class's share of the loss.",
        "Use it when rare classes are ignored or dominate. "
        "For torch's own losses it compares weight and pos_weight with the classes seen; "
        "for more, call class_weighting or class_losses of tdbg.probes.loss in the program.",
        probe="loss-calls",
    ),
    Flag(
        "LOSS.GRADNORM_MEMORY",
        "losses",
        "Log memory during GradNorm's extra passes, tensor by tensor.",
        "Use it when GradNorm runs out of memory or leaks over steps. "
        "It needs calls of gradnorm_memory (tdbg.probes.loss) in the program.",
    ),
    Flag(
        "LOSS.GRADNORM_METRICS",
        "losses",
        "Log task losses, relative rates, gradient norms and task weights of GradNorm.",
        "Use it when GradNorm does not balance the tasks. Call tdbg.probes.loss.gradnorm_metrics for it.",
    ),
    Flag(
        "LOSS.VERBOSE_GRADNORM_LOGGING",
        "losses",
        "Log every intermediate value of each GradNorm update.",
        "Use it for a few steps, when LOSS.GRADNORM_METRICS shows that something is off but not what. "
        "It needs calls of gradnorm_values (tdbg.probes.loss) in the program.",
    ),
    Flag(
        "AUTOGRAD_ANOMALY",
        "torch",
        "Run autograd's anomaly mode: an error in backward then names the line of the forward pass.",
        "Use it with the value raise when a NaN appears only in backward: the run ends there; step time: 1.3-1.5x.",
        aliases=("autograd_anomaly",),
        probe="anomaly",
        values=("raise",),
    ),
    Flag(
        "PROFILER",
        "torch",
        "Capture a torch.profiler window from inside the run.",
        "Use it when steps are slow and you do not know where the time goes.",
        aliases=("autograd_profiler", "tensorboard_profiler"),
        probe="profiler",
        takes_text=True,
    ),
    Flag(
        "MEMORY",
        "torch",
        "Log host and device memory per step: peaks, steady growth, and what holds it.",
        "Use it before an out-of-memory error happens again.",
        aliases=("memory_usage",),
        probe="memory",
        level="advanced",
        thresholds=(
            Threshold("creep_pct", 10.0, "growth in percent over 50 steps to report if tensors with a graph pile up"),
            Threshold("creep_mb", 1074.0, "growth in MB over 50 steps to report whatever its cause", low=1.0),
            Threshold("full_pct", 95.0, "percent of the machine's or container's memory in use to report", high=100.0),
        ),
    ),
    Flag(
        "GRADIENTS",
        "torch",
        "Log each parameter's gradient norm; exploding, vanishing, None and zero gradients.",
        "Use it when the loss stalls or jumps.",
        aliases=("gradient_norms",),
        probe="gradient-report",
        level="advanced",
        thresholds=(
            Threshold(
                "explosion",
                10.0,
                "a parameter's gradient norm above this is listed as exploding; a finding needs a jump as well",
            ),
            Threshold("vanishing", 1e-6, "a parameter's gradient norm below this is listed as vanishing"),
            Threshold("jump", 10.0, "a gradient norm this many times its running median is a jump", low=1.0),
        ),
    ),
    Flag(
        "FORWARD",
        "torch",
        "Log shape, dtype and device of each module's output, and whether it is finite.",
        "Use it when activations saturate, die or overflow.",
        aliases=("forward_pass",),
        probe="forward",
        level="advanced",
    ),
    Flag(
        "BACKWARD",
        "torch",
        "Log the gradient flow through each module in the backward pass.",
        "Use it when gradients vanish or blow up part of the way back.",
        aliases=("backward_pass",),
        probe="backward",
        level="advanced",
        thresholds=(
            Threshold("ratio", 1e-6, "gradient at the first module / at the last: below this it vanishes", high=1.0),
        ),
    ),
    Flag(
        "DEVICE",
        "torch",
        "Log tensors with mismatched devices or dtypes, and copies inside the step.",
        "Use it when a step is slow for no visible reason or mixes devices.",
        aliases=("device_placement",),
        probe="device",
        level="extreme",
        thresholds=(
            Threshold("syncs", 16.0, "accelerator waits or copies by one line in one step to report", low=2.0),
        ),
    ),
    Flag(
        "AMP",
        "torch",
        "Log autocast, the loss scale, skipped steps and overflow rates.",
        "Use it when mixed precision skips steps or loses accuracy.",
        aliases=("mixed_precision",),
        probe="amp",
        level="advanced",
    ),
    Flag(
        "VALIDATION",
        "torch",
        "Log when evaluation starts and ends, its samples, mode and memory.",
        "Use it when evaluation runs in train mode, with gradients, or on the wrong data.",
        aliases=("validation",),
        probe="validation",
        level="advanced",
        thresholds=(Threshold("calls", 3.0, "calls with new inputs that make an evaluation pass", low=2.0),),
    ),
    Flag(
        "EARLY_STOPPING",
        "torch",
        "Log patience, best value and each decision of the early stopper.",
        "Use it when a run stops too early, or never.",
        aliases=("early_stopping",),
        probe="early-stopping",
        level="advanced",
    ),
    Flag(
        "LR",
        "torch",
        "Log the scheduler and each change of the learning rate.",
        "Use it when the learning rate is zero, constant, or changes in the wrong order.",
        aliases=("lr_scheduling",),
        probe="schedule",
        level="advanced",
        thresholds=(Threshold("high", 1.0, "a learning rate above this is reported for Adam-type optimizers"),),
    ),
)

# Flags often wanted together; the names are the documented ones.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "hierarchical": ("VALIDATION_METRICS", "MODEL_BUILD", "LOSS.TAXONOMY_SMOOTHING"),
    "distributed": ("DISTRIBUTED", "OPTIMIZER", "TRAINING_LOOP"),
    "data": ("DATALOADER", "AUGMENTATION"),
    "schedule": ("SCHEDULING", "CHECKPOINT", "TRAINING_LOOP", "VALIDATION_METRICS"),
    "gradnorm": ("LOSS.GRADNORM_METRICS", "LOSS.VERBOSE_GRADNORM_LOGGING", "WANDB_METRICS"),
    "numerics": ("AUTOGRAD_ANOMALY", "GRADIENTS", "FORWARD", "BACKWARD", "AMP"),
    "memory": ("MEMORY", "LOSS.GRADNORM_MEMORY"),
}

DIAGNOSTICS = "tdbg.probes.loss"  # whose functions a program calls; it takes the flags under LOSS. too
Value = bool | str


def tag(flag: str, part: str = "") -> str:
    """The mark of a log line, spelt here only: ``[DEBUG_NULL_MASKING_INPUT]``."""
    leaf = flag.rpartition(".")[2]
    return f"[DEBUG_{leaf}_{part}]" if part else f"[DEBUG_{leaf}]"


def owner(mark: str) -> str | None:
    """The flag a tag belongs to; the longest leaf wins, so VALIDATION never takes VALIDATION_METRICS."""
    word = mark.strip("[]") + "_"
    fits = [flag for flag in FLAGS if word.startswith(f"DEBUG_{flag.leaf}_")]
    return max(fits, key=lambda flag: len(flag.leaf)).name if fits else None


def flag_of(probe: str) -> str:
    """The flag that wakes a probe; the first, if several do; empty if none does."""
    return next((flag.name for flag in FLAGS if flag.probe == probe), "")


def thresholds() -> dict[str, Threshold]:
    """Every threshold of the table by its full name, such as ``GRADIENTS.explosion``."""
    return {f"{flag.name}.{bound.name}": bound for flag in FLAGS for bound in flag.thresholds}


def threshold(text: str) -> tuple[str, float]:
    """``GRADIENTS.explosion=50`` as name and value; TdbgError for an unknown name or a value out of range."""
    raw_name, equals, raw_value = text.partition("=")
    flag, _, leaf = raw_name.strip().rpartition(".")
    name = f"{canonical(flag)}.{leaf.lower()}"
    table = thresholds()
    if name not in table:
        hint = suggest_name(name, table, f"known: {', '.join(table)}")
        raise TdbgError(f"no threshold is named {raw_name.strip()!r}", hint)
    bound = table[name]
    try:
        value = float(raw_value)
    except ValueError:
        raise TdbgError(f"{name} must be a number, not {raw_value!r}", f"write {name}={bound.default:g}") from None
    if not equals or not bound.low <= value <= bound.high:  # NaN fails both
        raise TdbgError(
            f"threshold {name} must lie between {bound.low:g} and {bound.high:g}, not {raw_value!r}",
            f"its default is {bound.default:g}: {bound.summary}",
        )
    return name, value


def covers(wanted: str, found: str) -> bool:
    """True if ``wanted`` is ``found`` or stands above it: LOSS covers LOSS.NULL_MASKING."""
    return found == wanted or found.startswith(f"{wanted}.")


def canonical(name: str) -> str:
    """``debug.loss.null_masking`` and ``enable_memory_usage`` as the table spells them."""
    word = name.strip()
    if word.upper().startswith("DEBUG."):
        word = word[len("DEBUG.") :]
    lower = word.lower()
    for prefix in ("debug_", "enable_"):
        lower = lower.removeprefix(prefix)
    for flag in FLAGS:
        if lower in flag.aliases or lower == flag.name.lower():
            return flag.name
    return word.upper()


def expand(name: str, known: Iterable[str] = ()) -> tuple[str, ...]:
    """Every flag that ``name`` covers: itself, those below it, or the one an alias or leaf stands for.

    known: further flag names, such as those a scan of the program's source found.
    Raises TdbgError with the nearest name when nothing is covered.
    """
    wanted = canonical(name)
    table = [flag.name for flag in FLAGS]
    extra = [other for other in dict.fromkeys(known) if other not in table]
    found = tuple(other for other in (*table, *extra) if covers(wanted, other))
    if not found:
        found = tuple(flag.name for flag in FLAGS if flag.leaf == wanted)
    for prefix in ("DEBUG_", "ENABLE_"):  # as an option of the program spells it: debug_null_masking
        bare = wanted.removeprefix(prefix)
        if not found and bare != wanted:
            found = tuple(flag.name for flag in FLAGS if bare in (flag.leaf, flag.name.replace(".", "_")))
            found = found or tuple(other for other in extra if other == bare)
    if found:
        return found
    words = [*table, *extra, *(flag.leaf for flag in FLAGS), *(a for flag in FLAGS for a in flag.aliases)]
    hint = suggest_name(wanted, reversed(words), "`tdbg flags list` shows every flag")
    raise TdbgError(f"no flag is named {name!r}", hint)


def parse_flag(text: str, known: Iterable[str] = ()) -> dict[str, Value]:
    """``FLAG`` or ``FLAG=VALUE`` as written after ``--flag``; a family sets every flag below it.

    ``true``/``false`` (any case) become booleans; other values stay text for the program to read.
    """
    name, has_value, raw = text.partition("=")
    value: Value = True
    if has_value:
        value = {"true": True, "false": False}.get(raw.lower(), raw)
        if raw == "":
            raise TdbgError(f"flag {name!r} has an empty value", f"write --flag {name} or --flag {name}=VALUE")
    return dict.fromkeys(expand(name, known), value)


def check_values(flags: Mapping[str, Value], known: Iterable[str] = ()) -> None:
    """TdbgError for a value that nobody reads: a flag that tdbg alone acts on takes true, false and its own words.

    known: the flags that the program's source mentions; it may read any value of them.
    """
    of_program = set(known)
    for flag in FLAGS:
        value = flags.get(flag.name)
        if not isinstance(value, str) or not flag.works_alone or flag.takes_text or of_program & {flag.name, flag.leaf}:
            continue
        if value not in flag.values:
            allowed = " or ".join(f"-f {flag.name}{word}" for word in ("", *(f"={word}" for word in flag.values)))
            raise TdbgError(
                f"flag {flag.name} cannot be {value!r}", f"write {allowed}; --no-flag {flag.name} switches it off"
            )


def typed_names(words: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """Flags that the words ask for by another name than the table's: ``{"MEMORY": "debug_memory_usage"}``."""
    names = {}
    for word in words:
        name = word.partition("=")[0].strip()
        flags = expand(name, known)
        if len(flags) == 1 and name.upper().removeprefix("DEBUG.") != flags[0]:
            names[flags[0]] = name
    return names


def preset(name: str) -> tuple[str, ...]:
    """The flags of one preset; TdbgError with the nearest name if there is none."""
    if name in PRESETS:
        return PRESETS[name]
    raise TdbgError(f"no preset is named {name!r}", suggest_name(name, PRESETS, f"known: {', '.join(PRESETS)}"))
