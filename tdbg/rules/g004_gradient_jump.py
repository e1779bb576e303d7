"""TD-G004: the gradient of one parameter explodes, unseen in the total."""

from tdbg.core.events import Finding
from tdbg.core.observations.gradient_report import GradientNorms
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure


@RULES.add
class GradientJump(ObservingRule[Reported]):
    """Says when the gradient of single parameters leaves its course, while the total norm hides it.

    What it does: With the flag GRADIENTS (or level advanced) it compares each parameter's gradient norm with
    its own median of the last 16 sampled steps. It speaks when one lies above GRADIENTS.explosion, above
    GRADIENTS.jump times that median and above twice its highest, in 3 consecutive sampled steps, although the
    total norm has not jumped. Where the total has, TD-G001 speaks.

    Why it matters: One layer that runs away is where a divergence begins. In the total norm of a large model it
    is not seen until it is larger than all the others together.

    Example:
        TD-G004 warning: the gradient of blocks.7.attn.weight rose to 48 by itself at step 412, rank 0

    What to do: Look at that layer: a missing normalisation, a scale or temperature that grows without bound, a
    batch that only it sees. Clip by parameter groups, or give it a smaller learning rate.

    Thresholds: GRADIENTS.explosion 10.0 and GRADIENTS.jump 10; 3 consecutive sampled steps, since single spikes
    are common.
    """

    code = "TD-G004"
    title = "one parameter's gradient explodes"
    severity = "warning"
    leads_to = (Link("TD-G001", least=0, most=50), Link("TD-N004", least=0, most=50))
    observes = (GradientNorms,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: GradientNorms) -> Finding | None:
        lasting = seen.get_lasting_row("jumped")
        if state.is_reported or not lasting:
            return None
        state.is_reported = True
        names = lasting["names"]
        return self.make_finding(
            f"the gradient of {join_limited(names, 2)} rose to {format_figure(lasting.get('norm'))} by itself at step"
            f" {lasting['since']}, {process.display_name}",
            first_step=lasting["since"],
            rank=process.rank,
            phase="gradient",
            module=names[0].rpartition(".")[0],
            evidence=[
                f"{format_count(lasting['looks'], 'consecutive sampled step')} far above its own median, up to step {seen.step};"
                f" the total norm is {format_figure(seen.total)}"
            ],
            cause="the layer diverges: it has no normalisation, or an unbounded scale",
            try_next="use a smaller learning rate for it, clip by group, or normalise its input",
        )
