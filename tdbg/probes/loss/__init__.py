"""Diagnostics of losses that a program calls itself: label hierarchies, null labels, class weights, GradNorm.

    from tdbg.probes import loss

    loss.null_masking(targets, masked, null_index=0, probability=0.5)

| function | flag | tells |
|---|---|---|
| `taxonomy_hierarchy` | LOSS.TAXONOMY_SMOOTHING | roots, metaclades, depth, orphans, cycles of a label hierarchy |
| `taxonomy_distances` | LOSS.TAXONOMY_SMOOTHING | whether a matrix of class distances is one, and comes from a tree |
| `taxonomy_matrix` | LOSS.TAXONOMY_SMOOTHING | whether the rows of a smoothing matrix do what they are meant to |
| `taxonomy_forward` | LOSS.TAXONOMY_SMOOTHING | sample by sample: true class, where the mass went, loss with and without |
| `null_masking` | LOSS.NULL_MASKING | target formats, how nulls were found, counts, probability asked and realised |
| `class_weighting` | LOSS.CLASS_WEIGHTING | weights, effective sample numbers, several weightings together |
| `class_losses` | LOSS.CLASS_WEIGHTING | the share of the loss per class |
| `gradnorm_memory` | LOSS.GRADNORM_MEMORY | memory through GradNorm's extra passes, tensor by tensor; leaks |
| `gradnorm_metrics` | LOSS.GRADNORM_METRICS | losses, rates, gradient norms, target norms, weights, drift |
| `gradnorm_values` | LOSS.VERBOSE_GRADNORM_LOGGING | every intermediate value of an update |
| `is_on` | | whether a flag is on, for arguments that cost something to make |
| `forget` | | what earlier calls left is forgotten: a new training in the same process |

All of them do the same: while their flag is off, and inside torch.compile, they return None within a microsecond and
touch no tensor, so the calls may stay in the program for good. While it is on (`tdbg run --flag`, `enable_debugging`,
or the variable TDBG_FLAGS outside of a run) they return a report (`findings`, `as_dict()`), write it whole under the
flag's tag into the rank's debug log (outside of a run to the logger ``tdbg``), and hand each new finding to the
verdict, with step and rank. ``always=True`` makes the report whatever the flag is: then wrong arguments raise
`TdbgError`; otherwise a call that fails says so in the log, once, and training goes on. No random number is drawn, no
gradient recorded, no collective issued; of tensors on an accelerator values are read, which waits.
`--steps`, `--every` and `--ranks` of `tdbg run` hold here too.
"""

from tdbg.probes.loss.class_reports import ClassLosses, ClassWeighting
from tdbg.probes.loss.class_weighting import class_losses, class_weighting
from tdbg.probes.loss.gradnorm_memory import GradNormMemory, MemoryWatch, gradnorm_memory
from tdbg.probes.loss.gradnorm_metrics import GradNormMetrics, gradnorm_metrics
from tdbg.probes.loss.loss_report import Fault, Report, forget, is_on
from tdbg.probes.loss.null_masking import NullMasking, NullTask, null_masking
from tdbg.probes.loss.taxonomy_reports import Distances, Forward, Hierarchy, SmoothingMatrix
from tdbg.probes.loss.taxonomy_smoothing import (
    taxonomy_distances,
    taxonomy_forward,
    taxonomy_hierarchy,
    taxonomy_matrix,
)
from tdbg.probes.loss.verbose_gradnorm_logging import GradNormValues, gradnorm_values

__all__ = [
    "ClassLosses",
    "ClassWeighting",
    "Distances",
    "Fault",
    "Forward",
    "GradNormMemory",
    "GradNormMetrics",
    "GradNormValues",
    "Hierarchy",
    "MemoryWatch",
    "NullMasking",
    "NullTask",
    "Report",
    "SmoothingMatrix",
    "class_losses",
    "class_weighting",
    "forget",
    "gradnorm_memory",
    "gradnorm_metrics",
    "gradnorm_values",
    "is_on",
    "null_masking",
    "taxonomy_distances",
    "taxonomy_forward",
    "taxonomy_hierarchy",
    "taxonomy_matrix",
]
