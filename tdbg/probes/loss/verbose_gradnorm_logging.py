"""LOSS.VERBOSE_GRADNORM_LOGGING: every intermediate value of a GradNorm update."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import format_number, to_host
from tdbg.probes.loss.gradnorm_metrics import build_not_finite_fault
from tdbg.probes.loss.loss_report import Report, diagnostic

FLAG = "LOSS.VERBOSE_GRADNORM_LOGGING"
WHOLE = 32  # elements up to which a tensor is written whole
MAX_PARTS = 256  # of a list of tensors

Value = Tensor | float | Sequence[float] | Sequence[Tensor | None] | None


@dataclass(slots=True, kw_only=True)
class GradNormValues(Report):
    """The values of one GradNorm update, by name."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "VALUES"

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)  # name, and shape, dtype, norm, mean, min, max or values

    def records(self) -> list[tuple[str, str]]:
        lines = [
            f"{self.name}: {format_count(len(self.rows), 'value')}",
            *(f"  {row['name']}: {_format_row(row)}" for row in self.rows),
        ]
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        return {"name": self.name, "values": len(self.rows)}


@diagnostic(FLAG)
def gradnorm_values(values: Mapping[str, Value], *, name: str = "gradnorm", always: bool = False) -> GradNormValues:
    """Write every intermediate value of a GradNorm update, in the order given: for a few steps, not for a whole run.

    values: name -> tensor, number, list of either, or None for a gradient that is missing. A tensor of up to 32
    elements is written whole, a larger one as shape, dtype, norm, mean, least and largest.
    name: of this GradNorm, if there are several.
    Findings: TD-L019 values that are not finite.
    Cost: 50 us a tensor; reads them. Source: Chen et al. 2018 (arXiv:1711.02257), algorithm 1.
    """
    report = GradNormValues(name=name)
    for what, value in values.items():
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor) or item is None for item in value):
            report.rows += [_build_row(f"{what}[{place}]", item) for place, item in enumerate(value[:MAX_PARTS])]
        else:
            report.rows.append(_build_row(what, value))
    wild = [
        f"{row['name']}: {row['bad']} of {format_count(row['numel'], 'element')}"
        for row in report.rows
        if row.get("bad")
    ]
    report.findings = [build_not_finite_fault(name, wild)] if wild else []
    return report


def _build_row(name: str, value: object) -> dict[str, object]:
    """One value as plain data."""
    if value is None:
        return {"name": name, "missing": True}
    if not isinstance(value, Tensor):
        value = torch.as_tensor(value)
    flat = to_host(value.detach().abs() if value.is_complex() else value).double().reshape(-1)
    bad = int((~torch.isfinite(flat)).sum())
    row: dict[str, Any] = {
        "name": name,
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "numel": flat.numel(),
        "bad": bad,
    }
    if flat.numel() <= WHOLE:
        return row | {"values": flat.tolist()}
    return row | {
        "norm": float(flat.norm()),
        "mean": float(flat.mean()),
        "min": float(flat.min()),
        "max": float(flat.max()),
    }


def _format_row(row: dict[str, Any]) -> str:
    if row.get("missing"):
        return "missing"
    if "values" in row:
        shown = ", ".join(map(format_number, row["values"]))
        return f"[{shown}]" if row["shape"] else shown
    shape = "x".join(map(str, row["shape"]))
    figures = ", ".join(f"{what} {format_number(row[what])}" for what in ("norm", "mean", "min", "max"))
    bad = f", {row['bad']} not finite" if row["bad"] or not math.isfinite(row["norm"]) else ""
    return f"{shape} {row['dtype']}, {figures}{bad}"
