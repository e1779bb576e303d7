"""One sample of the batch in the place of another: the outputs of the other samples must stay as they are."""

from functools import partial

import torch
from torch import Tensor

from tdbg.core.observations.preflight import SampleChanged
from tdbg.probes.preflight.batch_inputs import Samples
from tdbg.probes.preflight.forward_trials import ForwardTrials, Outputs, Unfit, is_change, largest, pair_outputs

MAX_TRIES = 3


def try_sample_changed(trials: ForwardTrials, samples: Samples, *, from_loader: bool) -> SampleChanged:
    """How many other samples change their output, and in which layer first."""
    base = trials.run()
    unfit = Unfit("all samples of the batch are equal")
    for place in range(min(MAX_TRIES, samples.size)):
        others = _put_other_at(samples, place)
        if others is None:
            continue
        try:
            changes, scale = _measure(base, trials.run(others), samples.size)
        except Unfit as reason:  # the longest sequence may give the output its length
            unfit = reason
            continue
        own = float(changes[place])
        rest = torch.cat([changes[:place], changes[place + 1 :]])
        if own == 0.0 and largest(rest) == 0.0:
            unfit = Unfit("the output does not depend on the sample")
            continue
        mixed = sum(is_change(float(one), max(own, largest(rest)), scale) for one in rest)
        seen = SampleChanged(
            samples=samples.size, from_loader=from_loader, mixed=mixed, ratio=_ratio(largest(rest), own)
        )
        if mixed:
            layer = trials.find_layer(others, partial(_others_of, count=samples.size, place=place))
            seen.module, seen.module_class = layer or (None, None)
        return seen
    raise unfit


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


def _measure(base: Outputs, changed: Outputs, count: int) -> tuple[Tensor, float]:
    """The largest change of each sample's outputs, and the largest output. Tables over pairs of samples are left out."""
    changes, scale = torch.zeros(count), 0.0
    for before, after in pair_outputs(base, changed):
        if before.dim() and before.size(0) == count and count not in before.shape[1:]:
            moved = torch.nan_to_num((after - before).abs().reshape(count, -1), 0.0, 0.0, 0.0)
            changes = torch.maximum(changes, moved.amax(1).cpu())
            scale = max(scale, largest(before.abs()))
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


def _ratio(other: float, own: float) -> float:
    return float(f"{other / own:.3g}") if own else 1.0
