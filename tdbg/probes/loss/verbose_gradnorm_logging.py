"""LOSS.VERBOSE_GRADNORM_LOGGING: every intermediate value of a GradNorm update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from tdbg.probes.loss.report import Report, diagnostic

FLAG = "LOSS.VERBOSE_GRADNORM_LOGGING"


@dataclass(slots=True, kw_only=True)
class GradNormValues(Report):
    """The values of one GradNorm update, by name."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "VALUES"

    rows: list[dict[str, Any]] = field(default_factory=list)


@diagnostic(FLAG)
def gradnorm_values(
    values: Mapping[str, Tensor | float | Sequence[float] | Sequence[Tensor | None] | None],
    *,
    name: str = "gradnorm",
    always: bool = False,
) -> GradNormValues:
    """Write every intermediate value of a GradNorm update, in the order given: for a few steps, not for a whole run.

    values: name -> tensor, number, list of either, or None for a gradient that is missing. A tensor of up to 32
    elements is written whole, a larger one as shape, dtype, norm, mean, least and largest.
    name: of this GradNorm, if there are several.
    Findings: TD-L019 values that are not finite.
    Cost: 30 us a tensor; reads them. Source: Chen et al. 2018, algorithm 1.
    """
    raise NotImplementedError
