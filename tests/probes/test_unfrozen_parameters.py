"""Gradual unfreezing: layers that want gradients again and that no optimizer was given are named, others are not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_watch, list_observations
from torch import Tensor, nn

from tdbg.runtime import tensors
from tdbg.runtime.change_watch import PARAMETERS_A_CHECK, ChangeWatch
from tdbg.runtime.inspection import CHECK_STEPS

WIDTH, UNFROZEN_AT, STEPS = 8, 70, 100
FLAG = {"flags": {"OPTIMIZER": True}, "max_overhead": 1e6}


class Net(nn.Module):
    """A backbone of as many layers as wanted, and a head."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).tanh())


class Run:
    """A training of the head, the backbone frozen."""

    def __init__(self, layers: int = 4) -> None:
        self.net = Net(layers)
        self.net.backbone.requires_grad_(False)
        self.optimizers: list[Any] = [torch.optim.AdamW(self.net.head.parameters(), lr=1e-3)]
        self.number = 0

    def take_steps(self, count: int, each: Callable[["Run"], None] | None = None) -> None:
        for _ in range(count):
            self.number += 1
            self.net.zero_grad()
            self.net(torch.randn(4, WIDTH)).square().mean().backward()
            for optimizer in self.optimizers:
                optimizer.step()
            if each is not None:
                each(self)


def start_inspected(start_watch: Any, by_flag: bool) -> Any:
    seen = start_watch(**FLAG) if by_flag else start_watch(max_overhead=1e5)
    seen.monitor.inspection.begin_inspection(1.0)
    return seen


def list_codes(seen: Any, folder: Path) -> list[tuple[str, str]]:
    return [(one.code, one.severity) for one in judge_watch(seen, folder) if one.code == "TD-S006"]


@pytest.mark.parametrize("by_flag", [False, True])
@pytest.mark.parametrize(("layers", "unfrozen"), [(4, 8), (4, 2), (1, 2), (300, 600)])
def test_what_is_unfrozen_and_not_given_to_an_optimizer_is_named(
    start_watch: Any, tmp_path: Path, by_flag: bool, layers: int, unfrozen: int
) -> None:
    seen = start_inspected(start_watch, by_flag)
    run = Run(layers)
    run.take_steps(UNFROZEN_AT)
    run.net.backbone[layers - unfrozen // 2 :].requires_grad_(True)
    run.take_steps(STEPS - UNFROZEN_AT)
    (finding,) = [one for one in judge_watch(seen, tmp_path) if one.code == "TD-S006"]
    assert finding.severity == "warning" and finding.rank == 0
    # A flag alone looks at every eighth step.
    latest = CHECK_STEPS * (1 + 2 * layers // PARAMETERS_A_CHECK) + (8 if by_flag else 1)
    assert finding.first_step is not None and UNFROZEN_AT < finding.first_step <= UNFROZEN_AT + latest
    assert finding.title.startswith(
        f"{unfrozen} unfrozen parameters are in no optimizer; gradients seen from step {finding.first_step}:"
        f" backbone.{layers - unfrozen // 2}.weight"
    )


def _unfreeze(run: Run) -> None:
    run.net.backbone.requires_grad_(True)


def _add_at(delay: int, how: Callable[[Run], None]) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        if run.number == UNFROZEN_AT:
            _unfreeze(run)
        if run.number == UNFROZEN_AT + delay:
            how(run)

    return change


def _add_group(run: Run) -> None:
    run.optimizers[0].add_param_group({"params": list(run.net.backbone.parameters())})


def _build_again(run: Run) -> None:
    run.optimizers = [torch.optim.AdamW(run.net.parameters(), lr=1e-3)]


def _add_optimizer(run: Run) -> None:
    run.optimizers.append(torch.optim.SGD(run.net.backbone.parameters(), lr=1e-3))


def _update_by_hand(run: Run) -> None:
    if run.number == UNFROZEN_AT:
        _unfreeze(run)
    with torch.no_grad():
        for parameter in run.net.backbone.parameters():
            if parameter.grad is not None:
                parameter.sub_(1e-3 * parameter.grad)


def _toggle_each_step(run: Run) -> None:
    """As a GAN's discriminator, here of a second optimizer."""
    if len(run.optimizers) == 1:
        _add_optimizer(run)
    run.net.backbone.requires_grad_(run.number % 2 == 0)


def _toggle_without_gradients(run: Run) -> None:
    """Frozen in each backward pass and not between: nothing is trained, and nothing is meant to be."""
    run.net.backbone.requires_grad_(True)
    run.net.backbone.zero_grad()
    run.net.backbone.requires_grad_(False)


def _keep_frozen(run: Run) -> None:
    pass


def _freeze_more(run: Run) -> None:
    if run.number == UNFROZEN_AT:
        run.net.head.bias.requires_grad_(False)


HEALTHY = [
    *(_add_at(delay, how) for delay in (0, 1, 3) for how in (_add_group, _build_again, _add_optimizer)),
    *(_update_by_hand, _toggle_each_step, _toggle_without_gradients, _keep_frozen, _freeze_more),
]


@pytest.mark.parametrize("by_flag", [False, True])
@pytest.mark.parametrize("each", HEALTHY)
def test_what_an_optimizer_gets_or_stays_frozen_is_healthy(
    start_watch: Any, tmp_path: Path, by_flag: bool, each: Callable[[Run], None]
) -> None:
    seen = start_inspected(start_watch, by_flag)
    Run().take_steps(STEPS, each)
    assert list_codes(seen, tmp_path) == []


@pytest.mark.parametrize("how", [_add_group, _build_again, _add_optimizer])
def test_what_is_added_late_is_a_note(start_watch: Any, tmp_path: Path, how: Callable[[Run], None]) -> None:
    seen = start_inspected(start_watch, by_flag=False)
    Run().take_steps(STEPS, _add_at(12, how))
    assert list_codes(seen, tmp_path) == [("TD-S006", "info")]
    (*_, last) = list_observations(seen, "optimizer", "COVERAGE")
    assert last.text == "an optimizer now holds the parameters that were unfrozen"


def _add_half_of_them(run: Run) -> None:
    run.optimizers[0].add_param_group({"params": list(run.net.backbone[2:].parameters())})


def test_one_that_is_added_late_excuses_no_other(start_watch: Any, tmp_path: Path) -> None:
    seen = start_inspected(start_watch, by_flag=False)
    Run().take_steps(STEPS, _add_at(12, _add_half_of_them))
    assert list_codes(seen, tmp_path) == [("TD-S006", "warning")]


def test_what_is_added_late_in_two_parts_is_a_note(start_watch: Any, tmp_path: Path) -> None:
    def change(run: Run) -> None:
        _add_at(12, _add_half_of_them)(run)
        if run.number == UNFROZEN_AT + 16:
            run.optimizers[0].add_param_group({"params": list(run.net.backbone[:2].parameters())})

    seen = start_inspected(start_watch, by_flag=False)
    Run().take_steps(STEPS, change)
    assert list_codes(seen, tmp_path) == [("TD-S006", "info")]


def test_layers_that_are_unfrozen_later_are_named_after_others_were_added(start_watch: Any, tmp_path: Path) -> None:
    def change(run: Run) -> None:
        if run.number in (UNFROZEN_AT, UNFROZEN_AT + 20):
            run.net.backbone[3 if run.number == UNFROZEN_AT else 2].requires_grad_(True)
        if run.number == UNFROZEN_AT + 8:
            run.optimizers[0].add_param_group({"params": list(run.net.backbone[3].parameters())})

    seen = start_inspected(start_watch, by_flag=False)
    Run().take_steps(STEPS + 10, change)
    (finding,) = [one for one in judge_watch(seen, tmp_path) if one.code == "TD-S006"]
    assert finding.severity == "warning" and "backbone.2.weight" in finding.title
    assert "backbone.3" not in finding.title and (finding.first_step or 0) > UNFROZEN_AT + 20


def test_on_an_accelerator_a_comparison_is_waited_for(start_watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program updates past the count of writes is known a step later alone: looks are eight steps apart."""
    monkeypatch.setattr(tensors, "on_host", lambda tensor: False)
    seen = start_watch(**FLAG)

    def update_data(run: Run) -> None:
        if run.number == UNFROZEN_AT:
            _unfreeze(run)
        for parameter in run.net.backbone.parameters():
            if parameter.grad is not None:
                parameter.data.sub_(1e-3 * parameter.grad)

    Run().take_steps(STEPS, update_data)
    assert not [one for one in list_observations(seen, "optimizer", "COVERAGE") if one.values.get("unfrozen")]


def test_the_parameters_that_want_gradients_are_counted_over_the_roots() -> None:
    run = Run()
    watch = ChangeWatch(lambda: run.optimizers[0], lambda: [run.net], lambda: False)
    kinds = [watch.find_change(), watch.find_change()]
    _unfreeze(run)
    assert [*kinds, watch.find_change(), watch.find_change()] == ["", "", "parameters", ""]
