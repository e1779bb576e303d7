"""Any number a loop may hand over becomes a float; what is none is refused, naming the metric."""

import decimal
import fractions
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from tdbg.metrics.tracker.metric_values import MetricValueError, as_count, as_float, as_list


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        fractions.Fraction(4, 2),
        decimal.Decimal("2"),
        np.float32(2),
        np.int64(2),
        np.array(2.0),
        np.array([[2]]),
        torch.tensor(2.0),
        torch.tensor([2]),
        torch.tensor([[2.0]], dtype=torch.bfloat16),
        torch.tensor(2.0, requires_grad=True) * 1,
        torch.nn.Parameter(torch.tensor(2.0)),
    ],
    ids=repr,
)
def test_one_number_of_any_kind(value):
    found = as_float(value, "train/loss")
    assert type(found) is float and found == 2.0


def test_truth_values_are_one_and_zero():
    assert [as_float(value, "x") for value in (True, False, np.True_, torch.tensor(True))] == [1, 0, 1, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), np.float16("inf")])
def test_what_is_not_finite_passes(value):
    assert not math.isfinite(as_float(value, "x"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "None"),
        ("0.5", "str"),
        (b"1", "bytes"),
        ([1.0], "list"),
        ({"a": 1}, "dict"),
        (torch.tensor([1.0, 2.0]), r"Tensor of shape \(2,\) on cpu"),
        (torch.zeros(0), r"shape \(0,\)"),
        (np.zeros((2, 3)), r"ndarray of shape \(2, 3\)"),
        (torch.tensor(1 + 2j), "not a number"),
        (1 + 2j, "complex"),
        (torch.zeros((), device="meta"), "holds no data"),
        (10**400, "too large"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused_by_the_name_of_its_metric(value, says):
    with pytest.raises(MetricValueError, match=says) as caught:
        as_float(value, "val/acc1_genus")
    assert "val/acc1_genus" in str(caught.value) and caught.value.hint


def test_a_dtensor_is_taken_where_every_rank_has_all_of_it(tmp_path):
    code = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, DTensor
from tdbg.metrics.tracker.metric_values import MetricValueError, as_float
mesh = init_device_mesh("cpu", (1,))
print(as_float(DTensor.from_local(torch.tensor(2.5), mesh, [Replicate()]), "x"))
try:
    as_float(DTensor.from_local(torch.tensor(2.5), mesh, [Partial()]), "x")
except MetricValueError as error:
    print(error, "|", error.hint)
dist.destroy_process_group()
"""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = done.stdout.splitlines()
    assert first == "2.5"
    assert "holds a part" in second and "full_tensor" in second


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_tensor_on_an_accelerator():
    assert as_float(torch.tensor(2.5, device="cuda"), "x") == 2.5


@pytest.mark.parametrize("count", [3, 3.0, np.int32(3), torch.tensor(3)], ids=repr)
def test_a_number_of_samples(count):
    assert as_count(count, "x") == 3


@pytest.mark.parametrize("count", [-1, 1.5, math.nan, math.inf, None, "3", [3]], ids=repr)
def test_what_is_no_number_of_samples(count):
    with pytest.raises(MetricValueError, match="x"):
        as_count(count, "x")


def test_vectors():
    for vector in ([1, 0], (1, 0), np.array([1, 0]), torch.tensor([1, 0])):
        assert as_list(vector, "x") == [1, 0]
    for wrong in (3, torch.zeros(2, 2), torch.tensor(1.0), "ab", None):
        with pytest.raises(MetricValueError):
            as_list(wrong, "x")


def test_nothing_heavy_is_loaded():
    code = (
        "import sys; from tdbg.metrics.tracker.metrics_tracker import MetricsTracker; t = MetricsTracker();"
        "t.update_train_batch({'loss': 1}, 2); t.finalize_train_epoch();"
        "print({'torch', 'numpy', 'msgspec', 'rich', 'wandb'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
