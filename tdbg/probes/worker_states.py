"""Whether workers of a loader, or ranks, draw the same random numbers: their generators' states at the first fetch."""

import multiprocessing
import os
import random
import sys
import weakref
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from tdbg.core.guard import guarded
from tdbg.core.observations.worker_states import DrawnStates, SameRandomState
from tdbg.probes import PROBES, Probe
from tdbg.probes.augmentation.worker_pipe import WorkerPipe
from tdbg.probes.dataloader.feeds import find_start_method, format_dataset_name, is_in_worker, is_stream
from tdbg.runtime.listener import LATER_STEPS
from tdbg.runtime.rerun_alone import count_ranks

if TYPE_CHECKING:
    from tdbg.runtime.monitor import Monitor
    from tdbg.runtime.torch_compat import BatchIterator

ADDRESS_ENV = "TDBG_WORKER_PIPE"  # while workers are spawned: where they find the pipe
MAX_DEPTH = 3  # dataset, transform, part of it
MAX_OBJECTS = 64
MAX_SOURCES = 8
MAX_OWN_LOOKS = 8  # fetches of a process without workers that are looked at until one of them was for training
MAX_DRAWN = 64  # states that are told at once
NO_PARTS = (type, ModuleType, FunctionType, MethodType, torch.Tensor)  # nothing inside them is the dataset's

States = dict[str, int]  # source -> checksum of its state


@dataclass(slots=True)
class _Workers:
    """What the workers of one loader reported."""

    number: int
    dataset: str
    has_init: bool
    # worker -> source -> begin, end
    states_by_worker: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)
    judged: int = 0  # so many had reported when they were compared
    shared: set[int] = field(default_factory=set)  # workers whose states are on record for other ranks

    def find_equal(self) -> tuple[str, list[int]] | None:
        """A source whose state was the same in two workers, before and after a fetch that drew from it."""
        groups: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
        for worker, states in sorted(self.states_by_worker.items()):
            for source, (begin, end) in states.items():
                if begin != end:
                    groups[source, begin, end].append(worker)
        (source, _, _), workers = max(groups.items(), key=lambda item: len(item[1]), default=(("", 0, 0), []))
        return (source, workers) if len(workers) > 1 else None

    def take_drawn(self) -> list[list[Any]]:
        """What the workers drew from that told since the last time."""
        new = self.states_by_worker.keys() - self.shared
        self.shared |= new
        return [row for worker in sorted(new) for row in _list_drawn(self.states_by_worker[worker])]


def _list_drawn(states: dict[str, tuple[int, int]]) -> list[list[Any]]:
    """Source, state before and state after of each generator that moved."""
    return [[source, begin, end] for source, (begin, end) in states.items() if begin != end]


@PROBES.add
class WorkerStates(Probe):
    """The states of random generators in DataLoader workers, before and after the first fetch of each.

    Reads:  the states of ``random``, ``numpy.random`` and torch, and of generators on a map-style dataset and its
            transforms. Nothing is drawn. Where there are several ranks also in a process without workers.
    Emits:  SAME once a loader that trains, where two workers went from the same state to the same other one; DRAWN where
            there are several ranks: what the first fetch of each worker, or of the process, drew from.
    Cost:   about 0.5 ms in a worker, once; a system call a batch in the opening inspection and its later looks. Without
            workers 0.5 ms twice, in the first fetch of a training step.
    Limits: workers tell through a pipe, which spawned ones can open on Linux alone; those of a forkserver cannot. Two
            workers that draw different amounts from the same state are not told apart from healthy ones.
    """

    name = "worker-states"
    comes_back = LATER_STEPS
    observations = (SameRandomState, DrawnStates)

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._pipe = WorkerPipe()
        self._reset_state()

    def _reset_state(self) -> None:
        self._loaders: weakref.WeakKeyDictionary[object, _Workers] = weakref.WeakKeyDictionary()
        self._number = 0  # of the loader whose workers were forked last; they inherit it
        self._states: States | None = None  # in a worker: before its first fetch
        self._has_fetched = False
        self._last: _Workers | None = None  # whose batch came last
        self._own_looks = 0  # of this process
        self._own_drawn: list[list[Any]] = []  # in its last fetch that was looked at
        self._own_dataset = ""  # whose batch came last, if this process fetched it

    def attach(self) -> None:
        self.patch_at(
            "workers-begin", before=self._workers_begin, after=self._workers_began, raised=self._workers_began
        )
        self.patch_at("fetch", before=self._fetch_begins, after=self._send_worker_states)

    def detach(self) -> None:
        self._pipe.close()
        super().detach()

    def forked(self) -> None:
        self._pipe.forked()
        number = self._number
        self._reset_state()
        self._number = number

    def _workers_begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[1] if len(args) > 1 else kwargs.get("loader")
        if is_in_worker() or loader is None or not _is_compared(loader.num_workers):
            return
        self._number += 1
        self._pipe.open_pipe()
        if _is_spawning(loader):  # such workers inherit the environment alone
            os.environ[ADDRESS_ENV] = f"{self._pipe.address}:{self._number}"

    def _workers_began(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        os.environ.pop(ADDRESS_ENV, None)
        found = args[0]
        if isinstance(result, Exception) or is_in_worker() or not _is_compared(found._num_workers) or is_stream(found):
            return
        if find_start_method(found) in ("fork", "spawn"):
            has_init = getattr(found, "_worker_init_fn", None) is not None
            self._loaders[found] = _Workers(self._number, format_dataset_name(found._dataset), has_init)

    # in a worker

    def _fetch_begins(self, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        if self._has_fetched:
            return
        if not is_in_worker():
            self._begin_own_fetch(args[0].dataset)
            return
        if not self._pipe.is_open:
            self._find_pipe()
        if self._pipe.is_open:
            self._has_fetched = True
            self._states = read_states(args[0].dataset)

    def _begin_own_fetch(self, dataset: object) -> None:
        """Of a process without workers, whose draws other ranks' are compared with."""
        is_due = self._own_looks < MAX_OWN_LOOKS and count_ranks() > 1
        self._own_looks += is_due
        self._states, self._own_drawn = read_states(dataset) if is_due else None, []

    def _find_pipe(self) -> None:
        """In a spawned worker: the pipe of the process that started it."""
        address, _, number = os.environ.pop(ADDRESS_ENV, "").rpartition(":")
        parent = multiprocessing.parent_process()
        if parent is not None and address.startswith(f"{parent.pid}:") and number.isdigit():
            self._number = int(number)
            self._pipe.open_address(address)

    def _send_worker_states(
        self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object
    ) -> None:
        before, self._states = self._states, None
        if before is None:
            return
        after, info = read_states(args[0].dataset), torch.utils.data.get_worker_info()
        moved = {source: (before[source], after[source]) for source in before if source in after}
        if info is None:
            self._own_drawn = _list_drawn(moved)
        else:
            self._pipe.send_message({"loader": self._number, "worker": info.id, "states": moved})

    # in the process that trains

    def batch_taken(self, batch: object, wait_s: float, loader_iter: "BatchIterator") -> None:
        if is_in_worker():
            return
        self._last = self._loaders.get(loader_iter)
        is_own = loader_iter._num_workers == 0 and not is_stream(loader_iter)
        self._own_dataset = format_dataset_name(loader_iter._dataset) if is_own and self._own_drawn else ""
        for message in self._pipe.receive_messages():
            found = next((one for one in self._loaders.values() if one.number == message.get("loader")), None)
            worker, states = message.get("worker"), message.get("states")
            if found is not None and isinstance(worker, int) and isinstance(states, dict):
                found.states_by_worker[worker] = {
                    str(source): (int(pair[0]), int(pair[1])) for source, pair in states.items()
                }

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The last batch was for training: its workers are compared, and what was drawn is told to be compared with ranks."""
        found, self._last = self._last, None
        if self._own_dataset:
            self._report_drawn(self._own_dataset, self._own_drawn)
            self._own_looks, self._own_drawn, self._own_dataset = MAX_OWN_LOOKS, [], ""
        elif found is not None and count_ranks() > 1:
            self._report_drawn(found.dataset, found.take_drawn())
        if found is None or len(found.states_by_worker) == found.judged:
            return
        found.judged = len(found.states_by_worker)
        equal = found.find_equal()
        if equal is not None:
            source, workers = equal
            self.emit(
                SameRandomState(
                    dataset=found.dataset,
                    source=source,
                    workers=workers,
                    reported=len(found.states_by_worker),
                    has_init=found.has_init,
                )
            )

    def _report_drawn(self, dataset: str, states: list[list[Any]]) -> None:
        if states:
            self.emit(DrawnStates(dataset=dataset, states=states[:MAX_DRAWN]))


def _is_compared(workers: int) -> bool:
    """True if there is a worker, and another one or another rank to compare it with."""
    return workers > 1 or (workers == 1 and count_ranks() > 1)


def _is_spawning(loader: Any) -> bool:
    """True if the workers of a loader are to be spawned."""
    context = loader.multiprocessing_context or torch.multiprocessing
    return bool(context.get_start_method(allow_none=True) == "spawn")


# states


def read_states(dataset: object) -> States:
    """A checksum of the state of each generator that a fetch may draw from. Nothing is drawn."""
    found: States = {"random": _compute_checksum(random.getstate()), "torch": _compute_checksum(torch.get_rng_state())}
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        found["numpy.random"] = _compute_checksum(numpy_random.get_state())
    for path, generator in _iter_generators(dataset):
        with guarded("a generator of another package may refuse"):
            found[path] = _compute_checksum(_state_of(generator))
        if len(found) >= MAX_SOURCES:
            break
    return found


def _iter_generators(dataset: object) -> Iterator[tuple[str, Any]]:
    """Generators that a dataset and its transforms hold, by path."""
    waiting: list[tuple[str, object, int]] = [("dataset", dataset, 0)]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_OBJECTS:
        path, item, depth = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        if is_generator(item):
            yield path, item
        elif depth < MAX_DEPTH:
            waiting += [(f"{path}{name}", value, depth + 1) for name, value in _iter_parts(item)]


def _iter_parts(item: object) -> Iterator[tuple[str, object]]:
    """What may hold a generator inside an object: attributes that are objects, and items of short lists."""
    if isinstance(item, list | tuple):
        pairs = [(f"[{index}]", value) for index, value in enumerate(item[:MAX_SOURCES])]
    else:
        pairs = [(f".{name}", value) for name, value in list(getattr(item, "__dict__", {}).items())[:MAX_OBJECTS]]
    for name, value in pairs:
        is_short = isinstance(value, list | tuple) and len(value) <= MAX_SOURCES
        if is_short or is_generator(value) or (hasattr(value, "__dict__") and not isinstance(value, NO_PARTS)):
            yield name, value


def is_generator(item: object) -> bool:
    """True for a random generator of the standard library, of numpy or of torch."""
    if isinstance(item, random.Random | torch.Generator):
        return not isinstance(item, random.SystemRandom)
    module, name = type(item).__module__, type(item).__name__
    return module.startswith("numpy.random") and name in ("Generator", "RandomState")


def _state_of(generator: Any) -> object:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if type(generator).__name__ == "Generator" and not isinstance(generator, torch.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _compute_checksum(state: object) -> int:
    """A checksum of a state: tuples, dicts, numbers, arrays, tensors."""
    if isinstance(state, torch.Tensor):
        return zlib.crc32(bytes(state.tolist()))
    if isinstance(state, dict):
        return zlib.crc32(repr([(name, _compute_checksum(value)) for name, value in state.items()]).encode())
    if isinstance(state, tuple) and len(state) < MAX_OBJECTS:
        return zlib.crc32(repr([_compute_checksum(value) for value in state]).encode())
    as_bytes = getattr(state, "tobytes", None)
    return zlib.crc32(as_bytes() if as_bytes is not None else repr(state).encode())
