"""tdbg.metric: numbers of any kind, on record with their step, and in conditions."""

import json
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist

import tdbg
from tdbg.api import session
from tdbg.core.events import Metric, encode
from tdbg.runtime import tensors

from .conftest import train_model


def list_metrics(debugger) -> list[Metric]:
    return [event for event in debugger.session.collect_events() if isinstance(event, Metric)]


def test_numbers_of_any_kind():
    with tdbg.debug_context("basic") as debugger:
        given = (1, 2.5, True, np.float32(3.5), np.int64(4), torch.tensor(5.0, requires_grad=True), torch.tensor([6]))
        for value in (*given, math.nan, -math.inf):
            tdbg.metric("x", value)
        train_model(1)
        tdbg.metric("later", 9)
        assert debugger.session.monitor.metrics == {"x": -math.inf, "later": 9.0}
    events = list_metrics(debugger)
    assert [event.value for event in events] == [1.0, 2.5, 1.0, 3.5, 4.0, 5.0, 6.0, "nan", "-inf", 9.0]
    assert [event.step for event in events] == [1] * 10  # after an update its step is spoken of
    assert json.loads(encode(events[1]))["name"] == "x"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.ones(3), "not one real number: torch.float32 of 3 on cpu"),
        (torch.tensor(1j), "one real number"),
        (torch.empty((), device="meta"), "one real number"),
        ("much", "no number: str"),
        (None, "no number: NoneType"),
        (10**400, "no number: int"),
    ],
    ids=["several", "complex", "meta", "text", "none", "huge"],
)
def test_what_is_no_number_is_refused_once(logged_messages, value, why):
    with tdbg.debug_context("basic") as debugger:
        train_model(1)
        for _ in range(3):
            tdbg.metric("x", value)
        assert debugger.session.monitor.metrics == {}
    assert list_metrics(debugger) == []
    (note,) = [text for text in debugger.session.memory.list_notes() if "metric" in text]
    assert why in note and [line for line in logged_messages() if "metric" in line] == [note]


def test_a_value_on_a_device_is_read_late(monkeypatch):
    far = torch.tensor(7.0)
    monkeypatch.setattr(tensors, "on_host", lambda tensor: tensor.device.type == "cpu" and tensor is not far)
    seen = []
    with tdbg.debug_context("basic") as debugger:
        model = train_model(1)
        monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("the program waited"))
        tdbg.metric("x", far)
        far.fill_(8.0)  # what it was is what counts
        seen.append(dict(debugger.session.monitor.metrics))
        monkeypatch.undo()
        train_model(2, model=model)
        seen.append(dict(debugger.session.monitor.metrics))
    assert seen == [{}, {"x": 7.0}]
    assert [(event.step, event.value) for event in list_metrics(debugger)] == [(1, 7.0)]


def test_a_dtensor_only_where_every_rank_has_it_all():
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
    from torch.distributed.tensor.placement_types import Partial

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with tdbg.debug_context("basic") as debugger:
            tdbg.metric("whole", DTensor.from_local(torch.tensor(2.0), mesh, [Replicate()]))
            tdbg.metric("part", DTensor.from_local(torch.tensor(2.0), mesh, [Partial()]))
            assert debugger.session.monitor.metrics == {"whole": 2.0}
    finally:
        dist.destroy_process_group()


def test_the_number_of_names_is_bounded():
    with tdbg.debug_context("basic") as debugger:
        for index in range(1200):
            tdbg.metric(f"m{index}", 1)
        assert len(debugger.session.monitor.metrics) == 1000
        tdbg.metric("m3", 5)
        assert debugger.session.monitor.metrics["m3"] == 5.0


def test_nobody_watches():
    assert session.current_session() is None
    tdbg.metric("x", "not even a number")


def test_in_a_run_with_a_condition(program_runner):
    done = program_runner(
        """
        def after(step):
            tdbg.metric("accuracy", 1.0 - step / 10)
        train(8, after)
        print(json.dumps(tdbg.get_debugging_status()["level"]))
        """,
        ["--when", "metric.accuracy < 0.55", "--then", "level=advanced for 100"],
    )
    assert done.printed_json == "advanced"
    metrics = done.read_events("metric")
    assert [(event["step"], event["name"]) for event in metrics] == [(step, "accuracy") for step in range(1, 9)]
    assert [event["value"] for event in metrics] == pytest.approx([1 - step / 10 for step in range(1, 9)])
    (trigger,) = done.read_events("trigger")
    assert trigger["condition"] == "metric.accuracy < 0.55" and trigger["step"] == 6
    assert trigger["values"]["metric.accuracy"] == pytest.approx(0.5)
