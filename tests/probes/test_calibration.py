"""What tdbg costs besides its own clock, measured without touching anything of the program's."""

from typing import Any

import pytest
import torch
from torch.nn.modules import module

from tdbg.runtime import calibration
from tdbg.runtime.calibration import USUAL, measure_overhead
from tdbg.runtime.fast_path import FastPath


def test_the_overhead_is_measured_once_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    found = measure_overhead()
    assert all(0 <= seconds < 1e-3 for seconds in found) and found is measure_overhead()
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_measured_of_a_skipped_step_is_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[FastPath] = []
    monkeypatch.setattr(FastPath, "stop_skipping", left.append)
    entries = calibration._list_fast_entries(torch.ones(2))
    for _ in range(3):
        for plain, entered in entries:
            assert entered() is plain(), "the function's own result, or none"
    assert not left


def test_hooks_of_the_program_for_all_modules_are_not_called() -> None:
    called: list[Any] = []

    def hook(*given: Any) -> None:
        called.append(given)
        raise AttributeError("an output that is no tensor")

    handle = module.register_module_forward_hook(hook)
    try:
        assert measure_overhead() == USUAL and not called
    finally:
        handle.remove()
