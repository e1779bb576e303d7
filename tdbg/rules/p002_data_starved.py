"""TD-P002: the step waits for data."""

from collections import defaultdict
from collections.abc import Iterable

from tdbg.core.events import Event, Finding, Observation
from tdbg.core.observations import Observed
from tdbg.core.observations.augmentation import TransformSlow
from tdbg.core.observations.dataloader import DataWait, SlowStart
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Rule, add_grade, overwrite_finding, read_observations

WINDOW = 64  # batches that a `DataWait` before the end speaks of
TITLE_SHARE = 0.2  # of the run's time: a wait that took less in the end stays what it was found to be


@RULES.add
class DataStarved(Rule):
    """Says when the program spends its time in waiting for batches, and what would shorten that.

    What it does: It follows the last 64 batches of each loader. It speaks when DATALOADER.wait_share of
    the time between batches went into waiting, over 20 batches or more, with a median wait of at least 5
    ms, and with an accelerator that had nothing left to do when the batch came; and when waiting for that
    loader takes at least a fifth of the time since the first batch of any loader. So a short validation
    that waits for each of its batches stays silent, and so does a run of fewer than 50 batches in less
    than 5 seconds. It names the loader, what it is for, and both shares. The first batch of a pass is
    judged apart: workers that start anew for each pass, half a second and more each. With the flag
    AUGMENTATION it also names a transform that takes AUGMENTATION.slow_share of each fetch meanwhile.

    Why it matters: An accelerator that waits is paid for and does nothing; the fix is often one argument.

    Example:
        TD-P002 warning: waiting for batches of Images (training) takes 71% of the time between batches (median
        48 ms each), 64% of the run's time, rank 0
          Images.__getitem__: 83% of the time to fetch a sample in load (numpy/lib/_npyio_impl.py), called at
          train.py:27

    What to do: Look at the line that it names first. Does `__getitem__` read a whole file for each sample?
    Decode once, beforehand; map the file (`np.load(..., mmap_mode="r")`, one file that is read by slices);
    cache what is read again. Then `num_workers` about the number of cores per rank;
    `persistent_workers=True` where passes are short; `prefetch_factor` 4 where single batches are slow.
    More workers than cores do not help.

    Thresholds: DATALOADER.wait_share 0.5 over at least 20 batches; a median wait of 5 ms; from 50 batches
    or 5 s on; 20 % of the run's time; AUGMENTATION.slow_share 0.6.
    """

    code = "TD-P002"
    title = "the step waits for data"
    severity = "warning"
    listens = (Observation,)
    observes = (DataWait, SlowStart, TransformSlow)

    def __init__(self) -> None:
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)
        self._first_steps: dict[tuple[str, str], int] = {}  # process and dataset -> step of its first `DataWait`

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        for seen in read_observations(event, self.observes):
            new = add_grade(self._make_input_finding(process, seen), seen)
            if isinstance(seen, DataWait) and seen.run_over is not None:
                first_step = self._first_steps.setdefault((process.label, seen.dataset), seen.step)
                if first_step != seen.step or seen.run_over:
                    return self._update_wait(process, seen, new, first_step)
            return self.report_from(process, self._given[seen.PART], new)
        return ()

    def _update_wait(self, process: ProcessDir, seen: DataWait, new: Finding, first_step: int) -> Iterable[Finding]:
        """Bring the figures of the finding up to date if it is of this process; what others added to it stays."""
        given = self._given[seen.PART]
        new.first_step = first_step
        if not given or (self._is_origin(given[0], process) and not given[0].title.startswith(_format_opening(seen))):
            return self.report_from(process, given, new)
        first = given[0]
        if self._is_origin(first, process) and first.first_step == first_step:
            added = [line for line in first.evidence if line.startswith(("also ", "again "))]
            if seen.whole_share is not None and seen.whole_share < TITLE_SHARE:
                new.title = first.title
                new.evidence.append(
                    f"over the whole run: {seen.share:.0%} of the time between batches,"
                    f" {seen.whole_share:.0%} of the run's time"
                )
            new.evidence += added
            overwrite_finding(first, new)
        return ()

    def _make_input_finding(self, process: ProcessDir, seen: Observed) -> Finding:
        if isinstance(seen, DataWait):
            return self._make_wait_finding(process, seen)
        if isinstance(seen, SlowStart):
            return self._make_start_finding(process, seen)
        assert isinstance(seen, TransformSlow)
        return self._make_transform_finding(process, seen)

    def _make_wait_finding(self, process: ProcessDir, seen: DataWait) -> Finding:
        evidence = [
            f"{seen.dataset}: waits of {seen.median_ms:.3g} ms median, {seen.p95_ms:.3g} ms p95,"
            f" {seen.max_ms:.3g} ms at most, after {format_count(seen.count, 'batch')}",
            _format_loader_setup(seen),
        ]
        advice = _advise_workers(seen)
        if seen.slow_line:
            evidence.insert(0, _format_slow_line(seen))
            advice = f"look at {seen.slow_line}: decode once beforehand, map the file or cache it; then {advice}"
        return self.make_finding(
            f"{_format_opening(seen)} takes {seen.share:.0%} of the time between {_format_batches(seen)}"
            f" (median {seen.median_ms:.3g} ms each){_format_run_share(seen)}, {process.display_name}",
            first_step=seen.step,
            rank=process.rank,
            phase="input",
            evidence=evidence,
            cause="batches are produced more slowly than they are used",
            try_next=advice,
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


def _format_opening(seen: DataWait) -> str:
    return f"waiting for batches of {_format_loader(seen)}"


def _format_batches(seen: DataWait) -> str:
    """What the share of a wait is of: the last batches, or all; not told in runs recorded before it was known."""
    return f"its last {format_count(min(seen.count, WINDOW), 'batch')}" if seen.run_over is False else "batches"


def _format_run_share(seen: DataWait) -> str:
    """Nothing in runs recorded before this was told."""
    until = f" up to step {seen.step}" if seen.run_over is False else ""
    return f", {seen.whole_share:.0%} of the run's time{until}" if seen.whole_share is not None else ""


def _format_slow_line(seen: DataWait) -> str:
    """``Images.__getitem__: 83% of the time to fetch a sample in load (numpy/...), called at train.py:27``."""
    inside = f"in {seen.slow_callee}, called at" if seen.slow_callee else "at"
    return f"{seen.slow_function}: {seen.slow_share or 0.0:.0%} of the time to fetch a sample {inside} {seen.slow_line}"


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
