"""How many steps of a run had an anomaly, by kind: what `TrainingDebugger` counts in a program, from the records alone."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from tdbg.core.events import Anomaly, Finding, Step, as_float
from tdbg.core.step_anomalies import LossSpike, has_exploded, has_vanished

MAX_KINDS = 100  # of anomalies in a process
DEBUGGERS = ("general", "training", "diffusion")  # of the Python API


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
    """What `DiffusionModelDebugger` found in calls of the program. debug_history_length: of these, those on record."""

    total_anomalies: int
    debug_history_length: int


class GeneralPart(TypedDict):
    """Findings but for those of severity info, by code, and what `PyTorchDebugger` found in calls of the program, by kind.

    debug_history_length: observations, and of these anomalies those on record.
    """

    total_anomalies: int
    debug_history_length: int
    anomalies: dict[str, int]


class DebugSummary(TypedDict):
    """The summary of all debuggers."""

    training_debugger: TrainingPart
    diffusion_debugger: DiffusionPart
    general_debugger: GeneralPart


class FoundAnomalies(TypedDict):
    """What debuggers of one sort found, of each kind as many as the process with most. recorded: those on record."""

    kinds: dict[str, int]
    recorded: int


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


class AnomalyCounts:
    """Counts what debuggers of the Python API found in one process."""

    __slots__ = ("_by_kind", "_recorded")

    def __init__(self) -> None:
        self._by_kind: dict[tuple[str, str], int] = {}
        self._recorded: Counter[str] = Counter()

    def add_anomaly(self, event: Anomaly) -> None:
        """Take an event: it carries how many of its kind there were, as not each of many has an event of its own."""
        key = event.debugger, event.kind
        if key in self._by_kind or len(self._by_kind) < MAX_KINDS:
            self._by_kind[key] = max(event.count, self._by_kind.get(key, 0))
        if event.debugger in DEBUGGERS:
            self._recorded[event.debugger] += 1

    def count_kinds(self, debugger: str) -> dict[str, int]:
        """How many of each kind the debuggers of one sort found."""
        return {kind: count for (sort, kind), count in self._by_kind.items() if sort == debugger}

    def count_recorded(self, debugger: str) -> int:
        """How many of them are on record."""
        return self._recorded[debugger]


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
    training: TrainingSummary,
    findings: Iterable[Finding],
    observations: int,
    anomalies: Mapping[str, FoundAnomalies] | None = None,
) -> DebugSummary:
    """The summary of a run. observations: how many there are. anomalies: by sort of debugger, see `merge_anomalies`."""
    given: Mapping[str, FoundAnomalies] = anomalies or {}
    nothing: FoundAnomalies = {"kinds": {}, "recorded": 0}
    of_general, of_diffusion = given.get("general", nothing), given.get("diffusion", nothing)
    general = Counter(finding.code for finding in findings if finding.severity != "info") + Counter(of_general["kinds"])
    return {
        "training_debugger": {
            "total_anomalies": training["anomaly_steps"],
            "debug_history_length": training["total_steps"],
            "total_steps": training["total_steps"],
            "anomaly_rate": training["anomaly_rate"],
            "gradient_explosion_rate": training["gradient_explosion_rate"],
        },
        "diffusion_debugger": {
            "total_anomalies": sum(of_diffusion["kinds"].values()),
            "debug_history_length": of_diffusion["recorded"],
        },
        "general_debugger": {
            "total_anomalies": general.total(),
            "debug_history_length": observations + of_general["recorded"],
            "anomalies": dict(general),
        },
    }


def merge_anomalies(counts: Sequence[AnomalyCounts]) -> dict[str, FoundAnomalies]:
    """What the debuggers of each sort found in the processes of a run, as plain data."""
    found: dict[str, FoundAnomalies] = {}
    for debugger in DEBUGGERS:
        highest: Counter[str] = Counter()
        for one in counts:
            highest |= Counter(one.count_kinds(debugger))
        recorded = max((one.count_recorded(debugger) for one in counts), default=0)
        found[debugger] = {"kinds": dict(highest), "recorded": recorded}
    return found
