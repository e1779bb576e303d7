"""The accelerator's path, run on the host: nothing is read before the next step, and the record is the same."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tdbg.probes import tensors

from .conftest import Watch

Start = Callable[..., Watch]


def run(seen: Watch, bad_at: int = 0) -> list[tuple[float, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    for step in range(1, 6):
        x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
        if step == bad_at:
            x[0, 0] = math.nan
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        told.append((loss.item(), math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters()))))
        optimizer.step()
        if not bad_at:
            assert len(seen.steps) == step - 1, "the last record waits for its values"
    seen.monitor.finish()
    return told


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor counts as if it were on an accelerator."""
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)


@pytest.mark.usefixtures("far")
def test_records_are_complete_one_step_late(watch: Start) -> None:
    seen = watch()
    told = run(seen)
    assert [record.step for record in seen.steps] == [1, 2, 3, 4, 5]
    for record, (loss, norm) in zip(seen.steps, told, strict=True):
        assert record.loss == pytest.approx(loss, rel=1e-6)
        assert record.grad_norm == pytest.approx(norm, rel=1e-5)
        assert record.finite is True
    assert seen.bad == []


@pytest.mark.usefixtures("far")
def test_a_fault_seen_late_names_the_step_and_the_input_and_says_it_was_late(watch: Start) -> None:
    seen = watch()
    run(seen, bad_at=3)
    event = seen.bad[0]
    assert (event.step, event.phase, event.weights) == (3, "input", "updated")
    assert "one step late" in event.note
    assert len(seen.bad) == 1


@pytest.mark.usefixtures("far")
def test_nothing_of_a_step_is_kept_alive_on_the_device(watch: Start) -> None:
    seen = watch()
    run(seen)
    assert len(seen.monitor.calls) == 0
    assert all(not call.output_grads for call in seen.monitor.late_calls)


@pytest.mark.usefixtures("far")
def test_stop_before_update_reads_at_once(watch: Start) -> None:
    seen = watch(stop_before_update=True)
    with pytest.raises(SystemExit):
        run(seen, bad_at=1)
    assert seen.bad[0].weights == "intact"
