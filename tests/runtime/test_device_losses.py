"""Losses of a device that is played here: when they are waited for, and when not."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tdbg.runtime.device_losses import FIRST_REST_STEPS, LONGEST_REST_STEPS, MAX_FLYING, DeviceLosses


class Device:
    """How far it has come in what it was given, and how much of that was waited for."""

    def __init__(self) -> None:
        self.given = self.done = self.waits = self.copies = 0


class PlayedCopy:
    """A number that arrives once the device has come to it."""

    def __init__(self, device: Device) -> None:
        self.device, self.place, self.value = device, 0, 0.0
        device.copies += 1

    def start_copy(self, loss: Tensor) -> None:
        self.device.given += 1
        self.place, self.value = self.device.given, float(loss)

    def has_arrived(self) -> bool:
        return self.device.done >= self.place

    def wait_for_value(self) -> float:
        if not self.has_arrived():
            self.device.waits += 1
            self.device.done = self.place
        return self.value


class PlayedMark:
    """The end of what was given so far."""

    def __init__(self, device: Device) -> None:
        self.device, self.place = device, device.given

    def is_passed(self) -> bool:
        return self.device.done >= self.place


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def losses(device: Device) -> DeviceLosses:
    made: Any = lambda: PlayedCopy(device)  # noqa: E731
    marked: Any = lambda _: PlayedMark(device)  # noqa: E731
    return DeviceLosses(made, marked)


def run_step(losses: DeviceLosses, device: Device, step: int, *, starved: bool, value: float = 1.0) -> list[float]:
    """A step whose backward pass is queued behind the loss. starved: it is done before the next forward pass."""
    losses.send_loss(torch.tensor(value))
    device.given += 1  # backward
    found = losses.receive_losses(step)
    device.given += 1  # the update
    losses.end_step()
    if starved:
        device.done = device.given
    losses.begin_forward(step + 1)
    return found


def test_what_has_arrived_is_read_without_a_wait(losses: DeviceLosses, device: Device) -> None:
    losses.send_loss(torch.tensor(math.nan))
    device.done = device.given
    assert math.isnan(losses.receive_losses(1)[0]) and device.waits == 0
    assert losses.receive_losses(1) == [], "each is handed over once"


def test_a_busy_device_is_waited_for_in_each_step(losses: DeviceLosses, device: Device) -> None:
    found = [run_step(losses, device, step, starved=False, value=step) for step in range(50)]
    assert found == [[float(step)] for step in range(50)] and device.waits == 50
    assert device.copies == 1, "memory on the host is used again"


def test_a_device_that_ran_out_of_work_is_not_waited_for(losses: DeviceLosses, device: Device) -> None:
    """In 8 steps, then in 16, and so on: of 10,000 steps few are waited for."""
    waited = [bool(run_step(losses, device, step, starved=True)) for step in range(10_000)]
    at = [step for step, one in enumerate(waited) if one]
    rests = [after - before - 1 for before, after in pairwise(at)]
    assert rests[:3] == [FIRST_REST_STEPS, 2 * FIRST_REST_STEPS, 4 * FIRST_REST_STEPS]
    assert max(rests) == LONGEST_REST_STEPS and len(at) < 20
    assert device.copies < 10


def test_waiting_goes_on_where_the_device_keeps_its_work(losses: DeviceLosses, device: Device) -> None:
    for step in range(100):
        run_step(losses, device, step, starved=True)
    waits = [bool(run_step(losses, device, 100 + step, starved=False)) for step in range(400)]
    assert waits[-200:] == [True] * 200


def test_losses_of_a_step_come_in_order(losses: DeviceLosses, device: Device) -> None:
    for value in (1.0, 2.0, 3.0):
        losses.send_loss(torch.tensor(value))
    assert losses.receive_losses(1) == [1.0, 2.0, 3.0]


def test_what_the_device_does_not_come_to_is_bounded(losses: DeviceLosses, device: Device) -> None:
    for _ in range(2 * MAX_FLYING):
        losses.send_loss(torch.tensor(1.0))
        losses.end_step()
    assert device.copies == MAX_FLYING
    device.done = device.given
    losses.send_loss(torch.tensor(5.0))
    assert device.copies == MAX_FLYING, "once it has, they are used again"
    assert losses.receive_losses(1) == [5.0], "and none of an earlier step is taken for one of this"
