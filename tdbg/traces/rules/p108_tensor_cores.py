"""TD-P108: matrix products without tensor cores."""

from tdbg.core.rule_base import Needs
from tdbg.core.tables import format_count
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.summary import Summary


def tf32_is_off(read: Summary) -> bool:
    """True if the device has TF32, and the trace tells that products of float32 do without it."""
    return (read.capability or (0, 0))[0] >= 8 and read.matmul_precision == "highest"


@RULES.add
class TensorCores(Rule):
    """The device's tensor cores stand still, although it multiplies matrices: no kernel's name speaks of them.

    Signal: the share of a step in which kernels of matrix products run by their names, a heuristic and told as such; a
    device of compute capability 7 or higher. Products of any precision count. Where the trace tells that TF32 is off on
    a device that has it, that is the cause, and TD-P117 speaks instead.
    What to do: torch.autocast with bfloat16, or torch.set_float32_matmul_precision("high"); sizes divisible by 8.
    """

    code = "TD-P108"
    title = "no tensor cores"
    source = "TensorBoard profiler plugin"
    thresholds = {"matrix_share": 0.05}
    needs = Needs(fields=("device",))

    def evaluate(self, view: View) -> Advice | Abstain | None:
        read = view.summary
        if read.capability is None:
            return self.abstain("the trace does not record the device's compute capability")
        share = view.share("matrix") or 0.0
        if (
            read.capability[0] < 7
            or summary_figures.sum_kernel_families(read.kernels).get("tensor")
            or share <= self.limit(view, "matrix_share")
        ):
            return None
        if tf32_is_off(read):
            return None
        most = [one for one in read.kernels if one.kind == "matrix"][:3]
        lines = [f"{one.name[:80]}: {format_count(one.calls, 'call')}, {one.total / 1e6:.3g} ms" for one in most]
        lines += summary_figures.asked_from(read, event_names.PRODUCTS)
        title = f"no kernel name shows tensor cores; matrix kernels take {share:.0%} of the time"
        hint = 'torch.autocast(dtype=torch.bfloat16), or torch.set_float32_matmul_precision("high")'
        return self.advise(view, "warning", title, lines, hint, share)
