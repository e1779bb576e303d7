"""TD-S010: one parameter group with a learning rate of zero, while others learn."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from tdbg.core.events import Event, Finding, Observation, Step
from tdbg.core.observations.optimizer import Group, ParameterGroups
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule
from tdbg.rules.view import to_finite

ZERO_STEPS = 40


@dataclass
class _State:
    suspects: dict[int, Group] = field(default_factory=dict)  # by index: the groups whose rate may be zero for good
    is_known: bool = False
    first_step: int = 0
    said: bool = False


@RULES.add
class GroupRateZero(ObservingRule[_State]):
    """Says when one parameter group never learns because its learning rate is zero from the start.

    What it does: With the flag OPTIMIZER, or in the opening inspection, it reads the groups of the optimizer. A
    group is followed if its rate is 0, if no scheduler has another initial rate for it, and if it holds
    parameters that want a gradient. It speaks at the 40th step in which that rate is still 0 while another group
    learns.

    Why it matters: A multiplier of 0 in a configuration, or a rate that was rounded to 0, leaves a layer at its
    initial values. The loss still falls as far as the other layers can bring it, and nothing fails.

    Example:
        TD-S010 warning: group 1 of AdamW has had a learning rate of 0 since step 1: head.weight, head.bias,
        rank 0

    What to do: Give the group a rate. What is not to be trained should say so: `requires_grad_(False)` saves its
    share of backward.

    Thresholds: 40 steps. A group that waits for its turn with a scheduler's initial rate above 0 is not followed.
    """

    code = "TD-S010"
    title = "one parameter group with a learning rate of zero"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    listens: ClassVar[tuple[type[Event], ...]] = (Observation, Step)
    observes = (ParameterGroups,)
    kept = _State

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """The rates of training steps are followed; observations go to `evaluate`."""
        if not isinstance(event, Step):
            return super().feed(process, event)
        state = self._states.get(process.label)
        if state is None or not state.suspects or event.phase != "train":
            return ()
        found = self._follow_rates(process, state, event)
        return self.report_once(self._given, found) if found is not None else ()

    def evaluate(self, process: ProcessDir, state: _State, seen: ParameterGroups) -> None:
        """The groups as they are at the first step."""
        if state.is_known:
            return
        state.is_known = True
        state.suspects = {
            index: group | {"optimizer": seen.optimizer}
            for index, group in enumerate(seen.groups)
            if group.get("lr") == 0 and not group.get("initial_lr") and group.get("trainable")
        }

    def _follow_rates(self, process: ProcessDir, state: _State, step: Step) -> Finding | None:
        rates = [to_finite(rate) for rate in step.lr]
        state.suspects = {i: group for i, group in state.suspects.items() if i < len(rates) and rates[i] == 0}
        state.first_step = state.first_step or step.step
        if state.said or not state.suspects or not any(rates):  # TD-S002 speaks where nothing learns
            return None
        if step.step - state.first_step + 1 < ZERO_STEPS:
            return None
        state.said = True
        index, group = next(iter(state.suspects.items()))
        names = [str(name) for name in group.get("names", ())]
        held = f"{join_limited(names, 3)}" if names else format_count(int(group["trainable"]), "parameter")
        return self.make_finding(
            f"group {index} of {group['optimizer']} has had a learning rate of 0 since step {state.first_step}: {held},"
            f" {process.display_name}",
            first_step=state.first_step,
            rank=process.rank,
            phase="optimizer",
            module=names[0].rpartition(".")[0] if names else "",
            evidence=[
                f"{format_count(int(group['trainable']), 'trainable parameter')} in it, rates of all groups:"
                f" {', '.join(f'{rate:g}' for rate in rates if rate is not None)}"
            ],
            cause="the rate of the group, or a multiplier of it, is 0 in the configuration",
            try_next="give the group a rate, or freeze it with requires_grad_(False)",
        )
