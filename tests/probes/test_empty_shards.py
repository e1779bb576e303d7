"""Parameters of which this rank holds nothing, as FSDP leaves them: nothing breaks, and they are not accused."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tdbg.core.events import Observation

from .conftest import Watch

Start = Callable[..., Watch]
FLAGS = dict.fromkeys(("FORWARD", "BACKWARD", "MODEL_BUILD", "GRADIENTS", "OPTIMIZER"), True)


@pytest.fixture
def device_mesh() -> Iterator[DeviceMesh]:
    """Two ranks; this is the second, and the only row of what is sharded lies on the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def train_model(model: nn.Module, steps: int = 12) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for _ in range(steps):
        sharded, whole = model(torch.randn(4, 8))
        (sharded.sum() + whole.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


def list_values(seen: Watch, probe: str, part: str = "") -> list[dict[str, object]]:
    found = [event for event in seen.events if isinstance(event, Observation) and event.probe == probe]
    return [event.values for event in found if event.part == part]


class Head(nn.Module):
    """A row that lies on another rank: its weight and its output are empty here."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.weight = nn.Parameter(self.make_sharded(torch.empty(0, 8)))

    def make_sharded(self, local: Tensor) -> DTensor:
        return DTensor.from_local(local, self.mesh, [Shard(0)], shape=torch.Size((1, 8)), stride=(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.make_sharded(x[:0] * self.weight.to_local())  # type: ignore[operator]


class Net(nn.Module):
    """A body, and a head that is on another rank."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = Head(mesh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.body(x)
        return self.head(whole).to_local(), whole


@pytest.mark.parametrize("level", ["advanced", "extreme"])
def test_empty_shards_have_no_figures(start_watch: Start, device_mesh: DeviceMesh, level: str) -> None:
    seen = start_watch(flags=FLAGS, level=level, max_overhead=1e5)
    train_model(Net(device_mesh))
    (built,) = list_values(seen, "model-build", "INIT")
    assert built["names"] == ["body.weight", "body.bias"] and not built["not_finite"]
    forward = list_values(seen, "forward")
    assert len(forward) == 12 and forward[0]["modules"] == ["body"]
    assert not any("bad" in look or "dead" in look for look in forward)
    assert not any(look.get("unreached") for look in list_values(seen, "backward"))
    looks = list_values(seen, "tensor-stats")
    assert looks[0]["names"] == ["body.weight", "body.bias", "head.weight"]
    columns = [look[name] for look in looks for name in ("weight_rms", "gradient_rms", "weight_min")]
    assert all([value is None for value in column] == [False, False, True] for column in columns)
    assert not list_values(seen, "model-build", "UNUSED") and seen.bad_values == []


class Flat(nn.Module):
    """As FSDP1 has it with its original parameters: a shard of no elements, whose gradient is None."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.elsewhere = nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.elsewhere.detach(), self.body(x)


def test_an_empty_shard_needs_no_gradient(start_watch: Start) -> None:
    seen = start_watch(flags=FLAGS, level="advanced", max_overhead=1e5)
    train_model(Flat())
    assert not list_values(seen, "model-build", "UNUSED")
    assert not any("none" in look for look in list_values(seen, "gradient-report"))
    assert not any("without_gradient" in look for look in list_values(seen, "optimizer"))
    assert list_values(seen, "gradient-report") and list_values(seen, "optimizer") and list_values(seen, "tensor-stats")
