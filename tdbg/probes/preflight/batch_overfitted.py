"""One batch trained on alone, by an optimizer of tdbg's, on weights that are put back: its loss must fall."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.core.observations.preflight import BatchOverfitted
from tdbg.probes.loss_calls.call_arguments import LAYOUTS, LossCall
from tdbg.probes.preflight.forward_trials import ForwardTrials, Outputs, Unfit

LOSSES = frozenset(
    (
        *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    )
)
RATES = (1e-2, 1e-3, 1e-4)
UPDATES = 60  # at each rate
TIME_LIMIT_S = 20.0
LEAST_FALL = 0.1
STILL_FALLING = 0.005  # of the first loss, in the last third of the updates
NEAR_ZERO = 1e-3
BETAS, EPS = (0.9, 0.99), 1e-8
MAX_CALLS, MAX_BACKWARDS = 64, 8

Transform = Callable[[Tensor], Tensor]
# From what a model returns to what a loss function is given, before a reshape.
TRANSFORMS: tuple[Transform, ...] = (
    lambda output: output,
    lambda output: output.movedim(1, -1),
    lambda output: output.movedim(-1, 1),
    lambda output: output[:, :-1],
    lambda output: output[:, -1],
    lambda output: output.log_softmax(-1),
    lambda output: output.log_softmax(1),
    lambda output: output.sigmoid(),
)


class RecordedLoss(NamedTuple):
    """One call of a loss function of torch's, with the function itself."""

    name: str
    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class LossRecorder:
    """The calls of loss functions before each of the last backward passes."""

    def __init__(self) -> None:
        self._calls: list[RecordedLoss] = []
        self.of_backwards: deque[list[RecordedLoss]] = deque(maxlen=MAX_BACKWARDS)

    def record_call(
        self, name: str, function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep references to the arguments of a call that gradients go through."""
        given = args[0] if args else None
        if isinstance(given, Tensor) and given.requires_grad and name in LAYOUTS and len(self._calls) < MAX_CALLS:
            self._calls.append(RecordedLoss(name, function, args, kwargs))

    def backward_begins(self) -> None:
        """These calls belong to it."""
        self.of_backwards.append(self._calls)
        self._calls = []


def try_batch_overfitted(trials: ForwardTrials, calls: Sequence[list[RecordedLoss]]) -> BatchOverfitted:
    """Whether the loss of the batch falls, at one of three rates."""
    parameters = [one for one in trials.model.parameters() if one.requires_grad and one.is_floating_point()]
    if not parameters:
        raise Unfit("no parameter needs a gradient")
    if 2 * sum(one.numel() for one in parameters) < sum(one.numel() for one in trials.model.parameters()):
        raise Unfit("most of the weights are frozen")
    name, compute = _find_loss(trials, calls)
    until = time.perf_counter() + TIME_LIMIT_S
    best = BatchOverfitted(loss=name, first=math.inf, last=math.inf, fell=False)
    falls = False
    with _preserve_weights(parameters) as put_back:
        for rate in RATES:
            put_back()
            seen = _train_on_batch(compute, parameters, rate, until)
            seen.loss = name
            falls = falls or seen.falls
            best = seen if seen.cut or seen.last < best.last else best
            if best.fell or best.cut:
                break
            if time.perf_counter() > until:
                raise Unfit(f"{UPDATES} updates at each of {len(RATES)} rates take more than {TIME_LIMIT_S:g} s")
    best.falls = falls
    return best


def _train_on_batch(
    compute: Callable[[], Tensor], parameters: list[nn.Parameter], rate: float, until: float
) -> BatchOverfitted:
    """Adam on the one batch until the loss has fallen."""
    means = [torch.zeros_like(one.data) for one in parameters]
    squares = [torch.zeros_like(one.data) for one in parameters]
    seen = BatchOverfitted(rate=rate, fell=False)
    before_end = math.inf
    for update in range(UPDATES + 1):
        loss = compute()
        value = float(loss.detach())
        if not update:
            if not math.isfinite(value) or value < NEAR_ZERO:
                raise Unfit(f"the loss is {value:.3g} before the first update")
            seen.first = seen.last = value
        if math.isfinite(value) and value < seen.last:
            seen.last, seen.updates = value, update
        seen.fell = seen.last <= (1.0 - LEAST_FALL) * seen.first
        if update == UPDATES * 2 // 3:
            before_end = seen.last
        if seen.fell or not math.isfinite(value) or update == UPDATES or time.perf_counter() > until:
            break
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
        if all(grad is None for grad in grads):
            if any(parameter.grad is not None for parameter in parameters):  # the program's own backward pass differs
                raise Unfit("no parameter receives a gradient")
            seen.cut = True
            return seen
        with torch.no_grad():
            for at, (parameter, found) in enumerate(zip(parameters, grads, strict=True)):
                if found is None:
                    continue
                grad = found.to_dense() if found.is_sparse else found
                means[at].lerp_(grad, 1 - BETAS[0])
                squares[at].lerp_(grad * grad, 1 - BETAS[1])
                mean = means[at] / (1 - BETAS[0] ** (update + 1))
                square = squares[at] / (1 - BETAS[1] ** (update + 1))
                parameter.data = parameter.data - rate * mean / (square.sqrt() + EPS)
    seen.falls = not seen.fell and math.isfinite(before_end) and before_end - seen.last > STILL_FALLING * seen.first
    return seen


@contextlib.contextmanager
def _preserve_weights(parameters: list[nn.Parameter]) -> Iterator[Callable[[], None]]:
    """The weights are put back at the end, and whenever the result is called. They are replaced, never written to."""
    held = [parameter.data for parameter in parameters]

    def put_back() -> None:
        for parameter, data in zip(parameters, held, strict=True):
            parameter.data = data

    try:
        yield put_back
    finally:
        put_back()


def _find_loss(trials: ForwardTrials, calls: Sequence[list[RecordedLoss]]) -> tuple[str, Callable[[], Tensor]]:
    """The loss of the batch as a function of the weights: one that the model returns, or one of torch's on its output."""
    outputs = trials.run_graded()
    scalars = [name for name, tensor in outputs.items() if tensor.numel() == 1 and tensor.requires_grad]
    if len(scalars) == 1 and len(outputs) > 1:
        return "the loss that the model returns", lambda: trials.run_graded()[scalars[0]].sum()
    reason = "no loss from torch.nn.functional was called"
    for of_backward in calls:  # of accumulated gradients one belongs to the call
        try:
            recorded, output, transform = _match_call(outputs, of_backward)
        except Unfit as error:
            reason = str(error)
            continue
        return LAYOUTS[recorded.name].name, partial(_compute_loss, trials, recorded, output, transform)
    raise Unfit(reason)


def _compute_loss(trials: ForwardTrials, recorded: RecordedLoss, output: str, transform: Transform) -> Tensor:
    loss = recorded.function(transform(trials.run_graded()[output]), *recorded.args[1:], **recorded.kwargs)
    return loss if loss.numel() == 1 else loss.mean()


def _match_call(outputs: Outputs, calls: list[RecordedLoss]) -> tuple[RecordedLoss, str, Transform]:
    """The one loss of a backward pass, if it is computed from an output."""
    if len(calls) != 1:
        raise Unfit(
            "no loss from torch.nn.functional was called" if not calls else "several loss functions were called"
        )
    (recorded,) = calls
    name = LAYOUTS[recorded.name].name
    if name not in LOSSES or _has_soft_targets(recorded):
        raise Unfit(f"{name} has soft targets, or no lower bound of 0")
    return recorded, *_match_output(outputs, recorded.args[0].detach())


def _has_soft_targets(recorded: RecordedLoss) -> bool:
    layout = LAYOUTS[recorded.name]
    call = LossCall.from_arguments(layout, recorded.args, recorded.kwargs)
    target = call.target() if call is not None else None
    if call is None or target is None or call.smoothing > 0.0 or target.requires_grad:
        return True
    if call.kind == "rows" or call.kind == "labels":
        return not bool(((target == 0) | (target == 1)).all())
    return False


def _match_output(outputs: Outputs, given: Tensor) -> tuple[str, Transform]:
    """Which output, changed in which way, is what the loss function was given: judged by the values."""
    for name, tensor in outputs.items():
        if not tensor.requires_grad or not tensor.is_floating_point():
            continue
        for transform in TRANSFORMS:
            with contextlib.suppress(RuntimeError, IndexError):
                found = transform(tensor.detach())
                if found.numel() == given.numel() and torch.allclose(
                    found.reshape(given.shape).float(), given.float(), rtol=1e-3, atol=1e-5, equal_nan=True
                ):
                    return name, _match_shape(transform, given)
    raise Unfit("the loss depends on more than the model's output")


def _match_shape(transform: Transform, like: Tensor) -> Transform:
    return lambda output: transform(output).reshape(like.shape).to(like.dtype)
