"""The tensors that a call of the model is given: their names, which dimension holds samples, and copies with others."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tdbg.core.guard import guarded

TARGETS = frozenset(("label", "labels", "target", "targets", "y", "y_true", "idx", "index", "indices", "meta"))
# Models whose layers mix the elements of dimension 0 on purpose, by a part of a class's name.
MIXES = {
    re.compile(r"moe|mixtureofexpert|expert|router", re.IGNORECASE): "experts with a capacity mix tokens",
    re.compile(r"gcn|gat(v2)?conv|graphconv|sageconv|ginconv|message_?passing|graphnet"): "a graph has no samples",
    re.compile(r"minibatch|mbstd|batchstd", re.IGNORECASE): "a layer looks at the whole batch on purpose",
    re.compile(r"^(?!NonDynamically).*quant", re.IGNORECASE): "quantised layers share a scale over the batch",
}
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Input(NamedTuple):
    """One tensor among the arguments of a call."""

    name: str
    tensor: Tensor
    is_listed: bool  # it is one of a list

    @property
    def is_index(self) -> bool:
        """True for whole numbers, such as tokens."""
        return not (self.tensor.is_floating_point() or self.tensor.is_complex() or self.tensor.dtype is torch.bool)


class Samples(NamedTuple):
    """How many samples a call has in dimension 0, and which inputs hold them; or why that is not known."""

    size: int = 0
    inputs: tuple[Input, ...] = ()
    reason: str = ""


def list_inputs(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Input]:
    """The tensors of a call that hold anything, by the names of the parameters that take them."""
    names: list[str] = []
    with guarded("the program's forward may have no signature", program_code=True):
        names = [
            name for name, one in inspect.signature(module.forward).parameters.items() if one.kind < one.VAR_POSITIONAL
        ]
    named = [(names[at] if at < len(names) else f"input {at}", value) for at, value in enumerate(args)]
    found: list[Input] = []
    for name, value in [*named, *kwargs.items()]:
        _collect_inputs(name, value, found, is_listed=False)
    return [one for one in found if one.tensor.numel()]


def _collect_inputs(name: str, value: object, into: list[Input], *, is_listed: bool) -> None:
    if isinstance(value, Tensor):
        into.append(Input(name, value, is_listed))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _collect_inputs(f"{name}.{key}", item, into, is_listed=is_listed)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            _collect_inputs(f"{name}.{at}", item, into, is_listed=is_listed or isinstance(value, list))


def is_target(one: Input, inputs: list[Input]) -> bool:
    """True for a name of labels or indices. A float ``y`` with the shape of another input is a second input."""
    name = one.name.rpartition(".")[2].lower()
    if name == "y" and one.tensor.is_floating_point():
        return not any(other is not one and other.tensor.shape == one.tensor.shape for other in inputs)
    return name in TARGETS


def replace_tensors(value: Any, others: Mapping[int, Tensor]) -> Any:
    """The same arguments with other tensors in the place of some, which are given by their identity."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if isinstance(value, Mapping):
        return {key: replace_tensors(item, others) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replace_tensors(item, others) for item in value))
    if type(value) in (list, tuple):
        return type(value)(replace_tensors(item, others) for item in value)
    return value


def find_samples(inputs: list[Input], model: nn.Module) -> Samples:
    """What dimension 0 holds; silent where a model may mix its elements on purpose."""
    sized = [one for one in inputs if one.tensor.dim()]
    if not sized:
        return Samples(reason="the model is given no tensor")
    for module in model.modules():
        for kind, reason in MIXES.items():
            if kind.search(type(module).__name__):
                return Samples(reason=f"{reason} ({type(module).__name__})")
        if isinstance(module, NORMS) and module.running_mean is None:
            return Samples(reason="a batch norm layer without running statistics mixes samples")
    if any(one.is_listed for one in sized):
        return Samples(reason="the model is given a list of tensors")
    if any(one.tensor.layout is not torch.strided or one.tensor.is_nested for one in sized):
        return Samples(reason="an input is sparse or nested")
    count = sized[0].tensor.size(0)
    lengths = {one.tensor.size(1) for one in sized if one.tensor.dim() > 1 and one.tensor.size(0) == count}
    held = []
    for one in sized:
        sizes = one.tensor.shape
        if len(sizes) > 1 and sizes[0] == sizes[1] == count:
            return Samples(reason="two dimensions of an input have the same size")
        if sizes[0] == count:
            held.append(one)
        elif not (sizes[0] == 1 or _is_table(sizes, lengths) or (len(sizes) == 3 and sizes[1] == count)):
            return Samples(reason="inputs have different sizes in dimension 0")
    if count < 2:
        return Samples(reason="the batch has one sample")
    return Samples(count, tuple(held))


def _is_table(sizes: torch.Size, lengths: set[int]) -> bool:
    """True for an attention mask over all pairs of positions, or positions alone."""
    return sizes[0] in lengths and (len(sizes) == 1 or (len(sizes) == 2 and sizes[1] == sizes[0]))
