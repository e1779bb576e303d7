"""Checksums of weights and batches on record per rank: what is looked at, when, and what they tell apart."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from tdbg.probes.rank_weights import choose_part
from tdbg.runtime import tensors
from tdbg.runtime.checksums import checksum_pieces, join_pieces
from tests.probes.judging import list_observations


@pytest.fixture
def two_rank_world() -> Iterator[None]:
    """A group of two ranks in one process: its collectives return at once and change nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, 2)
        self.head.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return self.head(self.body(x).relu())


def train_model(
    watch: Callable[..., Any],
    steps: int,
    wrap: Callable[[Net], nn.Module] = lambda net: net,
    rest_s: float = 0.0,
    **settings: Any,
) -> Any:
    watched = watch(max_overhead=None, **settings)
    watched.monitor.inspection.begin_inspection(1.0)
    torch.manual_seed(0)
    model = wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        time.sleep(rest_s)
        optimizer.zero_grad()
        with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext():
            model(torch.randn(8, 16), scale=torch.ones(())).sum().backward()
        optimizer.step()
    watched.monitor.finish_run()
    return watched


def list_steps(watched: Any, probe: str, part: str) -> list[int]:
    return [event.step for event in list_observations(watched, probe, part)]


def compute_checksums(*samples: torch.Tensor) -> list[str]:
    return join_pieces(checksum_pieces(samples).tolist())


def test_weights_and_batches_are_looked_at_in_the_same_steps_on_every_rank(
    start_watch: Any, two_rank_world: None
) -> None:
    watched = train_model(start_watch, 140, rest_s=0.005)  # steps long enough for the probe to stay
    expected = [1, 2, 3, 4, 5, 6, 7, 8, *range(12, 50, 4)]
    weights = list_steps(watched, "rank-weights", "WEIGHTS")
    assert set(weights[:8]) == set(expected[:8]) and set(weights) <= {*expected, 32, 64, 128}
    assert weights[-2:] == [64, 128], "doubling intervals after the opening inspection"
    assert max(list_steps(watched, "rank-batches", "BATCH")) <= 50


def test_one_rank_is_not_looked_at_and_costs_no_hook(start_watch: Any) -> None:
    watched = train_model(start_watch, 6)
    assert not list_steps(watched, "rank-weights", "WEIGHTS") and not list_steps(watched, "rank-batches", "BATCH")


def test_a_group_that_is_made_after_the_inspection_has_begun_is_noticed(start_watch: Any) -> None:
    watched = start_watch(max_overhead=None)
    watched.monitor.inspection.begin_inspection(1.0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            model(torch.randn(8, 16)).sum().backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()
    assert list_steps(watched, "rank-weights", "WEIGHTS") == [1, 2]


def test_a_wrapped_module_is_told_with_its_group_and_without_what_it_ignores(
    start_watch: Any, two_rank_world: None
) -> None:
    def wrap_ddp(net: Net) -> nn.Module:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["head.bias"])
        return DistributedDataParallel(net)

    first, second, *_ = list_observations(train_model(start_watch, 4, wrap_ddp), "rank-weights", "WEIGHTS")
    assert first.values["wrapped"] and first.values["group"] == [0, 1]
    assert first.values["names"] == ["body.weight [8, 16]", "body.bias [8]", "head.weight [2, 8]"]
    assert "names" not in second.values and len(second.values["checksums"]) == len(second.values["norms"]) == 3


def test_a_frozen_parameter_keeps_its_checksum_and_others_change(start_watch: Any, two_rank_world: None) -> None:
    first, second, *_ = (
        event.values["checksums"] for event in list_observations(train_model(start_watch, 4), "rank-weights", "WEIGHTS")
    )
    assert [one == other for one, other in zip(first, second, strict=True)] == [False, False, False, True]


def test_gradients_are_told_where_no_wrapper_keeps_ranks_equal(start_watch: Any, two_rank_world: None) -> None:
    first, second, *_ = list_observations(train_model(start_watch, 4), "rank-weights", "WEIGHTS")
    body, _, head, frozen = first.values["gradients"]
    assert body and head and frozen == "", "head.bias is frozen"
    assert second.values["gradients"][0] != body and len(second.values["norms"]) == 4


def test_gradients_of_a_wrapped_module_are_nobodys_business(start_watch: Any, two_rank_world: None) -> None:
    watched = train_model(start_watch, 4, DistributedDataParallel)
    assert all("gradients" not in one.values for one in list_observations(watched, "rank-weights", "WEIGHTS"))


def test_a_batch_is_told_without_its_scalars(start_watch: Any, two_rank_world: None) -> None:
    batches = [event.values for event in list_observations(train_model(start_watch, 4), "rank-batches", "BATCH")]
    assert [batch["names"] for batch in batches] == [["0"]] * 4
    assert len({batch["checksums"][0] for batch in batches}) == 4 and not batches[0]["is_split"]


def test_groups_of_fewer_ranks_are_told(start_watch: Any, two_rank_world: None) -> None:
    dist.new_group([0])
    assert all(
        event.values["is_split"] for event in list_observations(train_model(start_watch, 3), "rank-batches", "BATCH")
    )


def shard_fully(net: Net) -> nn.Module:
    net.head.bias.requires_grad_(True)
    fully_shard(net.body)
    return fully_shard(net)


def shard_beside_another_group(net: Net) -> nn.Module:
    dist.new_group([0, 1])  # as for the parts of a sequence
    return shard_fully(net)


def split_over_all_ranks(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(net, mesh, {"body": ColwiseParallel(), "head": RowwiseParallel()})


def shard_beside_a_split_layer(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(net.body, mesh, ColwiseParallel(output_layouts=Replicate()))
    net.head.bias.requires_grad_(True)
    return fully_shard(net, mesh=mesh, ignored_params=set(net.body.parameters()))


@pytest.mark.parametrize(
    ("wrap", "is_data_parallel"),
    [
        (shard_fully, True),
        (shard_beside_another_group, False),
        (split_over_all_ranks, False),
        (shard_beside_a_split_layer, False),
    ],
)
def test_shards_over_all_ranks_are_data_parallel_where_nothing_else_shards(
    start_watch: Any, two_rank_world: None, wrap: Any, is_data_parallel: bool
) -> None:
    batches = [event.values for event in list_observations(train_model(start_watch, 4, wrap), "rank-batches", "BATCH")]
    assert [batch["is_split"] for batch in batches] == [not is_data_parallel] * 4
    assert [batch["wrapped"] for batch in batches] == [is_data_parallel] * 4
    assert [bool(batch.get("sharded")) for batch in batches] == [is_data_parallel] * 4


def replicate_head(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(net.body, mesh, ColwiseParallel(output_layouts=Replicate()))
    for name, parameter in list(net.head.named_parameters()):
        net.head.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Replicate()])))
    net.head.register_forward_pre_hook(lambda module, args: DTensor.from_local(args[0], mesh, [Replicate()]))
    return net


def test_what_a_mesh_replicates_is_told_apart_from_what_it_shards(start_watch: Any, two_rank_world: None) -> None:
    first, *_ = list_observations(train_model(start_watch, 4, replicate_head), "rank-weights", "WEIGHTS")
    assert first.values["replicated"] and not first.values["hybrid"] and first.values["group"] == [0, 1]
    assert first.values["names"] == ["head.weight [2, 8]", "head.bias [2]"]


@pytest.fixture
def eight_rank_world() -> Iterator[None]:
    """Likewise of eight ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def shard_a_split_model_on_two_replicas(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    parallelize_module(net, mesh["tensor"], {"body": ColwiseParallel(), "head": RowwiseParallel()})
    net.head.bias.requires_grad_(True)
    return fully_shard(net, mesh=mesh["replicate", "shard"])


def replicate_whole(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (8,))
    return replicate(net, mesh=mesh)  # type: ignore[no-any-return]


def replicate_a_split_model(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("replicate", "tensor"))
    parallelize_module(net, mesh["tensor"], {"body": ColwiseParallel(), "head": RowwiseParallel()})
    return replicate(net, mesh=mesh["replicate"])  # type: ignore[no-any-return]


ALL_NAMES = ["body.weight [8, 16]", "body.bias [8]", "head.weight [2, 8]", "head.bias [2]"]


DATA_PARALLEL: list[tuple[Any, list[int], bool | None]] = [
    (shard_a_split_model_on_two_replicas, [0, 4], None),
    (replicate_whole, list(range(8)), True),
    (replicate_a_split_model, [0, 2, 4, 6], True),
]


def test_copies_that_data_parallelism_keeps_are_not_taken_for_those_of_tensor_parallelism(
    start_watch: Any, eight_rank_world: None
) -> None:
    for wrap, copies, whole in DATA_PARALLEL:  # in one world: torch remembers the groups of equal meshes
        watched = train_model(start_watch, 4, wrap)
        watched.monitor.detach()
        first = [one for one in list_observations(watched, "rank-weights", "WEIGHTS") if one.step == 1]
        told = {tuple(look.values["group"]): look.values for look in first}
        kept = told.pop(tuple(copies))
        assert kept["names"] == ALL_NAMES and kept.get("whole") == whole
        assert kept["hybrid"] and not kept.get("replicated")
        assert [values["names"] for values in told.values()] == [["head.bias [2]"]] * len(told)
        assert all(values["replicated"] and group == (0, 1) for group, values in told.items())


class Wide(Net):
    """Of more parameters than one look reads."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(700)])


def test_of_many_parameters_later_looks_read_other_parts(start_watch: Any, two_rank_world: None) -> None:
    watched = train_model(start_watch, 24, lambda net: DistributedDataParallel(Wide()), rest_s=0.03)
    looks = list_observations(watched, "rank-weights", "WEIGHTS")
    parts = {event.step: event.values.get("look_part", 0) for event in looks}
    assert [parts[step] for step in range(1, 9)] == [0] * 8
    assert {step: part for step, part in parts.items() if 8 < step <= 20} == {12: 0, 16: 1, 20: 2}
    names = [set(event.values["names"]) for event in looks if "names" in event.values]
    assert len(names) == 3 and sum(map(len, names)) == len(set.union(*names)) == 704
    assert all(len(event.values["checksums"]) <= 256 for event in looks)


@pytest.mark.parametrize("parts", range(1, 12))
def test_every_part_gets_its_turn(parts: int) -> None:
    opening, later = range(12, 50, 4), [2**power for power in range(6, 6 + parts)]
    assert {choose_part(step, parts) for step in later} == set(range(parts)), "at doubling intervals"
    assert len({choose_part(step, parts) for step in opening}) == min(parts, len(opening))


def test_any_single_element_changes_the_checksum() -> None:
    sample = torch.randn(64, generator=torch.Generator().manual_seed(0))
    found = {compute_checksums(sample)[0]}
    for place in range(64):
        other = sample.clone()
        other[place] = torch.nextafter(other[place], torch.tensor(torch.inf))
        found.add(compute_checksums(other)[0])
    assert len(found) == 65


def test_equal_values_have_equal_checksums_whatever_their_dtype_or_sign_of_zero() -> None:
    sample = torch.tensor([0.0, 1.5, -2.0] * 10)
    assert (
        compute_checksums(sample)
        == compute_checksums(sample.neg().neg())
        == compute_checksums(sample.bfloat16())
        == compute_checksums(sample.double())
    )
    assert compute_checksums(sample, sample[:7])[0] == compute_checksums(sample)[0] != compute_checksums(sample[:7])[0]


def test_not_finite_elements_break_nothing() -> None:
    assert len(compute_checksums(torch.tensor([float("nan"), float("inf")] * 10))[0]) == 12


def test_neither_numbers_nor_random_states_change(start_watch: Any, two_rank_world: None) -> None:
    states = []
    for probes in (True, False):
        watched = start_watch(max_overhead=None)
        watched.monitor.inspection.begin_inspection(1.0 if probes else 0.0)
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(9):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).sum().backward()
            optimizer.step()
        states.append([torch.get_rng_state(), *(p.detach().clone() for p in model.parameters())])
        watched.monitor.detach()
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))


def test_values_on_an_accelerator_arrive_a_step_late_and_are_the_same(
    start_watch: Any, two_rank_world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = train_model(start_watch, 6)
    near.monitor.detach()
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    far = train_model(start_watch, 6)
    for probe, part in (("rank-weights", "WEIGHTS"), ("rank-batches", "BATCH")):
        first, second = ([(e.step, e.values) for e in list_observations(one, probe, part)] for one in (near, far))
        assert len(first) >= 5 and second == first
