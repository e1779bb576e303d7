"""Figures of a captured tensor as numbers of its datapoint, under names such as ``std(layers.0:output)``."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tdbg.core.errors import TdbgError
from tdbg.core.tables import format_count, format_size
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.stats.stored_tensor import measure_tensor

FIGURES = ("mean", "std", "min", "max", "absmax", "nan", "inf", "zero_share")
NAME = re.compile(rf"({'|'.join(FIGURES)})\((.+)\)")
MAX_BYTES = 512 << 20  # of all tensors that are read for one figure
MAX_TENSORS = 5_000  # about a millisecond each, however small


class TensorFigure(NamedTuple):
    """A figure of the tensor at a path."""

    figure: str
    path: str

    def compute(self, datapoint: Datapoint) -> float | None:
        """Its value; None where the datapoint has no such tensor, or no value of it is finite. Raises TdbgError."""
        tensor = datapoint.tensors.get(self.path)
        if tensor is None:
            return None
        value = measure_tensor(tensor, "", 1, lists=0)[0].as_dict()[self.figure]
        return float(value) if isinstance(value, int | float) else None

    def check_size(self, datapoints: Iterable[Datapoint]) -> None:
        """TdbgError if more is to be read for it than may be."""
        layouts = (datapoint.layout for datapoint in datapoints)
        lengths = [one.length for layout in layouts if layout for one in layout.pieces if one.path == self.path]
        if sum(lengths) > MAX_BYTES or len(lengths) > MAX_TENSORS:
            limit = f"{format_size(MAX_BYTES)} or {format_count(MAX_TENSORS, 'tensor')}"
            raise TdbgError(
                f"more than {limit} of {self.path} would be read for its {self.figure}",
                "`tdbg inspect-pages stats` reads any number of tensors; `--capture-stats` keeps the figures with them",
            )


def parse_figure(name: str) -> TensorFigure | None:
    """The figure that is named; None for another name."""
    found = NAME.fullmatch(name)
    return TensorFigure(found[1], found[2]) if found else None
