"""TD-P002: the step waits for data."""

from collections import defaultdict
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.observations import Observed
from tdbg.core.observations.augmentation import TransformSlow
from tdbg.core.observations.dataloader import DataWait, SlowStart
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule, read_observations


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
    observes = (DataWait, SlowStart, TransformSlow)

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        for seen in read_observations(event, self.observes):
            return self.report_once(self._given[seen.PART], self._make_input_finding(process, seen))
        return ()

    def _make_input_finding(self, process: ProcessDir, seen: Observed) -> Finding:
        if isinstance(seen, DataWait):
            return self._make_wait_finding(process, seen)
        if isinstance(seen, SlowStart):
            return self._make_start_finding(process, seen)
        assert isinstance(seen, TransformSlow)
        return self._make_transform_finding(process, seen)

    def _make_wait_finding(self, process: ProcessDir, seen: DataWait) -> Finding:
        return self.make_finding(
            f"waiting for batches of {_format_loader(seen)} takes {seen.share:.0%} of the time between them"
            f" (median {seen.median_ms:.3g} ms each){_format_run_share(seen)}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.dataset}: waits of {seen.median_ms:.3g} ms median, {seen.p95_ms:.3g} ms p95,"
                f" {seen.max_ms:.3g} ms at most, after {format_count(seen.count, 'batch')}",
                _format_loader_setup(seen),
            ],
            cause="batches are produced more slowly than they are used",
            try_next=_advise_workers(seen),
        )

    def _make_start_finding(self, process: ProcessDir, seen: SlowStart) -> Finding:
        return self.make_finding(
            f"waiting for the first batch of a pass over {_format_loader(seen)} takes {seen.starting:.0%} of the"
            f" run's time ({seen.first_s} s each), {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[f"{seen.dataset}: {format_count(seen.count, 'pass')}", _format_loader_setup(seen)],
            cause="workers are started again for every pass",
            try_next="set persistent_workers=True, or use longer passes",
        )

    def _make_transform_finding(self, process: ProcessDir, seen: TransformSlow) -> Finding:
        return self.make_finding(
            f"transform {seen.slow} takes {seen.slow_share:.0%} of each fetch while the step"
            f" waits for data, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=[
                f"{seen.pipeline}: {seen.slow_ms} ms a sample, over {format_count(seen.samples, 'sample')}",
                f"{seen.wait_share:.0%} of the time went into waiting for batches",
            ],
            cause="one transform is slower than all the rest",
            try_next="run it once in advance, on smaller images, or on the accelerator for a whole batch",
        )


def _format_loader(seen: DataWait | SlowStart) -> str:
    return f"{seen.dataset} ({seen.use})" if seen.use else seen.dataset


def _format_run_share(seen: DataWait) -> str:
    """Nothing in runs recorded before this was told."""
    return f", {seen.whole_share:.0%} of the run's time" if seen.whole_share is not None else ""


def _format_loader_setup(seen: DataWait | SlowStart) -> str:
    more = {"prefetch": seen.prefetch, "persistent": seen.persistent, "batch_size": seen.batch_size}
    told = [f"{name} {value}" for name, value in more.items() if value is not None]
    return ", ".join([format_count(seen.workers or 0, "worker"), *told, format_count(seen.cores, "core")])


def _advise_workers(seen: DataWait) -> str:
    workers, cores = seen.workers or 0, seen.cores
    if workers == 0:
        return f"num_workers={max(min(cores, 8), 1)}, persistent_workers=True"
    if workers < cores:
        return f"num_workers up to the {format_count(cores, 'core')}, then prefetch_factor=4"
    return "the workers use all cores: make a sample cheaper (smaller files, decode once, cache); prefetch_factor=4"
