"""TD-P117: products of float32 without TF32."""

from tdbg.core.rule_base import Needs
from tdbg.core.tables import format_count
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.rules.p108_tensor_cores import tf32_is_off


@RULES.add
class Tf32Off(Rule):
    """TF32 was left off: products of float32 take the slow units of a device that has it (compute capability 8 and up).

    Signal: the precision of float32 products that the program had set, which `tdbg profile` writes into its traces;
    and the share of matrix kernels that do without tensor cores by their names, a heuristic. "highest" is torch's
    default, so most programs that could use TF32 never asked for it.
    What to do: torch.set_float32_matmul_precision("high"), if 10 bits of mantissa are enough; or torch.autocast.
    """

    code = "TD-P117"
    title = "TF32 is off"
    source = "torch.profiler._pattern_matcher; the share as TD-P108"
    thresholds = {"float32_share": 0.05}
    needs = Needs(fields=("device",))

    def evaluate(self, view: View) -> Advice | Abstain | None:
        read = view.summary
        if read.capability is None or not read.matmul_precision:
            return self.abstain("the trace does not record the float32 matmul precision: only tdbg's own traces do")
        share = view.share("matrix") or 0.0
        if not tf32_is_off(read) or share <= self.limit(view, "float32_share"):
            return None
        most = [one for one in read.kernels if one.kind == "matrix"][:3]
        lines = [f"{one.name[:80]}: {format_count(one.calls, 'call')}, {one.total / 1e6:.3g} ms" for one in most]
        lines += summary_figures.asked_from(read, event_names.PRODUCTS)
        lines += [f"float32_matmul_precision is {read.matmul_precision}"]
        title = f"TF32 is off; matrix kernels without tensor cores take {share:.0%} of the time"
        hint = 'torch.set_float32_matmul_precision("high"), or torch.autocast(dtype=torch.bfloat16)'
        return self.advise(view, "warning", title, lines, hint, share)
