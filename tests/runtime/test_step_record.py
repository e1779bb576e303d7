"""The memory in step records: read every ten steps, and of sparse records in each."""

import itertools

import pytest
import torch
from torch import nn

from tdbg.runtime import step_record
from tdbg.runtime.step_record import Recorder


@pytest.mark.parametrize(
    ("steps", "fresh"),
    [
        (range(1, 32), [1, 11, 21, 31]),
        ([1, 41, 64, 72, 80, 96, 128], [1, 41, 64, 80, 96, 128]),
        ([7, 16, 17, 10_000], [7, 17, 10_000]),
    ],
    ids=["every step", "sampled", "first at seven"],
)
def test_the_memory_of_a_record_is_no_older_than_ten_steps(monkeypatch: pytest.MonkeyPatch, steps, fresh) -> None:
    reads = itertools.count(100.0)
    monkeypatch.setattr(step_record, "host_memory_mb", lambda: next(reads))
    recorder, optimizer = Recorder(8), torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    before, seen = 0.0, []
    for step in steps:
        record = recorder.build_record(step, optimizer, 1.0, skipped=False, late_loss=lambda record, values: None)
        if record.host_mb != before:
            seen.append(step)
        before = record.host_mb
    assert seen == fresh
