"""How far an update moves the weights, and what it passes over."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tdbg.core.events import Step
from tdbg.core.observations._lasting import Lasting
from tdbg.core.observations.optimizer import UpdateSizes
from tdbg.probes import Probe
from tdbg.probes.forward import round_number
from tdbg.runtime import tensors
from tdbg.runtime.sampling import select_evenly, view_sample
from tdbg.runtime.torch_compat import norms_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

MAX_NAMES = 8
MAX_PARAMETERS = 64  # whose weights are sampled
ELEMENTS = 64  # of each
STATE_EVERY = 64  # looks between two measurements of the state's size
LASTING = {"none": (10, 12), "stuck": (10, 40)}  # consecutive sampled steps, and steps from first to last
NOISE = 1e-6  # of the median gradient of the model: less is what rounding leaves of zero,
BIAS_NOISE = {4: 0.05, 2: 0.5}  # and in a bias, by bytes of an element, this part of its own weight's gradient


@dataclass(slots=True)
class Moved:
    """A sample of the weights before and after one update: three rows of numbers a parameter."""

    step: int
    names: list[str]
    dtypes: list[str]
    rates: list[float]  # of each parameter's group; NaN where it is not known without waiting
    views: list[Tensor] = field(default_factory=list)  # of the weights, held until the update is over
    before: Tensor | None = None
    wanted: Tensor | None = None  # where the gradient's sample is not zero, nor rounding noise
    rows: Tensor | None = None  # the index of the parameter that each element belongs to


@dataclass(slots=True)
class _Run:
    """Looks in a row in which one parameter had one trouble."""

    step: int
    looks: int = 0


def name_parameter(monitor: "Monitor", parameter: Tensor) -> str:
    """Its name in the trained models, or its shape."""
    named = monitor.find_probe("gradient-norms")
    return str(named.name_of(parameter)) if named is not None else f"parameter{list(parameter.shape)}"


class UpdateSizeWatch:
    """Compares a sample of the weights before and after an update."""

    def __init__(self, probe: Probe) -> None:
        self._probe, self._monitor = probe, probe.monitor
        self.moved: Moved | None = None  # of the update that is going on
        self.looks = 0
        self._key: tuple[int, ...] = ()
        self._anchor: Tensor | None = None  # the sample as it was when each parameter changed last
        self._rows: tuple[tuple[int, ...], Tensor] | None = None
        # of each bias the weight beside it, by the bias' id
        self._weights: dict[int, weakref.ref[Tensor]] | None = None
        self._stuck: dict[int, _Run] = {}
        self._none: dict[str, _Run] = {}
        self._instead: str | None = None  # the model that gets the gradients of those; None: not asked yet
        self._state_mb: float | None = None

    @property
    def is_on(self) -> bool:
        """False once the probe is switched off."""
        return self._probe.on

    def forget(self) -> None:
        """Let go of the weights and of their samples."""
        self.moved, self._anchor, self._rows = None, None, None

    def sample_weights(self, optimizer: "Optimizer") -> None:
        """A sample of the weights as they are before the update."""
        graded, none = [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    graded.append((parameter, group))
                elif parameter.requires_grad and parameter.numel():  # FSDP gives an empty shard no gradient
                    none.append(parameter)
        self._follow_none(none)
        moved = Moved(self._monitor.step + 1, [], [], [])
        grads, sizes, key = [], [], []
        for parameter, group in select_evenly(graded, MAX_PARAMETERS):
            if parameter.grad.layout != torch.strided:  # its rows are not the weight's
                continue
            weight, grad = view_sample(parameter, ELEMENTS), view_sample(parameter.grad, ELEMENTS)
            if weight is None or grad is None or weight.shape != grad.shape or weight.stride() != grad.stride():
                continue
            moved.views.append(weight)
            grads.append(grad)
            sizes.append(weight.numel())
            key.append(id(parameter))
            moved.names.append(name_parameter(self._monitor, parameter))
            moved.dtypes.append(str(parameter.dtype).removeprefix("torch."))
            moved.rates.append(_read_rate(group))
        self.moved = moved
        if not sizes or len({view.device for view in moved.views}) > 1:
            moved.views.clear()
            return
        moved.before = torch.cat(moved.views).float()
        moved.rows = self._rows_of(tuple(sizes), moved.before.device)
        if tuple(key) != self._key or self._anchor is None:
            self._key, self._anchor, self._stuck, self._weights, self._instead = (
                tuple(key),
                moved.before,
                {},
                None,
                None,
            )
        magnitudes = torch.cat(grads).abs().float()
        moved.wanted = magnitudes > self._noise_floors(magnitudes, key)[moved.rows]

    def _noise_floors(self, magnitudes: Tensor, key: Sequence[int]) -> Tensor:
        """Per sampled parameter the size up to which its gradient says nothing.

        A bias before a normalisation, or of the keys of an attention, has no effect, and a gradient of what the sums
        were rounded by: 1e-6 to 1e-2 of its weight's in float32, more in half precision.
        """
        there = torch.where(magnitudes > 0, magnitudes, torch.nan)
        floors = (NOISE * there.nanmedian().nan_to_num()).expand(len(key)).clone()
        if self._weights is None:
            self._weights = _weights_beside(self._monitor.trained_roots())
        pairs = []
        for index, parameter in enumerate(key):
            beside = self._weights.get(parameter)
            weight = beside() if beside is not None else None
            grad = view_sample(weight.grad, ELEMENTS) if weight is not None and weight.grad is not None else None
            if grad is not None and grad.device == floors.device:
                pairs.append((index, grad, BIAS_NOISE.get(grad.element_size(), BIAS_NOISE[4])))
        for (index, grad, share), norm in zip(pairs, _float_norms([grad for _, grad, _ in pairs]), strict=True):
            floors[index] = torch.maximum(floors[index], share * norm / grad.numel() ** 0.5)
        return floors

    def _rows_of(self, sizes: tuple[int, ...], device: torch.device) -> Tensor:
        if self._rows is None or self._rows[0] != sizes or self._rows[1].device != device:
            self._rows = sizes, torch.repeat_interleave(torch.tensor(sizes)).to(device)
        return self._rows[1]

    def _follow_none(self, parameters: list[Tensor]) -> None:
        names = [name_parameter(self._monitor, parameter) for parameter in parameters]
        step = self._monitor.step + 1
        self._none = {name: self._none.get(name) or _Run(step) for name in names}
        for run in self._none.values():
            run.looks += 1

    def compare_sample(self, moved: Moved, optimizer: "Optimizer") -> None:
        self.looks += 1
        if self.looks % STATE_EVERY == 1:
            self._state_mb = _state_mb(optimizer)
        if moved.before is None or moved.rows is None or moved.wanted is None or self._anchor is None:
            self._emit_update_sizes(moved, optimizer, [])
            return
        after = torch.cat(moved.views).float()
        moved.views.clear()
        changed = after != self._anchor
        columns = torch.stack(
            [
                (after - moved.before).square(),
                moved.before.square(),
                (moved.wanted & (after == moved.before)).float(),
                moved.wanted.float(),
                changed.float(),
            ]
        )
        sums = columns.new_zeros(5, len(moved.names)).index_add_(1, moved.rows, columns)
        self._anchor = torch.where((sums[4] > 0)[moved.rows], after, self._anchor)
        read = _Read(self, moved, optimizer)
        if tensors.on_host(sums):
            read(sums.flatten().tolist(), None)
        else:
            self._monitor.read_late(sums.flatten(), read)

    def judge_update(self, moved: Moved, optimizer: "Optimizer", sums: list[list[float]]) -> None:
        """Figures of one look have arrived: squares of update and weight, unmoved, wanted and changed elements."""
        before, self._stuck = self._stuck, {}
        for index, (wanted, changed, rate) in enumerate(zip(sums[3], sums[4], moved.rates, strict=True)):
            if wanted > 0 and changed == 0 and not rate <= 0.0:  # a rate of zero freezes on purpose
                self._stuck[index] = before.get(index) or _Run(moved.step)
                self._stuck[index].looks += 1
        self._emit_update_sizes(moved, optimizer, sums)

    def _emit_update_sizes(self, moved: Moved, optimizer: "Optimizer", sums: list[list[float]]) -> None:
        sizes = UpdateSizes(
            optimizer=type(optimizer).__name__,
            sampled=len(moved.names),
            state_mb=self._state_mb,
            lasting=self._collect_lasting(moved) or None,
        )
        if sums:
            _add_ratios(sizes, moved, sums)
        if self._none:
            names = list(self._none)
            sizes.without_gradient, sizes.without_gradient_count = names[:MAX_NAMES], len(names)
        self._probe.emit(sizes, step=moved.step)

    def _collect_lasting(self, moved: Moved) -> dict[str, Lasting]:
        lasting: dict[str, Lasting] = {}
        none = {name: run for name, run in self._none.items() if _is_lasting("none", run, moved.step)}
        if none:
            lasting["none"] = _build_lasting(list(none), list(none.values()))
            if self._instead is None:
                self._instead = self._monitor.search.trained_instead()
            if self._instead:
                lasting["none"]["other"] = self._instead
        stuck = {index: run for index, run in self._stuck.items() if _is_lasting("stuck", run, moved.step)}
        if stuck:
            first = next(iter(stuck))
            lasting["stuck"] = _build_lasting([moved.names[index] for index in stuck], list(stuck.values()))
            lasting["stuck"]["dtype"], lasting["stuck"]["lr"] = moved.dtypes[first], round_number(moved.rates[first])
        return lasting


class _Read:
    """What to do with the figures of one look, now or when they have come from the device."""

    def __init__(self, sizes: UpdateSizeWatch, moved: Moved, optimizer: "Optimizer") -> None:
        self.sizes, self.moved, self.optimizer = sizes, moved, weakref.ref(optimizer)

    def __call__(self, values: list[float], record: Step | None) -> None:
        optimizer, count = self.optimizer(), len(self.moved.names)
        if optimizer is not None and self.sizes.is_on:
            rows = [values[start : start + count] for start in range(0, 5 * count, count)]
            self.sizes.judge_update(self.moved, optimizer, rows)


def _weights_beside(roots: Iterable[nn.Module]) -> "dict[int, weakref.ref[Tensor]]":
    """Of each bias that is added to a matrix product or a convolution the weight, by the bias' id."""
    found: dict[int, weakref.ref[Tensor]] = {}
    for module in (module for root in roots for module in root.modules()):
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        if weight is not None and bias is not None and weight.ndim > bias.ndim:
            found[id(bias)] = weakref.ref(weight)
    return found


def _float_norms(found: list[Tensor]) -> Sequence[Tensor]:
    return norms_of([one.float() for one in found])


def _add_ratios(sizes: UpdateSizes, moved: Moved, sums: list[list[float]]) -> None:
    ratios = {
        name: (update / weight) ** 0.5
        for name, update, weight in zip(moved.names, sums[0], sums[1], strict=True)
        if weight > 0.0
    }
    wanted = sum(sums[3])
    sizes.unmoved_share = round_number(sum(sums[2]) / wanted) if wanted else None
    sizes.compared = True
    if not ratios:
        return
    order = sorted(ratios, key=ratios.__getitem__)
    low, high, middle = order[0], order[-1], ratios[order[len(order) // 2]]
    sizes.ratio_median = round_number(middle)
    sizes.ratio_largest, sizes.ratio_largest_name = round_number(ratios[high]), high
    sizes.ratio_smallest, sizes.ratio_smallest_name = round_number(ratios[low]), low


def _is_lasting(kind: str, run: _Run, step: int) -> bool:
    looks, steps = LASTING[kind]
    return run.looks >= looks and step - run.step >= steps


def _build_lasting(names: list[str], runs: list[_Run]) -> Lasting:
    return {
        "names": names[:MAX_NAMES],
        "count": len(names),
        "looks": min(run.looks for run in runs),
        "since": min(run.step for run in runs),
    }


def _read_rate(group: dict[str, object]) -> float:
    rate = group.get("lr")
    if isinstance(rate, Tensor):
        return float(rate) if tensors.on_host(rate) else float("nan")
    return float(rate) if isinstance(rate, int | float) else float("nan")


def _state_mb(optimizer: "Optimizer") -> float:
    total = 0
    for state in optimizer.state.values():
        if isinstance(state, dict):
            held = (tensors.to_local_part(value) for value in state.values() if isinstance(value, Tensor))
            total += sum(value.numel() * value.element_size() for value in held)
    return round(total / 1e6, 3)
