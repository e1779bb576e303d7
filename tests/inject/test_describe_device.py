"""The accelerator of a process, of whatever kind."""

import pytest
import torch

from tdbg.inject.on.torch_ import describe_device


def test_cuda_is_not_started_for_its_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be asked for from a thread of tdbg, before the program sets its device, or forks."""

    def start_cuda() -> None:
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start_cuda)
    assert describe_device()["type"] == "cuda"


@pytest.mark.parametrize("kind", ["mps", "xpu", "privateuseone", None])
def test_an_accelerator_of_any_kind_is_named(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind) if kind else None)
    assert describe_device()["type"] == (kind or "cpu")
