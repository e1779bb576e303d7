"""DISTRIBUTED: process groups, every collective that Python calls, and who waits for whom."""

import os
import threading
import time
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tdbg.core.observations.distributed import (
    CallOrder,
    CollectiveFailed,
    ProcessGroupDestroyed,
    ProcessGroupMade,
    QuietRank,
    RankResumed,
    StepCollectives,
)
from tdbg.probes import PROBES, Probe
from tdbg.probes.distributed.collectives import (
    COLLECTIVES,
    FUNCTIONAL,
    MAX_RANKS,
    WORLD,
    Entry,
    Group,
    Kind,
    Order,
    Tally,
    find_argument,
    format_signature,
    measure_payload,
)
from tdbg.probes.hang.collective_status import RunningCall, pack_members
from tdbg.runtime import thread_stacks
from tdbg.runtime.identity_keys import IdentityKeys
from tdbg.runtime.torch_compat import backend_timeout, ddp_figures

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from tdbg.runtime.monitor import Monitor

MAX_NAMES = 8
MAX_GROUPS = 64
MAX_SIGNATURES = 4096
MAX_MARKS = 64  # chunks that wait for the end of a step
ALIGN_STEPS = 16  # where the order is kept from within a run, all ranks begin at such a step
BLOCKING = ("gloo", "mpi")  # backends whose calls return when the data is there, not when it is on its way
NS_PER_MS = 1e6


@PROBES.add
class Distributed(Probe):
    """Process groups, and each collective's count, bytes, order and time.

    Reads:  the functions of ``torch.distributed`` as the program, FSDP2 and libraries call them; what
            DistributedDataParallel logs of its own reducer. It issues no collective and waits for nothing.
    Emits:  INIT and DESTROY; STEP, a line a sampled step; ORDER, from which the rules see that ranks are out of
            step; FAILED; QUIET and RESUMED, which the probe ``hang`` writes, after ``quiet_s`` at the latest.
    Cost:   5 to 10 us a collective.
    Limits: the reducer of DistributedDataParallel issues its all-reduces in C++: their number and time are its
            own figures, and a rank that waits for them is seen in backward. ``isend`` and ``irecv`` are left alone
            (torch compares them by identity). The time of an asynchronous call, and of any on an accelerator, is
            the time to issue it. Names taken from torch.distributed before tdbg came are not seen.
    """

    name = "distributed"
    levels = ("extreme",)
    companions = ("hang",)
    observations = (
        ProcessGroupMade,
        StepCollectives,
        CallOrder,
        QuietRank,
        RankResumed,
        CollectiveFailed,
        ProcessGroupDestroyed,
    )

    def __init__(self, monitor: "Monitor") -> None:
        super().__init__(monitor)
        self._models: IdentityKeys[nn.Module, None] = IdentityKeys()
        self._reset_state()

    def _reset_state(self) -> None:
        self._groups: dict[str, Group] = {}
        self._inside: dict[int, Entry] = {}  # thread -> the call it is in
        self._signatures: dict[tuple[str, str, int], tuple[str, bytes]] = {}
        self._tally = Tally()
        self._total = Tally()
        self._entered = self._left = 0
        self._async: Entry | None = None  # the last call that returned before its data was there
        self._home: int | None = None  # the thread that trains
        self._backend = ""
        self._generation = 0  # how many times the world's group was made
        self._from_start = True  # every group there is was made under these eyes
        self._uneven = False
        self._abstained = False

    # attaching

    def attach(self) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            self.unavailable("this torch was built without torch.distributed")
            return
        for kind in COLLECTIVES:
            self._patch_place("collective", kind)
        for kind in FUNCTIONAL:
            self._patch_place("functional-collective", kind)
        self.patch_at("group-made", before=self._init_begins, after=self._init_ended, raised=self._init_failed)
        self.patch_at("group-destroyed", before=self._destroy_begins, after=self._destroy_ended)
        self.patch_at("ddp-made", after=self._model_wrapped)
        self.patch_at("join", before=self._join_entered)
        if dist.is_initialized():
            self._from_start = False
            self._home = threading.get_ident()
            self._models.update((root, None) for root in self.monitor.roots.list_roots() if _is_ddp(root))
            self._group_made(0.0, {})

    def _patch_place(self, place: str, kind: Kind) -> None:
        self.for_each_function(place, lambda owner, _: self._patch_collective(owner, kind), name=kind.name)

    def _patch_collective(self, owner: object, kind: Kind) -> None:
        def enter_call(args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
            self._enter_call(kind, args, kwargs)

        def handle_error(seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], error: Exception) -> None:
            self._handle_failed_call(seconds, error)

        self.patch(owner, kind.name, before=enter_call, after=self._leave_call, raised=handle_error)

    def _join_entered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._uneven = True
        self.unavailable("the program joins uneven inputs (Join): the ranks' order of calls is not compared")

    def changed(self) -> None:
        """After a time at level off the numbers no longer count from the start: begin anew at a common step."""
        if self._tally.step and self.monitor.step > self._tally.step:
            self._from_start = False
            for group in list(self._groups.values()):
                group.order = None

    def forked(self) -> None:
        self._models.clear()
        self._reset_state()

    # process groups

    def _init_begins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._home = threading.get_ident()
        self._inside[self._home] = Entry("init_process_group", None, 0, 0, time.monotonic())

    def _init_ended(self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        self._inside.pop(threading.get_ident(), None)
        self._group_made(seconds, {"timeout": find_argument(args, kwargs, 2, "timeout")})

    def _init_failed(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], error: Exception
    ) -> None:
        self._handle_failed_call(seconds, error)

    def _group_made(self, seconds: float, options: dict[str, object]) -> None:
        import torch.distributed as dist

        self._groups.clear()
        self._generation += 1
        self._backend = str(dist.get_backend())
        self._left += 1
        made = ProcessGroupMade(
            backend=self._backend,
            world_size=dist.get_world_size(),
            rank=dist.get_rank(),
            seconds=round(seconds, 6),
            timeout_s=_find_timeout_s(options.get("timeout")),
            late=not self._from_start or None,
        )
        self.emit(made)

    def _destroy_begins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._inside[threading.get_ident()] = Entry("destroy_process_group", None, 0, 0, time.monotonic())
        self.emit_order(tail=True)

    def _destroy_ended(
        self, seconds: float, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        self._inside.pop(threading.get_ident(), None)
        if torch.distributed.is_initialized():
            return  # only a smaller group is gone
        calls, size_bytes, spent_s = self._total.sum_totals()
        destroyed = ProcessGroupDestroyed(
            seconds=round(seconds, 6),
            calls=calls,
            bytes=size_bytes,
            ms=round(spent_s * 1e3, 3),
            ops=self._total.list_longest(MAX_NAMES),
        )
        self.emit(destroyed)
        self._total = Tally()
        self._groups.clear()
        self._from_start = True

    def _model_wrapped(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        self._models[args[0]] = None

    # collectives

    def _enter_call(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        """A function is about to run, and may block."""
        given = find_argument(args, kwargs, kind.group, "group")
        if type(given) is int:  # GroupMember.NON_GROUP_MEMBER: the call does nothing here
            return
        dtype, elements, size_bytes = measure_payload(find_argument(args, kwargs, kind.tensor, kind.keyword))
        group = self._find_group(given) if kind.ordered else None
        ident = threading.get_ident()
        number = 0
        if not self._is_side(ident):
            step = self.monitor.step + 1
            if step != self._tally.step:
                self._begin_step(step)
            order = group.order if group is not None else None
            if order is not None:
                text, raw = self._get_signature(kind, dtype, elements if kind.sized else 0)
                order.add_call(text, raw, step)
                number = order.number
                if len(order.marks) >= MAX_MARKS:
                    self.emit_order()
        self._entered += 1
        self._inside[ident] = Entry(kind.name.lstrip("_"), group, number, size_bytes, time.monotonic())

    def _leave_call(self, seconds: float, args: tuple[Any, ...], kwargs: dict[str, object], result: object) -> None:
        """It has returned."""
        entry = self._inside.pop(threading.get_ident(), None)
        if entry is None:
            return
        self._left += 1
        self._tally.add_call(entry, seconds)
        self._total.add_call(entry, seconds)
        if result is not None and entry.number:
            self._async = entry

    def _handle_failed_call(self, seconds: float, error: Exception) -> None:
        """It raised: a timeout, a lost peer, a wrong argument."""
        entry = self._inside.pop(threading.get_ident(), None)
        if entry is None:
            return
        self._left += 1
        said = f"{type(error).__name__}: {error}"[:300]
        self.emit(CollectiveFailed(op=entry.op, seconds=round(seconds, 3), error=said))

    def _get_signature(self, kind: Kind, dtype: str, elements: int) -> tuple[str, bytes]:
        key = (kind.name, dtype, elements)
        found = self._signatures.get(key)
        if found is None:
            if len(self._signatures) >= MAX_SIGNATURES:
                self._signatures.clear()
            text = format_signature(kind, dtype, elements)
            found = self._signatures[key] = text, text.encode()
        return found

    def _find_group(self, given: Any) -> Group | None:
        """What is known of a group; None if there are too many, or torch knows it by no name."""
        import torch.distributed as dist

        try:
            name = WORLD if given is None or given is dist.group.WORLD else str(given.group_name)
            found = self._groups.get(name)
            if found is None and len(self._groups) < MAX_GROUPS and dist.is_initialized():
                found = self._groups.setdefault(name, self._build_group(name, given))  # another thread may be first
        except (AttributeError, RuntimeError, ValueError, KeyError):  # made past torch's own functions
            return None
        return found

    def _build_group(self, name: str, given: Any) -> Group:
        import torch.distributed as dist

        again = f"#{self._generation}" if self._generation > 1 else ""
        order = Order(0) if self._from_start else None
        if name == WORLD:
            return Group(WORLD + again, dist.get_world_size(), order=order)
        ranks = dist.get_process_group_ranks(given)
        return Group(name + again, len(ranks), ranks[:MAX_RANKS], order=order, rank_ranges=pack_members(ranks))

    def _is_side(self, ident: int) -> bool:
        """True in a thread the program made beside training (a checkpoint being saved): its calls keep no step.

        Autograd's own threads are not Python's; what they call belongs to the step.
        """
        if self._home is None or ident == self._home:
            return False
        return ident in getattr(threading, "_active", ())

    def _begin_step(self, step: int) -> None:
        """The first call of a new step."""
        if not self._from_start and step % ALIGN_STEPS == 0:
            for group in list(self._groups.values()):
                group.order = group.order or Order(step)
        self.emit_order()
        self._tally = Tally(step)

    def emit_order(self, *, tail: bool = False) -> None:
        """Write the chunks that are complete; with ``tail`` also what was called since.

        The thread that watches for hangs does so while the program calls, and makes groups.
        """
        if self._uneven:
            return
        found = [(group, group.order) for group in list(self._groups.values()) if group.size > 1]
        kept = [(group, order) for group, order in found if order is not None]
        if tail:
            for _, order in kept:
                order.mark_tail()
        kept = [(group, order) for group, order in kept if order.marks][:MAX_NAMES]
        if kept:
            numbers = tuple(f"{order.number} on {group.name}" for group, order in kept)
            self.emit(CallOrder(groups=[order.drain_chunks(group) for group, order in kept], numbers=numbers))

    # steps

    def after_step(self, optimizer: "Optimizer") -> None:
        if not self.monitor.is_main(optimizer):
            return
        if not self._generation:
            if self.flags and not self._abstained:
                self._abstained = True
                self.unavailable("the program has made no process group by its first step")
            return
        self._home = threading.get_ident()
        if self._backend and self.should_sample():
            with self.work():
                self._emit_step()

    def _emit_step(self) -> None:
        """One line of what the step called, and of what DistributedDataParallel says of itself."""
        tally = self._tally if self._tally.step == self.monitor.step else Tally()
        ddp = self._read_reducer_figures()
        if not tally.rows and not ddp:
            return
        calls, size_bytes, seconds = tally.sum_totals()
        step = StepCollectives(
            calls=calls,
            bytes=size_bytes,
            ms=round(seconds * 1e3, 3),
            ops=tally.list_longest(MAX_NAMES),
            longest=tally.longest,
            longest_ms=round(tally.longest_s * 1e3, 3),
            **ddp,
        )
        self.emit(step)

    def _read_reducer_figures(self) -> dict[str, Any]:
        """The reducers' own figures; nothing without a DistributedDataParallel model. Cost: 40 us a model."""
        rows = [ddp_figures(model) for model in self._models]
        if not rows:
            return {}
        found: dict[str, Any] = {
            "ddp_buckets": sum(len(_parse_buckets(row)) for row in rows),
            "ddp_bytes": sum(int(row.get("total_parameter_size_bytes", 0)) for row in rows),
        }
        if any(row.get("avg_backward_comm_time") for row in rows):
            found["ddp_comm_ms"] = _sum_ms(rows, "avg_backward_comm_time")
            found["ddp_overlap_ms"] = _sum_ms(rows, "avg_backward_compute_comm_overlap_time")
        return found

    # read by the probe `hang`

    @property
    def home(self) -> int | None:
        """The thread that trains: that made the process group, or the last step."""
        return self._home

    @property
    def quiet_s(self) -> float:
        """Seconds without progress after which a rank is reported, even a busy one."""
        return self.threshold("quiet_s")

    @property
    def progress(self) -> tuple[int, int]:
        """How many calls have begun, and ended."""
        return self._entered, self._left

    def count_calls(self) -> dict[str, int] | None:
        """Calls begun on each group, where all ranks count from the group's beginning."""
        if not self._from_start or self._uneven:
            return None
        groups = list(self._groups.values())[:MAX_NAMES]
        orders = [(group.name, group.order) for group in groups]
        return {name: order.number for name, order in orders if order is not None}

    def find_state(self, frame: FrameType | None) -> tuple[str, RunningCall | None]:
        """What the training thread is in, judged by the calls that have begun and by its stack."""
        inside = self._inside.copy()  # this is the thread that watches
        running = inside.get(self._home) if self._home is not None else next(iter(inside.values()), None)
        if running is not None:
            return ("init" if running.op == "init_process_group" else "collective"), _describe_call(running)
        if self._models and thread_stacks.is_running(frame, "_engine_run_backward"):
            return "backward", None
        if self._async is not None and ".wait(" in thread_stacks.read_source_line(frame):
            return "wait", _describe_call(self._async)
        blocking = any(word in self._backend for word in BLOCKING)
        return ("elsewhere" if blocking or not self._backend else "device"), None


def _describe_call(entry: Entry) -> RunningCall:
    """A call with its group and its number there."""
    if entry.group is None:
        world_size = os.environ.get("WORLD_SIZE", "")
        return RunningCall(entry.op, size=int(world_size) if world_size.isdigit() else None)
    group = entry.group
    return RunningCall(
        entry.op, group.name, entry.number, group.size, group.ranks or None, rank_ranges=group.rank_ranges
    )


def _find_timeout_s(given: object) -> float | None:
    """The timeout of the world's group: as asked for, else as the backend was set up."""
    import torch.distributed as dist

    if isinstance(given, timedelta):
        return given.total_seconds()
    try:
        world = dist.group.WORLD
        device = torch.device("cuda" if "nccl" in str(dist.get_backend()) else "cpu")
    except (AttributeError, RuntimeError):  # another torch, another backend
        return None
    held = backend_timeout(world, device) if world is not None else None
    return held.total_seconds() if held is not None else None


def _is_ddp(module: nn.Module) -> bool:
    return isinstance(module, nn.parallel.DistributedDataParallel)


def _parse_buckets(row: dict[str, object]) -> list[str]:
    """Sizes of a reducer's buckets: as rebuilt after the first step, else as planned."""
    return str(row.get("rebuilt_bucket_sizes") or row.get("bucket_sizes") or "").replace(",", " ").split()


def _sum_ms(rows: list[dict[str, Any]], name: str) -> float:
    return round(sum(int(row.get(name, 0)) for row in rows) / NS_PER_MS, 3)
