"""TD-C009: the model starts from bad values, or its parts do not fit."""

from collections.abc import Iterable

from tdbg.core.events import Finding
from tdbg.core.observations.model_build import InitialWeights, ShapeMismatch
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import join_limited
from tdbg.rules import RULES
from tdbg.rules._kinds import KindsRule
from tdbg.rules.text import clip_text, format_figure


@RULES.add
class BadStart(KindsRule):
    """Says which weights start from NaN or far too large values, and which module's shapes do not fit its input.

    What it does: With the flag MODEL_BUILD (or at level extreme) it looks at every weight before the first update.
    It speaks of weights that are not finite, and of weights of Linear and Conv layers whose standard deviation is
    MODEL_BUILD.init_ratio times that of He's initialisation; small and zero weights may be meant and are only told.
    When an exception about shapes ends the process inside a module, it names the module, what came in, and the
    shapes of its parameters.

    Why it matters: `torch.empty` holds what was in memory before. Weights of standard deviation one multiply the
    signal in every layer, and the loss begins at hundreds. In a traceback of twenty torch frames the module's place
    in the model does not stand at all.

    Example:
        TD-C009 warning: body.2.weight starts at 16x the Kaiming std, rank 0
        TD-C009 error: head (Linear) does not fit at step 1: input [8, 128], weight [10, 64], rank 0

    What to do: `nn.init.kaiming_normal_` or the layer's own `reset_parameters`; print the shape that goes into the
    named module, and compare it with the one it was built for.

    Thresholds: MODEL_BUILD.init_ratio, 10 (as SageMaker Debugger's PoorWeightInitialization has it for variances).
    """

    code = "TD-C009"
    title = "bad initial weights, or shapes that do not fit"
    severity = "warning"
    leads_to = (Link("TD-N001", least=0), Link("TD-R003", least=-1, most=1))
    observes = (InitialWeights, ShapeMismatch)

    def evaluate(self, process: ProcessDir, seen: InitialWeights | ShapeMismatch) -> Iterable[tuple[str, Finding]]:
        if isinstance(seen, ShapeMismatch):
            return [("shape", self._make_shape_finding(process, seen))]
        found = []
        if seen.not_finite:
            found.append(("not finite", self._make_not_finite_finding(process, seen)))
        if seen.too_large:
            found.append(("large", self._make_large_finding(process, seen)))
        return found

    def _make_not_finite_finding(self, process: ProcessDir, seen: InitialWeights) -> Finding:
        names = seen.not_finite
        verb = "holds" if len(names) == 1 else "hold"
        return self.make_finding(
            f"{join_limited(names, 3)} {verb} NaN or Inf before the first update, {process.display_name}",
            severity="error",
            first_step=seen.step,
            rank=process.rank,
            phase="build",
            module=names[0].rpartition(".")[0],
            evidence=[f"not finite: {join_limited(names, 8)}"],
            cause="torch.empty without initialisation, or a bad checkpoint",
            try_next="initialise it, or check the checkpoint that was loaded",
        )

    def _make_large_finding(self, process: ProcessDir, seen: InitialWeights) -> Finding:
        names, ratios = seen.too_large, seen.ratios
        verb = "starts" if len(names) == 1 else "start"
        return self.make_finding(
            f"{join_limited(names, 3)} {verb} at {format_figure(ratios[0] if ratios else None)}x the Kaiming std,"
            f" {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="build",
            module=names[0].rpartition(".")[0],
            evidence=[f"{name}: {format_figure(ratio)}x" for name, ratio in zip(names, ratios, strict=False)],
            cause="torch.randn or normal_(0, 1) is used where the scale must follow the fan-in",
            try_next="use nn.init.kaiming_normal_, or the layer's own reset_parameters",
        )

    def _make_shape_finding(self, process: ProcessDir, seen: ShapeMismatch) -> Finding:
        shown = ", ".join(f"{name} {shape}" for name, shape in list(seen.named_shapes.items())[:4])
        name = f"{seen.module or 'the root'} ({seen.module_class})"
        when = "in its first step" if seen.first else f"at step {seen.step}"
        return self.make_finding(
            f"{name} does not fit its input {when}: {shown}, {process.display_name}",
            severity="error",
            first_step=seen.step,
            rank=process.rank,
            phase="forward",
            module=seen.module,
            evidence=[
                clip_text(seen.error, 200),
                *([f"called at {seen.line}"] if seen.line else []),
            ],
            cause="the layer before it, or the data, has another size than it was built for",
            try_next="compare the input's last (Linear) or second (Conv) dimension with the weight's second",
        )
