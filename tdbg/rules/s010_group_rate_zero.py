"""TD-S010: parameter groups with a learning rate of zero, while others learn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tdbg.core.events import Event, Finding, Observation, Step
from tdbg.core.observations import Evidence
from tdbg.core.observations.optimizer import ParameterGroups
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count, join_limited
from tdbg.rules import RULES, ObservingRule
from tdbg.rules._parameter_groups import KnownGroups, format_groups, format_members, get_group, get_trainable_count
from tdbg.rules.text import format_figure
from tdbg.rules.view import View, to_finite

ZERO_STEPS = 40
FALLEN_RECORDS = 5
FALLEN_SHARE = 0.1  # of the steps of the run
RECORDED_SHARE = 0.5  # of the run must be before the last record: what came after it is not known


@dataclass(slots=True)
class _Course:
    """The rate of one group."""

    had_rate: bool = False
    since: int = 0  # first step on record of the zeros that last until now; 0: it has a rate
    after: int = 0  # the last step on record with a rate
    until: int = 0  # last step on record at which the rate was 0 and another group had one
    records: int = 0  # number of such steps since ``since``

    @property
    def zero_steps(self) -> int:
        return self.until - self.since + 1 if self.since and self.records else 0


@dataclass(slots=True)
class _State:
    known: KnownGroups = field(default_factory=KnownGroups)
    courses: list[_Course] = field(default_factory=list)  # by index of the group
    first_rates: list[float | None] = field(default_factory=list)
    rates: list[float | None] = field(default_factory=list)  # of the last record
    step: int = 0
    uses_zero: bool = False  # a group has had its rate back: with 0 the program switches groups off for a time
    is_reported: bool = False
    reported_groups: list[int] = field(default_factory=list)  # groups reported as 0 from the start


@RULES.add
class GroupRateZero(ObservingRule[_State]):
    """Names parameter groups that do not learn because their learning rate is zero, while other groups learn.

    What it does: Follows the learning rates of all groups. A group whose rate is 0 from the start is reported
    at its 40th step, unless a scheduler keeps an initial rate above 0 for it. A group whose rate falls to 0 and
    stays there while other groups have one is reported at the end of the run. The finding names the parameters
    of the group if they are on record (flag OPTIMIZER, or the opening inspection); a group without trainable
    parameters is skipped. If they are not on record, a group that is 0 from the start is not reported, and one
    whose rate fell is named by its number.

    Why it matters: A multiplier of 0 in a configuration, or a rate that was rounded to 0, leaves a layer at its
    initial values; a schedule that ends too early for one group stops the training of its layers. The loss
    still falls as far as the other layers can bring it, and nothing fails.

    Example:
        TD-S010 warning: group 1 of AdamW has had a learning rate of 0 since step 1: head.weight, head.bias,
        rank 0

    What to do: Set a learning rate for the group, or make its schedule as long as the run. To freeze layers on
    purpose, use `requires_grad_(False)`, which also saves their part of backward.

    Thresholds: 40 steps at rate 0 while another group has a rate. For a rate that fell also: a tenth of the
    run, 5 records of such steps, a last record in the second half of the run, and a run that was not cut off. A
    group that gets a rate later becomes a note. A rate that fell is not
    reported if any group's rate rises from 0 while another group has one (cyclic schedules, groups that take
    turns, layers unfrozen one by one), if several groups meet these limits but fell at different steps (layers
    frozen one by one), or if the other groups reach 0 too soon after it for these limits.
    """

    code = "TD-S010"
    title = "parameter groups with a learning rate of zero"
    severity = "warning"
    leads_to = ("TD-G003", "TD-G005", "TD-S007")
    listens: ClassVar[tuple[type[Event], ...]] = (Observation, Step)
    observes = (ParameterGroups,)
    kept = _State

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """The rates of training steps are followed; observations go to `evaluate`."""
        if not isinstance(event, Step):
            return super().feed(process, event)
        if event.phase != "train" or not event.lr:
            return ()
        state = self._states[process.label]
        _follow_rates(state, event)
        zero = [] if state.is_reported else _find_zero_from_start(state)
        if not zero:
            return ()
        state.is_reported, state.reported_groups = True, zero
        cause = "the rate of the group, or a multiplier of it, is 0 in the configuration"
        return self.report_from(process, self._given, self._make_zero_finding(process, state, zero, cause))

    def evaluate(self, process: ProcessDir, state: _State, seen: ParameterGroups) -> None:
        """The groups as they are at the first step, or when one was added."""
        state.known.add(seen)

    def finish(self, view: View) -> Iterable[Finding]:
        """Rates that fell to 0 for the rest of the run."""
        found: list[Finding] = []
        for seen in view.processes.values():
            state = self._states.get(seen.process.label)
            if (
                state is not None
                and state.reported_groups
                and all(state.courses[n].had_rate for n in state.reported_groups)
            ):
                self._withdraw_given(seen.process, state)
            is_known = state is not None and seen.end is not None  # a run cut off may have gone on with a rate
            fallen = _find_fallen(state, seen.step) if state is not None and is_known else []
            if state is None or not fallen:
                continue
            if state.is_reported:
                self._add_to_given(seen.process, state, fallen)
                continue
            cause = "the schedule of the group, or a multiplier of it, reaches 0 before the training ends"
            new = self._make_zero_finding(seen.process, state, fallen, cause)
            if seen.step > state.step:
                new.evidence.append(f"the last record is of step {state.step} of {seen.step}")
            found += self.report_from(seen.process, self._given, new)
        return found

    def _withdraw_given(self, process: ProcessDir, state: _State) -> None:
        """The groups that had no rate at first got one: frozen for a while, by the rate."""
        if self._given and self._is_origin(self._given[0], process):
            self._given[0].severity = "info"
            self._given[0].evidence.append("later they had a learning rate above 0")
            state.reported_groups = []

    def _add_to_given(self, process: ProcessDir, state: _State, indices: Sequence[int]) -> None:
        """Groups whose rate fell, beside those that never had one."""
        known = state.known.find_groups(state.first_rates)
        members = format_members(known, indices)
        line = f"{format_groups(known, indices)} too, since step {state.courses[indices[0]].since}"
        if self._given and self._is_origin(self._given[0], process):
            self._given[0].evidence.insert(1, f"{line}{f': {members}' if members else ''}")

    def _make_zero_finding(self, process: ProcessDir, state: _State, indices: Sequence[int], cause: str) -> Finding:
        known = state.known.find_groups(state.first_rates)
        course = state.courses[indices[0]]
        members = format_members(known, indices)
        names = (get_group(known, indices[0]) or {}).get("names") or [""]
        have = "has" if len(indices) == 1 else "have"
        return self.make_finding(
            f"{format_groups(known, indices)} {have} had a learning rate of 0 since step {course.since}"
            f"{f': {members}' if members else ''}, {process.display_name}",
            first_step=course.since,
            rank=process.rank,
            phase="optimizer",
            module=str(names[0]).rpartition(".")[0] if len(indices) == 1 else "",
            evidence=_list_evidence(state, known, indices),
            cause=cause,
            try_next="give the group a rate, or freeze it with requires_grad_(False)",
            grade=(Evidence.LOCATED if members else Evidence.LOCAL).grade_word,
        )


def _follow_rates(state: _State, step: Step) -> None:
    rates = [to_finite(rate) for rate in step.lr]
    if len(rates) < len(state.courses):  # another optimizer, or groups were taken away
        state.courses.clear()
    if len(rates) != len(state.courses):
        state.courses += [_Course() for _ in rates[len(state.courses) :]]
        state.first_rates = rates
    for course, rate in zip(state.courses, rates, strict=True):
        if rate != 0:
            state.uses_zero |= course.records > 0 or rate is None
            course.since = course.records = 0
            course.had_rate, course.after = True, step.step
            continue
        course.since = course.since or step.step
        if any(rates):
            course.until = step.step
            course.records += 1
    state.rates, state.step = rates, step.step


def _find_zero_from_start(state: _State) -> list[int]:
    """The groups that have had no rate so far, are to be trained, and wait for no scheduler."""
    if not any(state.rates):  # TD-S002 speaks where nothing learns
        return []
    late = [n for n, one in enumerate(state.courses) if not one.had_rate and one.zero_steps >= ZERO_STEPS]
    known = state.known.find_groups(state.first_rates) if late else None
    found = [(index, group) for index in late if (group := get_group(known, index)) is not None]
    return [
        index
        for index, group in found
        if group.get("lr") == 0 and not group.get("initial_lr") and get_trainable_count(group)
    ]


def _find_fallen(state: _State, steps: int) -> list[int]:
    """The groups whose rate fell to 0 and stayed there while others had one: all of them at one step."""
    if state.uses_zero or state.step < RECORDED_SHARE * steps:
        return []
    fallen = [index for index, course in enumerate(state.courses) if _has_fallen(course, steps)]
    if len({state.courses[index].since for index in fallen}) > 1:
        return []
    trained = {index: state.known.is_trained(index, len(state.courses)) for index in fallen}
    if False in trained.values() and True not in trained.values():
        return []  # only the first eight groups are listed: one that is not was frozen with those that fell with it
    return [index for index in fallen if trained[index] is not False]


def _has_fallen(course: _Course, steps: int) -> bool:
    least = max(ZERO_STEPS, FALLEN_SHARE * steps)
    return course.had_rate and course.zero_steps >= least and course.records >= FALLEN_RECORDS


def _list_evidence(state: _State, known: ParameterGroups | None, indices: Sequence[int]) -> list[str]:
    """What each group holds, the rates of all, and where the fall is not seen to the step."""
    lines = []
    for index in indices:
        group = get_group(known, index)
        if group is not None and len(indices) > 1:
            lines.append(f"group {index}: {format_members(known, [index])}")
    trained = sum(get_trainable_count(group) for index in indices if (group := get_group(known, index)) is not None)
    held = (
        f"{format_count(trained, 'trainable parameter')} in {'it' if len(indices) == 1 else 'them'}, "
        if trained
        else ""
    )
    rates = [format_figure(rate) for rate in state.rates]
    lines = [f"{held}rates of all groups: {join_limited(rates)}", *lines]
    course = state.courses[indices[0]]
    if course.had_rate and course.since > course.after + 1:
        lines.append(f"no record between steps {course.after} and {course.since}")
    return lines
