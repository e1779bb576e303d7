"""Another token at the last position of each sequence: in a model that predicts the next one, nothing before may change."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from tdbg.core.observations.preflight import LastTokenChanged
from tdbg.probes.preflight.batch_inputs import Input, Samples
from tdbg.probes.preflight.forward_trials import ForwardTrials, Unfit, find_largest_element, is_change, pair_outputs
from tdbg.runtime.torch_compat import saved_target

MAX_NODES = 512
LEAST_POSITIONS = 4
LEAST_COMPARED = 16  # targets that must be the next tokens


def find_targets(loss: Tensor) -> list[Tensor]:
    """Copies of the class indices that the cross-entropies behind a loss were given."""
    found: list[Tensor] = []
    seen, waiting = {loss.grad_fn}, deque([loss.grad_fn])
    while waiting and len(seen) < MAX_NODES:
        node: Any = waiting.popleft()
        target = saved_target(node)
        if target is not None and not (target.is_floating_point() or target.is_complex()):
            found.append(target.detach().clone())
        for below, _ in node.next_functions if node is not None else ():
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return found


def try_last_token_changed(trials: ForwardTrials, samples: Samples, targets: list[Tensor]) -> LastTokenChanged:
    """At how many earlier positions the output changes, and in which layer first."""
    tokens = _find_tokens(samples, targets)
    last = tokens.tensor.size(1) - 1
    others = {id(tokens.tensor): _with_other_last(tokens.tensor)}
    own = other = scale = 0.0
    leaking = torch.zeros(last, dtype=torch.bool)
    for before, after in pair_outputs(trials.run_forward(), trials.run_forward(others)):
        rows = _by_position(after - before, tokens.tensor.shape)
        if rows is None:
            continue
        moved = torch.nan_to_num(rows.abs(), 0.0, 0.0, 0.0)
        moved = moved.transpose(0, 1).reshape(last + 1, -1).amax(1).cpu()
        own, scale = max(own, float(moved[last])), max(scale, find_largest_element(before.abs()))
        other = max(other, find_largest_element(moved[:last]))
        leaking |= torch.tensor([is_change(float(one), max(own, other), scale) for one in moved[:last]])
    if not scale:
        raise Unfit("no output has a row for each position")
    seen = LastTokenChanged(
        input=tokens.name,
        positions=last,
        leaking=int(leaking.sum()),
        ratio=float(f"{other / own:.3g}") if own else float(other > 0.0),
    )
    if seen.leaking:
        layer = trials.find_layer(others, lambda output: _earlier_of(output, tokens.tensor.shape))
        seen.module, seen.module_class = layer or (None, None)
    return seen


def _by_position(output: Tensor, shape: torch.Size) -> Tensor | None:
    """The output with a row for each position: as it is, with classes in the middle, or one row for each token."""
    count, length = shape
    if output.dim() >= 2 and output.shape[:2] == shape:
        return output
    if output.dim() == 3 and (output.size(0), output.size(2)) == (count, length):
        return output.transpose(1, 2)
    if output.dim() == 2 and output.size(0) == count * length:
        return output.reshape(count, length, -1)
    return None


def _find_tokens(samples: Samples, targets: list[Tensor]) -> Input:
    """The one input whose next tokens are the targets of a cross-entropy."""
    inputs = [one for one in samples.inputs if one.is_index and one.tensor.dim() == 2]
    if not inputs:
        raise Unfit("no integer input")
    if not targets:
        raise Unfit("no cross-entropy over classes was seen")
    found = [one for one in inputs if any(_is_shifted(one.tensor, target) for target in targets)]
    labelled = {one.name.rpartition(".")[2] for one in found} & {"labels", "label", "targets", "target"}
    found = [one for one in found if one.name.rpartition(".")[2] not in labelled]
    if len(found) != 1:
        raise Unfit("targets are not the next tokens" if not found else "several inputs hold the same tokens")
    if found[0].tensor.size(1) < LEAST_POSITIONS:
        raise Unfit("sequences are too short")
    return found[0]


def _is_shifted(tokens: Tensor, target: Tensor) -> bool:
    """True if the target at each position is the token at the next one, but for targets that are left out (negative)."""
    count, length = tokens.shape
    for width in (length, length - 1):
        if target.numel() == count * width and width:
            rows = target.reshape(count, width)[:, : length - 1]
            counts = rows >= 0
            same = counts & (rows == tokens[:, 1:])
            stays = counts & (rows == tokens[:, : length - 1])
            return int(counts.sum()) >= LEAST_COMPARED and torch.equal(same, counts) and not torch.equal(stays, counts)
    return False


def _with_other_last(tokens: Tensor) -> Tensor:
    """A token that stands elsewhere in the batch at the end of each row."""
    known = tokens.unique()
    if known.numel() < 2:
        raise Unfit("all tokens are equal")
    changed = tokens.detach().clone()
    place = torch.searchsorted(known, tokens[:, -1].contiguous())
    changed[:, -1] = known[(place + 1) % known.numel()]
    return changed


def _earlier_of(output: Tensor, shape: torch.Size) -> Tensor | None:
    if output.dim() < 2 or output.shape[:2] != shape or not output.is_floating_point():
        return None
    sums = output.reshape(*shape, -1).double().sum(2)[:, :-1]
    return (sums / sums.abs().amax().clamp_min(1e-30)).float()
