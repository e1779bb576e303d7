"""Sparse gradients, in which one element may stand several times, read as the dense ones they stand for."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probes.judging import list_observations
from torch import Tensor, nn

from tdbg.runtime import tensors

VOCABULARY, WIDTH, STEPS = 40, 12, 12


class Tagger(nn.Module):
    """Words, by table or by bag, under a linear head; the table's gradients are sparse or dense."""

    def __init__(self, table: Callable[..., nn.Module], sparse: bool) -> None:
        super().__init__()
        self.table = table(VOCABULARY, WIDTH, sparse=sparse)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor) -> Tensor:
        found = self.table(words)
        return self.head(found.mean(1) if found.dim() == 3 else found)


def make_bag(*args: Any, **kwargs: Any) -> nn.Module:
    return nn.EmbeddingBag(*args, mode="sum", **kwargs)


def train_model(table: Callable[..., nn.Module], sparse: bool) -> None:
    torch.manual_seed(0)
    model = Tagger(table, sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        words, tags = torch.randint(VOCABULARY, (16, 6)), torch.randint(3, (16,))
        nn.functional.cross_entropy(model(words), tags).backward()
        before = model.table.weight.grad.is_coalesced() if sparse else True
        optimizer.step()
        assert not sparse or model.table.weight.grad.is_coalesced() == before


@pytest.mark.parametrize("table", [nn.Embedding, make_bag], ids=["table", "bag"])
def test_norms_are_those_of_the_dense_gradient(start_watch: Any, table: Callable[..., nn.Module]) -> None:
    records = []
    for sparse in (False, True):
        watched = start_watch(level="extreme", flags={"GRADIENTS": True}, max_overhead=1e6)
        train_model(table, sparse)
        watched.monitor.finish_run()
        records.append(watched.train_steps)
        watched.monitor.detach()
    dense, sparse_ones = records
    assert len(dense) == len(sparse_ones) == STEPS
    for one, other in zip(dense, sparse_ones, strict=True):
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-6)
        assert other.grad_norms == pytest.approx(one.grad_norms, rel=1e-5)
        assert other.finite is one.finite is True


def test_updates_are_not_compared_by_rows_that_are_others(start_watch: Any) -> None:
    """As many stored values as weights: the sample of one would fit the other by its shape alone, and none of its rows is row 1."""
    watched = start_watch(flags={"OPTIMIZER": True}, max_overhead=1e6)
    torch.manual_seed(0)
    table = nn.Embedding(256, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        table(torch.ones(256, dtype=torch.long)).square().sum().backward()
        optimizer.step()
    assert not any(event.values.get("lasting") for event in list_observations(watched, "optimizer"))


def make_uncoalesced(dims: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(dims)
    shape = (5, 4, 3)[:dims]
    indices = torch.stack([torch.randint(size, (50,)) for size in shape])
    values = torch.randn(50, *(7,) * (3 - dims)).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (*shape, *(7,) * (3 - dims)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_reading_agrees_with_the_dense_tensor(dims: int, dtype: torch.dtype) -> None:
    tensor = make_uncoalesced(dims, dtype)
    dense, rel = tensor.to_dense(), 0.05 if dtype == torch.bfloat16 else 1e-5
    norm = torch.linalg.vector_norm(dense).item()
    assert tensors.compute_norms([tensor]).item() == pytest.approx(norm, rel=rel)
    (figures,) = tensors.measure_tensors([tensor])
    assert figures is not None and figures.norm == pytest.approx(norm, rel=rel)
    in_rows = tensors._sum_rows(tensor)  # as it is done where counting the different indices would wait
    assert in_rows.shape == tensor._values().shape
    assert torch.linalg.vector_norm(in_rows).item() == pytest.approx(norm, rel=rel)
    assert not tensor.is_coalesced(), "the program's own tensor stays as it is"


def test_what_is_not_finite_is_counted_once() -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[1, 1, 3]]), torch.tensor([math.nan, 1.0, math.inf]), (5,))
    found = tensors.find_bad_values(tensor)
    assert found is not None and (found.kind, found.count) == ("nan+inf", 2)
