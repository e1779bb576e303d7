"""What tdbg itself cost: as data, and in lines."""

from typing import TypedDict

from tdbg.core.events import Cost
from tdbg.core.tables import format_count
from tdbg.rules.text import format_figure

LISTED_PCT = 0.05  # a part that costs less is not listed
SHORT_RUN_S = 10.0
INCLUDED = (
    "tdbg's own time in the steps, without start-up and the opening inspection, which has an allowance of its own"
)


class CostShare(TypedDict):
    """tdbg's own time in one process."""

    rank: int | None
    own_ms: float
    wall_ms: float
    pct: float


class CostRow(TypedDict, total=False):
    """tdbg's own time in all processes; without a cost ``pct`` is None, and only ``ranks`` is there beside it."""

    pct: float | None
    budget_pct: float
    inspection_ms: float
    allowance_ms: float
    startup_ms: float
    checks_pct: float
    capture_pct: float
    diagnostics_pct: float
    away_pct: float
    records_pct: float
    worst: CostShare
    errors: int
    dropped: int
    ranks: list[CostShare]


class BaselineRow(TypedDict):
    """The paired ratio of blocks of steps with tdbg on and off."""

    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    block: int


def compute_cost_pct(cost: Cost | None) -> float | None:
    """tdbg's own time in % of the wall time, everywhere without what the opening inspection took from its allowance."""
    if cost is None or not cost.wall_ms > 0:
        return None
    return 100 * max(cost.own_ms - cost.inspection_ms, 0.0) / cost.wall_ms


def format_cost(cost: CostRow) -> str:
    """``cost of tdbg 0.40 % (budget 1 %)``, and what the budget does not hold; empty where nothing is known."""
    pct = cost.get("pct")
    if pct is None:
        return ""
    short = ", short run" if _is_short(cost) else ""
    return f"cost of tdbg {pct:.2f} % (budget {cost['budget_pct']:g} %{short}){_format_inspection(cost)}{_format_unbudgeted(cost)}"


def list_costs(cost: CostRow, costliest: str) -> list[str]:
    """The same with what it is made of, and how it differs between processes."""
    if cost.get("pct") is None:
        return []
    at = f", {costliest} {cost['worst']['pct']:.2f} %" if len(cost["ranks"]) > 1 else ""
    return [
        f"cost of tdbg: {cost['pct']:.2f} % of the wall time (budget {cost['budget_pct']:g} %){at}"
        f"{_format_inspection(cost)}, start-up {cost['startup_ms']:.0f} ms{_format_unbudgeted(cost)}{_explain_short_run(cost)}{_format_unhooked(cost)}"
    ]


def list_baseline(baseline: BaselineRow | None) -> list[str]:
    """``baseline: x1.0041 with tdbg on ...``; nothing where none was measured."""
    if not baseline:
        return []
    if baseline["low"] is None:
        return [f"baseline: {format_count(baseline['pairs'], 'pair')} of blocks are too few to tell; 6 are needed"]
    return [
        f"baseline: step time x{baseline['ratio']:.4f} with tdbg on"
        f" (95 %: {format_figure(baseline['low'])} to {format_figure(baseline['high'])})"
        f" over {baseline['pairs']} pairs of {baseline['block']} steps"
    ]


def _format_unbudgeted(cost: CostRow) -> str:
    """What was asked for and the budget does not hold, where it is worth a word."""
    parts = (
        ("checks of each rank's gradients", cost["checks_pct"]),
        ("capturing", cost["capture_pct"]),
        ("diagnostics", cost["diagnostics_pct"]),
        ("log records", cost["records_pct"]),
    )
    return "".join(f", {what} {pct:.2f} %" for what, pct in parts if pct >= LISTED_PCT)


def _format_inspection(cost: CostRow) -> str:
    """What the opening inspection used of its allowance, where there is one."""
    allowance_s, used_s = cost.get("allowance_ms", 0.0) / 1000, cost.get("inspection_ms", 0.0) / 1000
    return f", opening inspection {used_s:.2f} s of {allowance_s:g} s" if allowance_s else ""


def _format_unhooked(cost: CostRow) -> str:
    """How long the hooks of modules were away, which is what short calls need to stay cheap."""
    share = cost.get("away_pct", 0.0)
    return (
        f"; without module hooks for {share:.0f} % of the time, as calls are too short for them" if share >= 1 else ""
    )


def _explain_short_run(cost: CostRow) -> str:
    """Why a run that was over in a moment cost more than its budget."""
    if not _is_short(cost):
        return ""
    wall_s = max(row["wall_ms"] for row in cost["ranks"]) / 1000
    return f"; above the budget because the steps took only {wall_s:.1f} s: the first ones are always watched"


def _is_short(cost: CostRow) -> bool:
    """True if the run cost more than its budget, and was too short for that to even out."""
    wall_s = max(row["wall_ms"] for row in cost["ranks"]) / 1000
    return wall_s <= SHORT_RUN_S and (cost["pct"] or 0.0) > cost["budget_pct"]
