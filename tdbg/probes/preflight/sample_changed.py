"""One sample of the batch in the place of another: the outputs of the other samples must stay as they are."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tdbg.core.guard import guarded
from tdbg.core.observations.preflight import SampleChanged
from tdbg.probes.preflight.batch_inputs import Samples
from tdbg.probes.preflight.forward_trials import (
    ForwardTrials,
    Outputs,
    Unfit,
    find_largest_element,
    is_change,
    pair_outputs,
)
from tdbg.runtime.torch_compat import DispatchMode, sees_operators

MAX_TRIES = 3


def try_sample_changed(trials: ForwardTrials, samples: Samples, *, from_loader: bool) -> SampleChanged:
    """How many other samples change their output, and in which layer first."""
    base = trials.run_forward()
    unfit = Unfit("all samples of the batch are equal")
    for place in range(min(MAX_TRIES, samples.size)):
        others = _put_other_at(samples, place)
        if others is None:
            continue
        try:
            changes, scale = _measure_sample_changes(base, trials.run_forward(others), samples.size)
        except Unfit as reason:  # the longest sequence may give the output its length
            unfit = reason
            continue
        own = float(changes[place])
        rest = torch.cat([changes[:place], changes[place + 1 :]])
        if own == 0.0 and find_largest_element(rest) == 0.0:
            unfit = Unfit("the output does not depend on the sample")
            continue
        mixed = sum(is_change(float(one), max(own, find_largest_element(rest)), scale) for one in rest)
        seen = SampleChanged(
            samples=samples.size,
            from_loader=from_loader,
            mixed=mixed,
            ratio=_compute_ratio(find_largest_element(rest), own),
        )
        if mixed:
            seen.pairs = compares_samples(trials, samples)
            layer = trials.find_layer(others, partial(_others_of, count=samples.size, place=place))
            seen.module, seen.module_class = layer or (None, None)
        return seen
    raise unfit


def compares_samples(trials: ForwardTrials, samples: Samples) -> bool:
    """True if the forward makes one matrix over pairs of samples: attention over the batch, a kernel, a contrast.

    A layer that takes samples for positions makes one for each position, from inputs that have positions.
    """
    if not sees_operators or samples.size < 3:
        return False
    has_positions = any(one.tensor.dim() > 2 for one in samples.inputs)
    for count in (samples.size, samples.size - 1):  # another dimension may have the size of one batch by chance
        fewest = 0
        with guarded("a forward may need the size of its batch", program_code=True):
            watch = _PairWatch(count)
            with watch:
                trials.run_forward({id(one.tensor): one.tensor.detach()[:count] for one in samples.inputs})
            fewest = watch.fewest
        if not (fewest == 1 or (fewest > 1 and not has_positions)):
            return False
    return True


class _PairWatch(DispatchMode):
    """Looks for matrices over pairs of samples. fewest: how many of them an operator made at once; 0: none."""

    supports_higher_order_operators = True

    def __init__(self, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.fewest = count, 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        output = func(*args, **(kwargs or {}))
        if "scaled_dot_product" in str(func):
            first, second = args[:2]
            if isinstance(first, Tensor) and isinstance(second, Tensor):
                self._count_matrices(first.shape[:-2], (first.size(-2), second.size(-2)))
        elif isinstance(output, Tensor) and output.dim() > 1:
            self._count_matrices(output.shape[:-2], tuple(output.shape[-2:]))
        return output

    def _count_matrices(self, leading: torch.Size, pair: tuple[int, ...]) -> None:
        if pair == (self.count, self.count):
            matrices = leading.numel()
            self.fewest = min(self.fewest, matrices) if self.fewest else matrices


def _put_other_at(samples: Samples, place: int) -> dict[int, Tensor] | None:
    """The inputs with another sample at ``place``; None if all are equal to it."""
    for other in range(samples.size):
        if all(torch.equal(one.tensor[place], one.tensor[other]) for one in samples.inputs):
            continue
        changed = {}
        for one in samples.inputs:
            changed[id(one.tensor)] = copy = one.tensor.detach().clone()
            copy[place] = one.tensor[other].detach()
        return changed
    return None


def _measure_sample_changes(base: Outputs, changed: Outputs, count: int) -> tuple[Tensor, float]:
    """The largest change of each sample's outputs, and the largest output. Tables over pairs of samples are left out."""
    changes, scale = torch.zeros(count), 0.0
    for before, after in pair_outputs(base, changed):
        if before.dim() and before.size(0) == count and count not in before.shape[1:]:
            moved = torch.nan_to_num((after - before).abs().reshape(count, -1), 0.0, 0.0, 0.0)
            changes = torch.maximum(changes, moved.amax(1).cpu())
            scale = max(scale, find_largest_element(before.abs()))
    if not scale:
        raise Unfit("no output has a row for each sample")
    return changes, scale


def _others_of(output: Tensor, count: int, place: int) -> Tensor | None:
    """A layer's output without the changed sample; None if its first dimension is another."""
    if not output.dim() or output.size(0) != count or not output.is_floating_point():
        return None
    sums = output.reshape(count, -1).double().sum(1)
    sums[place] = 0.0
    return (sums / sums.abs().amax().clamp_min(1e-30)).float()


def _compute_ratio(other: float, own: float) -> float:
    return float(f"{other / own:.3g}") if own else 1.0
