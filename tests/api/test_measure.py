"""The exact figures of tensors, against float64 worked out by hand, over dtypes, layouts and sizes."""

import math
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tdbg.runtime import tensors
from tdbg.runtime.tensors import Figures, compute_norms, count_bytes, measure_tensors

NAN, INF = math.nan, math.inf


def measure_by_hand(values: list[float]) -> tuple[float, float, float, float]:
    good = [value for value in values if math.isfinite(value)]
    mean = math.fsum(good) / len(good)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in good) / max(len(good) - 1, 1))
    return mean, std, min(good), max(good)


def measure_one(tensor: Tensor) -> Figures:
    (found,) = measure_tensors([tensor])
    assert found is not None
    return found


def assert_figures(found: Figures, values: list[float], rel: float = 1e-5) -> None:
    mean, std, low, high = measure_by_hand(values)
    scale = max(abs(low), abs(high), 1e-30)
    assert found.mean == pytest.approx(mean, rel=rel, abs=rel * scale)
    assert found.std == pytest.approx(std, rel=rel, abs=rel * scale)
    assert (found.low, found.high) == (pytest.approx(low, rel=1e-12), pytest.approx(high, rel=1e-12))


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 8, 20, 21, 22, 100])
@pytest.mark.parametrize("bad", [(), (NAN,), (INF, -INF), (NAN, INF, -INF, NAN)], ids=str)
def test_chunks_join_to_the_whole(monkeypatch, size, bad):
    monkeypatch.setattr(tensors, "CHUNK", 7)
    torch.manual_seed(size)
    values = (torch.randn(size, dtype=torch.float64) + 3).tolist() + list(bad)
    found = measure_one(torch.tensor(values, dtype=torch.float64))
    assert_figures(found, values, rel=1e-12)
    assert found.count == len(values)
    assert (found.nan, found.inf) == (sum(map(math.isnan, bad)), sum(map(math.isinf, bad)))
    assert found.minus_inf == list(bad).count(-INF)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=40))
def test_any_float32(values):
    found = measure_one(torch.tensor(values, dtype=torch.float32))
    assert found.nan == sum(map(math.isnan, values))
    assert found.inf == sum(map(math.isinf, values))
    if any(map(math.isfinite, values)):
        assert_figures(found, torch.tensor(values, dtype=torch.float32).double().tolist(), rel=1e-4)
    else:
        assert (found.mean, found.std, found.low, found.high, found.norm) == (None,) * 5


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.bool]


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
def test_every_dtype(dtype):
    torch.manual_seed(0)
    tensor = (torch.rand(50) * 4).to(dtype)
    found = measure_one(tensor)
    assert_figures(found, tensor.to(torch.float64).tolist())
    assert found.finite and found.count == 50
    assert count_bytes(tensor) == 50 * tensor.element_size()


def test_half_precision_does_not_overflow():
    found = measure_one(torch.full((1000,), 60000.0, dtype=torch.float16))
    assert (found.mean, found.std, found.low) == (60000.0, 0.0, 60000.0)
    assert compute_norms([torch.full((1000,), 60000.0, dtype=torch.float16)]).item() == pytest.approx(
        60000 * math.sqrt(1000)
    )


def test_a_sum_that_overflows_is_no_inf():
    found = measure_one(torch.full((10,), 3e38))
    assert found.finite and found.mean == pytest.approx(3e38) and found.std == pytest.approx(0.0, abs=1e32)
    assert found.norm == pytest.approx(3e38 * math.sqrt(10))


def test_a_large_mean_does_not_eat_the_spread():
    found = measure_one(torch.tensor([1e8, 1e8 + 8]).repeat(1000))
    assert found.mean == pytest.approx(1e8 + 4, rel=1e-9) and found.std == pytest.approx(4.0, rel=1e-3)


def test_a_complex_tensor_is_looked_at_by_magnitude():
    tensor = torch.complex(torch.randn(30), torch.randn(30))
    assert_figures(measure_one(tensor), tensor.abs().double().tolist())
    bad = measure_one(torch.tensor([complex(NAN, 1), complex(1, 1), complex(0, INF)]))
    assert (bad.nan, bad.inf, bad.high) == (1, 1, pytest.approx(math.sqrt(2)))
    conjugate = compute_norms([tensor.conj()]).item()
    assert conjugate == pytest.approx(tensor.abs().double().norm().item(), rel=1e-5)


def make_layouts() -> dict[str, tuple[Tensor, list[float], int]]:
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 5.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these layouts beta
        return {
            "coo": (dense.to_sparse(), [2.0, 3.0, 5.0], 3 * 4 + 2 * 3 * 8),
            "csr": (dense.to_sparse_csr(), [2.0, 3.0, 5.0], 3 * 4 + 3 * 8 + 3 * 8),
            "csc": (dense.to_sparse_csc(), [2.0, 3.0, 5.0], 3 * 4 + 4 * 8 + 3 * 8),
            "jagged": (
                torch.nested.nested_tensor([torch.ones(2), torch.full((3,), 2.0)], layout=torch.jagged),
                [1.0, 1.0, 2.0, 2.0, 2.0],
                20,
            ),
            "transposed": (dense.T, dense.flatten().tolist(), 24),
            "expanded": (torch.tensor([1.0, 2.0])[:, None].expand(2, 3), [1.0] * 3 + [2.0] * 3, 24),
            "strided": (dense[:, ::2], [0.0, 0.0, 3.0, 5.0], 16),
            "scalar": (torch.tensor(4.0), [4.0], 4),
            "quantized": (torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8), [1.0, 2.0], 2),
            "graph": (torch.ones(3, requires_grad=True) * 2, [2.0] * 3, 12),
        }


@pytest.mark.parametrize("name", make_layouts())
def test_every_layout(name):
    tensor, values, size = make_layouts()[name]
    assert_figures(measure_one(tensor), values)
    assert count_bytes(tensor) == size


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(0, 3, dtype=torch.float16)], ids=str)
def test_an_empty_tensor(tensor):
    assert measure_one(tensor) == Figures(0) and count_bytes(tensor) == 0


def make_unreadable() -> dict[str, Tensor]:
    found = {"meta": torch.empty(3, device="meta")}
    if hasattr(torch, "float4_e2m1fn_x2"):
        found["fp4"] = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    return found


@pytest.mark.parametrize("name", make_unreadable())
def test_what_cannot_be_read_is_none_among_the_others(name):
    found = measure_tensors([torch.ones(2), make_unreadable()[name], torch.full((3,), NAN)])
    assert found[0] is not None and found[0].mean == 1.0
    assert found[1] is None
    assert found[2] is not None and found[2].nan == 3


def test_inside_a_function_transform_nothing_is_read():
    seen: list[Any] = []

    def look(x: Tensor) -> Tensor:
        seen.extend(measure_tensors([x]))
        return x

    torch.func.vmap(look)(torch.ones(2, 3))
    assert seen == [None]


def test_a_dtensor_is_this_ranks_part_and_no_collective_is_issued(monkeypatch):
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.tensor([1.0, NAN, 3.0]), mesh, [Shard(0)])
        for name in ("all_reduce", "all_gather_into_tensor", "broadcast"):
            monkeypatch.setattr(dist, name, lambda *args, **kwargs: pytest.fail("a collective"))
        found = measure_one(tensor)
        assert (found.count, found.nan, found.mean) == (3, 1, 2.0) and count_bytes(tensor) == 12
        assert compute_norms([DTensor.from_local(torch.tensor([3.0, 4.0]), mesh, [Shard(0)])]).tolist() == [5.0]
    finally:
        dist.destroy_process_group()


def test_one_copy_for_all_and_one_more_for_those_that_are_bad(monkeypatch):
    copies = []
    real = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: (copies.append(self.numel()), real(self))[1])
    for name in ("item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, name, lambda self: pytest.fail("a copy of one value"))
    many = [torch.randn(10) for _ in range(50)]
    measure_tensors(many)
    assert len(copies) == 1
    measure_tensors([*many, torch.tensor([NAN]), torch.tensor([INF])])
    assert len(copies) == 3
    compute_norms(many)
    assert len(copies) == 3


def test_nothing_is_changed_and_no_random_number_is_drawn():
    tensor = torch.randn(20, requires_grad=True)
    before, state, version = tensor.detach().clone(), torch.get_rng_state(), tensor._version
    measure_tensors([tensor, tensor * 2])
    assert torch.equal(tensor, before) and torch.equal(torch.get_rng_state(), state)
    assert tensor._version == version and tensor.grad is None


def test_norms_of_mixed_kinds():
    found = [
        torch.tensor([3.0, 4.0]),
        torch.tensor([3.0, 4.0], dtype=torch.float64),
        torch.tensor([3.0, 4.0], dtype=torch.bfloat16),
        torch.tensor([3.0, 4.0]).to(torch.float8_e4m3fn),
        torch.tensor([3 + 4j]),
        torch.tensor([[0.0, 3.0], [4.0, 0.0]]).to_sparse(),
    ]
    assert compute_norms(found).tolist() == pytest.approx([5.0] * 6)
    assert compute_norms([]).tolist() == []
    assert compute_norms([torch.full((4,), 1e30)]).tolist() == [INF], (
        "an overflow, which `measure` tells from a real Inf"
    )


def test_only_minus_inf():
    assert measure_one(torch.tensor([0.0, -INF])).only_minus_inf
    assert not measure_one(torch.tensor([0.0, INF, -INF])).only_minus_inf
    assert not measure_one(torch.tensor([NAN, -INF])).only_minus_inf
    assert not measure_one(torch.tensor([0.0])).only_minus_inf


@pytest.mark.parametrize("scale", [1e-16, 1e-18, 1e-20, 1e-25, 3e-32, 1e-38])
@pytest.mark.parametrize("count", [2, 40])
def test_deviations_whose_squares_float32_cannot_hold(scale, count):
    values = (torch.arange(count, dtype=torch.float32) * scale).double().tolist()
    assert_figures(measure_one(torch.tensor(values, dtype=torch.float32)), values, rel=1e-4)
