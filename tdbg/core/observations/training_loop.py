"""What the probe `training-loop` sees."""

from collections.abc import Mapping

from tdbg.core.events import doc
from tdbg.core.observations import Evidence, Observed
from tdbg.core.tables import format_count

FAULTS = {
    "unreset": "{optimizer}: gradients of the previous update were still there in {streak} consecutive updates:"
    " nothing resets them",
    "emptied": "{optimizer}: the gradients were cleared between backward and the update, {streak} times in a row",
    "thrown": "{optimizer}: gradients of {thrown} of {window} backward calls were cleared before the update, {streak} times in a row",
    "tail": "the last {dropped} of {backwards} backward calls of the epoch were used by no update",
    "late_clip": "{optimizer}: gradients were clipped after the update instead of before it, {streak} times in a row",
    "twice": "{optimizer}: backward() was called twice on the same loss in each of {streak} updates",
}


class _OfLoop(Observed):
    """Calls that were seen as they were made."""

    PROBE = "training-loop"
    EVIDENCE = Evidence.LOCATED


class StepCalls(_OfLoop):
    """The calls between two updates."""

    PART = "STEP"

    order: str = doc("the calls since the previous update, in order", "")
    backwards: int = doc("backward calls among them", 0)
    batches: int = doc("number of batches taken since the previous update", 0)
    zero_grads: int = doc("zero_grad calls among them", 0)
    clips: int = doc("number of gradient clipping calls among them", 0)
    inside: bool = doc("backward runs inside the update (a closure)", False)

    def text(self) -> str:
        """The calls in order."""
        return self.order


class AccumulationChanged(_OfLoop):
    """An update took another number of backward calls than the one before."""

    PART = "WINDOW"

    window: int = doc("backward calls of one update", 0)
    before: int = doc("number of backward calls of the previous update", 0)

    def text(self) -> str:
        """Both numbers."""
        calls = "call" if self.window == 1 else "calls"
        return f"{self.window} backward {calls} an update" + (f", previously {self.before}" if self.before else "")


class EvaluationPhase(_OfLoop):
    """Training goes on after calls without gradients."""

    PART = "PHASE"

    evaluations: int = doc("number of calls without gradients since the previous step", 0)

    def text(self) -> str:
        """How many calls, and after which step."""
        return (
            f"{format_count(self.evaluations, 'call')} without gradients after step {self.step - 1}; training goes on"
        )


class EpochUpdates(_OfLoop):
    """The updates of an epoch, at its end."""

    PART = "EPOCH"

    number: int = 0  # of the epoch, from 0: for the line alone
    updates: int = doc("updates in the epoch", 0)
    backwards: int = doc("backward calls in the epoch", 0)
    windows: dict[str, int] = doc("backward calls per update -> number of such updates, at most eight", factory=dict)
    dropped: int = doc("backward calls at the epoch's end whose gradients no update used", 0)
    carried: int = doc("number of backward calls at its end that the next epoch's first update used", 0)
    evaluations: int = doc("calls without gradients in the epoch", 0)
    epoch_s: float = doc("seconds it took", 0.0)

    def text(self) -> str:
        """Updates, accumulation, what was left over, and evaluation."""
        parts = [
            f"epoch {self.number}: {format_count(self.updates, 'update')}, {window_text(self.windows)}",
            f"{self.epoch_s:.3g} s",
        ]
        if self.dropped:
            parts.append(f"the last {format_count(self.dropped, 'backward call')} were used by no update")
        if self.carried:
            parts.append(f"the next epoch's first update used the last {self.carried}")
        if self.evaluations:
            parts.append(f"{format_count(self.evaluations, 'call')} without gradients")
        return "; ".join(parts)


class LoopFault(_OfLoop):
    """Something that is wrong with the loop, told once an optimizer and kind."""

    PART = "FAULT"
    LEVEL = "W"

    kind: str = doc("what is wrong: unreset, emptied, thrown, tail, late_clip or twice", "")
    streak: int = doc("number of consecutive updates (for tail: epochs) that showed the fault", 0)
    since: int = doc("first step that showed the fault", 0)
    optimizer: str = doc("class of the optimizer", "")
    thrown: int | None = doc("number of backward calls per update whose gradients were cleared before it")
    window: int | None = doc("backward calls of one update")
    dropped: int | None = doc("backward calls at the epoch's end whose gradients no update used")
    backwards: int | None = doc("backward calls in the epoch")

    def text(self) -> str:
        """What is wrong, in how many updates."""
        return FAULTS.get(self.kind, "{optimizer}: {kind}").format(
            optimizer=self.optimizer,
            kind=self.kind,
            streak=self.streak,
            thrown=self.thrown,
            window=self.window,
            dropped=self.dropped,
            backwards=self.backwards,
        )


class Recomputation(_OfLoop):
    """What activation checkpointing ran again in a step."""

    PART = "RECOMPUTE"
    EVIDENCE = Evidence.LOCAL

    runs: int = doc("number of runs of checkpointed functions in the step, first runs included", 0)
    recomputed: int = doc("number of these that were recomputations", 0)
    recompute_ms: float = doc("time the recomputations took", 0.0)
    saved_mb: float | None = doc("memory freed by checkpointing until the recomputation filled it again (CUDA)")

    def text(self) -> str:
        """How often, how long, and how much memory it saved."""
        text = f"checkpointed functions ran {format_count(self.runs, 'time')}, {self.recomputed} of them recomputed for backward"
        text += f", which took {self.recompute_ms:.3g} ms"
        return text + (
            f" and refilled {self.saved_mb:g} MB that had been free in between" if self.saved_mb is not None else ""
        )


def window_text(windows: Mapping[str, int]) -> str:
    """``4 backward calls an update (9 of 10)``. windows: how often an update took so many backward calls."""
    if not windows:
        return "no update"
    size, count = max(windows.items(), key=lambda window: window[1])
    text = f"{size} backward {'call' if size == '1' else 'calls'} an update"
    return text if len(windows) == 1 else f"{text} ({count} of {sum(windows.values())})"
