"""TD-C027: an embedding and an output layer that were to share one weight."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.model_build import BrokenTie
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class TieBroken(KindsRule):
    """Says when an embedding and an output layer begin with the same numbers and are two tensors: a tie that broke.

    What it does: With the flag MODEL_BUILD, or in the opening inspection, it compares the weights of embeddings
    (`nn.Embedding`, and layers with "embed" in the name of their class) with those of all other layers of the
    same shape, before the first update. It speaks where two of them are equal, element by element in a sample
    of 1,024, and are not one tensor. It is a warning where the configuration of the model says
    `tie_word_embeddings`; else it is for information, as a copy may be meant as a beginning. Where a model says
    so and names the two layers (`get_input_embeddings`, `get_output_embeddings`), weights that are two and
    differ are noted as well.

    Why it matters: From the first update on the two drift apart. The model has more parameters than was meant, a
    checkpoint of it loads into a tied model with one of the two lost, and it learns more slowly.

    Example:
        TD-C027 warning: wte.weight and lm_head.weight should share one tensor but are two, equal before the first
        update, rank 0

    What to do: Assign the parameter, not its values: `model.lm_head.weight = model.wte.weight`, again after
    everything that replaces parameters (`to_empty`, loading with `assign=True`, wrapping in shards). A model that
    is not to be tied says so: `config.tie_word_embeddings = False`.

    Thresholds: weights of 64 elements or more. A model that holds a copy of a tied model (a teacher, an average)
    is left alone, and so are equal weights of other layers: copies of one layer begin so (`nn.TransformerEncoder`).
    """

    code = "TD-C027"
    title = "embedding and output layer that no longer share a weight"
    severity = "warning"
    observes = (BrokenTie,)

    def evaluate(self, process: ProcessDir, seen: BrokenTie) -> Iterable[tuple[str, Finding]]:
        kind = f"{seen.embedding} {seen.head}"
        if not self.is_news(process, kind):
            return ()
        what = "should share one tensor but are two" if seen.meant else "are two tensors"
        how = "equal" if seen.equal else "different"
        found = self.make_finding(
            f"{seen.embedding} and {seen.head} {what}, {how} before the first update, {process.display_name}",
            severity=self.severity if seen.meant and seen.equal else "info",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            module=seen.head.rpartition(".")[0],
            evidence=[seen.text()],
            cause="the weight was copied instead of shared, or a parameter was replaced after both were tied",
            try_next="assign the embedding's parameter to the output layer after any code that replaces parameters",
        )
        return [(kind, found)]
