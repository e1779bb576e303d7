"""TD-M001: memory grows from step to step."""

from collections.abc import Iterable
from typing import ClassVar

from tdbg.core.events import Cost, Event, Finding, Observation, ProbeOff, Step
from tdbg.core.observations import Evidence
from tdbg.core.observations.memory import MemoryGrowth
from tdbg.core.rule_base import Link, Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.steady_growth import Growth
from tdbg.core.tables import format_count
from tdbg.rules import RULES, ObservingRule, Reported, add_grade, overwrite_finding
from tdbg.rules._probe_presence import ProbePresence
from tdbg.rules._recorded_memory import MemoryTrail
from tdbg.rules.text import format_figure

MAX_KINDS = 4


class _State(Reported):
    def __init__(self) -> None:
        self.probe = ProbePresence(MemoryGrowth.PROBE)
        self.trails = (MemoryTrail("device"), MemoryTrail("host"))
        self.recorded: Finding | None = None  # what was made of its records


@RULES.add
class MemoryCreep(ObservingRule[_State]):
    """Says when host or device memory grows from step to step, and what it is that piles up.

    What it does: With the flag MEMORY (or from level advanced on) it follows the memory at the end of steps, the
    first 5 left out. Growth counts if it goes on in each fifth of at least 50 steps; a jump, or an allocator that
    slows down, does not. Half way and at the end the live tensors are counted by kind. It speaks when memory grew
    by MEMORY.creep_pct and tensors that keep their graph became steadily more, or when it grew by MEMORY.creep_mb
    whatever it is made of (for host memory not in the first pass over the data: caches fill then). Host memory that
    grows without graphs is only info: a buffer may be meant to fill.
    Where steps are too short for that, it reads the memory in the step records, from step 51 on: 1,074 MB more over
    200 steps and 5 s, at least 10 records, on and on and not slower than before; half of that
    after the pass over the data in which it began, as fast as in it; four times as much where there is no later
    pass yet, and host memory not in the first pass. It is silent if memory was as high before, or
    if batches or sequences grow: then a device's peak rises faster, or forward passes on the host take longer.
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

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        """Observations go to `evaluate`; step records are kept, and judged whenever it is known that no probe looks."""
        if isinstance(event, Observation):
            return super().feed(process, event)
        state = self._states[process.label]
        if isinstance(event, Step):
            if event.phase == "train" and not state.said:
                for trail in state.trails:
                    trail.add_record(event)
            return ()
        state.probe.add_event(event)
        if isinstance(event, Cost) and state.probe.is_absent and not state.said:
            return self._judge_records(process, state)
        return ()

    def _judge_records(self, process: ProcessDir, state: _State) -> Iterable[Finding]:
        for trail in state.trails:
            leak = trail.find_leak()
            if leak is not None:
                state.said = True
                state.recorded = self._make_recorded_finding(process, trail.kind, *leak)
                return self.report_from(process, self._given, state.recorded)
        return ()

    def _make_recorded_finding(self, process: ProcessDir, kind: str, growth: Growth, records: int) -> Finding:
        return self.make_finding(
            f"{_format_growth(kind, growth.mb, growth.steps, growth.from_step)}, {process.display_name}",
            severity="warning" if kind == "device" else "info",
            first_step=growth.from_step,
            rank=process.rank,
            phase="train",
            evidence=[
                f"{format_figure(growth.pct)} % more than at step {growth.from_step}, still growing at step {growth.to_step}",
                f"read off the records of {format_count(records, 'step')}: no probe stays in steps as short as these",
            ],
            cause="losses or outputs are kept with their graph, or a list of results, a cache or a buffer grows",
            try_next="run it for some minutes with --flag MEMORY, which names what piles up and the list that holds it",
            grade=Evidence.STATISTICAL.grade_word,
        )

    def evaluate(self, process: ProcessDir, state: _State, seen: MemoryGrowth) -> Finding | None:
        if not seen.sure:
            return None
        state.said = True
        new = self._make_counted_finding(process, seen)
        first = self._given[0] if self._given else None
        if first is None or first is not state.recorded or not self._is_origin(first, process):
            return new
        new.first_step = min(first.first_step or 0, new.first_step or 0)
        new.evidence += [line for line in first.evidence if line.startswith("also ")]
        overwrite_finding(first, add_grade(new, seen))  # it knows what the records do not tell
        return None

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


def _format_growth(kind: str, grown_mb: float, steps: int, from_step: int | None) -> str:
    pace = format_figure(grown_mb / max(steps, 1))
    return f"{kind} memory grew {grown_mb:,.0f} MB in {format_count(steps, 'step')} ({pace} MB a step) since step {from_step}"
