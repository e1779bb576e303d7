"""Healthy reinforcement learning.

usage: decisions.py KIND
"""

import copy
import random
from collections import deque

import parts
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional


class Corridor:
    """A place on a line; the goal lies at one end, and the state says which."""

    def reset(self) -> Tensor:
        """A new episode."""
        self.place, self.goal, self.time = 0.0, random.choice((-1.0, 1.0)), 0
        return self._encode_state()

    def step(self, move: float) -> tuple[Tensor, float, bool]:
        """The state after a move, the reward, and whether the episode is over."""
        self.place += 0.25 * move + 0.02 * random.gauss(0, 1)
        self.time += 1
        done = abs(self.place) >= 1.0 or self.time >= 20
        reward = 1.0 if self.place * self.goal >= 1.0 else -0.05
        return self._encode_state(), reward, done

    def _encode_state(self) -> Tensor:
        return torch.tensor([self.place, self.goal, self.time / 20, 1.0])


def reinforce() -> None:
    """A policy gradient after each episode, with returns that are normalised."""
    policy, world = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 2)), Corridor()
    optimizer, seen = torch.optim.Adam(policy.parameters(), lr=1e-2), deque(maxlen=50)
    for episode in range(320):
        state, done, logs, rewards = world.reset(), False, [], []
        while not done:
            choice = Categorical(policy(state[None]).softmax(-1))
            action = choice.sample()
            state, reward, done = world.step(2.0 * action.item() - 1.0)
            logs.append(choice.log_prob(action))
            rewards.append(reward)
        returns, total = deque(), 0.0
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.appendleft(total)
        scaled = torch.tensor(returns)
        scaled = (scaled - scaled.mean()) / (scaled.std(unbiased=False) + 1e-6)
        optimizer.zero_grad()
        loss = -(torch.cat(logs) * scaled).sum()
        loss.backward()
        optimizer.step()
        seen.append(sum(rewards))
        if episode % 80 == 0:
            print(f"Episode {episode}\tAverage reward: {sum(seen) / len(seen):.2f}")


def deep_q() -> None:
    """A replay buffer, a target net that is copied now and then, a Huber loss and an update per move."""
    net, world, buffer = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)), Corridor(), deque(maxlen=2000)
    target = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, amsgrad=True)
    state, updates = world.reset(), 0
    while updates < 400:
        with torch.no_grad():
            action = random.randrange(2) if random.random() < 0.2 else int(net(state).argmax())
        after, reward, done = world.step(2.0 * action - 1.0)
        buffer.append((state, action, reward, after, float(done)))
        state = world.reset() if done else after
        if len(buffer) < 64:
            continue
        rows = random.sample(buffer, 32)
        states, afters = (torch.stack([row[at] for row in rows]) for at in (0, 3))
        actions = torch.tensor([row[1] for row in rows])
        rewards, ends = (torch.tensor([row[at] for row in rows]) for at in (2, 4))
        with torch.no_grad():
            wanted = rewards + 0.95 * (1 - ends) * target(afters).amax(1)
        loss = functional.smooth_l1_loss(net(states).gather(1, actions[:, None]), wanted[:, None])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 100)
        optimizer.step()
        updates += 1
        if updates % 50 == 0:
            target.load_state_dict(net.state_dict())


class ActorCritic(nn.Module):
    """One body, a head for actions and one for values."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = (
            nn.Sequential(nn.Linear(4, 32), nn.Tanh()),
            nn.Linear(32, 2),
            nn.Linear(32, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def proximal_policy() -> None:
    """Rollouts without gradients, then some epochs of clipped updates over shuffled pieces of them."""
    model, worlds = ActorCritic(), [Corridor() for _ in range(4)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
    states = torch.stack([world.reset() for world in worlds])
    for round_ in range(20):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - round_ / 20)
        rows: list[list[Tensor]] = []
        for _ in range(32):
            with torch.no_grad():
                scores, values = model(states)
                choice = Categorical(logits=scores)
                action = choice.sample()
            results = [world.step(2.0 * float(move) - 1.0) for world, move in zip(worlds, action, strict=True)]
            rewards, ends = torch.tensor([row[1] for row in results]), torch.tensor([float(row[2]) for row in results])
            rows.append([states, action, choice.log_prob(action), values, rewards, ends])
            states = torch.stack(
                [world.reset() if row[2] else row[0] for world, row in zip(worlds, results, strict=True)]
            )
        seen, actions, logs, values, rewards, ends = (torch.stack([row[at] for row in rows]) for at in range(6))
        with torch.no_grad():
            following, gained = model(states)[1], torch.zeros(4)
            advantages = torch.zeros_like(rewards)
            for at in reversed(range(32)):
                error = rewards[at] + 0.99 * following * (1 - ends[at]) - values[at]
                gained = error + 0.99 * 0.95 * (1 - ends[at]) * gained
                advantages[at], following = gained, values[at]
        flat = [part.flatten(0, 1) for part in (seen, actions, logs, advantages, advantages + values)]
        for _ in range(4):
            for piece in torch.randperm(128).split(32):
                states_, actions_, logs_, gains, returns = (part[piece] for part in flat)
                scores, guesses = model(states_)
                choice = Categorical(logits=scores)
                ratio = (choice.log_prob(actions_) - logs_).exp()
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
                policy = -torch.min(gains * ratio, gains * ratio.clamp(0.8, 1.2)).mean()
                loss = policy + 0.5 * functional.mse_loss(guesses, returns) - 0.01 * choice.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        print(f"global_step={128 * (round_ + 1)}, reward={rewards.mean():.3f}")


def soft_actor_critic() -> None:
    """Three optimizers (critics, actor, temperature), target critics that follow softly, gradients past the critics."""

    def build_mlp(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))

    actor, critics, world, buffer = (
        build_mlp(4, 2),
        nn.ModuleList([build_mlp(5, 1), build_mlp(5, 1)]),
        Corridor(),
        deque(maxlen=2000),
    )
    targets = copy.deepcopy(critics).requires_grad_(False)
    log_alpha = torch.zeros(1, requires_grad=True)
    q_optimizer = torch.optim.Adam(critics.parameters(), lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    a_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, -1)
        choice = Normal(mean, spread.clamp(-5, 2).exp())
        raw = choice.rsample()
        move = raw.tanh()
        return move, choice.log_prob(raw) - (1 - move.square() + 1e-6).log()

    state, updates = world.reset(), 0
    while updates < 320:
        with torch.no_grad():
            move = act(state)[0]
        after, reward, done = world.step(float(move))
        buffer.append((state, move, torch.tensor([reward]), after, torch.tensor([float(done)])))
        state = world.reset() if done else after
        if len(buffer) < 64:
            continue
        states, moves, rewards, afters, ends = (
            torch.stack(part) for part in zip(*random.sample(buffer, 32), strict=True)
        )
        with torch.no_grad():
            following, log = act(afters)
            least = torch.min(*(target(torch.cat([afters, following], 1)) for target in targets))
            wanted = rewards + 0.95 * (1 - ends) * (least - log_alpha.exp() * log)
        loss = sum(functional.mse_loss(critic(torch.cat([states, moves], 1)), wanted) for critic in critics)
        q_optimizer.zero_grad()
        loss.backward()
        q_optimizer.step()
        updates += 1
        if updates % 2 == 0:  # delayed
            move, log = act(states)
            least = torch.min(*(critic(torch.cat([states, move], 1)) for critic in critics))
            loss = (log_alpha.exp().detach() * log - least).mean()
            actor_optimizer.zero_grad()
            loss.backward()
            actor_optimizer.step()
            loss = (-log_alpha.exp() * (log.detach() - 1.0)).mean()
            a_optimizer.zero_grad()
            loss.backward()
            a_optimizer.step()
        with torch.no_grad():
            for kept, now in zip(targets.parameters(), critics.parameters(), strict=True):
                kept.lerp_(now, 0.02)


KINDS = {
    "policy-gradient": reinforce,
    "deep-q": deep_q,
    "proximal-policy": proximal_policy,
    "soft-actor-critic": soft_actor_critic,
}

if __name__ == "__main__":
    random.seed(0)
    parts.run_kind(KINDS)
