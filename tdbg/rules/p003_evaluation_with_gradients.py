"""TD-P003: evaluation builds graphs that nobody uses."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.validation import EvaluationPass
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule


@RULES.add
class EvaluationWithGradients(KindsRule):
    """Says when a pass of evaluation ran with gradients on: graphs were built, and no backward used one of them.

    What it does: With the flag VALIDATION (or from level advanced) it follows the calls between training steps. It
    speaks when a pass of at least VALIDATION.calls calls, each on a batch of a data loader, put out tensors with
    a graph behind them, and by the next update no gradient had come back to any.

    Why it matters: Each call keeps all its activations until its output is let go of: evaluation needs the memory
    of training, and a list of outputs or a running sum of losses keeps the graphs of all batches.

    Example:
        TD-P003 warning: evaluation builds graphs nobody uses: pass 1 after step 200, 40 calls, rank 0

    What to do: Put `with torch.no_grad():` (or `torch.inference_mode()`) around the pass.

    Thresholds: VALIDATION.calls, 3 calls with new inputs, from a pass that is at least 2 steps from the one before.
    Outputs without a graph (a frozen model) do not count.
    """

    code = "TD-P003"
    title = "evaluation with gradients on"
    severity = "warning"
    observes = (EvaluationPass,)

    def evaluate(self, process: ProcessDir, seen: EvaluationPass) -> Iterable[tuple[str, Finding]]:
        if "graphs" not in seen.faults or not self.is_news(process, "graphs"):
            return ()
        evidence = [f"{seen.graphs} of {format_count(seen.seen, 'call')} checked returned an output with a graph"]
        grown_mb = seen.grown_mb or 0.0
        evidence += [f"memory grew by {grown_mb:g} MB in the pass"] if grown_mb > 0 else []
        found = self.make_finding(
            f"evaluation builds graphs nobody uses: pass {seen.number} after step {seen.step},"
            f" {format_count(seen.calls, 'call')}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="eval",
            evidence=evidence,
            cause="the pass runs outside of torch.no_grad()",
            try_next="put `with torch.no_grad():` around the pass",
        )
        return [("graphs", found)]
