"""What was asked of tdbg: the settings of a run, and where each value came from."""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tdbg.core import flags as flag_table
from tdbg.core import sink_files
from tdbg.core.capture import PHASES, Epochs, SampleSelection, check_debugger, check_spec
from tdbg.core.conditions import check_action, check_condition, check_pairs
from tdbg.core.config_files import Source, is_trusted, print_message_once, pyproject_sources, user_source, yaml_source
from tdbg.core.errors import TdbgError, suggest_name
from tdbg.core.host import find_signal_number
from tdbg.core.profiling import KINDS, MAX_STEPS, parse_windows
from tdbg.core.ranges import parse_ranges
from tdbg.core.redaction import MARK, redact_argv, redact_text
from tdbg.core.urls import check_url, check_webhook, is_url

LEVELS = flag_table.LEVELS
INJECTS = ("auto", "yacs", "hydra", "argparse", "argv", "env", "none")
FAIL_ON = ("never", "info", "warning", "error", "critical")
LOG_LEVELS = ("DEBUG", "STATS", "INFO", "WARNING", "ERROR", "CRITICAL")
CAPTURE_POLICIES = ("block", "drop", "sample")
# Share of the wall time each level may cost, in percent, unless --max-overhead says otherwise.
BUDGET_PCT = {"off": 0.0, "basic": 1.0, "advanced": 3.0, "extreme": 10.0}


# Kinds of settings, by what a stranger's configuration file could do with them. Only LOCAL ones count from a file in a
# folder that the user has not allowed with `tdbg trust`.
LOCAL = "local"  # what is recorded and said of this run, and how it is judged
PLACE = "place"  # where tdbg writes, and who may read it
ACT = "act"  # names a command, a URL, an upload, a module or a class: makes tdbg run, send or load something
SETTING_KINDS = (LOCAL, PLACE, ACT)


def declare_setting(
    kind: str, text: str, default: object = None, *, factory: Callable[[], object] | None = None
) -> Any:
    """A dataclass field with its kind and help line; the CLI, doctor and docs read them."""
    about = {"kind": kind, "help": text}
    if factory is not None:
        return field(default_factory=factory, metadata=about)
    return field(default=default, metadata=about)


@dataclass(slots=True, kw_only=True, repr=False)
class Settings:
    """Everything `tdbg run` can be asked for. Field names are the keys of every source."""

    flags: dict[str, flag_table.Value] = declare_setting(
        LOCAL, "debug flags: name -> true, false or text", factory=dict
    )
    flag_names: dict[str, str] = declare_setting(LOCAL, "flags requested by an alias: flag -> alias", factory=dict)
    level: str = declare_setting(LOCAL, "how much is recorded: off, basic, advanced or extreme", "basic")
    inject: str = declare_setting(LOCAL, "how flags reach the program's config", "auto")
    max_overhead: float | None = declare_setting(LOCAL, "share of the wall time tdbg may cost, in percent")
    allowance: float = declare_setting(
        LOCAL, "seconds tdbg may spend on the opening inspection, in addition to the budget; 0: none", 1.0
    )
    run_dir: str = declare_setting(PLACE, "the run directory, or a URL that it is copied to", "")
    name: str = declare_setting(LOCAL, "the last part of the run directory's name", "")
    share: bool = declare_setting(PLACE, "let other users of this machine read the run directory", False)
    tee: bool = declare_setting(LOCAL, "keep a copy of stdout and stderr in the run directory", False)
    stop_on: list[str] = declare_setting(
        LOCAL, "stop the run at the first finding with one of these codes or severities", factory=list
    )
    stack_signal: str = declare_setting(
        LOCAL,
        "signal that `tdbg stacks` sends to ranks, such as USR2 or RTMIN+7; none turns it off",
        "RTMIN+6",
    )
    stop_before_update: bool = declare_setting(LOCAL, "stop before the optimizer uses a non-finite gradient", False)
    fail_on: str = declare_setting(LOCAL, "turn exit code 0 into 1 for a finding of this severity or worse", "never")
    strict_flags: bool = declare_setting(
        LOCAL, "end the rank with exit code 2 if the program's config rejects a flag", False
    )
    baseline: int = declare_setting(LOCAL, "alternate blocks of N steps with tdbg off and on and report the ratio", 0)
    records: bool = declare_setting(LOCAL, "keep the program's own log records, each with its flags", True)
    flag_functions: list[str] = declare_setting(
        LOCAL, "functions of the program that look up a flag by name", factory=lambda: ["check_debug_flag"]
    )
    forbid_flags: bool = declare_setting(
        LOCAL, "refuse to start while a debug flag is on, also in the program's own configuration", False
    )
    log_level: str = declare_setting(LOCAL, "level of the program's own console log", "")
    disk_budget: str = declare_setting(LOCAL, "bytes a rank may write, such as 500MB", "1GB")
    quiet: bool = declare_setting(LOCAL, "print only errors and the verdict's first line", False)
    progress_every: float = declare_setting(LOCAL, "seconds between progress lines without a live status line", 30.0)
    step_optimizer: str = declare_setting(LOCAL, "optimizer class whose steps are counted, if not the first", "")
    keep_steps: int = declare_setting(LOCAL, "how many step records to keep for the report of a bad step", 16)
    every: int = declare_setting(LOCAL, "flags and levels look at every Nth step; 0: as often as the budget allows", 0)
    steps: str = declare_setting(LOCAL, "flags and levels look at these steps only, such as 100:200,500", "")
    ranks: str = declare_setting(LOCAL, "flags and levels look on these ranks only, such as 0,3-5", "")
    thresholds: dict[str, float] = declare_setting(
        LOCAL, "thresholds of probes and rules: FLAG.name -> number", factory=dict
    )
    capture: list[str] = declare_setting(
        LOCAL, "what is kept: layers ('layers.*.attn:output,input,grad'), batch, prediction", factory=list
    )
    debugger: list[str] = declare_setting(
        ACT, "debuggers that run on captured datapoints, such as gradcam:layer4", factory=list
    )
    capture_stats: bool = declare_setting(LOCAL, "keep statistics of captured tensors instead of the tensors", False)
    capture_every: int = declare_setting(LOCAL, "capture every Nth step", 1)
    capture_steps: str = declare_setting(LOCAL, "capture these steps only, such as 100:200,500", "")
    capture_epochs: str = declare_setting(
        LOCAL, "capture these epochs only: N (every Nth and the last), latest or all", ""
    )
    capture_phase: list[str] = declare_setting(LOCAL, "capture in these phases only: train, val, eval", factory=list)
    capture_samples: str = declare_setting(
        LOCAL, "keep only some samples of a batch: worst, worst:4 (largest loss), wrong or N (every Nth)", ""
    )
    capture_on: list[str] = declare_setting(
        LOCAL, "capture from the first finding with one of these codes or severities", factory=list
    )
    capture_budget: str = declare_setting(LOCAL, "bytes a rank may capture, such as 2GB", "2GB")
    capture_policy: str = declare_setting(LOCAL, "what to do when the disk is too slow: block, drop or sample", "block")
    capture_upload: str = declare_setting(ACT, "a URL that sealed pages are copied to, such as s3://bucket/runs", "")
    profile_kind: str = declare_setting(
        LOCAL, "what a profiler records: light, memory, shapes, stacks, flops or full", "light"
    )
    profile_wait: int = declare_setting(LOCAL, "idle steps before each window: the profiler is off", 1)
    profile_warmup: int = declare_setting(LOCAL, "warm-up steps before each window, not recorded", 1)
    profile_active: int = declare_setting(LOCAL, "recorded steps per window", 3)
    profile_repeat: int = declare_setting(LOCAL, "how many windows are recorded; 0: until the end", 1)
    profile_skip_first: int = declare_setting(LOCAL, "steps to skip before the first wait", 0)
    profile_window: str = declare_setting(LOCAL, "record exactly these steps, such as 100:102,500:502", "")
    profile_on: list[str] = declare_setting(
        LOCAL, "record a window after each finding with one of these codes or severities, and only then", factory=list
    )
    on_finding: str = declare_setting(
        ACT, "a command to run once for each finding; it reads the finding as JSON from stdin", ""
    )
    notify: str = declare_setting(ACT, "a URL that each finding and the verdict are sent to; it is kept secret", "")
    to: list[str] = declare_setting(
        ACT, "sinks that step records, findings and the report are sent to, such as wandb, tensorboard", factory=list
    )
    preflight: bool = declare_setting(
        LOCAL, "test the model on the first batch, then end before the first update", False
    )
    when: list[str] = declare_setting(LOCAL, "conditions on step records, such as loss > 10", factory=list)
    then: list[str] = declare_setting(LOCAL, "actions: the Nth runs when the Nth condition becomes true", factory=list)

    def get_threshold(self, name: str) -> float:
        """A bound of the flag table, such as ``GRADIENTS.explosion``: as set, or its default."""
        found = self.thresholds.get(name)
        return flag_table.thresholds()[name].default if found is None else found

    @property
    def captures(self) -> bool:
        """True if something of datapoints is kept: parts of them, layers, what debuggers give."""
        return bool(self.capture or self.debugger)

    @property
    def capture_budget_bytes(self) -> int:
        """``capture_budget`` in bytes."""
        return parse_bytes(self.capture_budget)

    @property
    def budget_pct(self) -> float:
        """The share of wall time tdbg may cost, in percent; to stop before a bad update takes a look before each."""
        if self.max_overhead is not None:
            return self.max_overhead
        return 100.0 if self.stop_before_update else BUDGET_PCT[self.level]

    @property
    def disk_budget_bytes(self) -> int:
        """``disk_budget`` in bytes."""
        return parse_bytes(self.disk_budget)

    @property
    def on_finding_argv(self) -> list[str]:
        """``on_finding`` split as a shell would; empty where nothing is run."""
        return shlex.split(self.on_finding)

    def as_dict(self) -> dict[str, object]:
        """Plain data, for run.json and for people: without the secrets in it."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["on_finding"] = shlex.join(redact_argv(self.on_finding_argv))
        values["notify"] = MARK if self.notify else ""
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Settings":
        """The settings stored in run.json; keys of a newer tdbg are ignored."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


KIND_OF: dict[str, str] = {item.name: item.metadata["kind"] for item in fields(Settings)}


class Selection:
    """Which steps and ranks flags and levels look at: every Nth, ranges of steps, ranges of ranks.

    The answer hangs on the numbers alone, so that all ranks of a job look at the same steps.
    """

    def __init__(self, every: int = 0, steps: str = "", ranks: str = "") -> None:
        self.every = max(every, 1)
        self._steps = parse_ranges("steps", steps, ":")
        self._ranks = parse_ranges("ranks", ranks, "-")

    @classmethod
    def from_settings(cls, settings: Settings) -> "Selection":
        """The selection that the settings ask for."""
        return cls(settings.every, settings.steps, settings.ranks)

    def is_step_selected(self, number: int) -> bool:
        """True if this step (from 1) is one to look at; of a range's steps every Nth from its first."""
        if not self._steps:
            return self.every == 1 or number % self.every == 0
        return any(low <= number <= high and (number - low) % self.every == 0 for low, high in self._steps)

    def is_past(self, number: int) -> bool:
        """True if neither this step nor a later one is one to look at."""
        return bool(self._steps) and all(high < number for _, high in self._steps)

    def is_rank_selected(self, number: int) -> bool:
        """True if this rank is one to look on."""
        return not self._ranks or any(low <= number <= high for low, high in self._ranks)


def parse_bytes(text: str) -> int:
    """``500MB`` or ``1.5 GiB`` in bytes (decimal and binary units); TdbgError if it is neither."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if not match:
        raise TdbgError(f"not a size: {text!r}", "write a number and a unit, such as 500MB or 2GiB")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def _make_choice_check(options: Iterable[str]) -> Callable[[str, object], str]:
    allowed = tuple(options)

    def check_choice(key: str, value: object) -> str:
        for option in allowed:
            if str(value).lower() == option.lower():
                return option
        hint = f"{suggest_name(str(value), allowed, '')} choose from: {', '.join(filter(None, allowed))}".lstrip()
        raise TdbgError(f"{key} cannot be {value!r}", hint)

    return check_choice


def _parse_count(key: str, value: object) -> int:
    found = _parse_whole_number(key, value)
    if found < 1:
        raise TdbgError(f"{key} must be 1 or more, not {found}", "write 1 or more")
    return found


def _parse_boolean(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise TdbgError(f"{key} must be true or false, not {value!r}", "write true or false")


def _parse_whole_number(key: str, value: Any) -> int:
    try:
        found = int(value)
    except (TypeError, ValueError):
        raise TdbgError(f"{key} must be a whole number, not {value!r}", "write 0 or more") from None
    if found < 0:
        raise TdbgError(f"{key} cannot be negative: {found}", "write 0 or more")
    return found


def _parse_percentage(key: str, value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        found = float(str(value).rstrip("%"))
    except ValueError:
        raise TdbgError(f"{key} must be a percentage, not {value!r}", "write a number such as 1 or 0.3") from None
    if not 0 < found <= 100:
        raise TdbgError(f"{key} must be above 0 and at most 100 %, not {value!r}", "write a number such as 1 or 0.3")
    return found


def _parse_seconds(key: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TdbgError(f"{key} must be a number of seconds, not {value!r}", "write a number such as 30") from None
    if not found > 0:
        raise TdbgError(f"{key} must be above 0 seconds, not {value!r}", "write a number such as 30")
    return found


def _parse_allowance(key: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not 0.0 <= found < math.inf:
        raise TdbgError(f"{key} must be 0 seconds or more, not {value!r}", "write a number such as 1")
    return found


def _parse_words(key: str, value: object) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise TdbgError(f"{key} must be a list of words, not {value!r}", f"write {key}=A,B")
    return [str(part).strip() for part in parts if str(part).strip()]


def _validate_windows(key: str, value: object) -> str:
    text = _make_range_check(":")(key, value)
    parse_windows(text, key)
    return text


def _parse_window_steps(key: str, value: object) -> int:
    found = _parse_count(key, value)
    if found > MAX_STEPS:
        raise TdbgError(f"{key}: {found} steps make a trace too large to open", f"write {MAX_STEPS} or fewer")
    return found


def _validate_size(key: str, value: object) -> str:
    if not parse_bytes(str(value)):
        raise TdbgError(f"{key} must be above 0 bytes, not {value!r}", "write a size above 0, such as 500MB")
    return str(value)


def _make_range_check(joint: str) -> Callable[[str, object], str]:
    def check_ranges(key: str, value: object) -> str:
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        parse_ranges(key, text, joint)
        return text

    return check_ranges


def _parse_thresholds(key: str, value: object) -> dict[str, float]:
    if isinstance(value, Mapping):
        value = [f"{name}={bound}" for name, bound in flatten_tree(value).items()]
    return dict(flag_table.threshold(word) for word in _parse_words(key, value))


def _make_text_check(check_one: Callable[[str], None]) -> Callable[[str, object], list[str]]:
    def check_texts(key: str, value: object) -> list[str]:
        found = _parse_text_list(key, value)
        for text in found:
            check_one(text)
        return found

    return check_texts


def _parse_text_list(key: str, value: object) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) and item.strip() for item in found):
        example = {"capture": "layers.*.attn:output", "debugger": "gradcam:layer4"}.get(key, "loss > 10")
        raise TdbgError(f"{key} must be a string or a list of strings, not {value!r}", f"write {key} = [{example!r}]")
    return list(found)


def flatten_tree(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """``{"LOSS": {"NULL_MASKING": True}}`` as ``{"LOSS.NULL_MASKING": True}``."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            flat.update(flatten_tree(value, name))
        else:
            flat[name] = value
    return flat


def read_flags(value: object, known: Iterable[str] = ()) -> dict[str, flag_table.Value]:
    """Flags from any source: ``"A,B=3"``, a list of such words, or a (nested) mapping."""
    if isinstance(value, Mapping):
        found: dict[str, flag_table.Value] = {}
        for name, wanted in flatten_tree(value).items():
            setting = wanted if isinstance(wanted, bool) else str(wanted)
            found.update(dict.fromkeys(flag_table.expand(name, known), setting))
        return found
    found = {}
    for word in flag_words(value):
        found.update(flag_table.parse_flag(word, known))
    return found


def flag_words(value: Any) -> list[str]:
    """The words of a source of flags, as they were typed; of a mapping its keys."""
    if isinstance(value, Mapping):
        return list(flatten_tree(value))
    words = value.split(",") if isinstance(value, str) else value
    return [word for word in (str(part).strip() for part in words) if word]


def _validate_epochs(key: str, value: object) -> str:
    Epochs.parse(str(value), key)
    return str(value).strip().lower()


def _validate_samples(key: str, value: object) -> str:
    SampleSelection.parse(str(value), key)
    return str(value).strip().lower()


def _parse_phases(key: str, value: object) -> list[str]:
    return [_make_choice_check(PHASES)(key, word) for word in _parse_words(key, value)]


def _parse_sinks(key: str, value: object) -> list[str]:
    parts = value if isinstance(value, list | tuple) else _parse_words(key, value)
    return list(dict.fromkeys(_parse_sink(key, part) for part in parts))


def _parse_sink(key: str, word: object) -> str:
    """The name of a sink. Which there are, the process that starts the run looks up: other packages add some."""
    if not isinstance(word, str):
        raise TdbgError(f"{key} must be a list of names, not of {word!r}", "write wandb, tensorboard or another sink")
    name = word.strip().lower()
    return name if name in (sink_files.WANDB, sink_files.TENSORBOARD) else word


def _validate_url(key: str, value: object) -> str:
    if value:
        try:
            check_url(str(value))
        except TdbgError as error:
            raise TdbgError(f"{key}: {error}", error.hint) from None
    return str(value)


def _validate_run_dir(key: str, value: object) -> str:
    text = str(value)
    if is_url(text):
        _validate_url(key, text)
        scheme, _, rest = text.partition("://")
        path = rest if "?" in rest else rest.partition("/")[2]
        if redact_text(path, strict=True) != path:
            raise TdbgError(
                f"{key}: the {scheme}:// URL holds a secret", "put it in the environment, or in the settings of fsspec"
            )
    elif "://" in text:  # not repeated: a chained URL such as simplecache::s3://... may hold a password
        raise TdbgError(f"{key}: not a URL that tdbg can copy to", "write one such as s3://bucket/folder, or a path")
    return text


def _validate_webhook(key: str, value: object) -> str:
    if value != "":
        try:
            check_webhook(value if isinstance(value, str) else "")
        except TdbgError as error:
            raise TdbgError(f"{key}: {error}", error.hint) from None
    return str(value)


def _parse_command_line(key: str, value: object) -> str:
    """A command line; of a list of words the line that gives them."""
    words = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(word, str) for word in words):
        raise TdbgError(f"{key} must be a command, not {value!r}", f"write one, as in: --{key} 'python alert.py'")
    text = value if isinstance(value, str) else shlex.join(map(str, words))
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise TdbgError(
            f"{key} cannot be split into words: {str(error)[:1].lower()}{str(error)[1:]}",
            f"add the missing quote, as in: --{key} 'python alert.py \"to me\"'",
        ) from None
    if text and (not argv or not argv[0]):
        raise TdbgError(f"{key} names no command", f"write one, as in: --{key} 'python alert.py'")
    if "\0" in text:
        raise TdbgError(f"{key} holds a NUL character", "leave it out")
    return text


def _parse_signal_name(key: str, value: object) -> str:
    """The name of a signal that a program may catch, without SIG; ``none``."""
    text = str(value).strip().upper().removeprefix("SIG")
    if text != "NONE" and not find_signal_number(text):
        raise TdbgError(
            f"{key} {value} is no signal that can be used for this", "write USR2, RTMIN+7 and the like, or none"
        )
    return "none" if text == "NONE" else text


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "level": _make_choice_check(LEVELS),
    "inject": _make_choice_check(INJECTS),
    "max_overhead": _parse_percentage,
    "allowance": _parse_allowance,
    "run_dir": _validate_run_dir,
    "name": lambda key, value: str(value),
    "share": _parse_boolean,
    "tee": _parse_boolean,
    "stop_on": _parse_words,
    "stack_signal": _parse_signal_name,
    "stop_before_update": _parse_boolean,
    "fail_on": _make_choice_check(FAIL_ON),
    "strict_flags": _parse_boolean,
    "records": _parse_boolean,
    "flag_functions": _parse_words,
    "baseline": _parse_whole_number,
    "forbid_flags": _parse_boolean,
    "log_level": _make_choice_check(("", *LOG_LEVELS)),
    "disk_budget": _validate_size,
    "quiet": _parse_boolean,
    "progress_every": _parse_seconds,
    "step_optimizer": lambda key, value: str(value),
    "keep_steps": _parse_whole_number,
    "every": _parse_whole_number,
    "steps": _make_range_check(":"),
    "ranks": _make_range_check("-"),
    "thresholds": _parse_thresholds,
    "capture": _make_text_check(check_spec),
    "debugger": _make_text_check(check_debugger),
    "capture_stats": _parse_boolean,
    "capture_every": _parse_count,
    "capture_steps": _make_range_check(":"),
    "capture_epochs": _validate_epochs,
    "capture_phase": _parse_phases,
    "capture_samples": _validate_samples,
    "capture_on": _parse_words,
    "capture_budget": _validate_size,
    "capture_policy": _make_choice_check(CAPTURE_POLICIES),
    "capture_upload": _validate_url,
    "profile_kind": _make_choice_check(KINDS),
    "profile_wait": _parse_whole_number,
    "profile_warmup": _parse_whole_number,
    "profile_active": _parse_window_steps,
    "profile_repeat": _parse_whole_number,
    "profile_skip_first": _parse_whole_number,
    "profile_window": _validate_windows,
    "profile_on": _parse_words,
    "on_finding": _parse_command_line,
    "notify": _validate_webhook,
    "to": _parse_sinks,
    "preflight": _parse_boolean,
    "when": _make_text_check(check_condition),
    "then": _make_text_check(check_action),
}


def check_setting(key: str, value: object, name: str = "") -> Any:
    """One setting's value as `Settings` holds it; TdbgError says what it may be. name: what the message calls it."""
    return _CHECKS[key](name or key.replace("_", "-"), value)


OTHER_NAMES = {"measure_overhead": "baseline"}  # options whose setting is called otherwise: both names count


def env_source(environ: Mapping[str, str]) -> list[Source]:
    """``TDBG_LEVEL``, ``TDBG_MAX_OVERHEAD``, ``TDBG_FLAGS``, ...: a variable for every setting."""
    settings = {item.name: item.name for item in fields(Settings)} | {"preset": "preset"} | OTHER_NAMES
    names = {f"TDBG_{name.upper()}": key for name, key in settings.items()}
    values = {names[key]: value for key, value in environ.items() if key in names}
    return [Source("environment", values)] if values else []


def resolve_settings(
    options: Mapping[str, object],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    profile: str = "",
    known_flags: Iterable[str] = (),
) -> tuple[Settings, dict[str, str]]:
    """The settings and, per setting, where its value came from.

    Growing strength: default, the user's own config.toml, pyproject.toml, tdbg.yaml, TDBG_* variables, the
    profile asked for by name, then ``options`` (only what the user typed). Flags of all sources add up; a later
    source wins for the same flag. In any source ``DEBUG: {...}`` is another spelling of ``flags``.
    A file in a folder that is not trusted sets LOCAL settings only; a line says which others were passed over.
    Raises TdbgError naming the source for an unknown key or a bad value.
    """
    here = cwd or Path.cwd()
    toml = pyproject_sources(here, profile)
    named = [source for source in toml if source.name.endswith(f" profile {profile}")] if profile else []
    base = [source for source in toml if source not in named]
    sources = [
        *user_source(),
        *base,
        *yaml_source(here),
        *env_source(os.environ if environ is None else environ),
        *named,
    ]
    sources.append(Source("option", dict(options)))
    for source in sources:
        _drop_untrusted(source)
    settings = Settings()
    origin = {item.name: "default" for item in fields(Settings)}
    for source in sources:
        _apply_source(settings, origin, source, tuple(known_flags))
    check_pairs(settings.when, settings.then)
    _check_capture(settings, origin)
    _check_profile(settings, origin)
    _check_preflight(settings)
    return settings, origin


def _resolve_setting_name(key: str) -> str:
    """The setting that a key of a source means."""
    return {"DEBUG": "flags"}.get(key, key.replace("-", "_"))


def _drop_untrusted(source: Source) -> None:
    """Take out of a stranger's configuration file what makes tdbg run, send or load, or says where it writes."""
    if source.folder is None:
        return
    acting = [key for key in source.values if KIND_OF.get(_resolve_setting_name(key), LOCAL) != LOCAL]
    if not acting or is_trusted(source.folder):
        return
    for key in acting:
        del source.values[key]
        text = f"{source.name}: {key} is ignored: a configuration file may not set it unless you allow its folder once"
        print_message_once(f"{text}: tdbg trust {shlex.quote(str(source.folder.absolute()))}")


def _check_capture(settings: Settings, origin: Mapping[str, str]) -> None:
    """Options about capturing where nothing is captured are a mistake."""
    if settings.captures and settings.level == "off":
        option = "--capture" if settings.capture else "--debugger"
        raise TdbgError("nothing is captured at level off", f"leave out --level off, or {option}")
    alone = [name for name, source in origin.items() if name.startswith("capture_") and source == "option"]
    if alone and not settings.captures:
        raise TdbgError(
            f"--{alone[0].replace('_', '-')} needs --capture or --debugger",
            "name layers: --capture 'layers.*.attn:output'",
        )


def _check_profile(settings: Settings, origin: Mapping[str, str]) -> None:
    """A profiler that cannot work, or two ways at once to say when, are a mistake."""
    asked = settings.flags.get("PROFILER")
    if asked and settings.level == "off" and origin["flags"] == "option":
        raise TdbgError("nothing is profiled at level off", "leave out --level off")
    if isinstance(asked, str):
        parse_windows(asked, "flag PROFILER")
    given = [name for name, source in origin.items() if name.startswith("profile_") and source == "option"]
    cycles = [name for name in given if name in _CYCLE]
    if "profile_window" in given and cycles:
        raise TdbgError(f"--window and {_profile_option(cycles[0])} both choose the steps", "leave one of them out")
    looks = [name for name in ("steps", "every") if origin.get(name) == "option"]
    if (
        looks
        and asked
        and settings.level == "basic"
        and not any(on for flag, on in settings.flags.items() if flag != "PROFILER")
    ):
        raise TdbgError(
            f"--{looks[0]} selects steps for flags and levels; a profiler records windows",
            "write --window 4:6" if looks[0] == "steps" else "write --wait 10 --repeat 0",
        )


def _check_preflight(settings: Settings) -> None:
    """A program that ends before its first update has nothing to profile, to capture or to measure."""
    if not settings.preflight:
        return
    if settings.level == "off":
        raise TdbgError("--preflight needs a level other than off", "leave out --level off, or --preflight")
    asked = {
        "`tdbg profile` or `-f PROFILER`": settings.flags.get("PROFILER") or settings.profile_on,
        "--capture": settings.capture,
        "--debugger": settings.debugger,
        "--measure-overhead": settings.baseline,
        "--to": settings.to,
    }
    for option, given in asked.items():
        if given:
            raise TdbgError(
                f"--preflight ends the program before its first update, and {option} needs steps",
                f"leave out --preflight, or {option}",
            )


def _profile_option(key: str) -> str:
    """``--kind``: the settings of `tdbg profile` bear other names than its options."""
    return "--window-on" if key == "profile_on" else f"--{key.removeprefix('profile_').replace('_', '-')}"


_CYCLE = ("profile_wait", "profile_active", "profile_repeat", "profile_skip_first")


def _apply_source(settings: Settings, origin: dict[str, str], source: Source, known: tuple[str, ...]) -> None:
    for raw_key, value in sorted(source.values.items(), key=lambda item: item[0] != "preset"):  # flags refine a preset
        key = _resolve_setting_name(raw_key)
        key = OTHER_NAMES.get(key, key)
        try:
            if key == "preset":
                names = _parse_words("preset", value)
                settings.flags.update({name: True for word in names for name in flag_table.preset(word)})
                origin["flags"] = source.name
            elif key == "flags":
                settings.flags.update(read_flags(value, known))
                settings.flag_names.update(flag_table.typed_names(flag_words(value), known))
                origin["flags"] = source.name
            elif key == "thresholds":
                settings.thresholds.update(check_setting(key, value))
                origin[key] = source.name
            elif key in _CHECKS:
                typed = source.name == "option" and key.startswith("profile_")
                setattr(settings, key, check_setting(key, value, _profile_option(key) if typed else ""))
                origin[key] = source.name
            else:
                raise TdbgError(
                    f"unknown setting {raw_key!r}", f"known: {', '.join(sorted([*_CHECKS, 'flags', 'preset']))}"
                )
        except TdbgError as error:
            if source.name == "option":
                raise
            raise TdbgError(f"{source.name}: {error}", error.hint) from None


def flags_to_env(flags: Mapping[str, flag_table.Value]) -> str:
    """The value of ``TDBG_FLAGS`` for a program's processes: JSON, so that values keep their type."""
    return json.dumps(dict(flags), separators=(",", ":"))


def flags_from_env(text: str) -> dict[str, flag_table.Value]:
    """The inverse of `flags_to_env`; a hand-written ``A,B=3`` is understood too."""
    if text.startswith("{"):
        found: dict[str, flag_table.Value] = json.loads(text)
        return found
    return read_flags(text)


def restore_masked_flags(
    flags: Mapping[str, flag_table.Value], environ: Mapping[str, str]
) -> dict[str, flag_table.Value]:
    """The flags that run.json shows, with those values that it has masked as the environment has them."""
    if MARK not in flags.values():
        return dict(flags)
    given = flags_from_env(environ.get("TDBG_FLAGS", ""))
    return {name: given.get(name, value) if value == MARK else value for name, value in flags.items()}
