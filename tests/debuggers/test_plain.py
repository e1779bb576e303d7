"""Tensors that are no plain data, and what else a layer may give: in the pages it is what torch itself says it is."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tdbg.debuggers.pool import Pool
from tdbg.debuggers.recording_thread import Pass, Recording
from tdbg.debuggers.tap import Copied, Tap, Target
from tdbg.pages.format.page_writer import PageWriter
from tdbg.pages.read.datapoint import Datapoint
from tdbg.pages.read.page_set import PageSet
from tests.debuggers.test_capture_parts import raise_error


class Gives(nn.Module):
    """A layer that gives whatever a function makes."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


def capture_passes(
    folder: Path, make: Callable[[Tensor], Any], inputs: list[Tensor], *, stats: bool = False
) -> tuple[list[Datapoint], list[Copied]]:
    """What the pages hold of passes of such a layer."""
    net, tap = nn.Sequential(Gives(make)), Tap(Pool(), raise_error)
    recording = Recording(lambda: PageWriter(folder), tap.pool)
    found = []
    for number, x in enumerate(inputs):
        tap.begin_pass([Target("a", make_reference(net[0]), ("output",))], graded=False)
        net(x)
        copied = tap.end_pass()
        assert copied is not None
        found.append(copied)
        recording.submit_job(Pass(copied, tap.pool, number, {}, stats=stats))
    recording.close()
    return list(PageSet.open(folder)), found


def make_reference(module: nn.Module) -> Any:
    return lambda: module


X = [torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


def per_tensor(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.05, 3, torch.quint8)


def quantize_with_moving_scale(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, float(x.abs().max()) / 127, 0, torch.qint8)


def quantize_to_int32(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 1e-4, -7, torch.qint32)


def per_channel(x: Tensor) -> Tensor:
    return torch.quantize_per_channel(x, torch.arange(1, 7) / 50, torch.arange(6), 1, torch.quint8)


@pytest.mark.parametrize("make", [per_tensor, quantize_with_moving_scale, quantize_to_int32, per_channel])
def test_quantised_tensors_keep_their_values(tmp_path: Path, make: Callable[[Tensor], Tensor]) -> None:
    points, copied = capture_passes(tmp_path, make, X)
    for point, x in zip(points, X, strict=True):
        tensor, expected = point.tensors["a:output"], make(x)
        assert tensor.dtype.name == str(expected.dtype).removeprefix("torch.")
        assert tensor.read() == expected.int_repr().numpy().tobytes()
        assert np.allclose(tensor.array(), expected.dequantize().numpy(), atol=1e-6)
    assert copied[-1].is_complete == (make is not quantize_with_moving_scale), (
        "a scale of its own is a layout of its own"
    )


def test_figures_of_quantised_tensors_and_integers_are_those_of_their_values(tmp_path: Path) -> None:
    points, _ = capture_passes(tmp_path, lambda x: (per_tensor(x), per_channel(x), x.argmax(1)), X, stats=True)
    for point, x in zip(points, X, strict=True):
        for path, expected in (("0", per_tensor(x)), ("1", per_channel(x))):
            values = expected.dequantize()
            assert point.scalars[f"a:output.{path}/mean"] == pytest.approx(values.mean().item(), abs=1e-6)
            assert point.scalars[f"a:output.{path}/high"] == pytest.approx(values.max().item(), abs=1e-6)
        assert point.scalars["a:output.2/mean"] == x.argmax(1).double().mean().item()


def test_sparse_tensors_are_kept_as_their_parts(tmp_path: Path) -> None:
    layouts = {
        "coo": lambda x: x.relu().to_sparse(),
        "csr": lambda x: x.relu().to_sparse_csr(),
        "csc": lambda x: x.relu().to_sparse_csc(),
        "bsr": lambda x: x.relu().to_sparse_bsr((2, 3)),
    }
    points, _ = capture_passes(tmp_path, lambda x: {name: make(x) for name, make in layouts.items()}, X)
    for point, x in zip(points, X, strict=True):
        found = {path.removeprefix("a:output."): tensor for path, tensor in point.tensors.items()}
        arrays = {path: torch.from_numpy(tensor.array().copy()) for path, tensor in found.items()}
        coo = torch.sparse_coo_tensor(arrays["coo/indices"], arrays["coo/values"], (4, 6))
        assert torch.equal(coo.to_dense(), x.relu())
        assert found["coo/values"].note == {"sparse": "sparse_coo", "shape": [4, 6]}
        for name, build in (("csr", torch.sparse_csr_tensor), ("csc", torch.sparse_csc_tensor)):
            parts = [arrays[f"{name}/{part}"] for part in ("compressed_indices", "plain_indices", "values")]
            assert torch.equal(build(*parts, (4, 6)).to_dense(), x.relu())
        assert arrays["bsr/values"].shape[1:] == (2, 3)


def test_nested_tensors_are_kept_as_rows_behind_one_another(tmp_path: Path) -> None:
    def build_nested_tensors(x: Tensor) -> dict[str, Tensor]:
        rows = [x[:1], x]
        return {
            "strided": torch.nested.nested_tensor(rows),
            "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        }

    points, _ = capture_passes(tmp_path, build_nested_tensors, X)
    for point, x in zip(points, X, strict=True):
        whole = torch.cat([x[:1], x])
        found = {path.removeprefix("a:output."): tensor.array() for path, tensor in point.tensors.items()}
        assert np.array_equal(found["jagged/values"], whole.numpy()) and list(found["jagged/offsets"]) == [0, 1, 5]
        assert np.array_equal(found["strided/values"], whole.flatten().numpy())
        assert found["strided/sizes"].tolist() == [[1, 6], [4, 6]]
        assert point.tensors["a:output.jagged/values"].note["nested"] == "jagged"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("complex64", lambda x: torch.complex(x, -x).conj()),
        ("complex128", lambda x: torch.complex(x, -x).to(torch.complex128)),
        ("float8_e5m2", lambda x: x.to(torch.float8_e5m2)),
        pytest.param(
            "float8_e8m0fnu",
            lambda x: x.abs().to(torch.float8_e8m0fnu),
            marks=pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch 2.6 has no such dtype"),
        ),
        ("float32", lambda x: torch.complex(x, x).conj().imag),
        ("float32", lambda x: x.as_subclass(type("Own", (Tensor,), {}))),
        ("float32", lambda x: x.to_mkldnn()),
        ("uint4", lambda x: (x.abs() * 4).to(torch.uint8).view(torch.uint4)),
        ("bool", lambda x: x > 0),
    ],
)
def test_what_torch_calls_one_tensor_is_one(tmp_path: Path, name: str, make: Callable[[Tensor], Tensor]) -> None:
    points, copied = capture_passes(tmp_path, make, X)
    assert copied[-1].is_complete and not copied[-1].skipped
    for point, x in zip(points, X, strict=True):
        tensor, expected = point.tensors["a:output"], make(x)
        expected = expected.to_dense() if expected.is_mkldnn else expected.as_subclass(Tensor)
        expected = expected.resolve_conj().resolve_neg().contiguous()
        assert (tensor.dtype.name, tensor.shape) == (name, (4, 6))
        assert tensor.read() == bytes(expected.view(torch.uint8).flatten().tolist())


Pair = namedtuple("Pair", "mean scale")


@dataclass
class Given:
    """As a model of one's own may return it."""

    last: Tensor
    loss: float
    cache: Any = None


def test_structures_and_plain_values_are_kept_and_the_rest_is_named(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers.modeling_outputs")

    def build_structures(x: Tensor) -> tuple[Any, ...]:
        hugging = transformers.BaseModelOutput(last_hidden_state=x, hidden_states=(x + 1, x + 2))
        given = Given(last=x * 2, loss=0.5, cache=object())
        return (
            hugging,
            given,
            Pair(x, "text"),
            None,
            7,
            [1, 2.5, True],
            x.dtype,
            x.numpy() * 3,
            {"deep": [{"x": x - 1}]},
        )

    points, copied = capture_passes(tmp_path, build_structures, X)
    for point, x in zip(points, X, strict=True):
        found = {path.removeprefix("a:output."): tensor.array() for path, tensor in point.tensors.items()}
        expected = {
            "0.last_hidden_state": x, "0.hidden_states.0": x + 1, "0.hidden_states.1": x + 2, "1.last": x * 2,
            "2.0": x, "7": x * 3, "8.deep.0.x": x - 1,
        }  # fmt: skip
        assert set(found) == set(expected)
        for path, tensor in expected.items():
            assert np.array_equal(found[path], tensor.numpy()), path
        assert {path.removeprefix("a:output."): value for path, value in point.scalars.items()} == {
            "1.loss": 0.5, "2.1": "text", "3": None, "4": 7, "5": [1, 2.5, True], "6": "torch.float32",
        }  # fmt: skip
    assert copied[0].skipped == {"a:output.1.cache": "a object is neither a tensor nor a plain value"}


def test_a_layer_without_tensors_is_kept_too(tmp_path: Path) -> None:
    points, _ = capture_passes(tmp_path, lambda x: "a caption", X[:2])
    assert [dict(point.scalars) for point in points] == [{"a:output": "a caption"}] * 2


def test_what_has_no_values_is_named_and_costs_nothing_else(tmp_path: Path) -> None:
    def build_valueless_tensors(x: Tensor) -> dict[str, Any]:
        with FakeTensorMode():
            fake = torch.zeros(3)
        itself: list[Any] = []
        itself.append(itself)
        found: dict[str, Any] = {"meta": x.to("meta"), "fake": fake, "x": x, "itself": itself, "long": "a" * 100_000}
        return found | {"packed": torch.quantize_per_channel(
            x, torch.ones(4), torch.zeros(4), 0, torch.quint4x2
        )}  # fmt: skip

    points, copied = capture_passes(tmp_path, build_valueless_tensors, X)
    for point, x in zip(points, X, strict=True):
        assert list(point.tensors) == ["a:output.x"] and np.array_equal(point.tensors["a:output.x"].array(), x.numpy())
    told = {path.removeprefix("a:output."): why for path, why in copied[-1].skipped.items()}
    assert told.pop("itself" + 31 * ".0") == "it is nested deeper than 32 levels, or contains itself"
    assert told == {
        "meta": "on the meta device: there are no values",
        "fake": "a FakeTensor: there are no values",
        "long": "a string of 100,000 characters",
        "packed": "its dtype packs several values in a byte: quint4x2",
    }


def test_of_a_wide_structure_the_rest_is_counted(tmp_path: Path) -> None:
    points, copied = capture_passes(tmp_path, lambda x: [x[0] for _ in range(5000)], X[:1])
    assert len(points[0].tensors) == 4096
    assert copied[0].skipped == {"a:output.4096": "904 more after the first 4,096"}


def test_inside_torch_func_it_is_named(tmp_path: Path) -> None:
    net, tap = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 2)), Tap(Pool(), raise_error)
    for _ in range(2):
        tap.begin_pass([Target("0", make_reference(net[0]), ("output", "input"))], graded=False)
        torch.vmap(net)(X[0])
        copied = tap.end_pass()
        assert copied is not None and not copied.list_forms()
        why = "inside torch.func, where it has no values of its own"
        assert copied.skipped == {"0:input.0": why, "0:output": why}


def test_a_subclass_made_of_tensors_is_kept_as_these(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    points, copied = capture_passes(tmp_path, lambda x: TwoTensor(x, x * 2), X)
    assert copied[-1].is_complete
    for point, x in zip(points, X, strict=True):
        assert np.array_equal(point.tensors["a:output/b"].array(), x.numpy() * 2)
        assert point.tensors["a:output/a"].note == {"subclass": "TwoTensor", "shape": [4, 6]}


def test_of_a_dtensor_it_is_this_rank_s_part(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        mesh = dist.init_device_mesh("cpu", (2,))

        def build_dtensors(x: Tensor) -> list[Tensor]:
            return [DTensor.from_local(x[:, 3:], mesh, [Shard(1)]), DTensor.from_local(x, mesh, [Replicate()])]

        points, copied = capture_passes(tmp_path, build_dtensors, X)
    finally:
        dist.destroy_process_group()
    assert copied[-1].is_complete
    for point, x in zip(points, X, strict=True):
        part, whole = point.tensors["a:output.0"], point.tensors["a:output.1"]
        assert np.array_equal(part.array(), x[:, 3:].numpy()) and np.array_equal(whole.array(), x.numpy())
        assert part.note["whole_shape"] == [4, 6] and "S(1)" in part.note["placements"].replace("Shard(dim=1)", "S(1)")
