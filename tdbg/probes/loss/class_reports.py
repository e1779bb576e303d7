"""The reports of LOSS.CLASS_WEIGHTING, and how they stand in the log."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tdbg.core.tables import format_count
from tdbg.probes.loss.arithmetic import format_number, format_share
from tdbg.probes.loss.loss_report import Report

FLAG = "LOSS.CLASS_WEIGHTING"
SHOWN = 24  # classes with a line of their own: the rarest and the most frequent


@dataclass(slots=True, kw_only=True)
class ClassWeighting(Report):
    """What class weights do, given how often each class occurs."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "WEIGHTS"

    classes: int
    samples: int
    beta: float
    ratio: float  # largest to smallest positive weight, of classes that occur
    exponents: dict[str, float]  # weighting -> slope of log(weight) over log(count)
    exponent: float  # of all weightings together
    rows: list[dict[str, Any]] = field(default_factory=list)  # class, count, effective, balanced, weights, share

    def records(self) -> list[tuple[str, str]]:
        each = ", ".join(f"{name} {format_number(value)}" for name, value in self.exponents.items())
        lines = [
            f"{format_count(self.classes, 'class')}, {format_count(self.samples, 'sample')}, beta {self.beta:.8g}; largest to smallest weight "
            f"{format_number(self.ratio)}; exponent over counts: {each}, together {format_number(self.exponent)}"
        ]
        shown = self.rows if len(self.rows) <= SHOWN else [*self.rows[: SHOWN // 2], *self.rows[-SHOWN // 2 :]]
        for row in shown:
            weights = ", ".join(f"{name} {format_number(value)}" for name, value in row["weights"].items())
            lines.append(
                f"  {row['name']}: {row['count']:g} samples, effective {format_number(row['effective'])}, balanced "
                f"{format_number(row['balanced'])}; {weights}; {format_share(row['share'])} of the weight in training"
            )
        if len(shown) < len(self.rows):
            lines.insert(1 + SHOWN // 2, f"  ... {format_count(len(self.rows) - len(shown), 'class')} between")
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        return {"classes": self.classes, "ratio": self.ratio, "exponent": self.exponent}


@dataclass(slots=True, kw_only=True)
class ClassLosses(Report):
    """Which classes the loss of a batch comes from."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "LOSSES"

    classes: int
    samples: int
    left_out: int
    total: float  # sum of the weighted losses, those that are not finite left out
    rows: list[dict[str, Any]] = field(
        default_factory=list
    )  # class, samples, not_finite, mean, share; the largest first

    def records(self) -> list[tuple[str, str]]:
        lines = [
            f"{format_count(self.samples, 'sample')} of {len(self.rows)} among {format_count(self.classes, 'class')}, {self.left_out} left out; "
            f"sum of the losses {format_number(self.total)}"
        ]
        if wild := sum(row["not_finite"] for row in self.rows):
            lines[0] += f" without {wild} that are not finite"
        for row in self.rows[:SHOWN]:
            lines.append(
                f"  {row['name']}: {format_share(row['share'])} of the loss from {format_count(row['samples'], 'sample')} "
                f"({format_share(row['part'])}), mean {format_number(row['mean'])}"
                + (f"; {row['not_finite']} not finite" if row["not_finite"] else "")
            )
        if len(self.rows) > SHOWN:
            lines.append(f"  and {format_count(len(self.rows) - SHOWN, 'more class')}")
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        share = max((row["share"] for row in self.rows), default=0.0)
        return {"samples": self.samples, "classes": len(self.rows), "share": share, "loss": self.total}
