"""TD-D004: labels that the model has no class for."""

import re
from typing import NamedTuple

from tdbg.core.events import Event, Finding, Observation, Traceback
from tdbg.core.observations.dataloader import LabelsOutside
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, Rule, add_grade
from tdbg.rules.text import clip_text

# What cross-entropy and gather say on the host, and what is left of it on an accelerator.
ERROR = re.compile(r"out of bounds|device-side assert|n_classes|class values must be", re.IGNORECASE)


class _Seen(NamedTuple):
    process: ProcessDir
    labels: LabelsOutside


@RULES.add
class LabelRange(Rule):
    """Explains a crash in the loss by labels below zero or beyond the number of classes.

    What it does: With the flag DATALOADER (or at level advanced) it compares the range of integer labels in sampled
    batches with the width of the model's output, and -100 with nothing. It speaks when labels lie outside and the
    process then failed with an index out of bounds or a device-side assert. Without such a failure it keeps silent:
    an output may be an embedding, and its width no number of classes.

    Why it matters: On an accelerator such a failure comes from another line than the one at fault, without any
    number in it, and the process can only be started anew.

    Example:
        TD-D004 error: labels from 1 to 10, but the model has 10 classes, rank 0 at step 1

    What to do: Labels begin at 0; the last layer needs as many outputs as there are classes. Give labels that must
    not count the loss's `ignore_index` (-100 by default).

    Thresholds: none.
    """

    code = "TD-D004"
    title = "labels out of range"
    severity = "error"
    leads_to = (Link("TD-R003", least=-1, most=1), Link("TD-R002", least=-1, most=1))
    listens = (Observation, Traceback)
    observes = (LabelsOutside,)

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> list[Finding]:
        labels = LabelsOutside.from_event(event)
        if labels is not None:
            self._seen[process.label] = _Seen(process, labels)
            return []
        seen = self._seen.get(process.label)
        if seen is None or not isinstance(event, Traceback) or not ERROR.search(event.message):
            return []
        new = self._make_range_finding(process, seen.labels, event)
        return self.report_from(process, self._given, add_grade(new, seen.labels))

    def _make_range_finding(self, process: ProcessDir, seen: LabelsOutside, failure: Traceback) -> Finding:
        rows, indices = list(map(str, seen.rows)), list(map(str, seen.indices))
        return self.make_finding(
            f"labels from {seen.label_low} to {seen.label_high}, but the model has"
            f" {format_count(seen.width, 'class')}, {process.display_name} at step {seen.step}",
            first_step=seen.step,
            rank=process.rank,
            phase="loss",
            evidence=[
                f"{seen.dataset}: tensor {seen.label}, positions in the batch {join_limited(rows, 8)}",
                *([f"dataset indices {join_limited(indices, 8)}"] if indices else []),
                clip_text(f"{failure.exception}: {failure.message}", 160),
            ],
            cause="labels start at 1, the data has more classes than the model, or a placeholder marks missing labels",
            try_next="map labels to 0 ... classes - 1, or widen the last layer; cross_entropy ignores -100",
        )
