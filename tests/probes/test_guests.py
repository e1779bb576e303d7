"""tdbg as a guest: what the program computes, keeps and prints is what it would be without it."""

import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tdbg.runtime.duty_cycle import EVALUATION_CALLS

from .conftest import Watch

Start = Callable[..., Watch]


def test_copies_of_a_block_lose_its_hooks_when_they_become_children(start_watch: Start) -> None:
    start_watch()
    block = nn.Sequential(nn.Linear(4, 4))
    net = nn.Sequential(*(copy.deepcopy(block) for _ in range(3)))
    assert [name for name, module in net.named_modules() if module._forward_hooks or module._forward_pre_hooks] == [""]
    assert torch.jit.script(net)(torch.ones(2, 4)).shape == (2, 4)


def test_a_generator_of_losses_is_not_used_up(start_watch: Start) -> None:
    start_watch()
    weight = torch.zeros(2, requires_grad=True)
    torch.autograd.backward(part for part in [(2 * weight).sum(), (3 * weight).sum()])
    assert weight.grad is not None and weight.grad.tolist() == [5.0, 5.0]


def test_inference_in_threads_goes_on(start_watch: Start) -> None:
    start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    errors: list[BaseException] = []

    def infer() -> None:
        try:
            for _ in range(200):
                with torch.no_grad():
                    model(torch.ones(2, 8))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=infer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_model_that_is_let_go_is_gone(start_watch: Start) -> None:
    start_watch()
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    traces = [weakref.ref(model), weakref.ref(model[0].weight)]
    del model, optimizer
    gc.collect()
    assert [trace() for trace in traces] == [None, None]


def test_graphs_of_calls_nobody_steps_on_are_let_go(start_watch: Start) -> None:
    seen = start_watch()
    encoder, head = nn.Linear(8, 8), nn.Linear(8, 2)
    for _ in range(12):
        head(encoder(torch.ones(2, 8)))
    assert len(seen.monitor.calls) <= 5


def test_backward_without_an_optimizer_costs_no_search_for_ever(start_watch: Start) -> None:
    seen = start_watch()
    weight = torch.ones(3, requires_grad=True)
    for _ in range(50):
        (weight * 2).sum().backward()
    assert seen.monitor.search.count <= 4
    assert len(seen.notes) <= 1


def test_calls_of_an_evaluation_are_counted_but_in_a_stretch_that_the_cost_tells(start_watch: Start) -> None:
    seen = start_watch(max_overhead=1.0)
    model = nn.Linear(8, 8).eval()
    with torch.no_grad():
        for _ in range(2000):
            model(torch.ones(2, 8))
    counted, cost = seen.monitor.eval_calls, seen.monitor.build_cost()
    assert counted >= EVALUATION_CALLS
    assert counted == 2000 or cost.away_ms > 0, "calls go uncounted in a stretch alone, which the cost tells"
    assert len(seen.eval_steps) < 1000


def test_pythons_own_random_state_survives_the_report(start_watch: Start) -> None:
    def train_and_draw(start: Start | None) -> float:
        seen = start() if start else None
        random.seed(3)
        model = nn.Linear(4, 1)
        model.register_forward_pre_hook(lambda *_: random.random() and None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        (model(torch.ones(2, 4)).sum() * float("nan")).backward()
        optimizer.step()
        assert seen is None or len(seen.bad_values) == 1
        return random.random()

    assert train_and_draw(None) == train_and_draw(start_watch)


def test_an_output_with_its_graph_is_saved_in_silence(
    start_watch: Start, tmp_path: Any, recwarn: pytest.WarningsRecorder
) -> None:
    start_watch()
    model = nn.Linear(4, 2)
    torch.save(model(torch.ones(3, 4)), tmp_path / "output.pt")
    assert not [warning for warning in recwarn if "hook" in str(warning.message)]


def test_complex_outputs_are_looked_at_in_silence(start_watch: Start, recwarn: pytest.WarningsRecorder) -> None:
    seen = start_watch()

    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x * self.scale)

    with torch.no_grad():
        Spectrum()(torch.ones(2, 4))
        Spectrum()(torch.tensor([[1.0, float("nan")]]))
    assert not [warning for warning in recwarn if "complex" in str(warning.message).lower()]
    assert len(seen.bad_values) == 1


def test_tensors_without_data_are_passed_over(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(4, 2)
    with torch.no_grad():
        torch.func.vmap(model)(torch.ones(3, 4))
        nn.Linear(4, 2, device="meta")(torch.ones(3, 4, device="meta"))
        model(torch.ones(3, 4))
    assert len(seen.eval_steps) == 1


def test_clipping_a_part_does_not_hide_the_rest(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    assert model[1].weight.grad is not None
    model[1].weight.grad[0, 0] = float("inf")
    nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)
    optimizer.step()
    assert seen.bad_values[0].bad_params == ["1.weight"]
    assert seen.train_steps[0].finite is False


def test_a_validation_between_steps_does_not_leak_into_them(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with torch.no_grad():
            model(torch.ones(20, 8))
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert [record.samples for record in seen.train_steps] == [2, 2]


def test_bad_validation_batches_do_not_use_up_the_reports_of_training(start_watch: Start) -> None:
    seen = start_watch()
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 7):
        with torch.no_grad():
            model(torch.full((2, 8), float("nan")))
        optimizer.zero_grad()
        x = torch.full((2, 8), float("nan")) if step == 6 else torch.ones(2, 8)
        model(x).sum().backward()
        optimizer.step()
    assert [(event.during, event.step) for event in seen.bad_values] == [("eval", 1), ("train", 6)]


def test_a_claim_that_fails_does_not_merge_steps(start_watch: Start) -> None:
    seen = start_watch()
    seen.monitor.event_buffer._become_rank = lambda: (_ for _ in ()).throw(OSError("no space"))
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert all(record.micro == 1 for record in seen.train_steps)
    seen.failures.clear()
