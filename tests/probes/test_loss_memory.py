"""Memory through GradNorm's passes: bytes worked out by hand, and what stays from update to update."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tdbg.probes.loss import GradNormMemory, gradnorm_memory
from tdbg.probes.loss.held import Meter, build_rows, record_held
from tdbg.runtime import torch_compat

pytestmark = pytest.mark.usefixtures("loss_flags")

MB = 1e6
needs_saved_tensors = pytest.mark.skipif(
    not torch_compat.shows_saved_tensors, reason="this torch hides what graphs keep"
)


def make_body() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 500), nn.ReLU(), nn.Linear(500, 10))


def list_held_rows(tensors: Any) -> list[dict[str, Any]]:
    seen: dict[int, Any] = {}
    record_held("given", tensors, seen)
    return build_rows(seen)


@needs_saved_tensors
def test_what_a_graph_saves() -> None:
    """The input, the ReLU's output (once, though two operations keep it), the output that is squared; no weights."""
    out_BC = make_body()(torch.randn(64, 100))
    found = list_held_rows(out_BC.square().mean())
    saved = [row for row in found if row["kind"] == "saved"]
    assert sorted(row["mb"] for row in saved) == pytest.approx([64 * 10 * 4 / MB, 64 * 100 * 4 / MB, 64 * 500 * 4 / MB])
    assert [row["mb"] for row in found if row["kind"] == "made"] == pytest.approx([4 / MB])


def test_tensors_without_a_graph() -> None:
    found = list_held_rows([torch.zeros(1000), None, torch.zeros(10, 10, dtype=torch.float64)])
    assert [(row["name"], row["mb"]) for row in found] == [
        ("given 1000 float32", pytest.approx(4000 / MB)),
        ("given 10x10 float64", pytest.approx(800 / MB)),
    ]
    assert list_held_rows(None) == []


def test_what_was_packed_is_not_unpacked() -> None:
    """A checkpointed block would run again: it runs once forward, once in backward, and not for us."""
    runs = 0

    def block(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        return x.sin().exp()

    x = torch.randn(100, requires_grad=True)
    loss = checkpoint(block, x, use_reentrant=False).sum()
    list_held_rows(loss)
    assert runs == 1
    loss.backward()
    list_held_rows(loss)  # a graph that is freed
    assert runs == 2


def test_a_saved_tensor_changed_in_place_is_still_an_error() -> None:
    """The look leaves autograd's own check alone."""
    x = torch.ones(3, requires_grad=True)
    mid = x * 2
    loss = mid.square().sum()
    with gradnorm_memory(always=True) as memory:
        memory.mark("re-forward", {"loss": loss})
    mid.add_(1)
    list_held_rows(loss)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_malloc_is_counted() -> None:
    meter = Meter("cpu")
    if meter.how != "malloc":
        pytest.skip("no malloc that can be asked")
    before = meter.used_mb()
    piece = torch.empty(2_000_000)
    assert meter.used_mb() - before == pytest.approx(8.0, abs=0.2)
    del piece
    assert meter.used_mb() - before == pytest.approx(0.0, abs=0.2)


def run_updates(count: int, keep: str = "") -> list[GradNormMemory]:
    """GradNorm's passes, again and again; what a program keeps by mistake is named by ``keep``."""
    model, kept, found = make_body(), [], []
    shared = list(model[0].parameters())
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(count):
        x_BF = torch.randn(256, 100, generator=torch.Generator().manual_seed(step))
        with gradnorm_memory(always=True, accumulation=4, name=keep or "sound") as memory:
            loss = model(x_BF).square().mean()
            memory.mark("re-forward", {"losses": [loss]})
            grads = torch.autograd.grad(loss, shared, create_graph=True)
            memory.mark("gradients", {"grads": grads})
            norm = torch.stack([grad.norm() for grad in grads]).norm()
            memory.mark("norm", {"norm": norm})
        assert memory.report is not None
        found.append(memory.report)
        if keep == "norms":
            kept.append(norm)
        if keep == "gradients":
            kept.append([grad.detach() for grad in grads])
        if keep == "values":
            kept.append(norm.item())
        if keep == "now and then" and step % 3 == 0:
            kept.append(grads)
        if keep == "outside":
            kept.append(torch.zeros(100_000))
        if keep == "graphs":
            kept.append(loss)
        (loss + 0.01 * norm).backward(retain_graph=keep == "graphs")
        optimizer.step()
        optimizer.zero_grad()
        del loss, grads, norm
    return found


@pytest.mark.parametrize("keep", ["", "values"])
def test_sound_updates_leave_nothing(keep: str) -> None:
    found = run_updates(20, keep)
    assert not any(report.findings for report in found)
    assert found[-1].growth_mb is not None and abs(found[-1].growth_mb) < 0.1


@pytest.mark.parametrize("keep", ["outside", "now and then"])
def test_other_growth_is_not_laid_to_gradnorm(keep: str) -> None:
    found = run_updates(15, keep)
    assert not any(report.findings for report in found)
    assert found[-1].before_mb - found[3].before_mb > 0.5, "it does grow"


@needs_saved_tensors
def test_a_graph_that_is_kept() -> None:
    """A history of losses: a scalar each, and behind it the activations of the whole batch."""
    fault = run_updates(12, "graphs")[-1].findings[0]
    assert fault.code == "TD-L017" and any(
        "0.512 MB saved 1 x " in line and "256x500" in line for line in fault.evidence
    )


@pytest.mark.parametrize("keep", ["gradients"])
def test_a_leak_is_told_after_five_updates(keep: str) -> None:
    """TD-L017: the gradients of the shared layer stay, 100 x 500 + 500 floats an update."""
    found = run_updates(12, keep)
    told = [place for place, report in enumerate(found) if report.findings]
    assert told and told[0] <= 7 and told[-1] == 11
    fault = found[-1].findings[0]
    assert fault.code == "TD-L017"
    assert "still held from the update before: 0.2 MB made 1 x grads 500x100 float32" in fault.evidence
    assert found[-1].growth_mb == pytest.approx(50_500 * 4 / MB, abs=0.05)


@needs_saved_tensors
def test_the_parts_and_accumulation() -> None:
    report = run_updates(2)[-1]
    assert [part["name"] for part in report.parts] == ["re-forward", "gradients", "norm"]
    first = report.parts[0]
    if report.how == "malloc":
        assert first["change_mb"] == pytest.approx((256 * 500 * 4 + 256 * 10 * 4) / MB, abs=0.1)
    grads = [row for row in report.parts[1]["tensors"] if row["kind"] == "made"]
    assert [row["mb"] for row in grads] == pytest.approx([0.2, 0.002])
    text = report.records()[0][1]
    assert "accumulation 4:" in text and "MB if all are kept" in text and "saved 1 x " in text


def test_what_torch_hides_is_unknown_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "shows_saved_tensors", False)
    report = run_updates(1)[-1]
    assert all(row["kind"] == "made" for part in report.parts for row in part["tensors"])
    text = report.records()[0][1]
    assert (
        f"saved for backward: unknown, torch {torch.__version__} does not show it" in text and "0 MB saved" not in text
    )
    assert "saved_mb" not in report.collect_event_values() and "stays_mb" in report.collect_event_values()


def test_an_exception_passes_and_leaves_no_report() -> None:
    with pytest.raises(ValueError, match="planted"), gradnorm_memory(always=True) as memory:
        raise ValueError("planted")
    assert memory.report is None


def test_what_cannot_be_looked_at_is_no_fault(loss_flags: dict[str, Any]) -> None:
    loss_flags["LOSS.GRADNORM_MEMORY"] = True
    with gradnorm_memory() as memory:
        memory.mark("odd", {"thing": ["no tensor"]})  # type: ignore[list-item]
    assert memory.report is not None and memory.report.parts[0]["tensors"][0]["kind"] == "unknown"
