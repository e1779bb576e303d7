"""TD-C025: running averages that are never updated, or that frozen layers still update."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations import Observed
from tdbg.core.observations.model_build import FrozenStatistics, IdleStatistics
from tdbg.core.observations.validation import IdleAverage
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class AverageIdle(KindsRule):
    """Says when running averages are never updated, or still change in frozen layers.

    What it does: With the flag MODEL_BUILD, or in the opening inspection, it reads the running mean of batch
    normalisation layers after 20 steps, and speaks where it is still 0 in every channel although the layer has
    seen 20 batches in train mode. With the flag VALIDATION it looks at a `torch.optim.swa_utils.AveragedModel`
    that is evaluated, and speaks where its `n_averaged` is 0 after 20 steps or more. As a note it names batch
    normalisation layers of the trained model that are frozen and still see batches in train mode.

    Why it matters: In eval mode batch normalisation then normalises by a mean of 0 and a variance of 1, which
    training has never seen. An average that is never updated is the model as it was built: its metrics are those
    of chance. `requires_grad_(False)` freezes weights alone: a frozen body in train mode takes over the statistics
    of the new data, one small batch at a time, and ends up a different network.

    Example:
        TD-C025 warning: 2 batch norm layers keep a running mean of 0: body.1, body.4 (momentum 0), rank 0
        TD-C025 info: 20 frozen batch norm layers still update their running statistics: bn1, layer1.0.bn1,
        layer1.0.bn2, ..., rank 0

    What to do: `momentum` is the share of the new batch (0.1), the other way round than in TensorFlow (0.9). Call
    `update_parameters(model)` after each update, or evaluate the average only once it has begun. Call
    `eval()` on the frozen part after each `model.train()`, unless its statistics are to follow the new data.

    Thresholds: 20 steps, 20 batches.
    """

    code = "TD-C025"
    title = "running averages that nothing updates, or that frozen layers still update"
    severity = "warning"
    observes = (IdleStatistics, FrozenStatistics, IdleAverage)

    def evaluate(self, process: ProcessDir, seen: Observed) -> Iterable[tuple[str, Finding]]:
        kind = seen.PART
        if not self.is_news(process, kind):
            return ()
        if isinstance(seen, IdleStatistics):
            return [(kind, self._describe_statistics(process, seen))]
        if isinstance(seen, FrozenStatistics):
            return [(kind, self._describe_frozen(process, seen))]
        return [(kind, self._describe_average(process, seen))] if isinstance(seen, IdleAverage) else ()

    def _describe_statistics(self, process: ProcessDir, seen: IdleStatistics) -> Finding:
        still = seen.momentum == 0
        why = "momentum 0" if still else f"after {format_count(seen.batches, 'batch')}"
        return self.make_finding(
            f"{format_count(seen.layer_count, 'batch norm layer')} {'keeps' if seen.layer_count == 1 else 'keep'} a running"
            f" mean of 0: {join_limited(seen.layers, 3)} ({why}), {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            module=seen.layers[0] if seen.layers else "",
            evidence=[seen.text()],
            cause="momentum is 0: batches do not change the running statistics"
            if still
            else "the input of these layers is zero on average in every channel, or some code resets their statistics",
            try_next="set momentum=0.1, the weight of a new batch"
            if still
            else "look at the input of these layers with --flag FORWARD",
        )

    def _describe_frozen(self, process: ProcessDir, seen: FrozenStatistics) -> Finding:
        one = seen.layer_count == 1
        return self.make_finding(
            f"{format_count(seen.layer_count, 'frozen batch norm layer')} still {'updates its' if one else 'update their'}"
            f" running statistics: {join_limited(seen.layers, 3, seen.layer_count)}, {process.display_name}",
            severity="info",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            module=seen.layers[0] if seen.layers else "",
            evidence=[seen.text()],
            cause="requires_grad_(False) freezes weights, not statistics: in train mode each batch moves them",
            try_next="call eval() on the frozen part after model.train(), if its statistics are to stay",
        )

    def _describe_average(self, process: ProcessDir, seen: IdleAverage) -> Finding:
        return self.make_finding(
            f"the average of {seen.averaged} that is evaluated was never updated, after step {seen.step},"
            f" {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="eval",
            evidence=[seen.text()],
            cause="update_parameters() was not called: the average is still the initial model",
            try_next="call update_parameters(model) after each update",
        )
