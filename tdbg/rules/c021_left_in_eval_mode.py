"""TD-C021: training goes on in eval mode after evaluation."""

from tdbg.core.events import Finding
from tdbg.core.observations.validation import EvalModeUpdates
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule, Reported


@RULES.add
class LeftInEvalMode(ObservingRule[Reported]):
    """Says when a model is updated in eval mode, because nothing switched it back after evaluation.

    What it does: With the flag VALIDATION, or in the opening inspection, it follows the mode of the model that is
    trained. It speaks when a model that was updated in train mode is evaluated in eval mode without gradients,
    and then updated three times in a row while it is still in eval mode, with dropout or batch normalisation
    layers. A model that was in eval mode from the first steps on, with dropout layers, is a note after ten updates.

    Why it matters: Dropout no longer regularises, and batch normalisation uses its old statistics and no longer
    learns them. The training loss improves, since dropout is gone, and the model overfits.

    Example:
        TD-C021 warning: training has run in eval mode since step 21, after evaluation: Net, 1 dropout layer off,
        rank 0

    What to do: Call `model.train()` after every evaluation pass, at best at the end of the function that called
    `model.eval()`. A call at the beginning of each epoch does not cover an evaluation in the middle of one.

    Thresholds: 3 updates in a row; 10 for the note. A model of which a part is in train mode is left alone: there
    the mode is chosen. So is one that was never in train mode and has no dropout layers.
    """

    code = "TD-C021"
    title = "eval mode left on after evaluation"
    severity = "warning"
    observes = (EvalModeUpdates,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: EvalModeUpdates) -> Finding | None:
        if state.is_reported and not seen.from_start:
            return None
        state.is_reported = state.is_reported or not seen.from_start
        if seen.from_start:
            return self._note_from_start(process, seen)
        layers = (seen.dropouts, "dropout layer"), (seen.norms, "batch norm layer")
        off = [format_count(count, noun) for count, noun in layers if count]
        return self.make_finding(
            f"training has run in eval mode since step {seen.since}, after evaluation: {seen.root},"
            f" {' and '.join(off)} off, {process.display_name}",
            first_step=seen.since,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{seen.root} was updated in train mode, evaluated in eval mode after step {seen.evaluated}, and"
                f" updated {format_count(seen.updates, 'time')} in eval mode from step {seen.since} on"
            ],
            cause="model.train() was not called after evaluation",
            try_next="call model.train() after each evaluation pass",
        )

    def _note_from_start(self, process: ProcessDir, seen: EvalModeUpdates) -> Finding:
        """A note: the mode may be chosen, as it is for a model that must not drop anything."""
        return self.make_finding(
            f"trained in eval mode from the start: {seen.root}, {format_count(seen.dropouts, 'dropout layer')} off,"
            f" {process.display_name}",
            severity="info",
            first_step=seen.since,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{seen.root} was updated {format_count(seen.updates, 'time')} in eval mode, and never in train mode"
            ],
            cause="likely: model.eval() was called, or the model comes from from_pretrained(), which returns it in"
            " eval mode",
            try_next="call model.train() before the first step, if dropout is meant to be at work",
        )
