"""The reports of LOSS.TAXONOMY_SMOOTHING, and how they stand in the log."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from tdbg.core.tables import format_count, join_limited
from tdbg.probes.loss.arithmetic import format_number, get_class_name
from tdbg.probes.loss.loss_report import Report

FLAG = "LOSS.TAXONOMY_SMOOTHING"
MAX_LINES = 40


@dataclass(slots=True, kw_only=True)
class Hierarchy(Report):
    """What a label hierarchy looks like."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "HIERARCHY"

    nodes: int = 0
    roots: list[str] = field(default_factory=list)
    metaclades: list[dict[str, object]] = field(default_factory=list)  # root, nodes, leaves, depth of each whole tree
    leaves: int = 0
    depth: int = 0  # of the deepest node; a root has 0
    leaf_depths: dict[int, int] = field(default_factory=dict)  # depth -> leaves
    orphans: list[str] = field(default_factory=list)  # their parent does not exist
    cycles: list[list[str]] = field(default_factory=list)

    def records(self) -> list[tuple[str, str]]:
        leaves = ", ".join(f"{count} at depth {depth}" for depth, count in self.leaf_depths.items())
        lines = [
            f"{format_count(self.nodes, 'node')}, {format_count(len(self.roots), 'root')}, {format_count(self.leaves, 'leaf')} ({leaves or 'none'}), depth {self.depth}"
        ]
        for tree in self.metaclades[:MAX_LINES]:
            lines.append(
                f"  metaclade {tree['root']}: {tree['nodes']} nodes, {tree['leaves']} leaves, depth {tree['depth']}"
            )
        if len(self.metaclades) > MAX_LINES:
            lines.append(f"  and {format_count(len(self.metaclades) - MAX_LINES, 'more metaclade')}")
        lines += [f"  orphans: {join_limited(self.orphans)}"] if self.orphans else []
        lines += [f"  cycle: {' > '.join([*cycle, cycle[0]])}" for cycle in self.cycles[:MAX_LINES]]
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        return {"nodes": self.nodes, "roots": len(self.roots), "depth": self.depth}


@dataclass(slots=True, kw_only=True)
class Distances(Report):
    """What a matrix of distances between classes looks like."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "DISTANCES"

    classes: int = 0
    least: float = 0.0  # between two classes
    largest: float = 0.0
    mean: float = 0.0
    levels: list[float] = field(default_factory=list)  # the distances that occur, at most 16
    not_finite: int = 0
    negative: int = 0
    beyond: int = 0  # above the largest that is allowed
    zero_pairs: int = 0  # unlike classes at distance 0
    off_diagonal: int = 0  # classes with a distance to themselves
    asymmetric_pairs: int = 0
    asymmetry: float = 0.0  # the largest difference of d(a, b) and d(b, a)
    broken_triangles: int = 0
    broken_ultrametric: int = 0
    middles: int = 0  # classes b looked at in d(a, c) <= d(a, b) + d(b, c)
    is_ultrametric: bool = True

    def records(self) -> list[tuple[str, str]]:
        levels = ", ".join(map(format_number, self.levels))
        whole = (
            "every triangle"
            if self.middles == self.classes
            else f"triangles over {format_count(self.middles, 'middle class')}"
        )
        lines = [
            f"{format_count(self.classes, 'class')}, distances {format_number(self.least)} to {format_number(self.largest)}, mean {format_number(self.mean)}",
            f"  values: {levels}{' ...' if len(self.levels) >= 16 else ''}",
            f"  pairs that are not symmetric: {self.asymmetric_pairs}; diagonal: {self.off_diagonal} not zero; "
            f"unlike classes at zero: {self.zero_pairs}; negative: {self.negative}; not finite: {self.not_finite}",
            f"  {whole}: {self.broken_triangles} broken; ultrametric: "
            + ("yes" if self.is_ultrametric else f"no, {self.broken_ultrametric} broken"),
        ]
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        return {"classes": self.classes, "largest": self.largest, "broken": self.broken_triangles}


@dataclass(slots=True, kw_only=True)
class SmoothingMatrix(Report):
    """What a smoothing matrix does with the mass of each class."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "MATRIX"

    classes: int = 0
    row_error: float = 0.0  # the largest distance of a row's sum from 1
    bad_rows: int = 0
    kept_least: float = 0.0  # mass that stays on the true class
    kept_mean: float = 0.0
    moved_rows: int = 0  # whose largest entry is another class
    by_distance: list[dict[str, Any]] = field(default_factory=list)  # distance, mean mass of a class there, pairs
    inversions: int = 0  # rows in which a farther class gets more than a nearer one
    rows: list[dict[str, Any]] = field(default_factory=list)  # class, kept, its neighbours by mass; at most 16
    names: list[str] | None = None

    def records(self) -> list[tuple[str, str]]:
        lines = [
            f"{format_count(self.classes, 'class')}; rows sum to 1 within {format_number(self.row_error)} ({self.bad_rows} do not); "
            f"the true class keeps {format_number(self.kept_least)} at least, {format_number(self.kept_mean)} on average"
        ]
        for row in self.by_distance:
            lines.append(
                f"  at distance {format_number(row['distance'])}: {format_number(row['mass'])} a class, {row['pairs']} pairs"
            )
        for row in self.rows:
            lines.append(
                f"  {get_class_name(self.names, row['class'])} keeps {format_number(row['kept'])}; {_format_moved_mass(row, self.names)}"
            )
        if self.classes > len(self.rows):
            lines.append(f"  and {format_count(self.classes - len(self.rows), 'more row')}")
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        return {"classes": self.classes, "row_error": self.row_error, "kept": self.kept_least}


@dataclass(slots=True, kw_only=True)
class Forward(Report):
    """What smoothing did to the samples of one batch."""

    flag: ClassVar[str] = FLAG
    part: ClassVar[str] = "FORWARD"

    samples: int = 0
    left_out: int = 0  # without a true class
    loss: float = 0.0
    plain_loss: float = 0.0
    kept: float = 0.0  # mean mass on the true class
    rows: list[dict[str, Any]] = field(default_factory=list)  # true, kept, to, loss, plain_loss of the first samples
    names: list[str] | None = None

    def records(self) -> list[tuple[str, str]]:
        lines = [
            f"{format_count(self.samples, 'sample')}, {self.left_out} left out; loss {format_number(self.loss)}, without smoothing "
            f"{format_number(self.plain_loss)}; the true class keeps {format_number(self.kept)} on average"
        ]
        for place, row in enumerate(self.rows):
            lines.append(
                f"  sample {place}: {get_class_name(self.names, row['true'])} keeps {format_number(row['kept'])}; "
                f"{_format_moved_mass(row, self.names)}; loss {format_number(row['loss'])}, without {format_number(row['plain_loss'])}"
            )
        return [(self.part, "\n".join(lines))]

    def collect_event_values(self) -> dict[str, object]:
        return {"samples": self.samples, "loss": self.loss, "plain_loss": self.plain_loss, "kept": self.kept}


def _format_moved_mass(row: dict[str, Any], names: list[str] | None) -> str:
    given = [f"{get_class_name(names, int(index))} {format_number(mass)}" for index, mass in row["to"].items()]
    return f"to {', '.join(given)}" if given else "nothing moved"
