"""TD-S007: weights that do not change although they have a gradient."""

from tdbg.core.events import Finding
from tdbg.core.observations.optimizer import UpdateSizes
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure

HALF = ("bfloat16", "float16")


@RULES.add
class WeightsStuck(ObservingRule[Reported]):
    """Says when updates leave weights as they were, although their gradient is not zero.

    What it does: With the flag OPTIMIZER it compares a sample of 64 elements of each weight over time. It
    speaks when no element of it has changed in 10 consecutive sampled steps over at least 40 steps, while the
    gradient of some of these elements was not zero and the learning rate not zero. A gradient of rounding noise
    counts as zero: below 1e-6 of the model's median, and of a bias below 5 % of its own weight's gradient (half
    precision: 50 %), as before a normalisation, which takes the bias out again.

    Why it matters: In bfloat16 a weight near 1 can only move in steps of 0.4 to 0.8 %: a smaller update is
    rounded away, each time. Scales of normalisations, which begin at 1, then never learn.

    Example:
        TD-S007 warning: 3 sampled parameters have not changed since step 1 (bfloat16, lr 1e-04): norm.weight, ...

    What to do: Keep the weights in float32 and compute in half precision (autocast), use an optimizer with
    stochastic rounding or Kahan summation, or a larger learning rate for these parameters. In float32 it means
    that the optimizer's step does not reach them: a hook, a wrapper, a rate far too small.

    Thresholds: Every one of 64 sampled elements, 10 sampled steps over at least 40 steps: a sum that is kept aside
    (Kahan) or gradients gathered inside the optimizer have shown by then.
    """

    code = "TD-S007"
    title = "weights do not change"
    severity = "warning"
    leads_to = ("TD-K001",)
    observes = (UpdateSizes,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: UpdateSizes) -> Finding | None:
        lasting = seen.get_lasting_row("stuck")
        if state.is_reported or not lasting:
            return None
        state.is_reported = True
        names, dtype = lasting["names"], lasting.get("dtype", "")
        half = dtype in HALF
        return self.make_finding(
            f"{format_count(lasting['count'], 'sampled parameter')} unchanged since step {lasting['since']}"
            f" ({dtype}, lr {format_figure(lasting.get('lr'))}): {join_limited(names, 3)}, {process.display_name}",
            first_step=lasting["since"],
            rank=process.rank,
            phase="optimizer",
            module=names[0].rpartition(".")[0],
            evidence=[
                f"in {format_count(lasting['looks'], 'sampled step')} up to step {seen.step}, with a gradient: {seen.text()}"
            ],
            cause=f"the updates are smaller than {dtype} can add to these weights"
            if half
            else "the optimizer's step does not reach these weights, or its rate is far too small",
            try_next="use float32 weights with autocast, stochastic rounding, or a larger learning rate for them"
            if half
            else "check that the optimizer holds these tensors, and what its step does",
        )
