"""TD-P002: the step waits for data."""

from collections import defaultdict
from collections.abc import Iterable

from tdbg.core.events import Cost, Event, Finding, Observation, ProbeOff, Start, Step
from tdbg.core.observations import Evidence, Observed
from tdbg.core.observations.augmentation import TransformSlow
from tdbg.core.observations.dataloader import DataWait, LoaderMade, LoaderSettings, SlowStart
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import format_count
from tdbg.rules import RULES, Reported, Rule, add_grade, find_gravest, read_observations
from tdbg.rules._probe_presence import ProbePresence
from tdbg.rules._recorded_waits import RecordedWaits, Starvation
from tdbg.rules.view import View

WAIT_SHARE = 0.5  # of the time of the steps on record, as DATALOADER.wait_share;
DEVICE_SHARE = 0.9  # with an accelerator, of which records do not tell whether it had nothing left to do
EVALUATION = "evaluation"  # what a loader is for
MAX_LOADERS = 16
WINDOW = 64  # batches that a `DataWait` before the end speaks of
TITLE_SHARE = 0.2  # of the run's time: a wait that took less in the end stays what it was found to be


class _State(Reported):
    def __init__(self) -> None:
        self.probe = ProbePresence(DataWait.PROBE)
        self.waits = RecordedWaits()
        self.loaders: list[LoaderMade] = []  # as the opening inspection saw them
        self.on_device = False
        self.has_recorded = False  # its last word was made of records

    def find_training_loader(self) -> LoaderMade | None:
        """The loader that feeds the training; None if it is not known for certain."""
        fitting = [one for one in self.loaders if one.batches == self.waits.batches]
        return fitting[0] if len(fitting) == 1 else None


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
    Where steps are too short for a probe that stays, it reads the waits in the records of training steps, from
    step 51 on: 8 or more over 10 s, without the first batch of a pass. It speaks when waiting took half of these
    steps, of all together and of six in ten by themselves (on an accelerator 90 %, as records do not tell whether
    that was idle), and a fifth of the time since step 51. The evidence says so; it names the loader if there is
    one alone whose number of batches fits.

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
    or 5 s on; 20 % of the run's time; AUGMENTATION.slow_share 0.6. By records alone: a median wait of 5 ms, or of
    1 ms once a minute has been waited.
    """

    code = "TD-P002"
    title = "the step waits for data"
    severity = "warning"
    listens = (Observation, Start, Step, Cost, ProbeOff)
    observes = (DataWait, SlowStart, TransformSlow)
    needs = Needs(observes)

    def __init__(self) -> None:
        self._states: defaultdict[str, _State] = defaultdict(_State)
        self._given: defaultdict[str, list[Finding]] = defaultdict(list)
        # process, part and dataset -> step of its first `DataWait`
        self._first_steps: dict[tuple[str, str, str], int] = {}

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Observation):
            return self._feed_observation(process, event)
        state = self._states[process.label]
        if isinstance(event, Step):
            if event.phase == "train":
                state.waits.add_record(event)
        elif isinstance(event, Start):
            state.on_device = event.device.get("type", "cpu") != "cpu"
        else:
            state.probe.add_event(event)
            if isinstance(event, Cost) and state.probe.is_absent and not state.is_reported:
                return self._judge_records(process, state)
        return ()

    def _judge_records(self, process: ProcessDir, state: _State) -> Iterable[Finding]:
        starved = state.waits.find_starvation(DEVICE_SHARE if state.on_device else WAIT_SHARE)
        if starved is None:
            return ()
        state.is_reported = True
        state.has_recorded = True
        return self.report_from(
            process, self._given[DataWait.PART], self._make_recorded_finding(process, starved, state)
        )

    def finish(self, view: View) -> Iterable[Finding]:
        """Add to what records told early how much it was of the whole run."""
        given = self._given[DataWait.PART]
        for label, state in self._states.items():
            if given and state.has_recorded and self._is_origin(given[0], view.processes[label].process):
                given[0].evidence.append(f"over the whole run: about {state.waits.run_share:.0%} of the time")
        return ()

    def _feed_observation(self, process: ProcessDir, event: Observation) -> Iterable[Finding]:
        made = LoaderMade.from_event(event)
        if made is not None and len(self._states[process.label].loaders) < MAX_LOADERS:
            self._states[process.label].loaders.append(made)
        for seen in read_observations(event, self.observes):
            new = add_grade(self._make_input_finding(process, seen), seen)
            part = _name_part(seen)
            if part == DataWait.PART:
                self._states[process.label].is_reported = True
            if isinstance(seen, DataWait) and self._replace_recorded(process, seen, new):
                return ()
            if isinstance(seen, DataWait) and seen.run_over is not None:
                first_step = self._first_steps.setdefault((process.label, part, seen.dataset), seen.step)
                if first_step != seen.step or seen.run_over:
                    return self._update_wait(process, seen, new, first_step)
            return self.report_from(process, self._given[part], new)
        return ()

    def _replace_recorded(self, process: ProcessDir, seen: DataWait, new: Finding) -> bool:
        """Put what the probe knows in the place of what was made of this process's records; False if that was not given."""
        state, given = self._states[process.label], self._given[DataWait.PART]
        if _name_part(seen) != DataWait.PART:
            return False
        was_recorded, state.has_recorded = state.has_recorded, False
        if not given or not was_recorded or not self._is_origin(given[0], process):
            return False
        first = given[0]
        new.first_step = min(first.first_step or 0, seen.step)
        self._first_steps[process.label, DataWait.PART, seen.dataset] = new.first_step
        new.severity = find_gravest(first.severity, new.severity)
        self._replace_given(first, new, with_repetitions=False)
        return True

    def _update_wait(self, process: ProcessDir, seen: DataWait, new: Finding, first_step: int) -> Iterable[Finding]:
        """Bring the figures of the finding up to date if it is of this process; what others added to it stays."""
        part = _name_part(seen)
        given = self._given[part]
        new.first_step = first_step
        if not given or (self._is_origin(given[0], process) and not given[0].title.startswith(_format_opening(seen))):
            return self.report_from(process, given, new)
        first = given[0]
        if self._is_origin(first, process) and first.first_step == first_step:
            if seen.whole_share is not None and seen.whole_share < TITLE_SHARE:
                new.title = first.title
                new.evidence.append(
                    f"over the whole run: {seen.share:.0%} of the time between batches,"
                    f" {seen.whole_share:.0%} of the run's time"
                )
            self._replace_given(first, new, with_repetitions=True)
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

    def _make_recorded_finding(self, process: ProcessDir, starved: Starvation, state: _State) -> Finding:
        loader = state.find_training_loader()
        is_sure = not state.on_device or (loader is not None and bool(loader.workers))
        evidence = [
            f"read off the records of {format_count(starved.records, 'step')}, {starved.first_step} to"
            f" {starved.last_step}: no probe watched the loader there"
        ]
        if loader is not None:
            evidence.append(f"{loader.dataset}: {', '.join(_list_settings(loader))}")
        if not is_sure:
            evidence.append(
                "no workers are known to make these batches: a collate that copies to the device waits for it"
            )
        return self.make_finding(
            f"waiting for batches{f' of {loader.dataset}' if loader else ''} (training) takes {starved.share:.0%} of the"
            f" time of steps {starved.first_step} to {starved.last_step} (median {starved.median_ms:.3g} ms each),"
            f" {starved.run_share:.0%} of the run's time up to there, {process.display_name}",
            severity="warning" if is_sure else "info",
            first_step=starved.first_step,
            rank=process.rank,
            phase="input",
            evidence=evidence,
            cause="batches are produced more slowly than they are used"
            + ("" if is_sure else ", or the loader waits for the accelerator"),
            try_next="run it with --flag DATALOADER, which names the line that takes the time; more num_workers, with"
            " persistent_workers=True",
            grade=Evidence.STATISTICAL.grade_word,
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


def _name_part(seen: Observed) -> str:
    """What a finding is given out as: a wait in evaluation says nothing of the training."""
    return f"{seen.PART} {seen.use}" if isinstance(seen, DataWait) and seen.use == EVALUATION else seen.PART


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
    return ", ".join([*_list_settings(seen), format_count(seen.cores, "core")])


def _list_settings(seen: LoaderSettings) -> list[str]:
    more = {"prefetch": seen.prefetch, "persistent": seen.persistent, "batch_size": seen.batch_size}
    settings = [f"{name} {value}" for name, value in more.items() if value is not None]
    return [format_count(seen.workers or 0, "worker"), *settings]


def _advise_workers(seen: DataWait) -> str:
    workers, cores = seen.workers or 0, seen.cores
    if workers == 0:
        return f"num_workers={max(min(cores, 8), 1)}, persistent_workers=True"
    if workers < cores:
        return f"num_workers up to the {format_count(cores, 'core')}, then prefetch_factor=4"
    return "the workers use all cores: make a sample cheaper (smaller files, decode once, cache); prefetch_factor=4"
