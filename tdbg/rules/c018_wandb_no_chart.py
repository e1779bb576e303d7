"""TD-C018: a key sent to Weights & Biases whose values make no chart."""

from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.observations import Evidence
from tdbg.core.observations.wandb_metrics import ChartlessKey
from tdbg.core.rundir import ProcessDir
from tdbg.rules import MAX_EVIDENCE, RULES, Rule

WHY = {
    "text": "its numbers are written as text",
    "non-finite": "none of its values is a finite number",
}


@RULES.add
class WandbNoChart(Rule):
    """Says that a key is sent to Weights & Biases again and again, and no chart can come of it.

    What it does: Speaks of a key whose values are numbers written as text (``f"{loss:.3f}"``), different ones and
    at least three in a row, and at the end of a run of one that was sent at least three times and was NaN or Inf
    each time.

    Why it matters: wandb takes both without a word. The chart stays empty, and without charts there is nothing to
    compare runs by.

    Example:
        TD-C018 warning: train/loss makes no chart in wandb: its numbers are written as text, such as '0.412', at
        step 3, rank 0

    What to do: Log the number itself and leave its formatting to the chart. For a value that is never finite, look
    at how it is computed: a division by zero samples, a metric without positives.

    Thresholds: Three values.
    """

    code = "TD-C018"
    title = "a key makes no chart in wandb"
    severity = "warning"
    grade = Evidence.LOCAL.grade_word
    listens = (Observation,)
    observes = (ChartlessKey,)

    def __init__(self) -> None:
        self._given: list[Finding] = []
        self._keys: set[str] = set()

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        seen = ChartlessKey.from_event(event)
        if seen is None or seen.key in self._keys:
            return ()  # another rank or run sends the same
        self._keys.add(seen.key)
        said = f"{seen.key} makes no chart in wandb: {WHY.get(seen.why, seen.why)}, such as {seen.example}"
        if self._given:
            if len(self._given[0].evidence) < MAX_EVIDENCE:
                self._given[0].evidence.append(f"{said}, at step {seen.step}, {process.display_name}")
            return ()
        new = self.make_finding(
            f"{said}, at step {seen.step}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            cause="wandb charts only numbers, and leaves out NaN and Inf",
            try_next="log the number itself, not its text" if seen.why == "text" else "check how the value is computed",
        )
        self._given.append(new)
        return (new,)
