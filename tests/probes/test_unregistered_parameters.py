"""Layers and parameters in plain containers of a model: named where nothing updates them, and nowhere else."""

import copy
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_watch, list_observations
from torch import Tensor, nn
from torch.func import functional_call

from tdbg.core.events import Finding
from tdbg.probes.optimizer import coverage

WIDTH = 8
STEPS = 20
EVERY_STEP = {"flags": {"OPTIMIZER": True}, "max_overhead": 1e6}


class Net(nn.Module):
    """A body, a head, and layers in between that a container holds."""

    def __init__(self, layers: Any = ()) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.layers = layers
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        for layer in iter_layers(self.layers):
            x = x + (layer(x) if isinstance(layer, nn.Module) else x * layer)
        return self.head(x)


class Block(nn.Module):
    """A block with layers of its own in a list."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parts = [linear() for _ in range(count)]

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = torch.relu(part(x))
        return x


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def iter_layers(held: Any) -> Any:
    """The layers in a container, in whatever it is nested."""
    if isinstance(held, nn.ModuleList):
        yield from held
    elif isinstance(held, nn.Module | Tensor):
        yield held
    else:
        for item in held.values() if isinstance(held, dict) else held:
            yield from iter_layers(item)


CONTAINERS: dict[str, tuple[Callable[[int], Any], str]] = {  # makes it of so many layers -> name of the first
    "list": (lambda count: [linear() for _ in range(count)], "layers[0].weight"),
    "tuple": (lambda count: tuple(linear() for _ in range(count)), "layers[0].weight"),
    "deque": (lambda count: deque(linear() for _ in range(count)), "layers[0].weight"),
    "dict": (lambda count: {f"layer {number}": linear() for number in range(count)}, "layers['layer 0'].weight"),
    "lists in a list": (lambda count: [[linear()] for _ in range(count)], "layers[0][0].weight"),
    "sequential": (lambda count: [nn.Sequential(nn.ReLU(), linear()) for _ in range(count)], "layers[0].1.weight"),
    "parameters": (lambda count: [nn.Parameter(torch.randn(WIDTH)) for _ in range(count)], "layers[0]"),
    "list of a child": (lambda count: nn.Sequential(Block(count)), "layers.0.parts[0].weight"),
    "list of a block in a list": (lambda count: [Block(count)], "layers[0].parts[0].weight"),
}


def step(net: Any, *optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    net(torch.randn(16, WIDTH)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()


def sgd(parameters: Any, lr: float = 0.01) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=lr)


def list_findings(watched: Any, folder: Path) -> list[Finding]:
    return [finding for finding in judge_watch(watched, folder) if finding.code == "TD-S006"]


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_layers_in_a_container_are_named(start_watch: Any, tmp_path: Path, kind: str, count: int) -> None:
    watched = start_watch(**EVERY_STEP)
    torch.manual_seed(0)
    make, first = CONTAINERS[kind]
    net = Net(make(count))
    optimizer = sgd(net.parameters())
    for _ in range(8):
        step(net, optimizer)
    (finding,) = list_findings(watched, tmp_path)
    each_has = 1 if kind == "parameters" else 2
    owner = "Block.parts (list)" if "block" in kind or "child" in kind else f"Net.layers ({type(net.layers).__name__})"
    assert finding.title.startswith(f"{each_has * count} parameter") and f"in {owner}" in finding.title
    assert first in finding.title and finding.severity == "warning" and finding.first_step == 6
    assert "ModuleList" in finding.try_next and finding.grade == "located"


@pytest.mark.parametrize(("is_large", "most"), [(False, 12), (True, 5)])
def test_a_large_model_without_any_is_searched_rarely(
    start_watch: Any, monkeypatch: pytest.MonkeyPatch, is_large: bool, most: int
) -> None:
    searches: list[int] = []
    real = coverage.find_unregistered
    monkeypatch.setattr(coverage, "find_unregistered", lambda *args: searches.append(1) or real(*args))
    monkeypatch.setattr(coverage, "MANY_PARAMETERS", 0 if is_large else 500)
    start_watch(**EVERY_STEP)
    net = Net([])
    optimizer = sgd(net.parameters())
    for _ in range(12):
        step(net, optimizer)
    assert len(searches) == most  # the first look, and those that are powers of two


@pytest.mark.parametrize("count", [1, 9])
def test_layers_of_a_large_model_are_named(
    start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(coverage, "MANY_PARAMETERS", 0)
    watched = start_watch(**EVERY_STEP)
    net = Net([linear() for _ in range(count)])
    optimizer = sgd(net.parameters())
    for _ in range(8):
        step(net, optimizer)
    (finding,) = list_findings(watched, tmp_path)
    assert finding.first_step == 6 and "layers[0].weight" in finding.title


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compile", "parallel"])
def test_the_model_in_a_wrapper(start_watch: Any, tmp_path: Path, wrap: Any) -> None:
    watched = start_watch(**EVERY_STEP)
    net = Net([linear()])
    wrapped = wrap(net, backend="eager") if wrap is torch.compile else wrap(net)
    optimizer = sgd(wrapped.parameters())
    for _ in range(8):
        step(wrapped, optimizer)
    assert "layers[0].weight" in list_findings(watched, tmp_path)[0].title


@pytest.mark.parametrize("at", [2, 5, 9])
def test_layers_that_come_later(start_watch: Any, tmp_path: Path, at: int) -> None:
    watched = start_watch(**EVERY_STEP)
    net = Net([])
    optimizer = sgd(net.parameters())
    for number in range(STEPS):
        if number == at:
            net.layers.append(linear())
        step(net, optimizer)
    (finding,) = list_findings(watched, tmp_path)
    assert finding.first_step is not None and at + 5 <= finding.first_step <= at + 6


def test_more_layers_in_the_list_than_anywhere_else(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = Net([linear() for _ in range(40)])
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(8):
        step(net, optimizer)
    assert list_findings(watched, tmp_path)[0].title.startswith("80 parameters in Net.layers (list)")


def test_registered_ones_beside_those_that_are_not(start_watch: Any, tmp_path: Path) -> None:
    """Both faults in one model: each is told."""
    watched = start_watch(**EVERY_STEP)
    net = Net([linear()])
    optimizer = sgd([*net.body.parameters(), net.head.weight])
    for _ in range(8):
        step(net, optimizer)
    assert sorted(finding.module for finding in list_findings(watched, tmp_path)) == ["head", "layers[0]"]


# healthy twins: each trains a model with layers in a list


def module_list(net: Net) -> None:
    net = Net(nn.ModuleList(net.layers))
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, optimizer)


def listed_and_registered(net: Net) -> None:
    for number, layer in enumerate(net.layers):
        net.add_module(f"layer{number}", layer)
    module_optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, module_optimizer)


def of_list(net: Net) -> list[nn.Parameter]:
    return [p for layer in net.layers for p in layer.parameters()]


def given_to_the_optimizer(net: Net) -> None:
    optimizer = sgd([*net.parameters(), *of_list(net)])
    for _ in range(STEPS):
        step(net, optimizer)


def a_second_optimizer(net: Net) -> None:
    both = sgd(net.parameters()), torch.optim.Adam(of_list(net))
    for _ in range(STEPS):
        step(net, *both)


def as_in_a_gan(net: Net) -> None:
    """Every second step is the other optimizer's."""
    first, second = sgd(net.parameters()), sgd(of_list(net))
    for number in range(STEPS):
        first.zero_grad()
        second.zero_grad()
        net(torch.randn(16, WIDTH)).mean().backward()
        (first, second)[number % 2].step()


def a_second_optimizer_before_the_sixth_step(net: Net) -> None:
    optimizers = [sgd(net.parameters())]
    for number in range(STEPS):
        if number == 4:
            optimizers.append(sgd(of_list(net)))
        step(net, *optimizers)


def a_group_added_in_time(net: Net) -> None:
    optimizer = sgd(net.parameters())
    for number in range(STEPS):
        if number == 3:
            optimizer.add_param_group({"params": of_list(net)})
        step(net, optimizer)


def frozen(net: Net) -> None:
    for parameter in of_list(net):
        parameter.requires_grad_(False)
    module_optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, module_optimizer)


def an_average(net: Net) -> None:
    """A copy of the model in a list, which follows it."""
    net.layers, net.averages = [], [copy.deepcopy(net)]
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, optimizer)
        with torch.no_grad():
            for ours, own in zip(net.averages[0].parameters(), net.parameters(), strict=True):
                ours.lerp_(own, 0.1)


def a_loss_network(net: Net) -> None:
    """It is in eval mode, nobody froze it, and gradients pass through it."""
    net.layers = [layer.eval() for layer in net.layers]
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, optimizer)


def adversarial(net: Net) -> None:
    """Inputs that want gradients, kept in a list of the model."""
    net.layers, net.noise = [], [torch.zeros(16, WIDTH, requires_grad=True) for _ in range(2)]
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(lambda x: net(x + net.noise[0] + net.noise[1]), optimizer)
        for noise in net.noise:
            noise.data.add_(0.01 * noise.grad.sign())


def an_input_is_optimised(net: Net) -> None:
    image = nn.Parameter(torch.randn(16, WIDTH))
    optimizer = sgd([image])
    for _ in range(STEPS):
        step(lambda x: net(image), optimizer)


def low_rank(net: Net) -> None:
    """Adapters beside frozen layers; the optimizer has the adapters, which a list holds."""
    for parameter in [*net.parameters(), *of_list(net)]:
        parameter.requires_grad_(False)
    net.adapters = [nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)]
    net.gate = nn.Parameter(torch.ones(1))
    optimizer = sgd([net.gate, *(p for adapter in net.adapters for p in adapter.parameters())])
    for _ in range(STEPS):
        step(lambda x: net(x + net.gate * net.adapters[1](net.adapters[0](x))), optimizer)


def in_backward(net: Net) -> None:
    optimizers = {p: sgd([p]) for p in [*net.parameters(), *of_list(net)]}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(STEPS):
        net(torch.randn(16, WIDTH)).square().mean().backward()


def in_backward_by_hand(net: Net) -> None:
    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.01 * parameter.grad)

    for parameter in of_list(net):
        parameter.register_post_accumulate_grad_hook(update)
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, optimizer)
        for parameter in of_list(net):
            parameter.grad = None


def by_hand(net: Net) -> None:
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, optimizer)
        with torch.no_grad():
            for parameter in of_list(net):
                parameter -= 0.01 * parameter.grad
                parameter.grad.zero_()


def by_hand_behind_autograd(net: Net) -> None:
    optimizer = sgd(net.parameters())
    for number in range(STEPS):
        step(net, optimizer)
        if number % 3 == 2:
            for parameter in of_list(net):
                parameter.data.sub_(0.01 * parameter.grad.data)


def accumulated(net: Net) -> None:
    optimizer = sgd([*net.parameters(), *of_list(net)])
    for number in range(4 * STEPS):
        net(torch.randn(4, WIDTH)).square().mean().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def lbfgs(net: Net) -> None:
    optimizer = torch.optim.LBFGS([*net.parameters(), *of_list(net)], lr=0.1, max_iter=2)
    x = torch.randn(16, WIDTH)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def shared_by_a_copy(net: Net) -> None:
    """As hogwild does: a worker's own copy gets gradients, hands them over, and takes the weights back."""
    shared, worker = net, copy.deepcopy(net)
    optimizer = sgd([*shared.parameters(), *of_list(shared)])
    for _ in range(STEPS):
        worker(torch.randn(16, WIDTH)).square().mean().backward()
        own = [*worker.parameters(), *of_list(worker)]
        for ours, theirs in zip([*shared.parameters(), *of_list(shared)], own, strict=True):
            ours.grad, theirs.grad = theirs.grad, None
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip([*shared.parameters(), *of_list(shared)], own, strict=True):
                theirs.copy_(ours)


def functional(net: Net) -> None:
    """The module's own parameters stand aside; those that are called with are the optimizer's."""
    net.layers = []
    called = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    layer = linear()
    of_layer = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    net.spare = [layer]
    optimizer = sgd([*called.values(), *of_layer.values(), net.head.bias])
    for _ in range(STEPS):
        step(lambda x: functional_call(net, called, (functional_call(layer, of_layer, (x,)),)), optimizer)


def detached(net: Net) -> None:
    """Layers whose outputs are targets."""
    targets, net.layers, net.teachers = net.layers, [], net.layers
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        x = torch.randn(16, WIDTH)
        with torch.no_grad():
            target = targets[0](x)
        optimizer.zero_grad()
        nn.functional.mse_loss(net.body(x), target).backward()
        optimizer.step()


def the_parent_in_a_list(net: Net) -> None:
    """The usual way to hold a module without registering it."""
    net.layers = []
    net.head.owner = [net]
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        step(net, optimizer)


def fresh_copies(net: Net) -> None:
    """A learner of its own for each task, whose gradients go to the model."""
    net.layers, net.learners = [], []
    optimizer = sgd(net.parameters())
    for _ in range(STEPS):
        net.learners = []
        net.learners = [copy.deepcopy(net)]
        optimizer.zero_grad()
        net.learners[0](torch.randn(16, WIDTH)).square().mean().backward()
        for own, theirs in zip(net.parameters(), net.learners[0].parameters(), strict=True):
            own.grad = theirs.grad.clone()
        optimizer.step()


HEALTHY = [
    *(module_list, listed_and_registered, given_to_the_optimizer, a_second_optimizer, as_in_a_gan),
    *(a_second_optimizer_before_the_sixth_step, a_group_added_in_time, frozen, an_average, a_loss_network),
    *(adversarial, an_input_is_optimised, low_rank, in_backward, in_backward_by_hand, by_hand),
    *(by_hand_behind_autograd, accumulated, lbfgs, shared_by_a_copy, functional, detached, the_parent_in_a_list),
    fresh_copies,
]


@pytest.mark.parametrize("train", HEALTHY, ids=lambda one: one.__name__)
@pytest.mark.parametrize("count", [1, 4])
def test_nothing_is_said_where_something_updates_them(start_watch: Any, tmp_path: Path, train: Any, count: int) -> None:
    watched = start_watch(**EVERY_STEP)
    torch.manual_seed(0)
    train(Net([linear() for _ in range(count)]))
    assert watched.monitor.step >= STEPS - 10  # as in a GAN: of one optimizer
    assert list_findings(watched, tmp_path) == []
    assert not any(look.values.get("unregistered") for look in list_observations(watched, "optimizer", "COVERAGE"))


# what was named and turns out to be no fault


@pytest.mark.parametrize("way", ["optimizer", "group", "by hand"])
def test_the_finding_becomes_a_note_once_something_updates_them(start_watch: Any, tmp_path: Path, way: str) -> None:
    watched = start_watch(**EVERY_STEP)
    net = Net([linear() for _ in range(2)])
    optimizers = [sgd(net.parameters())]
    for number in range(STEPS):
        if number == 12 and way == "optimizer":
            optimizers.append(sgd(of_list(net)))
        elif number == 12 and way == "group":
            optimizers[0].add_param_group({"params": of_list(net)})
        elif number == 12:
            for parameter in of_list(net):
                parameter.data.mul_(0.9)
        step(net, *optimizers)
    (finding,) = list_findings(watched, tmp_path)
    assert (finding.severity, finding.first_step) == ("info", 6)
    words = "the program updates them itself" if way == "by hand" else "an optimizer held them only from step 13 on"
    assert finding.evidence[-1] == words


def test_an_optimizer_of_something_else_leaves_the_finding(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net, other = Net([linear()]), linear()
    optimizers = [sgd(net.parameters())]
    for number in range(STEPS):
        if number == 12:
            optimizers.append(sgd(other.parameters()))
        step(net, *optimizers)
    assert list_findings(watched, tmp_path)[0].severity == "warning"


def test_a_container_class_of_the_program_is_not_gone_through(start_watch: Any, tmp_path: Path) -> None:
    class Touchy(list[nn.Module]):
        def __iter__(self) -> Any:
            raise RuntimeError("not now")

    watched = start_watch(**EVERY_STEP)
    net = Net()
    net.kept = Touchy([linear()])
    optimizer = sgd(net.parameters())
    for _ in range(8):
        step(net, optimizer)
    assert list_findings(watched, tmp_path) == [] and not watched.failures


def test_a_list_that_holds_itself(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**EVERY_STEP)
    net = Net([linear()])
    net.ring = [net.layers]
    net.ring.append(net.ring)
    optimizer = sgd(net.parameters())
    for _ in range(8):
        step(net, optimizer)
    assert len(list_findings(watched, tmp_path)) == 1
