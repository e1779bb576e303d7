"""TD-R011: ranks that draw the same random numbers for different data."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tdbg.core.events import Event, Finding, Observation, Start
from tdbg.core.observations import Evidence
from tdbg.core.observations.rank_batches import BatchChecksums
from tdbg.core.observations.worker_states import DrawnStates
from tdbg.core.rule_base import Needs
from tdbg.core.rundir import ProcessDir
from tdbg.core.tables import join_limited
from tdbg.rules import RULES, Rule
from tdbg.rules.text import format_ranks
from tdbg.rules.view import View, get_launch_number

GLOBAL = ("random", "numpy.random", "torch")

Draw = tuple[str, int, int]  # source, checksum of its state before the fetch, and after it


@dataclass
class _Launch:
    """What the ranks of one launch told."""

    draws: defaultdict[Draw, set[int]] = field(default_factory=lambda: defaultdict(set))
    datasets: dict[Draw, str] = field(default_factory=dict)
    drawing_ranks: set[int] = field(default_factory=set)  # ranks that drew anything
    steps: dict[int, int] = field(default_factory=dict)  # rank -> the step in which it did
    group: frozenset[int] = frozenset()  # of data parallelism
    is_split: bool = False  # ranks may hold parts of one batch

    def find_shared(self) -> tuple[frozenset[int], list[Draw]]:
        """The ranks with most draws in common, and these draws."""
        shared: defaultdict[frozenset[int], list[Draw]] = defaultdict(list)
        for draw, drawing in self.draws.items():
            shared[frozenset(drawing & self.group)].append(draw)
        many = {ranks: draws for ranks, draws in shared.items() if len(ranks) > 1}
        if self.is_split or not many:
            return frozenset(), []
        ranks, draws = max(many.items(), key=lambda item: (len(item[0]), len(item[1]), -min(item[0])))
        return ranks, sorted(draws)


@RULES.add
class SameDraws(Rule):
    """Says when ranks of a data-parallel job draw the same random numbers for their samples.

    What it does: Where there are several ranks, the first training fetch of each loader worker, or of a process
    without workers, has a checksum of the random generators that it drew from on record: their states before and
    after. It speaks when a generator went from the same state to the same other one on two ranks.

    Why it matters: What stands at the same place of each rank's batch is then cropped, flipped, masked and mixed
    alike: the samples of one global batch are less different than they seem, and its gradient is noisier. It is
    only a note: many programs do it, and the loss is right.

    Example:
        TD-R011 info: ranks 0-1 draw the same random numbers from torch for their samples of Images

    What to do: Give the augmentation a generator of its own with `seed + rank` as its seed, or set that seed in the
    loader's `worker_init_fn`. Seed a whole process so only where nothing else needs equal draws: a shuffle of which
    each rank takes its share, layer drop, image sizes.

    Thresholds: None. Fetches that draw nothing, and streams (whose ranks may shuffle alike before each takes its
    share) are left out. It is silent where ranks may get one batch on purpose (tensor, pipeline and context
    parallelism), and without DistributedDataParallel or FSDP.
    """

    code = "TD-R011"
    title = "ranks draw the same random numbers for their data"
    severity = "info"
    grade = Evidence.LOCAL.grade_word
    listens = (Start, Observation)
    observes = (DrawnStates, BatchChecksums)
    needs = Needs(observations=(DrawnStates,), ranks=2)

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._launches: defaultdict[int, _Launch] = defaultdict(_Launch)
        self._given: list[Finding] = []

    def feed(self, process: ProcessDir, event: Event) -> Iterable[Finding]:
        if isinstance(event, Start):
            self._numbers[process.label] = get_launch_number(process, event)
        rank, batch, drawn = process.rank, BatchChecksums.from_event(event), DrawnStates.from_event(event)
        if rank is None or not process.is_rank or (batch is None and drawn is None):
            return ()
        launch = self._launches[self._numbers.get(process.label, process.attempt)]
        if batch is not None:
            launch.is_split = launch.is_split or batch.is_split
            launch.group = frozenset(batch.group) if batch.wrapped else launch.group
        if drawn is not None:
            _add_draws(launch, rank, drawn)
        return self._report_shared(launch) if launch.drawing_ranks >= launch.group else ()

    def finish(self, view: View) -> Iterable[Finding]:
        for _, launch in sorted(self._launches.items()):
            yield from self._report_shared(launch)

    def _report_shared(self, launch: _Launch) -> Iterable[Finding]:
        ranks, draws = launch.find_shared()
        if not draws or self._given:
            return ()
        return self.report_once(self._given, self._make_shared_finding(launch, ranks, draws))

    def _make_shared_finding(self, launch: _Launch, ranks: frozenset[int], draws: list[Draw]) -> Finding:
        sources = sorted({source for source, _, _ in draws})
        is_global = all(source in GLOBAL for source in sources)
        datasets = sorted({launch.datasets[draw] for draw in draws})
        return self.make_finding(
            f"{format_ranks(ranks)} draw the same random numbers from {join_limited(sources, 3)} for"
            f" their samples of {join_limited(datasets, 3)}",
            first_step=min(launch.steps[rank] for rank in ranks),
            rank=min(ranks),
            phase="input",
            evidence=["before and after the first fetch of these ranks the random states were the same"],
            cause="all ranks set the same seed, and loader workers get theirs from it"
            if is_global
            else "a generator that the dataset holds has the same seed on all ranks",
            try_next="give what augments a generator seeded with seed + rank; the process itself only if no shuffle needs equal"
            " draws on all ranks"
            if is_global
            else "add the rank to the seed of that generator",
        )


def _add_draws(launch: _Launch, rank: int, drawn: DrawnStates) -> None:
    launch.drawing_ranks.add(rank)
    launch.steps.setdefault(rank, drawn.step)
    for draw in drawn.rows():
        launch.draws[draw].add(rank)
        launch.datasets[draw] = drawn.dataset
