"""What a run has come to: the state of each process, kept up to date event by event."""

import math
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tdbg.core.config import Settings
from tdbg.core.errors import TdbgError
from tdbg.core.events import (
    Anomaly,
    Baseline,
    ChildExit,
    Cost,
    End,
    Event,
    Injection,
    Note,
    Number,
    Observation,
    Params,
    Plan,
    ProbeOff,
    Start,
    Step,
    Switch,
    Traceback,
    Trigger,
)
from tdbg.core.host import host_name
from tdbg.core.observations.checkpoint import CheckpointRead, CheckpointSaved
from tdbg.core.observations.distributed import QuietRank
from tdbg.core.observations.hang import HungRank, HungRankResumed
from tdbg.core.observations.preflight import Refused
from tdbg.core.ranges import MAX_RANKS
from tdbg.core.rundir import AGENTS, ProcessDir, RunDir, is_process_alive, restart_count
from tdbg.rules.debug_summary import AnomalyCounts, TrainingCounts
from tdbg.rules.flag_lines import Injections

CHECKPOINTS = (CheckpointSaved.PART, CheckpointRead.PART)
MAX_NOTES = 50
MAX_TRIGGERS = 50
MAX_TRIALS = 20
MAX_EXITS = 10_000
LIVED_ON_S = 60.0  # a program that still takes steps this long after a request to stop has not followed it
# A rank of another host, whose process table is not ours to see, counts as gone after this silence.
SILENT_S = 60.0


def to_finite(value: Number | None) -> float | None:
    """The number, or None where there is none, it is NaN or Inf, or the field holds something else."""
    if type(value) is float or type(value) is int:
        return value if math.isfinite(value) else None
    return None


def is_non_finite(value: Number | None) -> bool:
    """True for what an event writes instead of NaN and Inf."""
    return value in ("nan", "inf", "-inf")


def get_signal_name(number: int) -> str:
    """``SIGKILL`` for 9; a number no signal has stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """An exit status in words: ``exit 7``, or the signal's name where it is negative."""
    return get_signal_name(-code) if code < 0 else f"exit {code}"


def get_launch_number(process: ProcessDir, start: Start | None) -> int:
    """Which launch of the job a process belongs to: ranks of one launch ran together.

    The number of its folder alone does not say it: a rank that ended before its first step has none of that launch.
    Nor does the launcher's count: torch elastic counts the restarts of each node by itself.
    """
    return max(process.attempt, restart_count(start.env) if start is not None else 0)


class FlagObservations:
    """What the probe of one flag told in one process: how often, and its last observation."""

    count: int = 0

    def __init__(self, last: Observation) -> None:
        self.last = last


@dataclass(slots=True, repr=False, eq=False)
class ProcessView:
    """One process that wrote events, as far as they are read."""

    process: ProcessDir
    start: Start | None = None
    step: int = 0
    evals: int = 0
    records: int = 0
    steps_recorded: int = 0  # those of the training
    gradient_reads: int = 0  # steps on record whose gradients were all read
    eval_passes: int = 0  # those with a record
    batches: int = 0  # taken from the training loader, as far as steps on record say
    checkpoints: int = 0  # saved or read, where a probe looks
    skipped: int = 0
    is_quiet: bool = False  # it made no progress when it was last looked at
    is_stuck: bool = False  # and waited in a collective then, where it does not hear signals
    gap: int = 1  # most steps between two records: the budget may leave records out
    last: Step | None = None  # the last training record
    last_eval: Step | None = None
    t: float = 0.0
    optimizers: int = 0
    plan: Plan | None = None
    end: End | None = None
    cost: Cost | None = None
    baseline: Baseline | None = None
    crash: Traceback | None = None  # the last exception nobody caught
    swallowed: int = 0  # exceptions that were logged or printed
    notes: dict[str, str] = field(default_factory=dict)
    observations_by_flag: dict[str, FlagObservations] = field(default_factory=dict)  # by probe where no flag wakes it
    probes: set[str] = field(default_factory=set)  # those whose observations came
    failed_probes: set[str] = field(default_factory=set)  # parts of tdbg that switched themselves off
    switch: Switch | None = None  # the last change of level and flags; None: as the run began
    triggers: list[Trigger] = field(default_factory=list)  # the first ones
    trials: list[Observation] = field(default_factory=list)  # of a preflight
    counts: TrainingCounts = field(default_factory=TrainingCounts)
    anomalies: AnomalyCounts = field(default_factory=AnomalyCounts)
    _epoch: tuple[int | None, int] = (None, 0)  # of the training loader: which one, and the batches before it

    @property
    def rank(self) -> int | None:
        """The global rank, if it became one."""
        return self.process.rank

    @property
    def launch(self) -> int:
        """Which launch of the job it belongs to."""
        return get_launch_number(self.process, self.start)

    @property
    def display_name(self) -> str:
        """How the process is named to people: ``rank 3``, ``rank 3 attempt 1``, ``process vm-77``, or its folder."""
        if self.rank is None:
            return self.process.display_name
        if not self.process.is_rank:
            return self.process.label
        return f"rank {self.rank}" + (f" attempt {self.process.attempt}" if self.process.attempt else "")

    def find_level_and_flags(self, settings: Settings) -> tuple[str, list[str]]:
        """Level and flags of the process now: by its last switch or sign of life, else as the run was started."""
        switch, cost = self.switch, self.cost
        if switch is not None and (cost is None or switch.t >= cost.t):
            return switch.level, list(switch.flags)
        if cost is not None and cost.level:
            return cost.level, list(cost.flags)
        return settings.level, [name for name, value in settings.flags.items() if value is not False]

    def add_event(self, event: Event) -> None:
        """Bring the state up to date."""
        self.t = max(self.t, event.t)
        if isinstance(event, Step):
            self._add_step(event)
        elif isinstance(event, Note):
            if len(self.notes) < MAX_NOTES:
                self.notes.setdefault(event.code, event.text)
        elif isinstance(event, Traceback):
            if event.how == "uncaught":
                self.crash = event
            else:
                self.swallowed += 1
        elif isinstance(event, Observation):
            self._add_observation(event)
        elif isinstance(event, Anomaly):
            self.anomalies.add_anomaly(event)
        elif isinstance(event, ProbeOff):
            self.failed_probes.add(event.probe)
        elif isinstance(event, Trigger):
            if len(self.triggers) < MAX_TRIGGERS:
                self.triggers.append(event)
        elif isinstance(event, Params):
            self.optimizers = len(event.optimizers)
        elif type(event) in _KEPT:
            setattr(self, _KEPT[type(event)], event)
            if isinstance(event, Cost | End):  # these count the steps that left no record too
                self.step = max(self.step, event.step)
            if isinstance(event, Cost):
                self.evals = max(self.evals, event.evals)

    def _add_observation(self, event: Observation) -> None:
        self.probes.add(event.probe)
        if event.probe == Refused.PROBE and len(self.trials) < MAX_TRIALS:
            self.trials.append(event)
        self.checkpoints += event.probe == CheckpointSaved.PROBE and event.part in CHECKPOINTS
        if event.probe in (HungRank.PROBE, QuietRank.PROBE) and event.part in (HungRank.PART, HungRankResumed.PART):
            self.is_quiet = event.part == HungRank.PART
            waits = HungRank.from_event(event) or QuietRank.from_event(event)
            self.is_stuck = waits is not None and waits.state in ("collective", "init")
            self.step = max(self.step, event.step - 1)  # it is in the step after the last one that it did
        name = event.flag or event.probe
        found = self.observations_by_flag.get(name)
        if found is None:
            found = self.observations_by_flag[name] = FlagObservations(event)
        found.count += 1
        found.last = event

    def _add_step(self, event: Step) -> None:
        if event.phase != "eval":
            self.counts.add_step(event)
        event.grad_norms = None  # long, and no rule asks for it: not worth keeping
        self.records += 1
        if event.phase == "eval":
            self.evals = max(self.evals + 1, event.call or 0)
            self._count_pass(event)
            self.last_eval = event
            return
        self._count_batches(event)
        self.steps_recorded += 1
        self.gradient_reads += event.checked == "all"
        self.gap = max(self.gap, event.step - self.last.step if self.last else 1)
        self.step = max(self.step, event.step)
        self.skipped += event.skipped
        self.is_quiet = self.is_stuck = False
        self.last = event

    def _count_pass(self, event: Step) -> None:
        """Evaluation after the same training step is one pass; so is all of it, where nothing was trained before."""
        before = self.last_eval
        self.eval_passes += before is None or (bool(self.step) and before.step != event.step)

    def _count_batches(self, event: Step) -> None:
        if event.batch is None:
            return
        epoch, before = self._epoch
        if event.epoch != epoch:
            before = self.batches
            self._epoch = event.epoch, before
        self.batches = max(self.batches, before + event.batch)


_KEPT: dict[type[Event], str] = {
    Start: "start",
    Plan: "plan",
    End: "end",
    Cost: "cost",
    Baseline: "baseline",
    Switch: "switch",
}


class View:
    """The whole run: its processes, the exits of their children, and what run.json says."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.processes: dict[str, ProcessView] = {}
        self.child_exits: dict[tuple[str, int], tuple[float, int]] = {}  # (host, pid) -> (when, code)
        self.injections = Injections()
        self.info: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.over = False

    def add_event(self, process: ProcessDir, event: Event) -> None:
        """Bring the state up to date."""
        found = self.processes.get(process.label)
        if found is None:
            found = self.processes[process.label] = ProcessView(process)
        found.add_event(event)
        if isinstance(event, Injection):
            self.injections.add_injection(event)
        if isinstance(event, ChildExit) and len(self.child_exits) < MAX_EXITS:
            self.child_exits.setdefault((event.host, event.pid), (event.t, event.code))

    def read_outcome(self, exit_code: int | None) -> None:
        """Read how the run ended; ``exit_code`` is the supervisor's word, run.json's counts without it."""
        self.info = read_info(self.run)
        kept = self.info.get("exit")
        code, number = (kept.get("code"), kept.get("signal")) if isinstance(kept, dict) else (kept, None)
        self.exit_code = exit_code if exit_code is not None else (code if isinstance(code, int) else None)
        killed_by = _parse_signal_number(number)
        if killed_by:
            self.exit_code = -killed_by
        self.over = self.exit_code is not None or bool(self.info.get("end")) or not self._is_supervised()

    def _is_supervised(self) -> bool:
        """True while the tdbg that started the run may still live."""
        supervisor = self.info.get("supervisor")
        if not isinstance(supervisor, dict):
            return False
        alive = is_process_alive(supervisor.get("pid"), supervisor.get("host"), supervisor.get("started"))
        if alive is not None:
            return alive
        return time.time() - max((found.t for found in self.processes.values()), default=0.0) < SILENT_S

    @property
    def stop_t(self) -> float:
        """When the command was told to stop (Ctrl-C, a signal, `--stop-on`, `--then stop`): the request it followed.

        Infinite if there was none, or if the program still took steps `LIVED_ON_S` after the last one.
        """
        kept = self.info.get("stop_times")
        times = [one for one in kept if isinstance(one, int | float)] if isinstance(kept, list) else []
        steps = [step for found in self.processes.values() for step in (found.last, found.last_eval)]
        stepped_t = max((step.t for step in steps if step is not None), default=0.0)
        return min((stop_t for stop_t in times if stepped_t - LIVED_ON_S <= stop_t), default=math.inf)

    @property
    def settings(self) -> Settings:
        """What the run was asked, as far as run.json can be read."""
        try:
            return Settings.from_dict(self.info.get("settings") or {})
        except (TypeError, AttributeError):
            return Settings()

    def list_rank_processes(self) -> list[ProcessView]:
        """The latest attempt of every rank, in rank order; a process that trained before one that only evaluated."""
        latest: dict[int, ProcessView] = {}
        for found in list(self.processes.values()):  # while another thread may add to them
            rank = found.rank
            if rank is not None and (rank not in latest or _is_preferred(found, latest[rank])):
                latest[rank] = found
        return [latest[rank] for rank in sorted(latest) if latest[rank].process.is_rank or latest[rank].step]

    def list_attempts(self, found: ProcessView) -> list[ProcessView]:
        """The processes that this one is a restart of, and itself, in order.

        A restart comes after an attempt that trained or failed, and ended badly, unless the launcher counts restarts. What
        follows a good end is another training, and a process that never trained is none.
        """
        line = [found]
        if not found.process.is_rank:
            return line
        earlier = [
            one
            for one in self.processes.values()
            if one.rank == found.rank and one.process.is_rank and one.process.attempt < found.process.attempt
        ]
        for one in sorted(earlier, key=lambda one: -one.process.attempt):
            later = line[0]
            if not (later.step or later.crash) or not (self.is_counted_restart(later) or self._ended_badly(one)):
                break
            if one.step or one.crash or one.end is None:
                line.insert(0, one)
        return line

    def list_side_processes(self) -> list[ProcessView]:
        """What stepped or evaluated beside the ranks, and is no earlier attempt of one, in the order of their beginning."""
        ranks = self.list_rank_processes()
        labels = {one.process.label for found in ranks for one in self.list_attempts(found)}
        rest = [found for found in self.list_active_processes() if found.process.label not in labels]
        return sorted(rest, key=lambda found: found.start.t if found.start is not None else found.t)

    def list_trainings(self) -> list[ProcessView]:
        """Processes that trained without a process group, each on its own, if there are several of one rank."""
        lone = [
            found
            for found in [*self.list_rank_processes(), *self.list_side_processes()]
            if found.step and (found.start is None or found.start.world_size <= 1)
        ]
        return lone if len({found.rank for found in lone}) < len(lone) else []

    def list_ranks_elsewhere(self) -> list[int]:
        """Ranks of hosts that share no folder with this one: their `tdbg run` writes into a run directory of its own.

        torchrun tells each rank how many its agent has, and these have consecutive numbers. Where more agents of tdbg came
        to this directory than have ranks in it, a rank that is missing may be one of theirs.
        """
        ranks = [found for found in self.list_rank_processes() if found.start is not None]
        newest = max((found.launch for found in ranks), default=0)
        return find_ranks_elsewhere(
            self.run, [found.start for found in ranks if found.start is not None and found.launch == newest]
        )

    @staticmethod
    def is_counted_restart(found: ProcessView) -> bool:
        """True if its launcher says that it is a restart."""
        return found.start is not None and restart_count(found.start.env) > 0

    def _ended_badly(self, found: ProcessView) -> bool:
        return self.describe_ending(found) not in ("ended", "running")

    def list_active_processes(self) -> list[ProcessView]:
        """Every process that took a step or evaluated, ranks and those kept apart."""
        return [found for found in self.processes.values() if found.records or found.step or found.evals]

    def find_process(self, process: ProcessDir, pid: int) -> ProcessView | None:
        """The process that wrote there, as the rank that it became later, if it did."""
        host = process.path.name.rpartition("-")[0]
        for found in self.processes.values():
            if (
                found.start is not None
                and found.start.pid == pid
                and (process.rank is not None or found.start.host == host)
            ):
                return found
        return self.processes.get(process.label)

    def has_stepped(self, rank: int | None) -> bool:
        """True if a process of this rank took an optimizer step; with None, if any process did."""
        return any(found.step for found in self.processes.values() if rank is None or found.rank == rank)

    def find_exit(self, found: ProcessView) -> tuple[float, int]:
        """When and how its launcher saw a process end; 0, 0 where none told."""
        start = found.start
        return self.child_exits.get((start.host, start.pid), (0.0, 0)) if start is not None else (0.0, 0)

    def find_end_time(self, found: ProcessView) -> float:
        """When a process ended, by its own word, its launcher's, or what it wrote last."""
        return found.end.t if found.end is not None else self.find_exit(found)[0] or found.t

    def find_process_exit(self, found: ProcessView) -> int | None:
        """The process's own exit code (minus the signal), if it is known: its parent said so, or it was the command.

        What a shell script ends with may be the code of another of its commands: that is not told as the process's.
        """
        if found.start is not None:
            reported = self.child_exits.get((found.start.host, found.start.pid))
            if reported is not None:
                return reported[1]
        command = self._get_command()
        if command is None:  # an older run, whose command's process was not noted
            return self.exit_code if self._is_only_training(found) else None
        if _is_process(found, *command):
            return None if self._was_replaced(found) else self.exit_code
        return self._infer_shell_signal(found) if self._is_only_training(found) else None

    def _get_command(self) -> tuple[str, int] | None:
        """Host and pid of the command's own process, as far as run.json says."""
        child = self.info.get("child")
        if not isinstance(child, dict) or not isinstance(child.get("pid"), int):
            return None
        return str(child.get("host", "")), child["pid"]

    def _was_replaced(self, found: ProcessView) -> bool:
        """True if the same process began anew (``os.execv``): how it ended is the last one's."""
        start = found.start
        return start is not None and any(
            _is_process(one, start.host, start.pid) and one.process.attempt > found.process.attempt
            for one in self.processes.values()
        )

    def _infer_shell_signal(self, found: ProcessView) -> int | None:
        """Minus the signal, where a shell ended with 128+N and the process it ran was cut off; else nothing is known."""
        number = (self.exit_code or 0) - 128
        was_cut_off = found.end is None and found.crash is None
        return -number if was_cut_off and number in set(signal.Signals) else None

    def _is_only_training(self, found: ProcessView) -> bool:
        """True for the one process that trains: of several attempts the last, of several trainings none."""
        same = [one for one in self.processes.values() if one.rank == found.rank and one is not found]
        last = not any(one.process.is_rank and one.process.attempt > found.process.attempt for one in same)
        alone = not any(one.step and not one.process.is_rank for one in same)
        return found.process.is_rank and last and alone and len(self.list_rank_processes()) == 1

    def is_gone(self, found: ProcessView) -> bool:
        """True if the process is known to have ended, in whatever way."""
        if found.end is not None or found.crash is not None or self.find_process_exit(found) is not None:
            return True
        here = found.start is None or found.start.host in ("", host_name())
        return self.over and (here or time.time() - found.t > SILENT_S)

    def describe_ending(self, found: ProcessView) -> str:
        """How the process ended, in two or three words."""
        code = self.find_process_exit(found)
        if code is not None and code < 0:
            return get_signal_name(-code)
        if found.crash is not None:
            return found.crash.exception or "exception"
        if code:
            return describe_exit(code)
        if found.end is not None:
            return {"exit": "ended", "exception": "exception"}.get(found.end.reason, found.end.reason)
        if code == 0:
            return "ended"
        if self.is_gone(found):
            return "cut off"
        return "no end seen" if self.over else "running"


def find_ranks_elsewhere(run: RunDir, starts: Sequence[Start]) -> list[int]:
    """Ranks of hosts with a run directory of their own. starts: of the ranks of one launch, one of each."""
    spans = {_find_agent_span(start) for start in starts}
    if not spans or None in spans or 1 + count_joined_agents(run) > len(spans):
        return []
    here = {rank for span in spans if span is not None for rank in span}
    return [rank for rank in range(min(max(start.world_size for start in starts), MAX_RANKS)) if rank not in here]


def find_ranks_started(starts: Iterable[Start]) -> frozenset[int]:
    """Ranks that the launchers of these started on the same hosts, as far as they tell, with a record here or without."""
    return frozenset(rank for span in {_find_agent_span(start) for start in starts} for rank in span or ())


def _find_agent_span(start: Start) -> range | None:
    """The ranks of the launcher's agent that started this one; None if it does not tell how many it has."""
    count = start.env.get("LOCAL_WORLD_SIZE", "")
    if start.local_rank is None or not (count.isascii() and count.isdigit()):
        return None
    first = start.rank - start.local_rank
    return range(first, first + min(int(count), MAX_RANKS))


def count_joined_agents(run: RunDir) -> int:
    """How many `tdbg run` of the same job have joined the one that made the directory."""
    return sum(1 for _ in (run.path / AGENTS).glob("*.json"))


def _is_process(found: ProcessView, host: str, pid: int) -> bool:
    return found.start is not None and (found.start.host, found.start.pid) == (host, pid)


def _is_preferred(found: ProcessView, other: ProcessView) -> bool:
    """True if of two processes of one rank this is the one to tell of: it trained, it is the rank, it came later."""

    def sort_key(one: ProcessView) -> tuple[bool, bool, int]:
        return bool(one.step), one.process.is_rank, one.process.attempt

    return sort_key(found) > sort_key(other)


def _parse_signal_number(value: object) -> int:
    if isinstance(value, int):
        return abs(value)
    return int(signal.Signals[value]) if isinstance(value, str) and value in signal.Signals.__members__ else 0


def read_info(run: RunDir) -> dict[str, Any]:
    """What run.json holds; nothing, where it is missing or half written."""
    try:
        return run.read_info()
    except TdbgError:
        return {}
