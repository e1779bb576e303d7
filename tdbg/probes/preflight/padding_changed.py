"""Other values at padded positions: the outputs at real ones must stay as they are."""

from typing import NamedTuple

import torch
from torch import Tensor

from tdbg.core.observations.preflight import PaddingChanged
from tdbg.probes.preflight.batch_inputs import Input, Samples, is_target
from tdbg.probes.preflight.forward_trials import (
    ForwardTrials,
    Outputs,
    Unfit,
    are_equal,
    find_largest_element,
    is_change,
    pair_outputs,
)


class _Padding(NamedTuple):
    """What is padded, and by what the model is told of it."""

    data: Input
    mask: Input
    real: Tensor  # (samples, positions): True where it is no padding
    whole: Tensor  # the mask of a batch without padding


def try_padding_changed(trials: ForwardTrials, samples: Samples) -> PaddingChanged:
    """Whether padding reaches the outputs of real positions, and whether its mask has any effect."""
    padding = _find_padding(samples)
    data, real = padding.data.tensor, padding.real
    per_sample = getattr(getattr(trials.model, "config", None), "pad_token_id", None) is None
    base = trials.run_forward()
    changed = trials.run_forward({id(data): _with_other_padding(data, real)})
    rows, moved = _measure_padding_change(base, changed, real, per_sample=per_sample)
    without = trials.run_forward({id(padding.mask.tensor): padding.whole})
    mask_works = not are_equal(*(_select_real_outputs(one, real, per_sample=per_sample) for one in (base, without)))
    return PaddingChanged(
        input=padding.data.name,
        mask=padding.mask.name,
        padded=int((~real).sum()),
        leaks=is_change(moved, rows, rows),
        mask_works=mask_works,
    )


def _find_padding(samples: Samples) -> _Padding:
    inputs = [one for one in samples.inputs if not is_target(one, list(samples.inputs))]
    found: list[_Padding] = []
    has_mask = False
    for mask in inputs:
        for real, whole in _read_mask(mask.tensor, inputs):
            has_mask = True
            found += [
                _Padding(data, mask, real, whole) for data in inputs if data is not mask and _is_padded(data, real)
            ]
    if not has_mask:
        raise Unfit("no input says what is padding")
    if not found:
        raise Unfit("no padding at the end of sequences")
    return found[0]


def _is_padded(data: Input, real: Tensor) -> bool:
    """True if one value stands at all padded positions, and others at real ones."""
    if data.tensor.dim() < 2 or data.tensor.shape[:2] != real.shape:
        return False
    return _is_constant(data.tensor[~real]) and not _holds_only(data.tensor[real], data.tensor[~real])


def _read_mask(tensor: Tensor, inputs: list[Input]) -> list[tuple[Tensor, Tensor]]:
    """Each reading of an input as a mask: what is real, and the mask where all is."""
    found = []
    if tensor.dim() == 2 and tensor.dtype is not torch.complex64 and 0 < int((tensor != 0).sum()) < tensor.numel():
        if bool(((tensor == 0) | (tensor == 1)).all()):
            for real, value in ((tensor != 0, 1), (tensor == 0, 0)):
                if _is_prefix(real):
                    found.append((real, torch.full_like(tensor, value)))
    elif tensor.dim() == 1 and not tensor.is_floating_point() and tensor.dtype is not torch.bool:
        longest = int(tensor.max())
        for data in inputs:
            if data.tensor.dim() > 1 and data.tensor.size(1) == longest and int(tensor.min()) > 0:
                real = torch.arange(longest, device=tensor.device)[None] < tensor[:, None]
                if not bool(real.all()):
                    found.append((real, torch.full_like(tensor, longest)))
                    break
    return found


def _is_prefix(real: Tensor) -> bool:
    """True if each row begins with what is real, and padding follows."""
    return bool(real[:, 0].all()) and not bool((real[:, 1:] & ~real[:, :-1]).any())


def _is_constant(values: Tensor) -> bool:
    return bool(values.numel()) and bool((values == values.reshape(-1)[0]).all())


def _holds_only(values: Tensor, others: Tensor) -> bool:
    return bool((values == others.reshape(-1)[0]).all())


def _with_other_padding(data: Tensor, real: Tensor) -> Tensor:
    """What stands at real positions, in the order of the batch, at the padded ones."""
    changed = data.detach().clone()
    known = data.detach()[real]
    differs = known[(known != data[~real].reshape(-1)[0]).reshape(len(known), -1).any(1)]
    count = int((~real).sum())
    changed[~real] = differs[torch.arange(count, device=data.device) % len(differs)]
    return changed


def _select_real_outputs(outputs: Outputs, real: Tensor, *, per_sample: bool) -> Outputs:
    """Outputs at real positions, and those of whole samples."""
    found = {}
    for name, tensor in outputs.items():
        if tensor.dim() > 1 and tensor.shape[:2] == real.shape:
            found[name] = tensor[real.to(tensor.device)]
        elif per_sample and tensor.dim() and tensor.size(0) == real.size(0) and real.size(1) not in tensor.shape[1:]:
            found[name] = tensor
    return found


def _measure_padding_change(base: Outputs, changed: Outputs, real: Tensor, *, per_sample: bool) -> tuple[float, float]:
    """The largest output, and the largest change."""
    scale = moved = 0.0
    for before, after in pair_outputs(
        *(_select_real_outputs(one, real, per_sample=per_sample) for one in (base, changed))
    ):
        scale, moved = (
            max(scale, find_largest_element(before.abs())),
            max(moved, find_largest_element((after - before).abs())),
        )
    if not scale:
        raise Unfit("no output has a row for each position or sample")
    return scale, moved
