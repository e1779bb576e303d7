"""TD-G005: the gradient vanishes, or ends, on its way back through the model."""

from tdbg.core.events import Finding
from tdbg.core.observations.backward import ModuleGradients
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, ObservingRule
from tdbg.rules._streaks import Streaks
from tdbg.rules.text import format_figure, format_modules
from tdbg.rules.view import to_finite

LOOKS = 5
CUT = "something between them multiplies by 0 (a mask, a zero weight or scale, dead units), or it underflows on the way"
LOOK_BETWEEN = "look for what is exactly 0 in the forward pass between them: --flag FORWARD"


class _State:
    vanished: int = 0
    since: int = 0
    is_reported: bool = False

    def __init__(self) -> None:
        self.unreached = Streaks()


@RULES.add
class GradientFlow(ObservingRule[_State]):
    """Says when almost no gradient arrives at the first layers, or none at a layer that is to be trained.

    What it does: With the flag BACKWARD it compares the gradient at the output of the first module with that of
    the last. It speaks when their ratio lies below BACKWARD.ratio in 5 consecutive sampled steps, and when no
    gradient reached a trainable module's output, although it took part in the forward pass, in 5 consecutive
    sampled steps.

    Why it matters: Layers that get no gradient keep their initial values. The model learns with what is left of
    it, and the loss curve looks merely disappointing.

    Example:
        TD-G005 warning: the gradient falls from 0.71 at module "head" to 3.2e-12 at module "layers.0", rank 0

    What to do: Residual connections, normalisation, another activation or initialisation where it vanishes (the
    ``flow`` of the observations shows where); where none arrives, look for ``detach()``, ``no_grad``, an
    ``argmax`` or a branch whose result the loss never uses.

    Thresholds: BACKWARD.ratio, 1e-6 by default: healthy models of 100 layers stay within some orders of
    magnitude (Glorot and Bengio 2010; Pascanu et al. 2013); 5 sampled steps.
    """

    code = "TD-G005"
    title = "gradient vanishes on its way back"
    severity = "warning"
    observes = (ModuleGradients,)
    kept = _State

    def evaluate(self, process: ProcessDir, state: _State, seen: ModuleGradients) -> Finding | None:
        if state.is_reported:
            return None
        unreached = seen.unreached or []
        state.unreached.add_sample(seen, unreached)
        lasting = state.unreached.find_lasting(LOOKS, unreached)
        state.vanished = state.vanished + 1 if seen.vanishes else 0
        if state.vanished == 1:
            state.since = seen.step
        if lasting:
            state.is_reported = True
            return self._make_unreached_finding(process, seen, lasting)
        if state.vanished >= LOOKS:
            state.is_reported = True
            return self._make_vanishing_finding(process, state, seen)
        return None

    def _make_unreached_finding(self, process: ProcessDir, seen: ModuleGradients, names: list[str]) -> Finding:
        return self.make_finding(
            f"no gradient reaches {format_modules(names, 3)}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="backward",
            module=names[0],
            evidence=[f"{LOOKS} consecutive sampled steps, up to step {seen.step}: forward ran, no gradient came back"],
            cause="its output is detached, or the loss does not use it",
            try_next="look for detach(), no_grad or argmax after it; freeze it if that is intended",
        )

    def _make_vanishing_finding(self, process: ProcessDir, state: _State, seen: ModuleGradients) -> Finding:
        first, last = to_finite(seen.first), to_finite(seen.last)
        return self.make_finding(
            f"the gradient falls from {format_figure(last)} at {format_modules([seen.last_module])} to {format_figure(first)} at"
            f" {format_modules([seen.first_module])}, {process.display_name}",
            first_step=state.since,
            rank=process.rank,
            phase="backward",
            module=seen.first_module,
            evidence=[f"{LOOKS} consecutive sampled steps, from step {state.since} to {seen.step}"],
            cause=CUT if first == 0 else "too many saturating or shrinking layers in a row",
            try_next=LOOK_BETWEEN
            if first == 0
            else "use residual connections, normalisation or another initialisation; the field `flow` of the observations shows where the gradient falls",
        )
