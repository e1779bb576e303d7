"""Inputs, Outputs, Labels: what went into the model, what came out, and what should have."""

from collections.abc import Mapping

from torch import nn

from tdbg.debuggers import DEBUGGERS
from tdbg.debuggers.base import BaseDebugger
from tdbg.debuggers.copies import snapshot


class _Part(BaseDebugger):
    """A copy of one part of the datapoint, under its own name; {} if the datapoint has none."""

    def __call__(self, datapoint: Mapping[str, object], model: nn.Module) -> dict[str, object]:
        value = datapoint.get(self.name)
        return {} if value is None else {self.name: snapshot(value)}

    def missing(self, model: nn.Module) -> str:
        """Why the last call gave nothing."""
        return f"the datapoint has no {self.name}"


@DEBUGGERS.add
class Inputs(_Part):
    """What the model was given: ``inputs`` of the datapoint, any structure of tensors, copied."""

    name = "inputs"


@DEBUGGERS.add
class Outputs(_Part):
    """What the model returned: ``outputs`` of the datapoint, any structure of tensors, copied."""

    name = "outputs"


@DEBUGGERS.add
class Labels(_Part):
    """What the model should have returned: ``labels`` of the datapoint, copied."""

    name = "labels"
