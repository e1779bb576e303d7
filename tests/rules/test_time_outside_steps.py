"""TD-P007: where the time went outside of steps, from generated runs: owner by share by what is on record."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from streams import Stream

from tdbg.core.events import Cost, Finding, Observation, Step
from tdbg.core.observations.checkpoint import CheckpointSaved
from tdbg.core.observations.compilation import CompileTime

OWNERS = ("checkpoints", "evaluation", "compiling", "pauses")
START = 1_000_000.0
COST_EVERY_S = 5.0
SAMPLINGS: dict[str, Callable[[int], bool]] = {
    "every step": lambda step: True,
    "every fourth": lambda step: step <= 50 or step % 4 == 0,
    "every 32nd": lambda step: step <= 50 or step % 32 == 0,
    "opening alone": lambda step: step <= 50,
}


@dataclass
class Run:
    """A training of one rank with a clock of its own. lose: (owner, seconds) after each of some steps."""

    steps: int = 800
    step_s: float = 0.1
    noise: float = 0.2
    stall_every: int = 0  # a batch that takes eight times a step
    lose: dict[int, list[tuple[str, float]]] = field(default_factory=dict)
    recorded: Callable[[int], bool] = SAMPLINGS["every step"]
    calls_recorded: bool = True
    in_thread: bool = False  # saves take no time of the training

    def write(self, run: Stream, name: str) -> None:
        """Write what a rank would."""
        draw = random.Random(0)
        t, cost_t, evals, late = START, 0.0, 0, []
        step_began = t
        for step in range(1, self.steps + 1):
            step_s = self.step_s * (1 + self.noise * (2 * draw.random() - 1))
            loader_s = 8 * self.step_s if self.stall_every and step % self.stall_every == 0 else 0.05 * step_s
            forward_s, backward_s, update_s = 0.3 * step_s, 0.5 * step_s, 0.05 * step_s
            t += step_s + loader_s
            for _, seconds in self.lose.get(-step, []):  # compiling, inside of a forward pass
                late.append((t, seconds))
                forward_s += seconds
                t += seconds
            if self.recorded(step):
                parts = {"loader": loader_s, "forward": forward_s, "backward": backward_s, "optimizer": update_s}
                times: dict[str, Any] = {f"{part}_ms": 1e3 * seconds for part, seconds in parts.items()}
                step_ms = 1e3 * (t - step_began)
                run.emit_events(name, Step(t=t, step=step, loss=1.0, finite=True, lr=[0.1], step_ms=step_ms, **times))
            if t - cost_t >= COST_EVERY_S:
                cost_t = t
                if late:
                    seen = CompileTime(began=[began for began, _ in late], took_s=[took for _, took in late])
                    run.emit_events(name, make_observation(seen, t, step))
                    late = []
                run.emit_events(name, Cost(t=t, step=step, evals=evals))
            step_began = t
            for owner, seconds in self.lose.get(step, []):
                if owner == "evaluation":
                    for _ in range(10):
                        t += seconds / 10
                        evals += 1
                        if self.calls_recorded:
                            call_ms = 80 * seconds
                            run.emit_events(name, Step(t=t, step=step, phase="eval", call=evals, forward_ms=call_ms))
                elif owner == "compiling":
                    late.append((t, seconds))
                    t += seconds
                else:
                    t += 0.0 if self.in_thread and owner == "checkpoints" else seconds
                if owner == "checkpoints":
                    seen = CheckpointSaved(call="torch.save", path="a.pt", took_s=seconds)
                    run.emit_events(name, make_observation(seen, t, step))
        run.emit_events(name, Cost(t=t, step=self.steps, evals=evals))
        run.end_process(name, self.steps)


def make_observation(seen: Any, t: float, step: int) -> Observation:
    return Observation(t=t, probe=seen.PROBE, part=seen.PART, step=step, values=seen.as_values())


def find_time(run: Stream) -> Finding | None:
    found = [one for one in run.judge_stream().findings if one.code == "TD-P007"]
    assert len(found) <= 1
    return found[0] if found else None


def read_seconds(finding: Finding) -> dict[str, float]:
    """The seconds of each owner that the title names."""
    return {name: float(seconds) for name, seconds in re.findall(r"(\w+) ([\d.]+) s \(", finding.title)}


@pytest.mark.parametrize("share", [0.4, 0.6, 0.85])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("owner", OWNERS)
def test_the_owner_is_named_with_its_seconds(
    one_rank: tuple[Stream, str], owner: str, sampling: str, share: float
) -> None:
    whole_s = 84.0 * share / (1 - share)
    lose = {step: [(owner, whole_s / 8)] for step in range(80, 800, 88)[:8]}
    Run(lose=lose, recorded=SAMPLINGS[sampling]).write(*one_rank)
    finding = find_time(one_rank[0])
    assert finding is not None and finding.severity == "info"
    seconds = read_seconds(finding)
    assert set(seconds) == {owner}, finding.title
    assert 0.7 * whole_s <= seconds[owner] <= 1.1 * whole_s
    assert finding.evidence[0].startswith(f"{owner}: ")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", range(6))
def test_mixed_owners_are_told_apart(one_rank: tuple[Stream, str], sampling: str, seed: int) -> None:
    draw = random.Random(seed)
    lose: dict[int, list[tuple[str, float]]] = {}
    for step in range(100, 800, 70):
        owners = draw.sample(OWNERS, draw.randint(1, 2))
        # What comes after an evaluation of unknown length is not told from it; nor is what it compiles.
        owners.sort(key=["compiling", "pauses", "checkpoints", "evaluation"].index)
        if "evaluation" in owners and "pauses" in owners:
            owners.remove("pauses")
        lose[step] = [(owner, draw.uniform(3, 12)) for owner in owners]
    truth = {name: sum(s for one in lose.values() for owner, s in one if owner == name) for name in OWNERS}
    pauses = [s for one in lose.values() for owner, s in one if owner == "pauses"]
    if len(pauses) < 3 or max(pauses) > sum(pauses) / 2:
        truth["pauses"] = 0.0  # too few to be the program's
    Run(lose=lose, recorded=SAMPLINGS[sampling]).write(*one_rank)
    finding = find_time(one_rank[0])
    assert finding is not None
    seconds = read_seconds(finding)
    for owner, expected in truth.items():
        assert abs(seconds.get(owner, 0.0) - expected) <= 0.15 * expected + 3.0, (finding.title, truth)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("stall_every", [0, 8, 16, 50])
@pytest.mark.parametrize("step_s", [0.002, 0.1, 1.5])
def test_steps_without_a_record_are_no_pause(
    one_rank: tuple[Stream, str], sampling: str, stall_every: int, step_s: float
) -> None:
    steps = 12_000 if step_s < 0.01 else 700
    Run(steps, step_s, stall_every=stall_every, noise=0.6, recorded=SAMPLINGS[sampling]).write(*one_rank)
    assert find_time(one_rank[0]) is None


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_save_in_the_background_takes_no_time(one_rank: tuple[Stream, str], sampling: str) -> None:
    lose = {step: [("checkpoints", 6.0)] for step in range(100, 800, 70)}
    Run(lose=lose, recorded=SAMPLINGS[sampling], in_thread=True).write(*one_rank)
    assert find_time(one_rank[0]) is None


@pytest.mark.parametrize("owner", OWNERS)
def test_a_small_share_or_a_short_time_is_not_told(one_rank: tuple[Stream, str], owner: str) -> None:
    Run(lose={400: [(owner, 25.0)]}).write(*one_rank)
    assert find_time(one_rank[0]) is None


@pytest.mark.parametrize("owner", OWNERS)
def test_nor_is_a_large_share_of_little(one_rank: tuple[Stream, str], owner: str) -> None:
    Run(steps=100, lose={60: [(owner, 18.0)]}).write(*one_rank)
    assert find_time(one_rank[0]) is None


def test_compiling_inside_of_the_first_steps_counts(one_rank: tuple[Stream, str]) -> None:
    Run(steps=200, lose={-1: [("compiling", 30.0)], -120: [("compiling", 9.0)]}).write(*one_rank)
    finding = find_time(one_rank[0])
    assert finding is not None and read_seconds(finding) == {"compiling": pytest.approx(39.0, abs=1.0)}
    assert "the longest 30 s after step 0" in finding.evidence[0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_evaluation_calls_that_are_counted_alone_are_evaluation(one_rank: tuple[Stream, str], sampling: str) -> None:
    lose = {step: [("evaluation", 8.0)] for step in range(100, 800, 70)}
    Run(lose=lose, recorded=SAMPLINGS[sampling], calls_recorded=False).write(*one_rank)
    finding = find_time(one_rank[0])
    assert finding is not None and set(read_seconds(finding)) == {"evaluation"}, finding


def test_a_pause_after_an_evaluation_is_told_from_it(one_rank: tuple[Stream, str]) -> None:
    lose = {step: [("evaluation", 5.0), ("pauses", 5.0)] for step in range(100, 800, 70)}
    Run(lose=lose).write(*one_rank)
    finding = find_time(one_rank[0])
    assert finding is not None
    assert read_seconds(finding) == {"evaluation": pytest.approx(54, abs=4), "pauses": pytest.approx(46, abs=4)}


def test_the_rank_that_saves_is_told_and_not_the_one_that_waits(make_stream: Callable[..., Stream]) -> None:
    run = make_stream()
    for rank, owner in enumerate(("pauses", "checkpoints")):
        Run(lose={step: [(owner, 9.0)] for step in range(100, 800, 70)}).write(run, run.begin_rank(rank, 2))
    finding = find_time(run)
    assert finding is not None and finding.rank == 1 and set(read_seconds(finding)) == {"checkpoints"}
    assert finding.evidence[-1] == "also on rank 0"


def test_under_the_profiler_nothing_is_called_a_pause(one_rank: tuple[Stream, str]) -> None:
    run, name = one_rank
    run.emit_events(name, Observation(t=START, probe="profiler", part="WINDOW", step=1, values={}))
    Run(lose={step: [("pauses", 9.0)] for step in range(100, 800, 70)}).write(run, name)
    assert find_time(run) is None


@pytest.mark.parametrize("sampling", [name for name in SAMPLINGS if name != "every step"])
@pytest.mark.parametrize("read_every", [20, 50, 64])
def test_a_host_that_waits_for_its_device_has_no_pause(
    make_stream: Callable[..., Stream], sampling: str, read_every: int
) -> None:
    """It queues steps in 5 ms each that take 100 ms, and waits for them where the program reads the loss."""
    run = make_stream()
    name = run.begin_rank(device={"type": "cuda"})
    lose = {step: [("pauses", 0.095 * read_every)] for step in range(read_every, 800, read_every)}
    Run(step_s=0.005, lose=lose, recorded=SAMPLINGS[sampling]).write(run, name)
    assert find_time(run) is None


@pytest.mark.parametrize("owner", OWNERS)
def test_on_a_device_the_owner_is_named_where_every_step_is_on_record(
    make_stream: Callable[..., Stream], owner: str
) -> None:
    run = make_stream()
    name = run.begin_rank(device={"type": "cuda"})
    Run(lose={step: [(owner, 9.0)] for step in range(100, 800, 70)}).write(run, name)
    finding = find_time(run)
    assert finding is not None and set(read_seconds(finding)) == {owner}


@pytest.mark.parametrize("pauses", [[3600.0], [240.0, 240.0], [300.0, 20.0, 20.0]])
def test_a_machine_that_slept_is_not_reported(one_rank: tuple[Stream, str], pauses: list[float]) -> None:
    """A laptop, a debugger's prompt, a clock that was set: once or twice, or one that is most of it."""
    Run(lose={200 + 100 * n: [("pauses", seconds)] for n, seconds in enumerate(pauses)}).write(*one_rank)
    assert find_time(one_rank[0]) is None


def test_a_teacher_called_in_each_step_is_no_evaluation(one_rank: tuple[Stream, str]) -> None:
    """Its call also hides how long the step waited for its batch."""
    lose = {step: [("evaluation", 0.05 if step % 8 else 3.0)] for step in range(1, 800)}
    Run(lose=lose).write(*one_rank)
    assert find_time(one_rank[0]) is None


def test_the_first_batch_after_an_evaluation_is_waited_for_and_no_pause(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    t = START
    for step in range(1, 901):
        is_first = step % 150 == 1 and step > 1
        if is_first:
            for call in range(10):
                t += 0.2
                run.emit_events(rank, Step(t=t, step=step - 1, phase="eval", call=step // 15 + call, forward_ms=150.0))
        t += 10.1 if is_first else 0.1
        times = {"loader_ms": 10_000.0 if is_first else 5.0, "forward_ms": 30.0, "backward_ms": 50.0}
        step_ms = 12_100.0 if is_first else 100.0
        run.emit_events(rank, Step(t=t, step=step, loss=1.0, finite=True, lr=[0.1], step_ms=step_ms, **times))
    run.emit_events(rank, Cost(t=t, step=900, evals=60))
    run.end_process(rank, 900)
    assert find_time(run) is None
