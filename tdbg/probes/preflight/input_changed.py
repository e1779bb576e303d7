"""Each input shuffled over the batch, or changed: the output must depend on it."""

import torch
from torch import Tensor

from tdbg.core.guard import guarded
from tdbg.core.observations.preflight import InputsChanged
from tdbg.probes.preflight.batch_inputs import Input, is_target
from tdbg.probes.preflight.forward_trials import ForwardTrials, Unfit, are_equal

MAX_INPUTS = 16


def try_inputs_changed(trials: ForwardTrials) -> InputsChanged:
    """Which inputs have no effect on anything that the model returns, in train mode with the same random numbers."""
    base = trials.run_forward(trains=True)
    if not are_equal(base, trials.run_forward(trains=True)):
        raise Unfit("the output differs each time, with the same random numbers too")
    seen = InputsChanged()
    for one in trials.inputs[:MAX_INPUTS]:
        changed = None if is_target(one, trials.inputs) else _build_changed_input(one)
        if changed is None:
            continue
        seen.inputs.append(one.name)
        is_ignored = False
        with guarded("the program's forward may refuse such an input: then it reads it", program_code=True):
            is_ignored = are_equal(base, trials.run_forward({id(one.tensor): changed}, trains=True))
        if is_ignored:
            seen.ignored.append(one.name)
    if not seen.inputs:
        raise Unfit("no input that can be changed")
    return seen


def _build_changed_input(one: Input) -> Tensor | None:
    """Its rows in another order; of one whose rows are equal other numbers, if it holds any."""
    tensor = one.tensor.detach()
    if not tensor.dim() or tensor.layout is not torch.strided:
        return None
    rolled = tensor.roll(1, 0)
    if not torch.equal(rolled, tensor):
        return rolled
    if tensor.is_floating_point() and tensor.unique().numel() > 2:  # two values may be a mask
        return tensor * 1.25 + 0.5
    return None
