"""Requests of `tdbg control` as a rank takes them up."""

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tdbg.core.control import Request
from tdbg.core.events import Switch
from tests.probes.conftest import Watch


def test_evaluation_takes_up_requests_though_no_call_can_be_looked_at(
    start_watch: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdbg.runtime.level_overrides.POLL_EVERY_S", 0.0)
    watched = start_watch(max_overhead=None)
    model = nn.Linear(4, 2)
    with torch.no_grad():
        for _ in range(20):
            model(torch.ones(1, 4))
        watched.monitor.budget.own_s = 1e9  # never earned again
        watched.requests.append(Request(number=1, t=time.time(), flags={"MEMORY": True}))
        recorded = len(watched.eval_steps)
        for _ in range(5):
            model(torch.ones(1, 4))
    (switch,) = [event for event in watched.events if isinstance(event, Switch)]
    assert (switch.asked, switch.flags) == (1, {"MEMORY": True})
    assert recorded < 20 and switch.step == 21, "at the first call, which was not looked at"
