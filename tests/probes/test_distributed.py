"""DISTRIBUTED: what is seen of process groups and collectives, without issuing any."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from tdbg.core.events import Observation
from tdbg.probes.distributed import Distributed
from tdbg.probes.distributed.collectives import COLLECTIVES, FIRST_CUTS, FUNCTIONAL, LONG_CHUNK, LONG_CUTS, Kind, Order
from tdbg.probes.hang import hang_watch
from tdbg.probes.hang.collective_status import CollectiveStatus

PATIENCE_S = 30.0
KINDS = {kind.name: kind for kind in COLLECTIVES}


@pytest.fixture
def watched_group(start_watch: Callable[..., Any]) -> Callable[..., Any]:
    """A monitor with the flag on; ``seen.parts("ORDER")`` are its observations of one part."""

    def start_group(**settings: Any) -> Any:
        running = start_watch(flags={"DISTRIBUTED": True}, **settings)
        running.probe = running.monitor.find_probe("distributed")
        running.parts = lambda part: [
            event for event in running.events if isinstance(event, Observation) and event.part == part
        ]
        running.monitor.become_rank_now()
        return running

    return start_group


@pytest.fixture
def make_world() -> Iterator[Callable[[], None]]:
    """Makes a group of two ranks in one process: its collectives return at once and change nothing."""

    def init_world(rank: int = 0) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)

    yield init_world
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def without_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a backend of which torch keeps no flight record; that of other tests' groups stays in the process."""
    monkeypatch.setattr(hang_watch, "read_status", lambda: CollectiveStatus({}, {}))


def train_model(steps: int, each: Callable[[int], None]) -> None:
    """Steps of a small model, with a call between backward and update."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        each(step)
        optimizer.step()


def list_marks(events: list[Observation]) -> list[list[Any]]:
    return [mark for event in events for group in event.values["groups"] for mark in group["marks"]]


def test_the_table_agrees_with_torch() -> None:
    for kind in COLLECTIVES:
        function = getattr(dist, kind.name, None)
        if function is None or not inspect.isfunction(function):
            continue  # of another version, or written in C++
        names = list(inspect.signature(function).parameters)
        if kind.tensor >= 0:
            assert names[kind.tensor] == kind.keyword, kind
        if kind.group >= 0:
            assert names[kind.group] == "group", kind
        elif "group" in names:
            pytest.fail(f"{kind.name} takes a group")


def test_the_functional_table_agrees_with_torch() -> None:
    import torch.distributed._functional_collectives as functional

    for kind in FUNCTIONAL:
        function = getattr(functional, kind.name, None)
        assert function is None or list(inspect.signature(function).parameters)[kind.tensor] == kind.keyword


def test_init_and_destroy_are_told(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world(rank=1)
    (init,) = run.parts("INIT")
    assert (init.values["backend"], init.values["rank"], init.values["world_size"]) == ("fake", 1, 2)
    dist.all_reduce(torch.ones(6))
    dist.destroy_process_group()
    (gone,) = run.parts("DESTROY")
    assert gone.values["calls"] == 1 and gone.values["bytes"] == 24
    assert gone.values["ops"][0]["op"] == "all_reduce"


def test_a_step_is_summed_up(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()

    def reduce(step: int) -> None:
        dist.all_reduce(torch.ones(1000))
        dist.all_reduce(torch.ones(1000), async_op=True)
        dist.barrier()

    train_model(3, reduce)
    rows = [event.values for event in run.parts("STEP")]
    assert [row["calls"] for row in rows] == [3, 3, 3]
    assert [row["bytes"] for row in rows] == [8000] * 3
    assert {op["op"]: op["calls"] for op in rows[0]["ops"]} == {"all_reduce": 2, "barrier": 1}
    assert [event.step for event in run.parts("STEP")] == [1, 2, 3]


def test_a_step_without_collectives_is_not_told_again(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    train_model(4, lambda step: dist.barrier() if step == 2 else None)
    assert [event.step for event in run.parts("STEP")] == [2]


def test_the_order_is_kept_in_chunks(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    train_model(5, lambda step: [dist.all_reduce(torch.ones(2)), dist.broadcast(torch.ones(3), 0)])
    dist.destroy_process_group()
    found = list_marks(run.parts("ORDER"))
    assert [mark[:2] for mark in found] == [[1, 1], [2, 2], [3, 4], [5, 8], [9, 10]]
    assert [mark[3:] for mark in found] == [[1, 1], [1, 1], [2, 2], [3, 4], [5, 5]]
    texts: dict[str, Any] = {}
    for event in run.parts("ORDER"):
        texts.update(event.values["groups"][0]["chunks"])
    assert texts[found[2][2]] == [["all_reduce float32[2]", 1], ["broadcast float32[3]", 1]]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(3)), False),
        (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(2).double()), False),
        (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.broadcast(torch.ones(2), 0), False),
        (lambda: dist.all_reduce(torch.ones(2)), lambda: dist.all_reduce(torch.ones(1, 2)), True),
        (
            lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2)),
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)),
            True,  # ranks may well give different sizes
        ),
    ],
)
def test_what_makes_two_calls_differ(watched_group: Any, make_world: Any, one: Any, other: Any, same: bool) -> None:
    run = watched_group()
    make_world()
    one()
    first = run.probe._find_group(None).order.marks[-1][2]
    dist.destroy_process_group()
    make_world()
    other()
    assert (run.probe._find_group(None).order.marks[-1][2] == first) is same


def test_a_second_world_is_another_group(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    for _ in range(2):
        make_world()
        dist.barrier()
        dist.destroy_process_group()
    assert [event.values["groups"][0]["group"] for event in run.parts("ORDER")] == ["world", "world#2"]


def test_smaller_groups_are_named_with_their_ranks(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    pair = dist.new_group([0, 1])
    alone = dist.new_group([0])
    foreign = dist.new_group([1])
    dist.all_reduce(torch.ones(1), group=pair)
    dist.all_reduce(torch.ones(1), group=alone)
    dist.all_reduce(torch.ones(1), group=foreign)  # a call that does nothing here
    dist.destroy_process_group()
    (order,) = run.parts("ORDER")
    (group,) = order.values["groups"]  # of one rank there is nothing to compare
    assert group["ranks"] == [0, 1] and group["size"] == 2
    assert run.parts("DESTROY")[0].values["calls"] == 3 + 2, "three new groups, two calls"


def test_sends_keep_no_order(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    dist.send(torch.ones(1), 1)
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1)])
    dist.destroy_process_group()
    assert run.parts("ORDER") == []
    assert {op["op"] for op in run.parts("DESTROY")[0].values["ops"]} == {"send", "batch_isend_irecv"}


def test_other_threads_keep_no_order(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    dist.barrier()
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()
    assert run.probe._find_group(None).order.number == 1
    dist.destroy_process_group()
    assert run.parts("DESTROY")[0].values["calls"] == 2


def test_uneven_inputs_are_not_compared(watched_group: Any, make_world: Any) -> None:
    from torch.distributed.algorithms.join import Join, Joinable, JoinHook

    class Thing(Joinable):
        def __init__(self) -> None:
            super().__init__()

        join_device = torch.device("cpu")
        join_process_group = property(lambda self: dist.group.WORLD)

        def join_hook(self, **kwargs: Any) -> JoinHook:
            return JoinHook()

    run = watched_group()
    make_world()
    Join([Thing()], enable=False)
    train_model(3, lambda step: dist.barrier())
    dist.destroy_process_group()
    assert run.parts("ORDER") == [] and "abstains-distributed" in run.notes


def test_a_group_that_was_there_is_ordered_from_a_common_step(watched_group: Any, make_world: Any) -> None:
    make_world()
    run = watched_group()
    assert run.parts("INIT")[0].values["late"] is True
    train_model(20, lambda step: dist.barrier())
    dist.destroy_process_group()
    groups = [group for event in run.parts("ORDER") for group in event.values["groups"]]
    assert {group["since"] for group in groups} == {16}
    assert list_marks(run.parts("ORDER"))[0] == [1, 1, groups[0]["marks"][0][2], 16, 16]


def test_steps_that_were_not_seen_end_the_numbers(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()

    def pause_monitor(step: int) -> None:
        dist.barrier()
        if step == 2:
            run.monitor.set_active(False)
        if step == 4:
            run.monitor.set_active(True)
            run.probe.changed()

    train_model(20, pause_monitor)
    assert run.probe.count_calls() is None
    dist.destroy_process_group()
    groups = [group for event in run.parts("ORDER") for group in event.values["groups"]]
    assert [group["since"] for group in groups] == [0, 16, 16, 16, 16]
    assert list_marks(run.parts("ORDER"))[0][:2] == list_marks(run.parts("ORDER"))[1][:2] == [1, 1]


def test_what_fails_is_told_and_raised(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    with pytest.raises(TypeError):
        dist.all_reduce("no tensor")
    (failed,) = run.parts("FAILED")
    assert failed.values["op"] == "all_reduce" and "TypeError" in failed.values["error"]
    assert run.probe._inside == {}


def test_a_second_init_is_refused_by_torch_alone(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    with pytest.raises(ValueError, match="twice"):
        make_world()
    assert run.monitor.find_probe("hang")._watch is not None and len(run.parts("INIT")) == 1


def test_a_group_torch_does_not_know_keeps_no_order(watched_group: Any, make_world: Any) -> None:
    run = watched_group()
    make_world()
    owner = SimpleNamespace(barrier=lambda group=None: None)
    run.probe._patch_collective(owner, KINDS["barrier"])
    owner.barrier(group=object())
    assert run.probe._groups == {} and run.probe._left == 2


def test_reducers_tell_of_themselves(watched_group: Any) -> None:
    run = watched_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        last = run.parts("STEP")[-1].values
        assert last["ddp_buckets"] == 1 and last["ddp_bytes"] == 36 * 4 and last["ddp_comm_ms"] >= 0
    finally:
        dist.destroy_process_group()


def test_compiled_collectives_stay_one_graph(watched_group: Any, make_world: Any) -> None:
    watched_group()
    make_world()

    @torch.compile(fullgraph=True, backend="eager")
    def double(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    assert double(torch.ones(2)).tolist() == [3.0, 3.0]


def test_nothing_stays_behind(watched_group: Any, make_world: Any) -> None:
    before = dist.all_reduce, dist.init_process_group
    run = watched_group()
    make_world()
    assert dist.all_reduce is not before[0]
    hang = run.monitor.find_probe("hang")
    assert "tdbg-hang" in {thread.name for thread in threading.enumerate()}
    run.monitor.detach()
    assert (dist.all_reduce, dist.init_process_group) == before
    assert hang._watch is None


def test_without_a_group_it_abstains(watched_group: Any) -> None:
    run = watched_group()
    train_model(2, lambda step: None)
    assert run.notes == ["abstains-distributed"]


# a rank goes quiet


def wait_for_observations(run: Any, part: str) -> list[Observation]:
    """What is said of a part, as soon as something is."""
    end = time.monotonic() + PATIENCE_S
    while not run.parts(part) and time.monotonic() < end:
        time.sleep(0.02)
    return run.parts(part)


def until_quiet(run: Any) -> Callable[[], object]:
    """A wait that ends once the rank has said that it is quiet; as a sleep, it has no line of Python."""
    quiet = threading.Lock()
    quiet.acquire()

    def look_until_quiet() -> None:
        wait_for_observations(run, "QUIET")
        with run.monitor.find_probe("hang")._watch._turn:  # it has said all
            quiet.release()

    threading.Thread(target=look_until_quiet, daemon=True).start()
    return partial(quiet.acquire, True, 2 * PATIENCE_S)


def make_stuck_collective(run: Any) -> Callable[..., None]:
    """A collective that takes its time."""
    wait = until_quiet(run)
    owner = SimpleNamespace(all_reduce=lambda tensor: wait())
    run.probe._patch_collective(owner, KINDS["all_reduce"])
    return owner.all_reduce


def test_a_rank_that_waits_says_where(watched_group: Any, make_world: Any, without_recorder: None) -> None:
    run = watched_group(thresholds={"DISTRIBUTED.quiet_s": 1.0})
    make_world()
    dist.barrier()
    make_stuck_collective(run)(torch.ones(2))
    values = run.parts("QUIET")[0].values
    assert (values["state"], values["op"], values["group"], values["number"]) == (
        "collective",
        "all_reduce",
        "world",
        2,
    )
    assert values["counts"] == {"world": 2} and values["quiet_s"] >= 1.0
    assert values["where"].startswith("test_distributed.py:") and set(values) <= set(Distributed.fields)
    stacks = run.kept[values["stacks"]]["threads"]
    main = next(lines for name, lines in stacks.items() if name.startswith("MainThread"))
    assert any("stuck" in line for line in main)
    assert not any(name.startswith("tdbg-hang") for name in stacks)
    resumed = wait_for_observations(run, "RESUMED")[0]
    assert resumed.values["quiet_s"] >= values["quiet_s"] and resumed.values["op"] == "all_reduce"
    assert list_marks(run.parts("ORDER"))[-1][:2] == [2, 2], "what was called so far is on disk while it waits"


def test_a_rank_that_is_elsewhere_says_so(watched_group: Any, make_world: Any, without_recorder: None) -> None:
    run = watched_group(thresholds={"DISTRIBUTED.quiet_s": 1.0})
    make_world()
    run.probe._backend = "gloo"
    until_quiet(run)()
    dist.barrier()
    quiet = run.parts("QUIET")[0]
    assert quiet.values["state"] == "elsewhere" and "test_a_rank_that_is_elsewhere" in quiet.values["where"]
    assert wait_for_observations(run, "RESUMED")


def test_a_reducer_that_waits_is_seen_in_backward(watched_group: Any, make_world: Any, without_recorder: None) -> None:
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            wait()
            return grad

    run = watched_group(thresholds={"DISTRIBUTED.quiet_s": 1.0})
    make_world()
    run.probe._backend = "gloo"
    model = nn.Linear(2, 1)
    run.probe._models[model] = None
    model._get_ddp_logging_data = dict  # type: ignore[assignment]
    wait = until_quiet(run)
    Slow.apply(model(torch.ones(1, 2))).sum().backward()
    assert run.parts("QUIET")[0].values["state"] == "backward"


def test_an_asynchronous_call_that_is_waited_for(watched_group: Any, make_world: Any, without_recorder: None) -> None:
    run = watched_group(thresholds={"DISTRIBUTED.quiet_s": 1.0})
    make_world()
    run.probe._backend = "gloo"
    owner = SimpleNamespace(all_reduce=lambda tensor: SimpleNamespace(wait=until_quiet(run)))
    run.probe._patch_collective(owner, KINDS["all_reduce"])
    work = owner.all_reduce(torch.ones(1))
    work.wait()
    values = run.parts("QUIET")[0].values
    assert (values["state"], values["op"], values["number"]) == ("wait", "all_reduce", 1)


# the parts


def test_chunks_grow_with_the_numbers() -> None:
    order = Order(0)
    for _ in range(LONG_CUTS + 2 * LONG_CHUNK):
        order.add_call("barrier", b"barrier", 1)
    ends = [mark[1] for mark in order.marks]
    assert ends[:7] == [1, 2, 4, 8, 16, 32, FIRST_CUTS] and ends[7] == 2 * FIRST_CUTS
    assert ends[-2:] == [LONG_CUTS + LONG_CHUNK, LONG_CUTS + 2 * LONG_CHUNK]
    assert [mark[0] for mark in order.marks[1:]] == [mark[1] + 1 for mark in order.marks[:-1]]


def test_what_varies_too_much_is_not_spelt_out() -> None:
    order = Order(0)
    for number in range(200):
        text = f"all_reduce float32[{number}]"
        order.add_call(text, text.encode(), 1)
    assert len(order.texts) == len(order.marks)
    order = Order(0)
    order._cut = 1000
    for number in range(1000):
        text = f"all_reduce float32[{number}]"
        order.add_call(text, text.encode(), 1)
    assert len(order.marks) == 1 and order.texts == {}


def test_the_tail_is_marked_and_goes_on() -> None:
    order = Order(0)
    for _ in range(3):
        order.add_call("barrier", b"barrier", 1)
    order.mark_tail()
    order.add_call("barrier", b"barrier", 2)
    assert [mark[:2] for mark in order.marks] == [[1, 1], [2, 2], [3, 3], [3, 4]]


def test_a_call_costs_little(watched_group: Any) -> None:
    run = watched_group()
    owner = SimpleNamespace(barrier=lambda: None)
    run.probe._patch_collective(owner, Kind("barrier"))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        spent = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(1000):
                owner.barrier()
            spent.append((time.perf_counter() - begun) * 1e3)
        assert min(spent) < 50.0, f"{min(spent):.1f} us a call"
    finally:
        dist.destroy_process_group()
