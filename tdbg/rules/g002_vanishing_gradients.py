"""TD-G002: the gradients of some layers vanish."""

from tdbg.core.events import Finding
from tdbg.core.observations.gradient_report import GradientNorms
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules.text import format_figure

LEAST = 2  # one weight matrix alone may have its reasons: a gate, a scale


@RULES.add
class VanishingGradients(ObservingRule[Reported]):
    """Says when the gradients of several weight matrices are next to nothing while others are large.

    What it does: With the flag GRADIENTS (or level advanced) it follows each weight matrix whose gradient norm
    is above zero, below GRADIENTS.vanishing, and below a ten-thousandth of the largest norm in the model. It
    speaks when two or more have been so in 6 consecutive sampled steps without growing.

    Why it matters: Such layers keep their initial values. The last layers learn on top of random features, and
    the loss falls to a poor value and stays there.

    Example:
        TD-G002 warning: gradients vanish in 6 parameters (3.1e-09 at 0.weight, 0.42 at 10.weight), rank 0

    What to do: Residual connections, a normalisation, ReLU or GELU in place of sigmoid and tanh, an
    initialisation that fits the activation. With fp16, see the flag AMP: small gradients may be rounded to
    zero.

    Thresholds: GRADIENTS.vanishing, 1e-6 by default, as older debugging guides have it; 6 sampled steps without
    growth leave out gates and adapters that begin at zero. Biases are left out: before a normalisation their
    gradient is zero but for rounding.
    """

    code = "TD-G002"
    title = "vanishing gradients"
    severity = "warning"
    observes = (GradientNorms,)
    kept = Reported

    def evaluate(self, process: ProcessDir, state: Reported, seen: GradientNorms) -> Finding | None:
        lasting = seen.get_lasting_row("vanishing")
        if state.is_reported or not lasting or lasting["count"] < LEAST:
            return None
        state.is_reported = True
        names = lasting["names"]
        return self.make_finding(
            f"gradients vanish in {format_count(lasting['count'], 'parameter')} ({format_figure(lasting.get('norm'))} at {names[0]},"
            f" {format_figure(seen.largest)} at {seen.largest_name}), {process.display_name}",
            first_step=lasting["since"],
            rank=process.rank,
            phase="gradient",
            module=names[0].rpartition(".")[0],
            evidence=[
                f"{format_count(lasting['looks'], 'consecutive sampled step')}, from step {lasting['since']} to {seen.step}:"
                f" {join_limited(names, 4)}",
            ],
            cause="saturating activations, or too many layers without a skip connection",
            try_next="use residual connections, normalisation, another activation or initialisation; --flag BACKWARD shows where",
        )
