"""Copies of structures of tensors."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from tdbg.debuggers.copies import ITSELF, UNREADABLE, snapshot

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


def count_storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def test_a_slice_does_not_keep_what_it_was_cut_from():
    whole = torch.arange(1 << 20, dtype=torch.float32)
    for view in (whole[7:17], whole[:80:8], whole.view(1024, 1024)[:10, 3], whole[:1].expand(10)):
        copied = snapshot({"x": view})["x"]
        assert count_storage_bytes(copied) == 40 and copied.is_contiguous() and torch.equal(copied, view)


def test_transposed_views_are_laid_out_anew():
    copied = snapshot(torch.arange(6).view(2, 3).t())
    assert copied.is_contiguous() and copied.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_later_writes_do_not_reach_it():
    x = torch.zeros(3)
    found = snapshot([x, x.detach(), x.view(3), x.numpy()])
    x.fill_(1)
    assert [list(item) for item in found] == [[0, 0, 0]] * 4


def test_structures():
    x = torch.ones(2)
    value = {"a": (x, [x, None, "text", 3, 2.5]), "pair": Pair(x, x), "out": Output(x), 4: OrderedDict(b=x)}
    found = snapshot(value)
    assert type(found["pair"]) is Pair and found["out"]["loss"] is None and found[4]["b"] is not x
    assert found["a"][1][1:] == [None, "text", 3, 2.5] and torch.equal(found["out"]["logits"], x)


def test_a_structure_in_itself():
    value = {"x": 1}
    value["again"] = value
    assert snapshot(value) == {"x": 1, "again": ITSELF}
    both = [1]
    assert snapshot([both, both]) == [[1], [1]], "the same twice is no circle"


@pytest.mark.parametrize(
    "dtype", (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint8, torch.int64)
)
def test_dtypes_stay(dtype):
    x = torch.tensor([0, 1, 1]).to(dtype)
    found = snapshot(x)
    assert found.dtype is dtype and found.tolist() == x.tolist()


def test_kinds_of_tensors():
    parameter = snapshot(nn.Parameter(torch.ones(2)))
    assert type(parameter) is torch.Tensor and not parameter.requires_grad
    sparse = torch.eye(3).to_sparse()
    assert snapshot(sparse).is_sparse and torch.equal(snapshot(sparse).to_dense(), torch.eye(3))
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    assert snapshot(quantised).is_quantized
    assert snapshot(torch.ones(2, device="meta")).is_meta
    conj = torch.tensor([1 + 2j]).conj()
    assert not snapshot(conj).is_conj() and snapshot(conj).tolist() == [1 - 2j]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert snapshot(nested).is_nested
    array = np.ones(2)
    assert snapshot(array) is not array


def test_out_of_inference_mode():
    with torch.inference_mode():
        found = snapshot(torch.ones(2))
    assert not found.is_inference()
    assert (found * nn.Parameter(torch.ones(2))).sum().requires_grad


def test_inside_a_function_transform():
    seen = []

    def f(x):
        seen.append(snapshot(x))
        return x.sum()

    torch.func.vmap(f)(torch.ones(3, 2))
    assert seen == [UNREADABLE]
