"""TD-M001: memory grows from step to step."""

from collections import defaultdict
from collections.abc import Iterable
from typing import ClassVar

from tdbg.core.events import Cost, Event, Finding, Observation, ProbeOff, Step
from tdbg.core.observations import Evidence
from tdbg.core.observations.memory import MemoryGrowth
from tdbg.core.rule_base import Link, Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule, add_grade, find_gravest
from tdbg.rules._probe_presence import ProbePresence
from tdbg.rules._recorded_memory import Leak, MemoryTrail
from tdbg.rules.text import format_figure

MAX_KINDS = 4


class _State:
    def __init__(self) -> None:
        self.probe = ProbePresence(MemoryGrowth.PROBE)
        self.trails = (MemoryTrail("device"), MemoryTrail("host"))
        self.reported: set[str] = set()  # host, device: of which nothing more is made of records
        self.recorded: set[str] = set()  # of which the last word was made of records


@RULES.add
class MemoryCreep(ObservingRule[_State]):
    """Says when host or device memory grows from step to step, and what it is that piles up.

    What it does: With the flag MEMORY (or from level advanced on) it follows the memory at the end of steps, the
    first 5 left out. Growth counts if it goes on in each fifth of at least 50 steps; a jump, or an allocator that
    slows down, does not. Half way and at the end the live tensors are counted by kind. It speaks when memory grew
    by MEMORY.creep_pct and tensors that keep their graph became steadily more, or when it grew by MEMORY.creep_mb
    whatever it is made of (of host memory half of that after the first pass over the data: caches fill in it). Host
    memory that grows without graphs is only info: a buffer may be meant to fill.
    Where steps are too short for that, it reads the memory in the step records, from step 51 on: 1,074 MB more
    over 200 steps and 5 s, at least 10 records, on and on and not slower than before; half of that after the
    pass over the data in which it began, as fast as in it; four times as much where there is no later pass yet,
    and host memory not in the first pass. Without a DataLoader no pass is known: device memory is info too up
    to four times as much, and the cause names what may be meant to grow. It is silent if memory was as high
    before, or if batches or sequences grow: then a device's peak rises faster, or forward passes on the host
    take longer. Below a peak of before, as an evaluation may leave, that cannot be told: then it is info on a
    device too.
    Records tell no kinds of tensors: what grew on the host is info, and the evidence says which flag would tell.

    Why it matters: A loss or an output kept with its graph keeps all activations of its step. The run ends in an
    out-of-memory error hours later, on a line that has nothing to do with it, or is killed without a word.

    Example:
        TD-M001 warning: host memory grew 214 MB in 51 steps (4.2 MB a step) since step 6, rank 0

    What to do: Append `loss.item()` or `loss.detach()`, not `loss`; run evaluation under `torch.no_grad()`; empty
    lists of outputs. The evidence names the kind of tensor and, where Python knows, the list that holds them.

    Thresholds: MEMORY.creep_pct 10 and MEMORY.creep_mb 1074 (1 GiB over 50 steps, as traceml has it); at least
    32 MB; one more tensor with a graph in 4 steps.
    """

    code = "TD-M001"
    title = "memory creep"
    severity = "warning"
    leads_to = (Link("TD-M002", least=0), Link("TD-M003", least=0))
    listens: ClassVar[tuple[type[Event], ...]] = (Observation, Step, Cost, ProbeOff)
    observes = (MemoryGrowth,)
    needs = Needs(observes)
    kept = _State

    def __init__(self) -> None:
        super().__init__()
        self._given_of: defaultdict[str, list[Finding]] = defaultdict(list)  # host, device: one finding each

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Observations are told; step records are kept, and judged whenever it is known that no probe looks."""
        state = self._states[process.label]
        if isinstance(event, Observation):
            return self._feed_observation(process, state, event)
        if isinstance(event, Step):
            if event.phase == "train":
                for trail in state.trails:
                    if trail.kind not in state.reported:
                        trail.add_record(event)
            return ()
        state.probe.add_event(event)
        if isinstance(event, Cost) and state.probe.is_absent:
            return self._judge_records(process, state)
        return ()

    def _feed_observation(self, process: ProcessDir, state: _State, event: Observation) -> Iterable[Finding]:
        seen = MemoryGrowth.from_event(event)
        new = self.evaluate(process, state, seen) if seen is not None else None
        if seen is None or new is None:
            return []
        kind = "device" if seen.kind == "device" else "host"
        state.reported.add(kind)
        found = self._report_growth(process, kind, add_grade(new, seen))
        state.recorded.discard(kind)
        return found

    def _judge_records(self, process: ProcessDir, state: _State) -> Iterable[Finding]:
        found = []
        for trail in state.trails:
            leak = trail.find_leak() if trail.kind not in state.reported else None
            if leak is not None and (leak.is_sure or trail.kind not in state.recorded):
                found += self._report_growth(
                    process, trail.kind, self._make_recorded_finding(process, trail.kind, leak)
                )
                state.recorded.add(trail.kind)
                if leak.is_sure or trail.kind == "host":
                    state.reported.add(trail.kind)
        return found

    def _report_growth(self, process: ProcessDir, kind: str, new: Finding) -> list[Finding]:
        """Give out what is new of a kind; it takes the place of what this process's records told."""
        given = self._given_of[kind]
        if not given or kind not in self._states[process.label].recorded or not self._is_origin(given[0], process):
            return self.report_from(process, given, new)
        first = given[0]
        new.first_step = min(first.first_step or 0, new.first_step or 0)
        new.severity = find_gravest(first.severity, new.severity)
        self._replace_given(first, new, with_repetitions=False)
        return []

    def _make_recorded_finding(self, process: ProcessDir, kind: str, leak: Leak) -> Finding:
        growth, records = leak.growth, leak.records
        older_peak = ["below a peak of before: it may be batches or sequences that grow"] if leak.is_below_peak else []
        return self.make_finding(
            f"{_format_growth(kind, growth.mb, growth.steps, growth.from_step)}, {process.display_name}",
            severity="warning" if kind == "device" and leak.is_sure else "info",
            first_step=growth.from_step,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{format_figure(growth.pct)} % more than at step {growth.from_step}, still growing at step {growth.to_step}",
                f"read off the records of {format_count(records, 'step')}: no probe watched the memory there",
                *older_peak,
            ],
            cause=_explain_recorded_growth(kind, leak),
            try_next="run it for some minutes with --flag MEMORY, which names what piles up and the list that holds it",
            grade=Evidence.STATISTICAL.grade_word,
        )

    def evaluate(self, process: ProcessDir, state: _State, seen: MemoryGrowth) -> Finding | None:
        return self._make_counted_finding(process, seen) if seen.sure else None

    def _make_counted_finding(self, process: ProcessDir, seen: MemoryGrowth) -> Finding:
        graphs = seen.piled_up
        return self.make_finding(
            f"{_format_growth(seen.kind, seen.grown_mb, seen.steps, seen.from_step)}, {process.display_name}",
            severity="warning" if graphs or seen.kind == "device" else "info",
            first_step=seen.from_step,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{format_figure(seen.grown_pct)} % more than at step {seen.from_step}, still growing at step {seen.step}",
                *self._describe_piles(seen),
                *[f"alive: {line}" for line in seen.top[:MAX_KINDS]],
            ],
            cause=(
                "losses or outputs are kept with their autograd graph"
                if graphs
                else "a list of results, a cache or a buffer grows"
            ),
            try_next="keep .item() or .detach() of losses and outputs; evaluate under torch.no_grad(); clear lists after use",
        )

    def _describe_piles(self, growth: MemoryGrowth) -> list[str]:
        lines = []
        if growth.piled_up:
            lines.append(
                f"{format_count(growth.graphs, 'more tensor')} with a graph in {format_count(growth.graph_steps, 'step')}"
            )
        lines += growth.growing[:MAX_KINDS]
        return [*lines, f"held by {growth.holder}"] if growth.holder else lines


def _explain_recorded_growth(kind: str, leak: Leak) -> str:
    kept = "losses or outputs are kept with their graph, or a list of results, a cache or a buffer grows"
    if leak.has_passes:
        return kept
    meant = "pages of mapped files (np.memmap) that were read or a buffer" if kind == "host" else "a buffer"
    return f"{kept}; it may be meant: {meant} that finds its size, as no DataLoader tells the passes over the data"


def _format_growth(kind: str, grown_mb: float, steps: int, from_step: int | None) -> str:
    pace = format_figure(grown_mb / max(steps, 1))
    return f"{kind} memory grew {grown_mb:,.0f} MB in {format_count(steps, 'step')} ({pace} MB a step) since step {from_step}"
