"""How many steps of a run had an anomaly, by kind: what `TrainingDebugger` counts in a program, from the records alone."""

import math
from collections.abc import Iterable, Sequence
from typing import TypedDict

from tdbg.core.events import Finding, Step, as_float
from tdbg.core.step_anomalies import LossSpike, has_exploded, has_vanished


class TrainingSummary(TypedDict):
    """Numbers of steps, and as shares of total_steps (0.0 before the first). Of several ranks the highest of each."""

    total_steps: int
    anomaly_steps: int
    gradient_explosions: int
    gradient_vanishing: int
    loss_anomalies: int
    anomaly_rate: float
    loss_anomaly_rate: float
    gradient_explosion_rate: float
    gradient_vanishing_rate: float


class TrainingPart(TypedDict):
    """The training, in five numbers. debug_history_length: step records."""

    total_anomalies: int
    debug_history_length: int
    total_steps: int
    anomaly_rate: float
    gradient_explosion_rate: float


class DiffusionPart(TypedDict):
    """What the diffusion debugger noted in this run, under its tag."""

    total_anomalies: int
    debug_history_length: int


class GeneralPart(TypedDict):
    """The findings but for those of severity info, by code. debug_history_length: observations."""

    total_anomalies: int
    debug_history_length: int
    anomalies: dict[str, int]


class DebugSummary(TypedDict):
    """The summary of all debuggers."""

    training_debugger: TrainingPart
    diffusion_debugger: DiffusionPart
    general_debugger: GeneralPart


class TrainingCounts:
    """Counts the training steps on record of one process, and those with an anomaly."""

    __slots__ = ("_spike", "anomalies", "explosions", "losses", "steps", "vanishing")

    def __init__(self) -> None:
        self.steps = self.anomalies = self.explosions = self.vanishing = self.losses = 0
        self._spike = LossSpike()

    def add_step(self, event: Step) -> None:
        """Take a record. An anomaly is a loss that is not finite or a spike, or a norm out of bounds or not finite.

        The norms are those of the parameters where the record has them, else the one of all gradients. Cost: 1 us.
        """
        try:
            self._add_record(event)
        except (TypeError, ValueError):  # a field holds something else than it should
            self.steps += 1

    def _add_record(self, event: Step) -> None:
        loss, norms = as_float(event.loss), event.grad_norms
        if event.skipped:  # by GradScaler, which looks for its scale this way
            norms = []
        elif norms is None:
            norms = [event.grad_norm] if event.grad_norm is not None else []
        bad_loss = loss is not None and (not math.isfinite(loss) or self._spike.is_met(event))
        exploded, vanished = has_exploded(norms), has_vanished(norms)
        self.steps += 1
        self.losses += bad_loss
        self.explosions += exploded
        self.vanishing += vanished
        self.anomalies += bad_loss or exploded or vanished or (event.finite is False and not event.skipped)


def summarize_training(counts: Sequence[TrainingCounts]) -> TrainingSummary:
    """The counts of the ranks as one."""

    def find_highest(name: str) -> int:
        return max((getattr(one, name) for one in counts), default=0)

    steps = find_highest("steps")
    anomalies, losses = find_highest("anomalies"), find_highest("losses")
    explosions, vanishing = find_highest("explosions"), find_highest("vanishing")
    whole = max(steps, 1)
    return {
        "total_steps": steps,
        "anomaly_steps": anomalies,
        "gradient_explosions": explosions,
        "gradient_vanishing": vanishing,
        "loss_anomalies": losses,
        "anomaly_rate": anomalies / whole,
        "loss_anomaly_rate": losses / whole,
        "gradient_explosion_rate": explosions / whole,
        "gradient_vanishing_rate": vanishing / whole,
    }


def summarize_debuggers(
    training: TrainingSummary, findings: Iterable[Finding], observations: int, diffusion: int = 0
) -> DebugSummary:
    """The summary of a run. observations: how many there are. diffusion: those of the diffusion debugger."""
    codes = [finding.code for finding in findings if finding.severity != "info"]
    return {
        "training_debugger": {
            "total_anomalies": training["anomaly_steps"],
            "debug_history_length": training["total_steps"],
            "total_steps": training["total_steps"],
            "anomaly_rate": training["anomaly_rate"],
            "gradient_explosion_rate": training["gradient_explosion_rate"],
        },
        "diffusion_debugger": {"total_anomalies": 0, "debug_history_length": diffusion},
        "general_debugger": {
            "total_anomalies": len(codes),
            "debug_history_length": observations,
            "anomalies": {code: codes.count(code) for code in dict.fromkeys(codes)},
        },
    }
