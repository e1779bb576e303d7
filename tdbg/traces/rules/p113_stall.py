"""TD-P113: single steps that take far longer."""

from tdbg.traces import figures
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View


@RULES.add
class Stall(Rule):
    """One step takes several times as long as the others.

    Signal: a step of three times the median and more, among five or more; what its bar has beyond the others' names
    the part that grew.
    What to do: write checkpoints in the background, keep evaluation and logging out of the step.
    """

    code = "TD-P113"
    title = "a step that stalls"
    source = "tdbg"
    thresholds = {"stall_times": 3.0, "stall_steps": 5.0}

    def look(self, view: View) -> Advice | Abstain | None:
        steps = view.summary.steps
        if len(steps) < self.limit(view, "stall_steps"):
            return self.abstain(f"it needs {self.limit(view, 'stall_steps'):.0f} steps in one window: --active 5")
        middle = figures.typical_length(view.summary)
        longest = max(steps, key=lambda step: step.length)
        if not middle or longest.length < self.limit(view, "stall_times") * middle:
            return None
        usual = figures.parts(view.steps)
        more = {name: time - usual.get(name, 0.0) * middle for name, time in longest.bar.items()}
        part = max(more, key=lambda name: more[name])
        lines = [f"step {longest.number}: {longest.length / 1e6:.4g} ms, median {middle / 1e6:.4g} ms"]
        lines += [f"what grew most is {part}, by {more[part] / 1e6:.4g} ms"]
        gain = (longest.length - middle) / max(sum(step.length for step in steps), 1)
        title = f"step {longest.number} takes {longest.length / middle:.1f} times the median"
        hint = "keep checkpoints, evaluation and logging out of the step, or write them in the background"
        return self.advise(view, "warning", title, lines, hint, gain)
