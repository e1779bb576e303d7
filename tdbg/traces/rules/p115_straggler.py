"""TD-P115: one rank is later than the others."""

from statistics import median, quantiles

from tdbg.traces import figures, kinds
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.summary import Summary

OWN = (kinds.INPUT, kinds.H2D, kinds.FORWARD, kinds.BACKWARD, kinds.OPTIMIZER, kinds.COPY, kinds.OTHER)


@RULES.add
class Straggler(Rule):
    """One rank has more to do than the others, which wait for it in their collectives.

    Signal: a step's time without communication, of the slowest rank against the median of all; and three quarters of
    its steps are longer than three quarters of those of the others, since ranks that share a machine take turns.
    What to do: balance what differs (sequence lengths, hosts, loaders); the evidence names the part that is longer.
    """

    code = "TD-P115"
    title = "a slow rank"
    source = "traceml"
    thresholds = {"straggler_warning": 0.10, "straggler_critical": 0.20}
    per_run = True

    def look(self, view: View) -> Advice | Abstain | None:
        if len({label for label, _ in view.others}) < 2:
            return self.abstain("it needs the traces of two ranks or more")
        busy = {label: _own(read) for label, read in view.others}
        slowest = max(busy, key=lambda label: sum(busy[label].values()))
        rest = [parts for label, parts in busy.items() if label != slowest]
        middle = median(sum(parts.values()) for parts in rest)
        extra = sum(busy[slowest].values()) / middle - 1 if middle else 0.0
        severity = self.graded(view, extra)
        if severity is None or not _apart(view, slowest):
            return None
        grown = {name: busy[slowest][name] - median(parts[name] for parts in rest) for name in OWN}
        part = max(grown, key=lambda name: grown[name])
        lines = [f"{label}: {sum(parts.values()) / 1e6:.4g} ms a step of its own" for label, parts in busy.items()][:8]
        lines += [f"what is longer on {slowest} is {part}, by {grown[part] / 1e6:.3g} ms a step"]
        title = f"{slowest} has {extra:.0%} more to do in a step than the others"
        return self.advise(view, severity, title, lines, f"look at {part} on {slowest}", extra / (1 + extra))


def _own(read: Summary) -> dict[str, float]:
    """Nanoseconds a step of each part but waiting for others and idleness, medians."""
    return {name: median(step.bar.get(name, 0) for step in read.steps) for name in OWN}


def _apart(view: View, slowest: str) -> bool:
    """True if the lower quartile of a rank's steps lies above the upper one of the others'."""
    own: list[int] = []
    rest: list[int] = []
    for label, read in view.others:
        (own if label == slowest else rest).extend(
            sum(step.bar.get(name, 0) for name in OWN) for step in figures.steady(read)
        )
    return _quartile(own, 0) > _quartile(rest, 2)


def _quartile(times: list[int], which: int) -> float:
    return quantiles(times, n=4, method="inclusive")[which] if len(times) > 1 else float(times[0])
