"""TD-P002: the step waits for data."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import counted
from tdbg.rules import RULES, Rule


@RULES.add
class DataStarved(Rule):
    """Says when the program spends its time in waiting for batches, and what would shorten that.

    What it does: With the flag DATALOADER (or at level advanced) it follows the last 64 batches of each loader. It
    speaks when DATALOADER.wait_share of the time between batches went into waiting, over 20 batches or more, with
    a median wait of at least 5 ms, and with an accelerator that had nothing left to do when the batch came; and
    when waiting for that loader takes at least a fifth of the time since the first batch of any loader. So a short
    validation that waits for each of its batches stays silent, and so does a run of fewer than 50 batches in less
    than 5 seconds. It names the loader, what it is for, and both
    shares. The first batch of a pass is judged apart: workers that start anew for each pass, half a second and
    more each. With the flag AUGMENTATION it also names a transform that takes AUGMENTATION.slow_share of each
    fetch meanwhile.

    Why it matters: An accelerator that waits is paid for and does nothing; the fix is often one argument.

    Example:
        TD-P002 warning: waiting for batches of Images (training) takes 71% of the time between them (median 48 ms
        each), 64% of the run's time, rank 0

    What to do: `num_workers` about the number of cores per rank; `persistent_workers=True` where passes are short;
    `prefetch_factor` 4 where single batches are slow; decode and resize once, beforehand. More workers than cores
    do not help.

    Thresholds: DATALOADER.wait_share 0.5 over at least 20 batches; a median wait of 5 ms; from 50 batches or 5 s
    on; 20 % of the run's time; AUGMENTATION.slow_share 0.6.
    """

    code = "TD-P002"
    title = "the step waits for data"
    severity = "warning"
    listens = (Observation,)

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if not isinstance(event, Observation):
            return ()
        kind = f"{event.probe}-{event.part}"
        tell = {
            "dataloader-WAIT": self._waits,
            "dataloader-START": self._starts,
            "augmentation-SLOW": self._transform,
        }.get(kind)
        return self.once(self._given[kind], tell(process, event)) if tell is not None else ()

    def _waits(self, process: ProcessDir, event: Observation) -> Finding:
        values = event.values
        spread = [values.get(name, 0.0) for name in ("median_ms", "p95_ms", "max_ms")]
        return self.found(
            f"waiting for batches of {_loader(values)} takes {values.get('share', 0.0):.0%} of the time between them"
            f" (median {spread[0]:.3g} ms each){_of_the_run(values)}, rank {process.rank}",
            first_step=event.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{values.get('dataset')}: waits of {spread[0]:.3g} ms median, {spread[1]:.3g} ms p95,"
                f" {spread[2]:.3g} ms at most, after {values.get('count')} batches",
                _set_up(values),
            ],
            cause="batches are made more slowly than they are used",
            try_next=_advice(values),
        )

    def _starts(self, process: ProcessDir, event: Observation) -> Finding:
        values = event.values
        return self.found(
            f"waiting for the first batch of a pass over {_loader(values)} takes {values.get('starting', 0.0):.0%} of the"
            f" run's time ({values.get('first_s')} s each), rank {process.rank}",
            first_step=event.step,
            rank=process.rank,
            phase="input",
            evidence=[f"{values.get('dataset')}: {values.get('count')} passes", _set_up(values)],
            cause="workers start anew for every pass",
            try_next="persistent_workers=True, or longer passes",
        )

    def _transform(self, process: ProcessDir, event: Observation) -> Finding:
        values = event.values
        return self.found(
            f"transform {values.get('slow')} takes {values.get('slow_share', 0.0):.0%} of each fetch while the step"
            f" waits for data, rank {process.rank}",
            first_step=event.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{values.get('pipeline')}: {values.get('slow_ms')} ms a sample, over {values.get('samples')} samples",
                f"{values.get('wait_share', 0.0):.0%} of the time went into waiting for batches",
            ],
            cause="one transform is slower than all the rest",
            try_next="do it once beforehand, on smaller images, or on the accelerator for a whole batch",
        )


def _loader(values: dict[str, Any]) -> str:
    use = f" ({values['use']})" if values.get("use") else ""
    return f"{values.get('dataset')}{use}"


def _of_the_run(values: dict[str, Any]) -> str:
    """Nothing in runs recorded before this was told."""
    return f", {values['whole_share']:.0%} of the run's time" if "whole_share" in values else ""


def _set_up(values: dict[str, Any]) -> str:
    cores = counted(int(values.get("cores", 0)), "core")
    more = [f"{name} {values[name]}" for name in ("prefetch", "persistent", "batch_size") if name in values]
    return ", ".join([counted(int(values.get("workers", 0)), "worker"), *more, cores])


def _advice(values: dict[str, Any]) -> str:
    workers, cores = int(values.get("workers", 0)), int(values.get("cores", 1))
    if workers == 0:
        return f"num_workers={max(min(cores, 8), 1)}, persistent_workers=True"
    if workers < cores:
        return f"num_workers up to the {cores} cores, then prefetch_factor=4"
    return "the workers use all cores: make a sample cheaper (smaller files, decode once, cache); prefetch_factor=4"
