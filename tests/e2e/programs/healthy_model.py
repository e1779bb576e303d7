"""Healthy trainings that come close to a silent bug of a model, a loss or a mode.

usage: healthy_model.py KIND; each trains for 170 steps or more and evaluates twice.
"""

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, CLASSES, STEPS = 16, 4, 170
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def make_samples(count: int = 640, *, seed: int = 1) -> TensorDataset:
    """Inputs and the classes that a linear map gives them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    return TensorDataset(x, (x @ torch.randn(WIDTH, CLASSES, generator=generator)).argmax(1))


def iter_batches() -> Iterator[list[Tensor]]:
    """So many steps, epoch after epoch."""
    loader, step = DataLoader(make_samples(), batch_size=32, shuffle=True), 0
    while step < STEPS:
        for batch in loader:
            step += 1
            yield batch


def make_net(outputs: int = CLASSES) -> nn.Sequential:
    """A body and a head."""
    body = nn.Sequential(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
    return nn.Sequential(body, nn.Linear(32, outputs))


@torch.no_grad()
def evaluate_model(model: nn.Module) -> None:
    """One pass; the caller switches back."""
    model.eval()
    for x, _ in DataLoader(make_samples(128, seed=2), batch_size=32):
        model(x)


def train_model(
    model: nn.Module,
    loss: Loss = lambda model, x, y: functional.cross_entropy(model(x), y),
    *,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[int], None] = lambda step: None,
    evaluated: nn.Module | None = None,
    accumulate: int = 1,
) -> None:
    """The loop that most kinds share."""
    optimizer = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    model.train()
    for step, (x, y) in enumerate(iter_batches(), 1):
        (loss(model, x, y) / accumulate).backward()
        if step % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        after(step)
        time.sleep(0.003)
        if step % 60 == 0:
            evaluate_model(model if evaluated is None else evaluated)
            model.train()


class Autoencoder(nn.Module):
    """A variational autoencoder, which samples in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 8), nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())


class LowRank(nn.Module):
    """A frozen layer with a trained addition that begins at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 4, bias=False), nn.Linear(4, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


class Language(nn.Module):
    """An embedding whose weight the output layer shares, beside layers that are copies of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(64, 16), nn.Linear(WIDTH, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x > 0).long()[:, :6] @ (2 ** torch.arange(6))
        hidden = torch.stack([self.embedding(tokens), self.body(x)], 1)
        return self.head(self.encoder(hidden)[:, 0])


class Attention(nn.Module):
    """Softmax over the instances of a bag, inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.body = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        pooled = (self.score(x).softmax(0) * self.body(x)).sum(0)
        return self.head(self.body(x) + pooled)


def adversarial() -> None:
    """A generator and a discriminator with their own optimizers."""
    generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, WIDTH))
    critic = nn.Sequential(nn.Linear(WIDTH, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    first, second = torch.optim.Adam(critic.parameters(), lr=1e-3), torch.optim.Adam(generator.parameters(), lr=1e-3)
    score = functional.binary_cross_entropy_with_logits
    for step, (x, _) in enumerate(iter_batches(), 1):
        fake = generator(torch.randn(len(x), 8))
        first.zero_grad()
        real, made = critic(x), critic(fake.detach())
        (score(real, torch.ones_like(real)) + score(made, torch.zeros_like(made))).backward()
        first.step()
        second.zero_grad()
        made = critic(fake)
        score(made, torch.ones_like(made)).backward()
        second.step()
        time.sleep(0.003)
        if step % 60 == 0:
            generator.eval()
            with torch.no_grad():
                generator(torch.randn(64, 8))
            generator.train()


def contrast(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Two views of a sample belong together: as many classes as samples."""
    first, second = (functional.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1) for _ in range(2))
    return functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(x)))


def denoise(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Predict the noise that was added."""
    noise, share = torch.randn_like(x), torch.rand(len(x), 1)
    return functional.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise), noise)


def rank(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """All pairs, on purpose."""
    scores, wanted = model(x)[:, :1], y.float()[:, None]
    return ((scores - scores.T) - (wanted - wanted.T)).square().mean()


def reinforce(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Policy gradient with a baseline."""
    policy = torch.distributions.Categorical(logits=model(x))
    chosen = policy.sample()
    reward = (chosen == y).float()
    return -(policy.log_prob(chosen) * (reward - reward.mean())).mean()


def focal(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss of the program's own."""
    scores = model(x)
    chosen = scores.log_softmax(1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - chosen.exp()) ** 2) * chosen).mean()


def distil() -> None:
    """A frozen teacher whose probabilities are the targets."""
    teacher = make_net().eval().requires_grad_(False)

    def compute_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(x) / 2.0).softmax(-1)
        scores = model(x)
        close = functional.kl_div((scores / 2.0).log_softmax(-1), wanted, reduction="batchmean")
        return close + functional.cross_entropy(scores, y)

    train_model(make_net(), compute_loss)


def averaged() -> None:
    """The average is evaluated instead of the model."""
    model = make_net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    train_model(model, after=lambda step: average.update_parameters(model), evaluated=average)


def warm_up() -> None:
    """A rate that rises from almost nothing for all of the run."""
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = LambdaLR(optimizer, lambda step: (step + 1) / 5000)
    train_model(model, optimizer=optimizer, after=lambda step: schedule.step())


def frozen_body() -> None:
    """Transfer learning: the body keeps its statistics and weights."""
    model = make_net()
    model[0].requires_grad_(False)
    train_model(model, after=lambda step: [layer.eval() for layer in model[0]] and None)


def masters() -> None:
    """The optimizer holds copies in another precision, to which the program moves gradients."""
    model = make_net().double()
    copies = [p.detach().float().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=1e-3)
    for x, y in iter_batches():
        model.zero_grad()
        functional.cross_entropy(model(x.double()), y).backward()
        for own, one in zip(model.parameters(), copies, strict=True):
            assert own.grad is not None
            one.grad = own.grad.float()
        optimizer.step()
        with torch.no_grad():
            for own, one in zip(model.parameters(), copies, strict=True):
                own.copy_(one)
        time.sleep(0.003)


def low_rank() -> None:
    model = make_net()
    model[0].requires_grad_(False)
    model[1] = LowRank(model[1])
    train_model(model)


def monte_carlo() -> None:
    """Dropout layers are left on in evaluation, for the spread of the predictions."""
    model = make_net()

    @torch.no_grad()
    def measure_spread(step: int) -> None:
        if step % 60:
            return
        model.eval()
        model[0][3].train()
        x = torch.randn(8, WIDTH)
        torch.stack([model(x) for _ in range(8)]).std(0)
        model.train()

    train_model(model, after=measure_spread)


KINDS: dict[str, Callable[[], None]] = {
    "accumulated": lambda: train_model(make_net(), accumulate=4),
    "adversarial": adversarial,
    "attention": lambda: train_model(Attention()),
    "autoencoder": lambda: train_model(Autoencoder(), lambda model, x, y: functional.mse_loss(model(x), x)),
    "averaged": averaged,
    "contrast": lambda: train_model(make_net(), contrast),
    "copy": lambda: train_model(copy.deepcopy(make_net())),
    "denoise": lambda: train_model(make_net(WIDTH), denoise),
    "distil": distil,
    "focal": lambda: train_model(make_net(), focal),
    "frozen-body": frozen_body,
    "language": lambda: train_model(Language()),
    "low-rank": low_rank,
    "masters": masters,
    "monte-carlo": monte_carlo,
    "rank": lambda: train_model(make_net(1), rank),
    "reinforce": lambda: train_model(make_net(), reinforce),
    "smoothed": lambda: train_model(
        make_net(), lambda model, x, y: functional.cross_entropy(model(x), y, label_smoothing=0.1)
    ),
    "two-tasks": lambda: train_model(
        make_net(CLASSES + 1),
        lambda model, x, y: (
            functional.cross_entropy(model(x)[:, :-1], y) + functional.mse_loss(model(x)[:, -1], y.float() / math.pi)
        ),
    ),
    "warm-up": warm_up,
}


if __name__ == "__main__":
    torch.manual_seed(0)
    KINDS[sys.argv[1]]()
