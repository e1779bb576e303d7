"""TD-C029: the output of a sample depends on the other samples of its batch."""

from typing import Any

from tdbg.core.observations.preflight import SampleChanged
from tdbg.rules import RULES
from tdbg.rules._trials import TrialRule, describe_layer


@RULES.add
class SamplesMixed(TrialRule):
    """Says when the samples of a batch reach each other's outputs.

    What it does: `tdbg run --preflight` runs the first batch once more in eval mode with one sample in the
    place of another. The outputs of all other samples must stay as they are. Where they change, it names the
    first layer whose output changes for them. Without a DataLoader whose batch has the same size, nothing shows
    that dimension 0 holds samples, and the finding is a note.

    Why it matters: An LSTM without `batch_first=True`, a `view` in the place of a `transpose`, a softmax or a
    norm over dimension 0 raise nothing, and the loss may fall. The model then reads each sample together with
    others that are not there when it is used.

    Example:
        TD-C029 warning: samples of a batch are mixed: changing one sample changes the outputs of 31 of 31
        others, in "lstm" (LSTM)

    What to do: Look at the layer: `batch_first`, the order of dimensions before a `view` or `reshape`, `dim=0`
    of a softmax or norm.

    Thresholds: The change must exceed 0.01 % of the change of the sample's own output. Skipped: models that mix
    on purpose, with one matrix over pairs of samples (attention over the batch, a contrast), experts with a
    capacity, graphs, batch norm without running statistics, layers over the whole batch, outputs with a column
    for each sample, and all that give another output each time.
    """

    code = "TD-C029"
    title = "samples of a batch are mixed"
    severity = "warning"
    observes = (SampleChanged,)

    def find_fault(self, seen: SampleChanged) -> dict[str, Any] | None:
        if not seen.mixed or seen.pairs:
            return None
        at = describe_layer(seen)
        return {
            "title": f"samples of a batch are mixed: changing one sample changes the outputs of {seen.mixed} of"
            f" {seen.samples - 1} others{at}",
            "severity": self.severity if seen.from_loader else "info",
            "module": seen.module or "",
            "evidence": [
                f"{seen.root} in eval mode: their largest change is {seen.ratio:g} of that of the sample's own output",
                *([] if seen.from_loader else ["uncertain: no DataLoader batch shows that dim 0 holds samples"]),
            ],
            "cause": "batch_first is missing, a view stands for a transpose, or a softmax or norm works over dimension 0",
            "try_next": "look at the order of dimensions before that layer",
        }
