"""Gradients that no backward pass made: `torch.autograd.grad` and `torch.func`, whose results the program sets itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from tdbg.core.events import NO_BACKWARD

from .conftest import Watch

Start = Callable[..., Watch]
Gradients = Callable[[nn.Module, Tensor], list[Tensor]]
STEPS = 6


def by_autograd(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().mean(), list(model.parameters())))


def by_func(model: nn.Module, x: Tensor) -> list[Tensor]:
    def compute_loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (x,)).square().mean()

    return list(grad(compute_loss)({name: parameter.detach() for name, parameter in model.named_parameters()}).values())


def train_model(gradients: Gradients, bad_at: int = 0, steps: int = STEPS, clips: bool = False, **options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), **options)
    for step in range(1, steps + 1):
        made = gradients(model, torch.randn(8, 4))
        for parameter, gradient in zip(model.parameters(), made, strict=True):
            parameter.grad = gradient
        if step == bad_at:
            model[2].weight.grad[0, 0] = torch.nan
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()


@pytest.mark.parametrize("gradients", [by_autograd, by_func])
def test_a_bad_gradient_is_named_at_its_step(start_watch: Start, gradients: Gradients) -> None:
    seen = start_watch()
    train_model(gradients, bad_at=4)
    (bad,) = seen.bad_values
    assert (bad.step, bad.phase, bad.parameter, bad.weights) == (4, "gradient", "2.weight", "intact")


@pytest.mark.parametrize("clips", [False, True])
def test_the_norms_are_recorded_as_they_were_before_clipping(start_watch: Start, clips: bool) -> None:
    seen = start_watch()
    train_model(by_autograd, clips=clips)
    assert [record.checked for record in seen.train_steps] == ["all"] * STEPS
    assert all(float(record.grad_norm or 0.0) > 0.01 for record in seen.train_steps)
    assert not seen.bad_values and seen.notes == [NO_BACKWARD]


def test_a_backward_pass_that_is_seen_is_no_cause_for_a_note(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert not seen.notes and [record.checked for record in seen.train_steps] == ["all"] * STEPS


def test_what_an_update_with_a_closure_begins_with_is_not_read(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    x = torch.ones(2, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    for _ in range(STEPS):
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        optimizer.step(closure)
        norm = float(torch.stack([gradient.norm() for gradient in expected]).norm())
        assert seen.train_steps[-1].grad_norm == pytest.approx(norm)
    assert not seen.notes


def update_by_hand(model: nn.Module, bad_batch: int = 0, bad_gradient: int = 0) -> None:
    for number in range(1, 13):
        batch = torch.ones(2, 4)
        if number == bad_batch:
            batch[0, 0] = torch.nan
        model.zero_grad()
        model(batch).square().mean().backward()
        if number == bad_gradient:
            next(model.parameters()).grad[0, 0] = torch.nan  # type: ignore[index]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad


def test_without_an_optimizer_the_backward_pass_is_named(start_watch: Start) -> None:
    watched = start_watch()
    update_by_hand(nn.Linear(4, 2), bad_batch=9)
    (event,) = watched.bad_values
    assert (event.step, event.phase) == (1, "input")
    assert event.note == "no optimizer has stepped yet, and this is backward pass 9"


def test_weights_that_the_program_updates_itself_were_not_bad_from_the_beginning(start_watch: Start) -> None:
    watched = start_watch()
    update_by_hand(nn.Linear(4, 2), bad_gradient=9)
    (event,) = watched.bad_values
    assert (event.phase, event.parameter) == ("weights", "weight")
    assert "this is backward pass 10; the previous loss (backward pass 9) was finite" in event.note


def test_of_several_models_one_may_have_been_bad_from_the_beginning(start_watch: Start) -> None:
    watched = start_watch()
    other, model = nn.Linear(4, 2), nn.Linear(4, 2)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    for net in (other, model):
        net(torch.ones(2, 4)).square().mean().backward()
    (event,) = watched.bad_values
    assert event.phase == "optimizer"
    assert event.note.endswith("the weights were bad from the beginning, or the program has written them since")
