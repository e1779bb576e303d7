"""TD-N005: a module puts out nothing but zeros."""

from tdbg.core.events import Finding
from tdbg.core.observations.forward import ModuleOutputs
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule, Reported
from tdbg.rules._streaks import Streaks
from tdbg.rules.text import format_modules

LOOKS = 5
FIRST_STEPS = 3  # a module whose weights start at zero (LoRA, a residual's last layer) is past that by then


class _State(Reported):
    def __init__(self) -> None:
        self.dead = Streaks()


@RULES.add
class DeadModule(ObservingRule[_State]):
    """Says when a module's output is zero all over in consecutive sampled steps.

    What it does: With the flag FORWARD, or from level advanced, it follows the leaf modules whose sampled
    output is entirely zero. It speaks when one has been so in 5 consecutive sampled steps, after step 3.

    Why it matters: No gradient passes a dead ReLU: what lies before it along that path stops learning, and the
    loss may still fall through other paths, only slower and to a worse place.

    Example:
        TD-N005 warning: the output of module "blocks.2.act" has been zero since step 4, rank 0

    What to do: Look at the bias and the scale of the layer before it, lower the learning rate or lengthen the
    warm-up, or use an activation with a slope on both sides (LeakyReLU, GELU). An input that is all zeros does
    it as well: see the flag DATALOADER.

    Thresholds: 5 sampled steps; 99.9 % of a sample of 1,024 elements (SageMaker Debugger's DeadRelu speaks of
    layers half of whose units are inactive; a whole layer leaves no doubt).
    """

    code = "TD-N005"
    title = "a module's output is zero"
    severity = "warning"
    leads_to = tuple(Link(code, same=("rank",)) for code in ("TD-G002", "TD-G003", "TD-G005"))  # of layers before it
    observes = (ModuleOutputs,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: ModuleOutputs) -> Finding | None:
        if seen.step <= FIRST_STEPS or seen.zero_share is None:
            return None
        dead = [path for path in seen.dead or () if path]  # what a whole model puts out may well be zero
        state.dead.add_sample(seen, dead)
        lasting = state.dead.find_lasting(LOOKS, dead)
        if not lasting or state.is_reported:
            return None
        state.is_reported = True
        since = state.dead.since[lasting[0]]
        return self.make_finding(
            f"the output of {format_modules(lasting[:1])} has been zero since step {since}, {process.display_name}",
            first_step=since,
            rank=process.rank,
            phase="forward",
            module=lasting[0],
            evidence=[f"all zero in {LOOKS} consecutive sampled steps: {format_modules(lasting, 4)}"],
            cause="dead units: a bias far below zero, an update that was too large, or an input of zeros",
            try_next="use a lower learning rate, LeakyReLU or GELU; see the TD-D findings if the input itself is zero",
        )
