"""TD-P115: one rank is later than the others."""

from statistics import quantiles

from tdbg.traces.analyze import summary_figures
from tdbg.traces.analyze.rank_comparison import COVERS, compare_ranks, own_time
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class Straggler(Rule):
    """One rank has more to do than the others, which wait for it in their collectives.

    Signal: a step's time without communication, of the slowest rank against the median of all; and three quarters of
    its steps are longer than three quarters of those of the others, since ranks that share a machine take turns.
    What to do: balance what differs (sequence lengths, hosts, loaders); the evidence names the part that is longer,
    and it is told as the cause where it makes ``straggler_cause`` of the difference.
    """

    code = "TD-P115"
    title = "a slow rank"
    source = "traceml"
    thresholds = {"straggler_warning": 0.10, "straggler_critical": 0.20, "straggler_cause": COVERS}
    per_run = True

    def evaluate(self, view: View) -> Advice | Abstain | None:
        found = compare_ranks(view.ranks)
        if found is None:
            return self.abstain("it needs the traces of two ranks or more, one of each")
        worst = next(one for one in found.each if one.label == found.slowest)
        severity = self.find_severity(view, worst.extra)
        if severity is None or not _is_apart(view, worst.label):
            return None
        lines = [f"{one.label}: {one.own / 1e6:.4g} ms of its own work a step" for one in found.each][:8]
        is_cause = found.covers >= self.limit(view, "straggler_cause")
        what = "the longer part" if is_cause else "no single part explains it: the largest difference"
        lines += [f"{what} on {worst.label} is {found.longest}, by {found.longer / 1e6:.3g} ms a step"]
        lines += summary_figures.busiest_line(view.ranks[worst.label])
        title = f"{worst.label} does {worst.extra:.0%} more work in a step than the others"
        try_next = f"look at {found.longest} on {worst.label}" if is_cause else f"look at the machine of {worst.label}"
        return self.advise(view, severity, title, lines, try_next, worst.extra / (1 + worst.extra))


def _is_apart(view: View, slowest: str) -> bool:
    """True if the lower quartile of a rank's steps lies above the upper one of the others'."""
    own: list[int] = []
    rest: list[int] = []
    for label, read in view.ranks.items():
        (own if label == slowest else rest).extend(own_time(step) for step in summary_figures.select_steady_steps(read))
    return _find_quartile(own, 0) > _find_quartile(rest, 2)


def _find_quartile(times: list[int], which: int) -> float:
    return quantiles(times, n=4, method="inclusive")[which] if len(times) > 1 else float(times[0])
