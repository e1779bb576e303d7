"""What the probe `checkpoint` sees."""

import math

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count, join_limited


class _OfCheckpoint(Observed):
    """Calls of the program, as they were made."""

    PROBE = "checkpoint"
    EVIDENCE = Evidence.LOCATED


class _Warning(_OfCheckpoint):
    """Something went wrong with a checkpoint."""

    LEVEL = "W"


class _File(_OfCheckpoint):
    """What was saved or loaded at once."""

    DID = ""

    call: str = doc("the function that saved or loaded", "")
    path: str = doc("file or folder; empty for memory", "")
    size_mb: float | None = doc("its size")
    took_s: float = doc("seconds it took", 0.0)
    entries: list[str] | None = doc("top-level keys of what was saved or loaded, at most eight")
    tensors: int | None = doc("tensors in it")
    steps: dict[str, int] = doc("counters stored in it: step, epoch, ...", factory=dict)

    def text(self) -> str:
        """Where, how much, how long, and the numbers in it."""
        text = f"{self.DID} {self.path or 'in memory'}"
        text += f", {self.size_mb:g} MB" if self.size_mb is not None else ""
        text += f", {format_count(self.tensors, 'tensor')}" if self.tensors is not None else ""
        text += f", {self.took_s:.3g} s"
        return text + (f"; {_format_steps(self.steps)}" if self.steps else "")


class CheckpointSaved(_File):
    """Something was saved."""

    PART = "SAVE"
    DID = "saved"


class CheckpointRead(_File):
    """Something was loaded."""

    PART = "LOAD"
    DID = "loaded"


class SaveFailed(_Warning):
    """A save that raised."""

    PART = "FAILED"

    call: str = doc("the function that saved or loaded", "")
    path: str = doc("file or folder; empty for memory", "")
    size_mb: float | None = doc("size of the incomplete file or folder")
    took_s: float = doc("seconds it took", 0.0)
    error: str = doc("why a save or load failed", "")

    def text(self) -> str:
        """Which call, of what, and why."""
        return f"{self.call} of {self.path or 'memory'} failed: {self.error}"


class LoadFailed(SaveFailed):
    """A load that raised."""

    PART = "LOAD_FAILED"


class StateLoaded(_OfCheckpoint):
    """The keys of a state dict that was loaded into a module, and the keys of the module."""

    PART = "STATE"

    module: str = doc("class of the module that was loaded into", "")
    strict: bool = doc("true if every key had to match (strict=True)", True)
    keys: int = doc("number of keys in the module's state", 0)
    given: int = doc("number of keys in the state dict that was loaded", 0)
    placed: int = doc("number of these keys that were loaded into the module", 0)
    missing: list[str] | None = doc("keys of the module that the state dict lacks, at most eight")
    missing_count: int = doc("number of missing keys", 0)
    unexpected: list[str] | None = doc("keys of the state dict that the module lacks, at most eight")
    unexpected_count: int = doc("number of unexpected keys", 0)
    prefix: str | None = doc("prefix that keys of the state dict carry")
    lacks: str | None = doc("prefix that keys of the state dict lack")
    prefixed: int | None = doc("number of keys that would match without that prefix, or with it")
    renamed: list[str] | None = doc("unexpected keys that match a missing one by ending and shape, at most eight")
    resized: list[str] | None = doc("keys whose shape differs from the module's, at most eight")
    file: str | None = doc("the file whose keys were compared with the state dict")
    file_prefix: str | None = doc("prefix that the program removed from the file's keys before loading them")
    file_renamed: list[str] | None = doc("keys that the program renamed before loading them, at most eight")
    file_resized: list[str] | None = doc("keys whose tensors the program resized (interpolated, say), at most eight")
    file_left_out: int | None = doc("number of keys of the file that are not in the state dict")
    error: str | None = doc("why the load failed")

    @property
    def level(self) -> str:
        """I where a key did not fit."""
        return "I" if self.missing or self.unexpected or self.resized or self.error is not None else "D"

    def text(self) -> str:
        """The keys that did not fit, their way from the file, and what was raised."""
        text = f"{self.module}: {self.describe_keys()}{self._describe_conversion()}"
        return f"{text}; failed: {self.error}" if self.error is not None else text

    def describe_keys(self) -> str:
        """How many keys were loaded, and what became of the others."""
        text = f"{self.placed} of {format_count(self.keys, 'key')} loaded"
        text += (
            f"; {self.missing_count} missing: {join_limited(self.missing, 3, self.missing_count)}"
            if self.missing
            else ""
        )
        if self.unexpected:
            text += f"; {self.unexpected_count} unexpected: {join_limited(self.unexpected, 3, self.unexpected_count)}"
        if self.prefixed:
            all_of = "all" if self.prefixed >= self.given else f"{self.prefixed} of"
            text += f"; {all_of} {format_count(self.given, 'given key')} {'carry' if self.prefix else 'lack'} the prefix {self.prefix or self.lacks}"
        text += f"; {len(self.renamed)} may have been renamed: {join_limited(self.renamed, 3)}" if self.renamed else ""
        return text + (
            f"; {len(self.resized)} with a different shape: {join_limited(self.resized, 3)}" if self.resized else ""
        )

    def _describe_conversion(self) -> str:
        parts = []
        if self.file_prefix:
            parts.append(f"prefix {self.file_prefix} removed")
        if self.file_renamed:
            parts.append(f"{len(self.file_renamed)} renamed: {join_limited(self.file_renamed, 3)}")
        if self.file_resized:
            parts.append(f"{len(self.file_resized)} resized: {join_limited(self.file_resized, 3)}")
        if self.file_left_out:
            parts.append(f"{self.file_left_out} left out")
        return f"; changed after reading {self.file or 'memory'}: {', '.join(parts)}" if parts else ""


class PartlyLoaded(_Warning):
    """Keys that did not fit, and nothing else had filled their place when training or evaluation began."""

    PART = "PARTIAL"

    module: str = doc("class of the module that was loaded into", "")
    keys: int = doc("number of keys in the module's state", 0)
    given: int = doc("number of keys in the state dict that was loaded", 0)
    placed: int = doc("number of these keys that were loaded into the module", 0)
    missing: list[str] = doc("keys of the module that the state dict lacks, at most eight", factory=list)
    missing_count: int = doc("number of missing keys", 0)
    unexpected: list[str] = doc("keys of the state dict that the module lacks, at most eight", factory=list)
    unexpected_count: int = doc("number of unexpected keys", 0)
    prefix: str = doc("prefix that keys of the state dict carry", "")
    lacks: str = doc("prefix that keys of the state dict lack", "")
    prefixed: int = doc("number of keys that would match without that prefix, or with it", 0)

    described: str = ""  # the keys in words: for the line alone

    def text(self) -> str:
        """The keys that were loaded, and that the others were not."""
        return f"{self.module}: {self.described}; the others keep the values they had"


class RunResumed(_OfCheckpoint):
    """A run goes on from a checkpoint."""

    PART = "RESUME"

    path: str = doc("file or folder; empty for memory", "")
    steps: dict[str, int] = doc("counters stored in it: step, epoch, ...", factory=dict)
    restored: list[str] = doc("what was restored: model, optimizer, scheduler", factory=list)
    optimizer_step: float | None = doc("number of updates stored in the restored optimizer")
    scheduler_step: int | None = doc("number of steps stored in the scheduler of the file")
    fault: str = doc("what is wrong: optimizer, scheduler or counter", "")

    @property
    def level(self) -> str:
        """W where something was not restored."""
        return "W" if self.fault else "I"

    def text(self) -> str:
        """What was restored, what was recorded, and what was left."""
        text = f"resumed from {self.path or 'memory'}: {' and '.join(self.restored)} restored"
        text += f"; recorded {_format_steps(self.steps)}" if self.steps else ""
        if self.optimizer_step is not None and math.isfinite(self.optimizer_step):
            text += f"; optimizer state after {format_count(int(self.optimizer_step), 'update')}"
        if self.fault == "scheduler":
            text += f"; the scheduler's state (at step {self.scheduler_step}) was left in the file"
        if self.fault == "optimizer":
            text += "; but a different optimizer updates the weights"
        return text


class OptimizerNotResumed(_Warning):
    """A run goes on with the weights of a checkpoint, whose optimizer state was left in the file."""

    PART = "OPTIMIZER"

    path: str = doc("file or folder; empty for memory", "")
    optimizer: str = doc("class of the optimizer that updates the weights", "")
    steps: dict[str, int] = doc("counters stored in it: step, epoch, ...", factory=dict)
    sign: str = doc("evidence that the run continues: a scheduler, or the counter of the next save", "")

    def text(self) -> str:
        """What was left in the file, and why it is missed."""
        recorded = f"; recorded {_format_steps(self.steps)}" if self.steps else ""
        return (
            f"training continues with the model from {self.path or 'memory'} ({self.sign}), but {self.optimizer}"
            f" starts without the state in the file{recorded}"
        )


class CounterBehind(_Warning):
    """The first save after a resume counts from less than the checkpoint did."""

    PART = "COUNTER"

    path: str = doc("file or folder; empty for memory", "")
    fault: str = doc("what is wrong: optimizer, scheduler or counter", "counter")
    name: str = doc("the counter that restarted", "")
    recorded: int = doc("its value in the file that was loaded", 0)
    saved: int = doc("its value in the next save", 0)

    def text(self) -> str:
        """Both values of the counter."""
        where = self.path or "memory"
        return f"{self.name} is {self.saved} in {where} but was {self.recorded} in the checkpoint it resumed from"


class SaveMissed(_Warning):
    """Saves came at equal distances, and then none did."""

    PART = "MISSED"
    EVIDENCE = Evidence.STATISTICAL

    every_steps: int = doc("number of steps between the saves so far", 0)
    last_step: int = doc("the step of the last save", 0)

    def text(self) -> str:
        """Since when, and how often before."""
        return f"nothing saved since step {self.last_step}; before that, every {format_count(self.every_steps, 'step')}"


def _format_steps(steps: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in steps.items())
