"""The flag OPTIMIZER: groups, parameters left out or held twice, and what an update moves."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes, judge_watch, list_observations
from torch import Tensor, nn

from tdbg.probes import PROBES

EVERY_STEP = {"flags": {"OPTIMIZER": True}, "max_overhead": 1e6}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def run_step(net: nn.Module, *optimizers: torch.optim.Optimizer, out: Any = None) -> None:
    net.zero_grad()
    inputs = torch.randn(32, 8, dtype=next(net.parameters()).dtype)
    (net if out is None else out)(inputs).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def test_groups_and_hyperparameters_are_told_once(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    vectors, matrices = [p for p in net.parameters() if p.ndim < 2], [p for p in net.parameters() if p.ndim > 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 1e-4}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0)
    for _ in range(4):
        run_step(net, optimizer)
    (told,) = list_observations(watched, "optimizer", "GROUPS")
    values = told.values
    assert (values["optimizer"], values["group_count"], values["parameters"], values["elements"]) == (
        "AdamW",
        2,
        4,
        212,
    )
    assert values["groups"][0]["weight_decay"] == 0.1 and values["groups"][0]["betas"] == [0.9, 0.999]
    assert values["groups"][1]["lr"] == 1e-4 and values["groups"][1]["parameters"] == 2
    assert values["decayed_vectors"] == 0 and values["frozen"] == 0


def test_a_change_is_told_and_a_schedule_is_none(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        if number == 3:
            optimizer.param_groups[0]["weight_decay"] = 0.5
        run_step(net, optimizer)
    told = list_observations(watched, "optimizer", "GROUPS")
    assert [event.step for event in told] == [1, 4]
    assert told[1].values["changed"] == ["weight_decay[0]"]


def test_the_ratio_is_that_of_the_update(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = nn.Linear(8, 8, bias=False)
    nn.init.constant_(net.weight, 2.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net.weight.grad = torch.full((8, 8), 0.04)
    optimizer.step()
    (told,) = list_observations(watched, "optimizer")
    assert told.values["ratio_median"] == pytest.approx(0.5 * 0.04 / 2.0, rel=1e-3)
    assert told.values["unmoved_share"] == 0.0 and told.values["sampled"] == 1


def test_the_size_of_the_state(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = nn.Linear(1000, 500, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    assert list_observations(watched, "optimizer")[0].values["state_mb"] == pytest.approx(2 * 4 * 0.5, rel=1e-3)


def test_weights_are_let_go_after_the_step(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    run_step(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert watched.monitor.find_probe("optimizer")._sizes.moved is None


def test_a_layer_added_after_the_optimizer(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.append(nn.Linear(4, 2, bias=False))
    for _ in range(8):
        run_step(net, optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert (
        finding.code == "TD-S006" and "1 of 5 trainable parameters are in no parameter group: 3.weight" in finding.title
    )


def test_layers_replaced_after_the_optimizer_are_named_though_they_are_most_of_the_model(
    start_watch: Any, tmp_path: Path
) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net[2] = nn.Linear(net[2].in_features, 7)  # another number of classes
    for _ in range(8):
        run_step(net, optimizer)
    assert judge_codes(watched, tmp_path)[0] == "TD-S006"


def test_only_a_head_is_trained_on_purpose(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
    for _ in range(8):
        run_step(net, optimizer)
    assert judge_codes(watched, tmp_path) == []
    assert list_observations(watched, "optimizer", "COVERAGE")[0].values["left_out_count"] == 2


def test_frozen_and_unused_parameters_are_not_forgotten(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    net[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    net.teacher = nn.Linear(8, 4, bias=False)
    for _ in range(8):
        run_step(net, optimizer, out=lambda x: net[2](net[1](net[0](x))))
    assert judge_codes(watched, tmp_path) == []


def test_a_parameter_in_two_optimizers(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    both = torch.optim.SGD(net.parameters(), lr=0.01), torch.optim.Adam(net[2].parameters())
    for _ in range(12):
        run_step(net, *both)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S006" and "2 parameters updated by two optimizers: 2.weight, 2.bias" in finding.title


def test_optimizers_that_take_turns_by_phases_are_healthy(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    first, second = torch.optim.Adam(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.01)
    for optimizer in (first, second, first, second, first):
        for _ in range(12):
            run_step(net, optimizer)
    assert judge_codes(watched, tmp_path) == []


class Unit(nn.Module):
    """A scale that begins at one, as normalisations have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_bfloat16_rounds_the_update_away(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    torch.manual_seed(0)
    net = nn.Sequential(Unit(), nn.Linear(8, 4)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    for _ in range(45):
        run_step(net, optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S007" and "bfloat16" in finding.title and "0.weight" in finding.title
    assert list_observations(watched, "optimizer")[-1].values["unmoved_share"] > 0.5


def test_weights_of_a_group_without_a_rate_are_not_called_stuck(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    groups = [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    for _ in range(60):
        run_step(net, optimizer)
    assert judge_codes(watched, tmp_path) == ["TD-S010"]  # and no TD-S007


@pytest.mark.parametrize("by_default", [True, False])
@pytest.mark.parametrize("freezes", [True, False])
def test_a_group_that_is_frozen_when_its_rate_falls_is_healthy(
    start_watch: Any, tmp_path: Path, freezes: bool, by_default: bool
) -> None:
    """Its groups are seen again then, in the opening inspection as with the flag."""
    watched = start_watch(**({"max_overhead": 1e5} if by_default else EVERY_STEP))
    if by_default:
        watched.monitor.inspection.begin_inspection(1.0)
    net = make_model()
    optimizer = torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.01)
    for step in range(160):
        if step == 80:
            optimizer.param_groups[0]["lr"] = 0.0
            net[0].requires_grad_(not freezes)
        run_step(net, optimizer)
    assert judge_codes(watched, tmp_path) == ([] if freezes else ["TD-S010"])


def test_what_is_gathered_aside_and_added_later_is_healthy(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-14)
    for number in range(60):
        run_step(net, optimizer)
        if number % 6 == 5:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.add_(0.01)
    assert judge_codes(watched, tmp_path) == []


def test_a_parameter_without_a_gradient_is_told_by_this_flag_alone(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    unused = nn.Linear(3, 3, bias=False)
    net.unused = unused
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(16):
        run_step(net, optimizer, out=lambda x: net[2](net[1](net[0](x))))
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-G003" and "unused.weight" in finding.title


def test_channels_last_weights_are_sampled_where_their_gradients_lie(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)).mean().backward()
    optimizer.step()
    (told,) = list_observations(watched, "optimizer")
    assert told.values["sampled"] == 2 and told.values["unmoved_share"] == 0.0


def test_at_most_64_parameters_are_sampled(start_watch: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = nn.ModuleList(nn.Linear(2, 2) for _ in range(50))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sum(part(torch.ones(1, 2)).sum() for part in net).backward()
    optimizer.step()
    assert list_observations(watched, "optimizer")[0].values["sampled"] == 64


def copy_model(net: nn.Module) -> nn.Module:
    return copy.deepcopy(net)


def built_again(net: nn.Module) -> nn.Module:
    again = make_model()
    again.load_state_dict(net.state_dict())
    return again


def with_another_head(net: nn.Module) -> nn.Module:
    net[2] = nn.Linear(16, 4)
    return net


@pytest.mark.parametrize("flag", ["OPTIMIZER", "GRADIENTS"])
@pytest.mark.parametrize("other", [copy_model, built_again, with_another_head], ids=lambda other: other.__name__)
def test_an_optimizer_of_another_instance(start_watch: Any, tmp_path: Path, other: Any, flag: str) -> None:
    watched = start_watch(flags={flag: True}, max_overhead=1e6)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    called = other(net)
    for _ in range(16):
        run_step(called, optimizer)
    found = [finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-G003"]
    if flag == "GRADIENTS" and called is not net:
        assert found == []  # none of the parameters it reads has a gradient
        return
    (finding,) = found
    assert "holds parameters of another instance: the Sequential that is called" in finding.cause
    assert "from the model that is called" in finding.try_next and "leave them out" not in finding.try_next


@pytest.mark.parametrize("other", [copy_model, built_again], ids=lambda other: other.__name__)
def test_an_optimizer_that_updates_nothing(start_watch: Any, tmp_path: Path, other: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    called = other(net)
    for _ in range(8):
        run_step(called, optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-S011", "error", 1)
    assert "since step 1: its 4 parameters are not those of the Sequential that runs" in finding.title
    assert "4 parameters of Sequential have gradients that no optimizer uses" in finding.evidence[1]


@pytest.mark.parametrize(("steps", "codes"), [(1, []), (2, ["TD-S011"]), (8, ["TD-S011"])])
def test_the_optimizer_of_an_earlier_fold(start_watch: Any, tmp_path: Path, steps: int, codes: list[str]) -> None:
    """Two looks are enough, as few of a later fold's steps are looked at."""
    watched = start_watch(**EVERY_STEP)
    first, second = make_model(), make_model()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
    for net, count in ((first, 4), (second, steps)):
        for _ in range(count):
            optimizer.zero_grad()
            run_step(net, optimizer)
    found = [finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-S011"]
    assert [finding.code for finding in found] == codes
    assert all(finding.first_step == 5 and "are not those of the Sequential" in finding.title for finding in found)


@pytest.mark.parametrize("part", ["body", "old head"])
def test_an_optimizer_of_frozen_layers(start_watch: Any, tmp_path: Path, part: str) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD((net[0] if part == "body" else net).parameters(), lr=0.01)
    if part == "old head":
        net[2] = nn.Linear(16, 4)
    for _ in range(8):
        run_step(net, optimizer)
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-S011" and "gradients that no optimizer uses: 2.weight, 2.bias" in finding.evidence[1]
    words = {"body": "all 2 parameters that it holds are frozen", "old head": "of 4 parameters 2 are frozen, 2 not in"}
    assert words[part] in finding.title


def train_parts(body: nn.Module, optimizers: list[torch.optim.Optimizer], head: nn.Module) -> None:
    """A model that is called in parts, each with an optimizer."""
    for _ in range(8):
        for optimizer in optimizers:
            optimizer.zero_grad()
        head(body(torch.randn(8, 8))).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("turns", [1, -1], ids=["second", "first"])
def test_a_part_that_is_replaced_after_its_own_optimizer(start_watch: Any, tmp_path: Path, turns: int) -> None:
    watched = start_watch(**EVERY_STEP)
    body, head = make_model(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters())]
    head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    train_parts(body, optimizers[::turns], head)
    found = [finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-S011"]
    assert [finding.first_step for finding in found] == [1]
    assert "Adam has updated nothing since step 1: its 4 parameters are not those of the Sequential" in found[0].title
    assert found[0].evidence[1].endswith("that no optimizer uses: 0.weight, 0.bias, 2.weight and 1 more")


def test_a_part_that_is_replaced_in_a_model_called_whole_has_one_finding(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = make_model()
    optimizers = [torch.optim.SGD(net[0].parameters(), lr=0.01), torch.optim.Adam(net[2].parameters())]
    net[2] = nn.Linear(16, 4)
    train_parts(net, optimizers, nn.Identity())
    assert [code for code in judge_codes(watched, tmp_path) if code[:4] == "TD-S"] == ["TD-S006"]


class Beside:
    """A body that is trained, and a head beside it that is in no optimizer."""

    def __init__(self) -> None:
        self.body, self.head = make_model(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.body.parameters(), lr=0.01)

    def run_steps(self, count: int = 12) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.compute_loss(torch.randn(8, 8)).backward()
            self.optimizer.step()

    def compute_loss(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)).square().mean()


def test_a_model_beside_that_nothing_trains(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    Beside().run_steps()
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity, finding.first_step) == ("TD-S006", "info", 1)
    assert "4 parameters of Sequential, called beside Sequential, are in no optimizer: 0.weight" in finding.title
    assert "(0.weight of shape [8, 4])" in finding.evidence[0]


@pytest.mark.parametrize("is_same", [False, True], ids=["another class", "the same class"])
def test_two_models_beside_have_a_finding_each(start_watch: Any, tmp_path: Path, is_same: bool) -> None:
    watched = start_watch(**EVERY_STEP)
    both = Beside()
    more = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)) if is_same else nn.Linear(4, 1)
    both.compute_loss = lambda x: (both.head(both.body(x)) + more(both.body(x))).square().mean()  # type: ignore[method-assign]
    both.run_steps()
    assert [finding.code for finding in judge_watch(watched, tmp_path)] == ["TD-S006"] * 2


class CenterLoss(nn.Module):
    """A loss with a parameter of its own, whose calls are not seen as those of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(4))

    def forward(self, out: Tensor) -> Tensor:
        return (out - self.center).square().mean()


def test_a_loss_with_parameters_that_nothing_trains(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    both, loss = Beside(), CenterLoss()
    both.compute_loss = lambda x: loss(both.body(x))  # type: ignore[method-assign]
    both.run_steps()
    (finding,) = judge_watch(watched, tmp_path)
    assert (finding.code, finding.severity) == ("TD-S006", "info")
    assert "1 parameter of CenterLoss, called beside Sequential, is in no optimizer: center" in finding.title


def test_a_model_beside_is_told_of_once_however_often_the_probe_comes_back(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    both = Beside()
    both.run_steps()
    watched.monitor.activate_probes([])
    both.run_steps(2)
    watched.monitor.activate_probes(list(PROBES))
    both.run_steps()
    assert len(list_observations(watched, "optimizer", "SEPARATE")) == 1


def hold_back(both: Beside) -> None:
    both.head.eval()


def load_weights(both: Beside) -> None:
    both.head.load_state_dict(both.head.state_dict())


def train_before(both: Beside) -> None:
    first = torch.optim.SGD(both.head.parameters(), lr=0.01)
    for _ in range(3):
        both.head(torch.randn(8, 4)).square().mean().backward()
        first.step()


def freeze_beside(both: Beside) -> None:
    both.head.requires_grad_(False)


def update_by_hand(both: Beside) -> None:
    def compute_loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            for parameter in both.head.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        return both.head(both.body(x)).square().mean()

    both.compute_loss = compute_loss  # type: ignore[method-assign]


def give_no_gradient(both: Beside) -> None:
    both.compute_loss = lambda x: both.body(x).square().mean() + both.head(both.body(x).detach()).detach().mean()  # type: ignore[method-assign]


def build_anew(both: Beside) -> None:
    """A head for each step, as where the weights of an inner loop are thrown away."""

    def compute_loss(x: Tensor) -> Tensor:
        return nn.Linear(4, 1)(both.body(x)).square().mean()

    both.compute_loss = compute_loss  # type: ignore[method-assign]


def train_with_two(both: Beside) -> None:
    """The other optimizer has its turn later."""
    both.other = torch.optim.SGD(both.head.parameters(), lr=0.01)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "prepare",
    [
        hold_back,
        load_weights,
        train_before,
        freeze_beside,
        update_by_hand,
        give_no_gradient,
        build_anew,
        train_with_two,
    ],
)
def test_a_model_beside_that_is_not_meant_to_train_is_healthy(
    start_watch: Any, tmp_path: Path, prepare: Callable[[Beside], None]
) -> None:
    watched = start_watch(**EVERY_STEP)
    both = Beside()
    prepare(both)
    both.run_steps()
    assert "TD-S006" not in judge_codes(watched, tmp_path)


def train_cut_off(steps: int, begins: int) -> None:
    """A head whose output is cut off from the loss before step ``begins``, with an optimizer of its own."""
    body, head = make_model(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters())]
    for step in range(1, steps + 1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        out = body(torch.randn(8, 8))
        more = head(out.detach())
        (out.square().mean() + (more if step >= begins else more.detach()).square().mean()).backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize(("begins", "is_told"), [(100, True), (14, True), (8, False), (1, False)])
def test_a_model_whose_output_is_cut_off_is_a_note(
    start_watch: Any, tmp_path: Path, begins: int, is_told: bool
) -> None:
    watched = start_watch(**EVERY_STEP)
    train_cut_off(20, begins)
    found = [finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-S011"]
    assert [(finding.severity, finding.title) for finding in found] == [
        (
            "info",
            "Adam updated nothing in steps 1 to 12: no gradient reached the 4 parameters that it holds, though Sequential"
            " was called in each step, rank 0",
        )
    ] * is_told


@pytest.mark.parametrize("kind", ["cleared in the update", "updated in the backward", "thrown away"])
def test_gradients_that_are_gone_after_the_update_have_been_there(start_watch: Any, tmp_path: Path, kind: str) -> None:
    watched = start_watch(**EVERY_STEP)
    body, head = make_model(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.SGD(head.parameters(), lr=0.01)]

    def update_at_once(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.data -= 0.01 * parameter.grad
        parameter.grad = None

    if kind == "cleared in the update":
        optimizers[1].register_step_pre_hook(lambda *_: head(torch.randn(8, 4)).mean().backward())
        optimizers[1].register_step_post_hook(lambda *_: head.zero_grad())
    if kind == "updated in the backward":
        for parameter in head.parameters():
            parameter.register_post_accumulate_grad_hook(update_at_once)
    for _ in range(24):
        body.zero_grad()
        out = head(body(torch.randn(8, 8))).square().mean()
        out.backward()
        optimizers[0].step()
        if kind == "thrown away":
            head.zero_grad()
        optimizers[1].step()
    assert "TD-S011" not in judge_codes(watched, tmp_path)


def test_two_optimizers_that_are_cut_off_have_a_finding_each(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    body, heads = make_model(), [nn.Linear(4, 1), nn.Linear(4, 2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (body, *heads)]
    for _ in range(20):
        out = body(torch.randn(8, 8))
        for head in heads:
            head(out.detach())
        for optimizer in optimizers:
            optimizer.zero_grad()
        out.square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert judge_codes(watched, tmp_path).count("TD-S011") == 2


def test_an_encoder_that_is_cut_off_from_a_forgotten_head(start_watch: Any, tmp_path: Path) -> None:
    """The optimizer is of the model that runs: it is not said to be of another one."""
    watched = start_watch(**EVERY_STEP)
    both = Beside()
    both.compute_loss = lambda x: both.head(both.body(x).detach()).square().mean()  # type: ignore[method-assign]
    both.run_steps(20)
    found = [(finding.code, finding.severity) for finding in judge_watch(watched, tmp_path)]
    assert ("TD-S011", "info") in found and ("TD-S011", "error") not in found


def test_gradients_lent_to_a_model_of_another_shape_are_no_fault(start_watch: Any, tmp_path: Path) -> None:
    """A perceptual loss that was not frozen, beside an optimizer whose part is not trained yet."""
    watched = start_watch(**EVERY_STEP)
    body, idle = make_model(), nn.Linear(5, 3)
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(idle.parameters())]
    train_parts(body, optimizers, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    assert "TD-S011" not in judge_codes(watched, tmp_path)


@pytest.mark.parametrize("kind", ["frozen", "has its turn later"])
def test_a_part_that_rests_beside_gradients_that_nobody_uses_is_healthy(
    start_watch: Any, tmp_path: Path, kind: str
) -> None:
    """An encoder in its warm-up, a task's head, whose shapes are those of a network that was not frozen."""
    watched = start_watch(**EVERY_STEP)
    body, resting = make_model(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    resting.requires_grad_(kind != "frozen")
    optimizers = [torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(resting.parameters())]
    train_parts(body, optimizers, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    assert "TD-S011" not in judge_codes(watched, tmp_path)


def train_copies(net: nn.Module) -> None:
    """Gradients are moved to copies, which the optimizer holds."""
    copies = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.01)
    for _ in range(8):
        run_step(net)
        for own, one in zip(net.parameters(), copies, strict=True):
            one.grad = own.grad.clone()
        optimizer.step()


def a_closure(net: nn.Module) -> None:
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1)
    x = torch.randn(8, 8)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(8):
        optimizer.step(closure)


def train_in_turns(net: nn.Module) -> None:
    """As in a GAN: each optimizer has its model, and gradients of the other are thrown away."""
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    first, second = torch.optim.Adam(net.parameters()), torch.optim.Adam(other.parameters())
    for _ in range(8):
        for optimizer in (first, second):
            first.zero_grad()
            second.zero_grad()
            other(net(torch.randn(8, 8))).mean().backward()
            optimizer.step()


def a_head_alone(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.01)
    for _ in range(8):
        run_step(net, optimizer)


def frozen_among_others(net: nn.Module) -> None:
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(8):
        run_step(net, optimizer)


def train_accumulated(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(24):
        net(torch.randn(8, 8)).square().mean().backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def nothing_to_learn_yet(net: nn.Module) -> None:
    """Updates before the first backward pass."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(8):
        optimizer.step()
    for _ in range(4):
        run_step(net, optimizer)


@pytest.mark.parametrize(
    "train",
    [
        train_copies,
        a_closure,
        train_in_turns,
        a_head_alone,
        frozen_among_others,
        train_accumulated,
        nothing_to_learn_yet,
    ],
    ids=lambda one: one.__name__,
)
def test_an_optimizer_that_updates_something(start_watch: Any, tmp_path: Path, train: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    train(make_model())
    assert "TD-S011" not in judge_codes(watched, tmp_path)
    assert not list_observations(watched, "optimizer", "EMPTY")


class Normed(nn.Module):
    """A bias that a normalisation takes out again: its gradient is what sums are rounded by."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        ).to(dtype)
        self.head = nn.Linear(8, 10).to(dtype)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).relu().mean((2, 3)))


class Attending(nn.Module):
    """The keys' bias moves all scores of a query alike, and softmax takes it out."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16).to(dtype) for _ in range(3))
        self.head = nn.Linear(16, 10).to(dtype)

    def forward(self, images: Tensor) -> Tensor:
        words = images.flatten(2).transpose(1, 2).repeat(1, 1, 6)[..., :16]
        found = nn.functional.scaled_dot_product_attention(self.query(words), self.key(words), self.value(words))
        return self.head(found.mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [Normed, Attending])
@pytest.mark.parametrize("rate", [1e-2, 1e-4])
def test_a_gradient_of_rounding_noise_is_no_gradient(
    start_watch: Any, tmp_path: Path, kind: Any, dtype: torch.dtype, rate: float
) -> None:
    watched = start_watch(**EVERY_STEP)
    torch.manual_seed(0)
    net = kind(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(60):
        optimizer.zero_grad()
        images, labels = torch.randn(16, 3, 8, 8).to(dtype), torch.randint(10, (16,))
        nn.functional.cross_entropy(net(images).float(), labels).backward()
        optimizer.step()
    stuck = {name for event in list_observations(watched, "optimizer") for name in _list_stuck_names(event)}
    assert not stuck & {"body.0.bias", "body.3.bias", "key.bias"}


def _list_stuck_names(event: Any) -> list[str]:
    return ((event.values.get("lasting") or {}).get("stuck") or {}).get("names", [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_bias_with_a_gradient_of_its_own_is_told_when_it_is_stuck(
    start_watch: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    watched = start_watch(**EVERY_STEP)
    torch.manual_seed(0)
    net = Normed(dtype)
    optimizer = torch.optim.SGD(
        [{"params": net.body.parameters()}, {"params": net.head.parameters(), "lr": 1e-12}], 0.1
    )
    for _ in range(60):
        optimizer.zero_grad()
        images, labels = torch.randn(16, 3, 8, 8).to(dtype), torch.randint(10, (16,))
        nn.functional.cross_entropy(net(images).float(), labels).backward()
        optimizer.step()
    (finding,) = [finding for finding in judge_watch(watched, tmp_path) if finding.code == "TD-S007"]
    assert "head.weight, head.bias" in finding.title
