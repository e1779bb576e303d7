"""TD-C022: evaluation in eval mode draws random numbers."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.preflight import EvaluatedTwice
from tdbg.core.observations.validation import EvaluationPass
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule

LEAST_CALLS = 2


@RULES.add
class DropoutInEvaluation(KindsRule):
    """Says when a model in eval mode still draws random numbers: a dropout function that eval mode does not reach.

    What it does: With the flag VALIDATION, or in the opening inspection, it compares the states of the random
    generators before and after calls in eval mode without gradients. Where they differ, it stands in front of
    torch's dropout functions in the calls that follow. A dropout function that is at work is a warning, with its
    line. Numbers that something else drew are for information: a VAE or a diffusion model samples on purpose.
    `tdbg run --preflight` compares outputs of the first batch in eval mode instead.

    Why it matters: `torch.nn.functional.dropout(x, 0.5)` drops in eval mode too, as `training` is True unless it
    is given, and so does `scaled_dot_product_attention(..., dropout_p=0.1)`. Metrics are worse than the model,
    and differ from run to run.

    Example:
        TD-C022 warning: dropout is active in evaluation: dropout at model.py:31, pass 1 after step 20, Net in
        eval mode, rank 0

    What to do: Pass `training=self.training`, or `dropout_p=self.p if self.training else 0.0`, or use
    `nn.Dropout`.

    Thresholds: 2 calls of one pass. Passes in which any layer is in train mode, or in which an input comes again
    (Monte Carlo dropout), are left alone.
    """

    code = "TD-C022"
    title = "dropout in evaluation"
    severity = "warning"
    observes = (EvaluationPass, EvaluatedTwice)

    def evaluate(self, process: ProcessDir, seen: EvaluationPass | EvaluatedTwice) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, EvaluatedTwice):
            where = f"preflight, {seen.root} in eval mode, {process.display_name}"
            if seen.was_tried and not seen.repeats and self.is_news(process, "each time"):
                return [("each time", self._make_unrepeated_finding(seen, where, process.rank))]
            if not seen.was_tried or not seen.drew:
                return ()
            evidence = "the same batch gives another output in eval mode with other random numbers"
        elif (seen.drew or 0) < LEAST_CALLS:
            return ()
        else:
            where = f"pass {seen.number} after step {seen.step}, {seen.root} in eval mode, {process.display_name}"
            evidence = (
                f"{seen.drew} of {format_count(seen.compared or 0, 'call')} left the random generators in another state"
            )
        kind = "dropout" if seen.drawn_by else "other"
        if not self.is_news(process, kind) or (kind == "other" and (process.label, "dropout") in self._reported):
            return ()
        if seen.drawn_by:
            at = f" at {seen.drawn_at}" if seen.drawn_at else ""
            title = f"dropout is active in evaluation: {seen.drawn_by}{at}, {where}"
            cause = "the function does not follow eval mode: its training argument is True by default"
            if seen.drawn_by == "scaled_dot_product_attention":
                cause = "dropout_p is passed in eval mode too"
            try_next = "pass training=self.training (attention: dropout_p only if self.training), or use nn.Dropout"
        else:
            title = f"evaluation draws random numbers: {where}"
            cause = (
                "the forward pass samples (on purpose in a VAE or a diffusion model), or drops in a layer of its own"
            )
            try_next = "seed it for each pass, or take the mean, if the metrics are to be compared"
        found = self.make_finding(
            title,
            severity=self.severity if seen.drawn_by else "info",
            first_step=seen.step,
            rank=process.rank,
            phase="eval",
            evidence=[evidence],
            cause=cause,
            try_next=try_next,
        )
        return [(kind, found)]

    def _make_unrepeated_finding(self, seen: EvaluatedTwice, where: str, rank: int | None) -> Finding:
        return self.make_finding(
            f"evaluation is not repeatable, even with the same random numbers: {where}",
            severity="info",
            first_step=seen.step,
            rank=rank,
            phase="eval",
            evidence=["the same batch, weights, buffers and random states give another output"],
            cause="the model has its own random generator, a state outside its modules, or a nondeterministic operator",
            try_next="seed that generator for each pass, or call torch.use_deterministic_algorithms(True)",
        )
