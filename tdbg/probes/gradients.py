"""Gradient norms, and whether every gradient is finite, before the optimizer uses them."""

import math
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tdbg.core.events import NO_BACKWARD, Number, Params, Step, number
from tdbg.probes import PROBES, Probe
from tdbg.runtime import tensors
from tdbg.runtime.deferred_reads import read_soon
from tdbg.runtime.root_modules import Names
from tdbg.runtime.tensors import find_bad_values, is_sharded, local_elements
from tdbg.runtime.torch_compat import norms_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

# On the steps between samples only the first few small tensors are looked at: a NaN that arises in a
# backward pass travels on to the first layers, and their bias or norm weights are cheap to read.
SMALL_NUMEL = 4096
SMALL_COUNT = 6
NO_GRADIENT = -1.0
NO_BACKWARD_TEXT = (
    "several updates in a row had no call of torch.autograd.backward (torch.autograd.grad, torch.func, a direct call of the"
    " engine): the loss was not checked there; their gradients were, before the updates that were watched"
)
# So long norms from a device are waited for: it finishes the last kernels of backward, or it is far behind.
PATIENCE_S, INSPECTION_PATIENCE_S = 1e-4, 2e-3
STEPS_BY_HAND = 3  # in a row, until a run counts as one without backward passes


@PROBES.add
class GradientNorms(Probe):
    """L2 norm per parameter and in total, before clipping, and the finite check that costs nothing more.

    Reads:  ``grad`` of the parameters of the optimizer that is about to step, any dtype; skips ``None``.
            Once per update: at ``clip_grad_norm_`` if the program clips, else when the update begins,
            else (closures) when backward ends inside the update. Where no backward pass comes before an update of
            the main optimizer, its gradients were set by hand and are read all the same.
    Emits:  ``grad_norm``, ``grad_norms``, ``finite``, ``checked`` of the step record; Params when names change.
    Cost:   one foreach call over all gradients on sampled steps, over a few small tensors on the others;
            on an accelerator the values are read one step late with the record's one copy.
    Raises: nothing; a norm that overflows is confirmed by an exact look before anybody is accused.
    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", section 2.
    """

    name = "gradient-norms"
    levels = ("basic", "advanced", "extreme")

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._names: Names | None = None
        self._named_at = -1  # the step in which names were last looked for anew
        self._numel: list[int] = []  # of the main optimizer's parameters, in the order of the vectors
        self._param_names: list[str] = []
        self._param_key: tuple[int, ...] = ()
        self._unannounced = False
        self._fresh = False
        self._is_handled = False  # a backward pass, or a look, came since the main optimizer's last update
        # Backward passes run inside updates: what an update begins with is of the step before.
        self._has_closures = False
        self._by_hand = 0  # steps in a row whose gradients no backward pass has made
        self._looked: str = "none"
        self._norms: list[float] | None = None
        self._total: float | None = None
        self._finite: bool | None = None
        self._sharded = False
        self._skipped = False
        self._clip_total: Tensor | None = None
        self.total_finite_at = 0  # the last step of which the program's own total norm was finite
        self._clips_main = False
        self._clipped: list[Tensor] = []  # between the begin and the end of clipping

    # when to look

    def backward_begins(self, loss: Tensor | None) -> None:
        self._fresh = self._is_handled = True
        self._by_hand = 0
        self._has_closures = self._has_closures or self.monitor.in_update is not None

    def backward_ended(self) -> None:
        if self.monitor.in_update is not None:  # a closure: this is the only moment before the update
            self._check_optimizer(self.monitor.in_update)

    def clip_begins(self, parameters: list[Tensor]) -> None:
        optimizer = self.monitor.optimizers.find_owner(parameters)
        whole = optimizer is not None and len(parameters) == sum(
            len(group["params"]) for group in optimizer.param_groups
        )
        self._clips_main = whole and optimizer is not None and self.monitor.is_main(optimizer)
        self._clipped = parameters
        if optimizer is not None and (self._fresh or self._are_set_by_hand(optimizer)):
            self._check_optimizer(optimizer)  # all it will update, not just the part that is clipped

    def clip_ended(self, total: object) -> None:
        """The program's own total norm is free: it is looked at on every step, and kept where nothing else is read."""
        if not isinstance(total, Tensor) or total.numel() != 1 or is_sharded(total):
            self._clipped = []
            return
        if self._clips_main:
            self._clip_total = total.detach()
        finite = not tensors.on_host(total) or math.isfinite(total)
        if finite and self._clips_main and tensors.on_host(total):
            self.total_finite_at = self.monitor.step + 1
        if not finite and self._looked != "all" and not self.monitor.scaling:
            overflow = math.isinf(total)  # clipping has made NaN of the Inf that the norm still shows
            self._confirm_suspects(self._clipped, list(range(len(self._clipped))), kind="inf" if overflow else "")
        self._clipped = []

    def update_begins(self, optimizer: "Optimizer") -> None:
        if self._fresh or self._are_set_by_hand(optimizer):
            self._check_optimizer(optimizer)

    def _are_set_by_hand(self, optimizer: "Optimizer") -> bool:
        """True, once a step, if no backward pass came before it: `torch.autograd.grad` and `torch.func` make none."""
        if self._is_handled or self._has_closures or self.monitor.glances or not self.monitor.is_main(optimizer):
            return False
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            return False
        self._is_handled = True
        self._by_hand += 1
        if self._by_hand == STEPS_BY_HAND:
            self.monitor.note(NO_BACKWARD, NO_BACKWARD_TEXT)
        return True

    def _check_optimizer(self, optimizer: "Optimizer") -> None:
        if not (self.monitor.plan.full or self.monitor.plan.small):
            self._fresh = False
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._check_gradients(parameters, main=self.monitor.is_main(optimizer))

    # looking

    def _check_gradients(self, parameters: list[Tensor], *, main: bool) -> None:
        self._fresh = False
        everything = self.monitor.plan.full
        if not everything and not self.monitor.plan.small:
            return
        begun = time.perf_counter()
        if main:
            self._record_parameters(parameters)
        graded = ((i, p.grad) for i, p in enumerate(parameters) if p.grad is not None)
        if everything:
            chosen = list(graded)
        else:
            chosen = list(islice(((i, g) for i, g in graded if g.numel() <= SMALL_NUMEL), SMALL_COUNT))
        if not chosen:
            return
        indices = [index for index, _ in chosen]
        grads = [local_elements(grad) for _, grad in chosen]
        self._sharded = is_sharded(chosen[0][1])
        if not all(map(tensors.on_host, grads)):
            self._keep_on_device(parameters, indices, grads, everything, main)
        else:
            self._read_norms(parameters, indices, grads, everything, main)
        self.monitor.budget.record_cost("full" if everything else "small", time.perf_counter() - begun)

    def _read_norms(
        self, parameters: list[Tensor], indices: list[int], grads: list[Tensor], everything: bool, main: bool
    ) -> None:
        norms = _compute_norms(grads).tolist()
        scale = _fused_scale(self.monitor.in_update)
        if scale != 1.0:
            norms = [norm / scale for norm in norms]
        self._judge_norms(parameters, indices, norms, everything, main)

    def _judge_norms(
        self, parameters: list[Tensor], indices: list[int], norms: list[float], everything: bool, main: bool
    ) -> None:
        """Norms are at hand before the update."""
        total = math.sqrt(sum(norm * norm for norm in norms))
        finite = math.isfinite(total)
        if not finite and self.monitor.scaling and _scaler_will_judge(self.monitor.in_update):
            self._skipped = self.monitor.in_update is not None
            return  # an Inf here is GradScaler's business: it skips the update
        if not finite:
            suspects = [i for i, norm in zip(indices, norms, strict=True) if not math.isfinite(norm)] or indices
            finite = not self._confirm_suspects(parameters, suspects)
        if not main:
            return
        self._looked, self._finite = ("all" if everything else "some"), finite
        if everything and self._norms is None:  # of a closure's evaluations the first is the step's
            self._total = total
            self._norms = [NO_GRADIENT] * len(parameters)
            for index, norm in zip(indices, norms, strict=True):
                self._norms[index] = norm

    def _confirm_suspects(self, parameters: list[Tensor], suspects: list[int], kind: str = "") -> bool:
        """True, and the first-bad report is made, if an exact look confirms a non-finite gradient."""
        if self.monitor.bad_seen:  # said already: a dead run must not cost an exact look a step
            return True
        bad = []
        for index in suspects:
            grad = parameters[index].grad
            if grad is not None:
                found = find_bad_values(grad)
                if found:
                    bad.append((self.name_of(parameters[index]), replace(found, kind=kind) if kind else found))
        if bad:
            self.monitor.alarm.bad_gradients(bad)
        return bool(bad)

    def _keep_on_device(
        self, parameters: list[Tensor], indices: list[int], grads: list[Tensor], everything: bool, main: bool
    ) -> None:
        norms = tensors.compute_norms(grads)
        scale = getattr(self.monitor.in_update, "grad_scale", None)
        if isinstance(scale, Tensor):  # a fused optimizer unscales as it updates
            norms = norms / scale.to(norms.device)
        patience_s = INSPECTION_PATIENCE_S if self.monitor.inspection.is_open else PATIENCE_S
        values = norms.tolist() if self.monitor.settings.stop_before_update else read_soon(norms, patience_s)
        if values is not None:
            self._judge_norms(parameters, indices, values, everything, main)
            return
        judged, keep = self.monitor.scaling and _scaler_will_judge(self.monitor.in_update), everything and main
        names = [self.name_of(parameters[index]) for index in indices]
        self.monitor.read_late(norms, _LateNorms(self, indices, len(parameters), names, keep, judged))
        self._looked = "all" if keep else "some"

    def _record_parameters(self, parameters: list[Tensor]) -> None:
        key = tuple(map(id, parameters))
        if key == self._param_key:
            return
        self._param_key, self._numel = key, [parameter.numel() for parameter in parameters]
        self._names = None
        self._param_names = [self.name_of(parameter) for parameter in parameters]
        self._unannounced = True

    @property
    def model_names(self) -> Names:
        """Names of modules and parameters, read anew when the main optimizer holds other parameters."""
        if self._names is None:
            self._names = Names(self.monitor.trained_roots())
        return self._names

    def name_of(self, parameter: Tensor) -> str:
        """The parameter's path, or its shape where no root holds it."""
        found = self.model_names.parameters.get(id(parameter))
        if found is None and self._named_at != self.monitor.step:  # a layer that came later
            self._names, self._named_at = None, self.monitor.step
            found = self.model_names.parameters.get(id(parameter))
        if found is None:
            shape = "x".join(map(str, parameter.shape)) or "scalar"
            found = f"parameter[{shape}]"
        return found

    # recording

    def _emit_params(self) -> None:
        """Say which parameter stands where in the vectors, before the first vector is written."""
        self._unannounced = False
        roots = self.monitor.trained_roots()
        self.monitor.emit(
            Params(
                names=self._param_names,
                numel=self._numel,
                modules=sum(1 for root in roots for _ in root.modules()),
                roots=[type(root).__name__ for root in roots],
                optimizers=self.monitor.optimizers.list_class_names(),
            )
        )

    def step_ended(self, record: Step, optimizer: "Optimizer") -> None:
        if self._unannounced:
            self._emit_params()
        record.skipped = record.skipped or self._skipped
        record.checked, record.finite, record.sharded = self._looked, self._finite, self._sharded
        total = self._total
        if total is None and self._clip_total is not None and tensors.on_host(self._clip_total):
            total = float(self._clip_total)
        record.grad_norm = number(total)
        if self._norms is not None:
            record.grad_norms = compact_norms(self._norms)

    def after_step(self, optimizer: "Optimizer") -> None:
        if self.monitor.is_main(optimizer):
            self._skipped = self._is_handled = False
            self._looked, self._norms, self._total, self._finite, self._clip_total = "none", None, None, None, None

    def forked(self) -> None:
        self._param_key, self._names = (), None


class _LateNorms:
    """What to do with norms that come from a device one step late."""

    def __init__(
        self, probe: GradientNorms, indices: list[int], count: int, names: list[str], keep: bool, judged: bool
    ) -> None:
        self.probe, self.indices, self.count = probe, indices, count
        self.names, self.keep, self.judged = names, keep, judged

    def __call__(self, values: list[float], record: Step | None) -> None:
        total = math.sqrt(sum(value * value for value in values))
        if record is not None:
            record.finite = math.isfinite(total)
            if self.keep:
                record.grad_norm = number(total)
                norms = [NO_GRADIENT] * self.count
                for index, value in zip(self.indices, values, strict=True):
                    norms[index] = value
                record.grad_norms = compact_norms(norms)
        if not math.isfinite(total) and not self.judged:  # GradScaler skips such an update: no fault
            bad = [name for name, value in zip(self.names, values, strict=True) if not math.isfinite(value)]
            kind = "nan" if any(map(math.isnan, values)) else ("inf" if bad else "")
            self.probe.monitor.alarm.bad_late(bad or self.names, record, kind)


def _scaler_will_judge(optimizer: object) -> bool:
    """True before ``scaler.step``, and inside it for fused optimizers, which skip by themselves."""
    return optimizer is None or getattr(optimizer, "found_inf", None) is not None


def _fused_scale(optimizer: object) -> float:
    """The scale still on the gradients: fused optimizers unscale as they update."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if isinstance(scale, Tensor) and tensors.on_host(scale) else 1.0


def _compute_norms(grads: list[Tensor]) -> Tensor:
    first = grads[0].dtype
    if first.itemsize <= 2 or any(grad.dtype != first for grad in grads):  # in half precision a norm overflows early
        return tensors.compute_norms(grads)
    return torch.stack(norms_of(grads))


def compact_norms(values: list[float]) -> list[Number]:
    """Norms as JSON carries them: six significant digits, non-finite ones as words."""
    return [float(f"{value:.6g}") if math.isfinite(value) else number(value) or 0.0 for value in values]
