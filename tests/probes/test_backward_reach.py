"""Which modules a gradient reaches: outputs of several tensors, several backward passes, updates inside one."""

from pathlib import Path
from typing import Any

import torch
from probes.judging import judge_codes, list_observations
from torch import Tensor, nn

BACKWARD = {"flags": {"BACKWARD": True}, "max_overhead": 1e6}
STEPS = 8


class LastState(nn.Module):
    """Uses the last state of a recurrent layer, and not its outputs."""

    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.rnn, self.head, self.detached = nn.GRU(4, 8), nn.Linear(8, 1), detached

    def forward(self, x: Tensor) -> Tensor:
        state = self.rnn(x)[1][-1]
        return self.head(state.detach() if self.detached else state)


def train_recurrent(*, detached: bool) -> None:
    torch.manual_seed(0)
    model = LastState(detached=detached)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(5, 3, 4)).square().mean().backward()
        optimizer.step()


def test_the_loss_may_use_the_last_state_alone(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**BACKWARD)
    train_recurrent(detached=False)
    assert all(not one.values.get("unreached") for one in list_observations(watched, "backward"))
    assert "TD-G005" not in judge_codes(watched, tmp_path)


def test_a_last_state_that_is_detached_is_named(start_watch: Any, tmp_path: Path) -> None:
    watched = start_watch(**BACKWARD)
    train_recurrent(detached=True)
    assert "TD-G005" in judge_codes(watched, tmp_path)


def test_a_penalty_on_a_gradient_leaves_the_flow_of_the_first_pass(start_watch: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    watched = start_watch(**BACKWARD)
    for _ in range(STEPS):
        mixed = torch.randn(16, 2, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(torch.randn(16, 2)).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    flows = [one.values for one in list_observations(watched, "backward") if "flow" in one.values]
    assert flows and all(one["first"] > 0 for one in flows)
    assert "TD-G005" not in judge_codes(watched, tmp_path)


def test_an_update_inside_the_backward_pass_says_nothing_of_later_gradients(start_watch: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=1e-2) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    watched = start_watch(**BACKWARD)
    for _ in range(STEPS):
        model(torch.randn(16, 4)).square().mean().backward()
    assert "TD-G005" not in judge_codes(watched, tmp_path)
