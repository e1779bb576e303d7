"""TD-P113: single steps that take far longer."""

from tdbg.core.rule_base import Unarmed
from tdbg.core.tables import format_count
from tdbg.traces.analyze import summary_figures
from tdbg.traces.parse import event_names
from tdbg.traces.rules import RULES, Abstain, Advice, Rule, View
from tdbg.traces.summary import Step


@RULES.add
class Stall(Rule):
    """One step takes several times as long as the others.

    Signal: a step of three times the median and more, among five or more, that is longer by ``stall_floor_ms``; and
    that a save or a write to the disk, which `tdbg profile` marks and stacks tell, is the larger part of what it is longer by, or waiting for
    input (a notice): any hiccup of the machine makes a long step too. Of several such steps it tells the one with the
    longest save, and the longest of all where no save made any of them.
    What to do: write checkpoints in the background, keep evaluation and logging out of the step;
    persistent_workers=True where an epoch begins.
    """

    code = "TD-P113"
    title = "a step that stalls"
    source = "tdbg"
    thresholds = {"stall_times": 3.0, "stall_steps": 5.0, "stall_floor_ms": 20.0}

    def check_armed(self, given: View) -> Unarmed | None:
        return (
            None
            if len(given.summary.steps) >= self.limit(given, "stall_steps")
            else Unarmed(f"it needs {self.limit(given, 'stall_steps'):.0f} steps in one window: --active 5")
        )

    def evaluate(self, view: View) -> Advice | Abstain | None:
        steps = view.summary.steps
        middle = summary_figures.typical_length(view.summary)
        least = max(self.limit(view, "stall_times") * middle, middle + self.limit(view, "stall_floor_ms") * 1e6)
        stalled = [step for step in steps if step.length >= least]
        if not middle or not stalled:
            return None
        saved = [step for step in stalled if 2 * _get_save_ns(step) > step.length - middle]
        found = bool(saved)  # a longer hiccup of the machine is no reason to keep silent about a save
        longest = max(saved, key=_get_save_ns) if saved else max(stalled, key=lambda step: step.length)
        extra = longest.length - middle
        part, more = _find_growth(view, longest, middle)
        if not found and part != event_names.INPUT:
            return None if "stacks" in view.summary.recorded else self.abstain(_unexplained_text(longest, middle))
        lines = [f"step {longest.number}: {longest.length / 1e6:.4g} ms, median {middle / 1e6:.4g} ms"]
        lines += [f"{part} grew most, by {more / 1e6:.4g} ms"]
        if found:
            lines += [
                f"{one.name}: {format_count(one.calls, 'call')}, {one.total / 1e6:.4g} ms"
                for one in view.summary.saves[:3]
            ]
        gain = extra / max(sum(step.length for step in steps), 1)
        title = f"step {longest.number} takes {longest.length / middle:.1f} times the median"
        title += ", most of it in a save or a write to the disk" if found else ""
        hint = "persistent_workers=True, so that workers need not start again with each epoch"
        if found:
            hint = "keep checkpoints, evaluation and logging out of the step, or write them in the background"
        return self.advise(view, "warning" if found else "notice", title, lines, hint, gain)


def _get_save_ns(step: Step) -> int:
    """Nanoseconds of a step in a save or a write to the disk."""
    return step.spent.get("save", 0)


def _unexplained_text(longest: Step, middle: float) -> str:
    return (
        f"step {longest.number} took {longest.length / middle:.1f} times the median, and no operator, wait or marked save"
        " explains it: `tdbg profile --kind stacks` shows the lines of the program"
    )


def _find_growth(view: View, longest: Step, middle: float) -> tuple[str, float]:
    """The part of the bar that is longer by most than in the other steps, and by how much."""
    usual = summary_figures.compute_part_shares(view.steps)
    more = {name: time - usual.get(name, 0.0) * middle for name, time in longest.bar.items()}
    part = max(more, key=lambda name: more[name])
    return part, more[part]
