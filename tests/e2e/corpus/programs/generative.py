"""Healthy trainings of generative and self-supervised models.

usage: generative.py KIND
"""

import copy
import math

import parts
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader


def make_images(count: int, *, seed: int) -> torch.utils.data.TensorDataset:
    """Images in [-1, 1], of 8 by 8."""
    x, y = parts.draw_images(count, seed=seed, size=8, noise=0.1).tensors
    return torch.utils.data.TensorDataset(x / 2, y)


def dcgan() -> None:
    """The loop of DCGAN: real and fake batches apart, two optimizers, samples without gradients."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(16, 24, 2, bias=False), nn.BatchNorm2d(24), nn.ReLU(True),
        nn.ConvTranspose2d(24, 12, 4, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(True),
        nn.ConvTranspose2d(12, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 12, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(12, 24, 4, 2, 1, bias=False), nn.BatchNorm2d(24), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(24, 1, 2), nn.Flatten(0), nn.Sigmoid(),
    )  # fmt: skip
    criterion, fixed = nn.BCELoss(), torch.randn(16, 16, 1, 1)
    train = DataLoader(make_images(1280, seed=1), 32, shuffle=True)
    first = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    second = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for step, (real, _) in parts.repeat_batches(train, 320):
        critic.zero_grad()
        label = torch.full((len(real),), 1.0)
        error_real = criterion(critic(real), label)
        error_real.backward()
        fake = generator(torch.randn(len(real), 16, 1, 1))
        label.fill_(0.0)
        error_fake = criterion(critic(fake.detach()), label)
        error_fake.backward()
        first.step()
        generator.zero_grad()
        label.fill_(1.0)
        error = criterion(critic(fake), label)
        error.backward()
        second.step()
        if step % 100 == 0:
            with torch.no_grad():
                generator(fixed).detach()
            print(f"[{step}] Loss_D: {error_real.item() + error_fake.item():.4f} Loss_G: {error.item():.4f}")


def wasserstein() -> None:
    """Five updates of the critic for each of the generator, with a penalty on the critic's gradient."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    first = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    second = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for round_ in range(400):
        angle = 2 * math.pi * torch.rand(64)
        real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
        with torch.no_grad():
            fake = generator(torch.randn(64, 4))
        mixed = real.lerp(fake, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        first.zero_grad()
        loss.backward()
        first.step()
        if round_ % 5 == 4:
            critic.requires_grad_(False)
            second.zero_grad()
            (-critic(generator(torch.randn(64, 4))).mean()).backward()
            second.step()
            critic.requires_grad_(True)


class Variational(nn.Module):
    """The autoencoder of pytorch/examples."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(192, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.fc3, self.fc4 = nn.Linear(8, 64), nn.Linear(64, 192)

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z))))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = functional.relu(self.fc1(x.view(-1, 192)))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        return self.decode(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


def variational() -> None:
    """A summed binary cross-entropy and a divergence; samples from the prior after each epoch."""

    def loss_of(found: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mu, logvar = found
        entropy = functional.binary_cross_entropy(made, x.view(-1, 192), reduction="sum")
        return entropy - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())

    model, record = Variational(), parts.Record()
    train, validation = parts.load_split(make_images, batch=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(8):
        model.train()
        for x, _ in train:
            x = (x + 1) / 2
            optimizer.zero_grad()
            loss = loss_of(model(x), x)
            loss.backward()
            optimizer.step()
            record.add_loss(loss / len(x))
        model.eval()
        with torch.no_grad():
            total = sum(loss_of(model((x + 1) / 2), (x + 1) / 2).item() for x, _ in validation)
            model.decode(torch.randn(16, 8))
        print(f"====> Epoch: {epoch} Test set loss: {total / 256:.4f}")
    record.print_summary()


class Denoiser(nn.Module):
    """Convolutions that are told the time by an embedding; the last begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.time = nn.Conv2d(3, 24, 3, padding=1), nn.Embedding(100, 24)
        self.middle = nn.Sequential(nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv2d(24, 24, 3, padding=1), nn.SiLU())
        self.last = nn.Conv2d(24, 3, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x) + self.time(time)[:, :, None, None]))


def diffusion() -> None:
    """Predict the noise at a random time; an average of the weights draws samples now and then."""
    model, record = Denoiser(), parts.Record()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.05, 100), 0)
    train = DataLoader(make_images(1280, seed=1), 32, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, _) in parts.repeat_batches(train, 320):
        time, noise = torch.randint(100, (len(x),)), torch.randn_like(x)
        share = kept[time][:, None, None, None]
        loss = functional.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, time), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        record.add_loss(loss)
        if step % 160 == 0:
            average.eval()
            x = torch.randn(4, 3, 8, 8)
            with torch.no_grad():
                for at in reversed(range(100)):
                    noise = average(x, torch.full((4,), at))
                    x = (x - (1 - kept[at]).sqrt() * noise) / kept[at].sqrt()
                    before = kept[at - 1] if at else torch.tensor(1.0)
                    x = before.sqrt() * x.clamp(-3, 3) + (1 - before).sqrt() * noise
    record.print_summary()


class Coupling(nn.Module):
    """Half of the dimensions are scaled and shifted by what a net makes of the others."""

    def __init__(self, *, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, 1)
        if self.flip:
            first, second = second, first
        scale, shift = self.net(first).chunk(2, 1)
        scale = scale.tanh()
        second = second * scale.exp() + shift
        return torch.cat([second, first] if self.flip else [first, second], 1), scale.sum(1)


def normalising_flow() -> None:
    """The likelihood of points under invertible layers; the loss is negative at the end."""
    layers, record = nn.ModuleList(Coupling(flip=at % 2 == 1) for at in range(4)), parts.Record()
    optimizer = torch.optim.Adamax(layers.parameters(), lr=3e-3)
    for _ in range(400):
        x = torch.randn(128, 4) * torch.tensor([0.1, 0.2, 0.3, 0.1])
        x[:, 2:] += x[:, :2].square()
        determinant = torch.zeros(128)
        for layer in layers:
            x, more = layer(x)
            determinant = determinant + more
        loss = (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - determinant).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


class Quantiser(nn.Module):
    """The nearest of some vectors, which follow averages instead of gradients."""

    def __init__(self, vectors: int, width: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(vectors, width))
        self.register_buffer("counts", torch.ones(vectors))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.cdist(x, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                chosen = functional.one_hot(nearest, len(self.codes)).float()
                self.counts.lerp_(chosen.sum(0), 0.01)
                means = chosen.T @ x.detach() / chosen.sum(0).clamp(min=1.0)[:, None]
                self.codes.lerp_(torch.where(chosen.any(0)[:, None], means, self.codes), 0.05)
        found = self.codes[nearest]
        return x + (found - x).detach(), functional.mse_loss(x, found)


def vector_quantised() -> None:
    """An autoencoder with a discrete bottleneck and a straight-through gradient."""
    encoder, decoder = (
        nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 8)),
        nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 192)),
    )
    model, record = (
        nn.ModuleDict({"encoder": encoder, "quantiser": Quantiser(32, 8), "decoder": decoder}),
        parts.Record(),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _, (x, _) in parts.repeat_batches(DataLoader(make_images(1280, seed=1), 32, shuffle=True), 320):
        x = x.flatten(1)
        code, commitment = model["quantiser"](model["encoder"](x))
        loss = functional.mse_loss(model["decoder"](code), x) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def make_encoder(outputs: int) -> nn.Sequential:
    """A body and a projection."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(192, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU())
    return nn.Sequential(body, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def draw_view(x: Tensor) -> Tensor:
    """A random view of images."""
    return x.roll(int(torch.randint(-1, 2, ())), 3) + 0.1 * torch.randn_like(x)


def simclr() -> None:
    """Two views of each image against all others in the batch."""
    model, record = make_encoder(16), parts.Record()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _, (x, _) in parts.repeat_batches(DataLoader(make_images(1280, seed=1), 32, shuffle=True, drop_last=True), 320):
        found = functional.normalize(model(torch.cat([draw_view(x), draw_view(x)])), dim=1)
        near = (found @ found.T / 0.2).fill_diagonal_(-1e9)
        loss = functional.cross_entropy(near, torch.arange(2 * len(x)).roll(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


def byol() -> None:
    """A predictor of what a slowly moving copy of the model says of another view; then a linear probe."""
    online, predictor = make_encoder(16), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    target, record = copy.deepcopy(online).requires_grad_(False), parts.Record()
    optimizer = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=1e-3)
    train = DataLoader(make_images(1280, seed=1), 32, shuffle=True, drop_last=True)
    for _, (x, _) in parts.repeat_batches(train, 320):
        first, second = draw_view(x), draw_view(x)
        with torch.no_grad():
            wanted = target(second)
        loss = 2 - 2 * functional.cosine_similarity(predictor(online(first)), wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(target.parameters(), online.parameters(), strict=True):
                kept.mul_(0.98).add_(now, alpha=0.02)
        record.add_loss(loss)
    record.print_summary()
    body, probe = online[0].eval().requires_grad_(False), nn.Linear(64, parts.CLASSES)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for _, (x, y) in parts.repeat_batches(train, 200):
        with torch.no_grad():
            hidden = body(x)
        loss = functional.cross_entropy(probe(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def distillation() -> None:
    """A trained teacher, frozen, and a smaller student that also sees the labels."""
    train, validation = parts.load_split(parts.draw_classes)
    make = lambda width: nn.Sequential(  # noqa: E731
        nn.Linear(parts.FEATURES, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, parts.CLASSES)
    )
    teacher, student, record = make(64), make(12), parts.Record()
    optimizer = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _, (x, y) in parts.repeat_batches(train, 200):
        loss = functional.cross_entropy(teacher(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"teacher {parts.measure_accuracy(teacher, validation):.3f}")
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    student.train()
    for _, (x, y) in parts.repeat_batches(train, 320):
        scores = student(x)
        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(-1)
        loss = 4 * functional.kl_div((scores / 2).log_softmax(-1), soft, reduction="batchmean")
        loss = 0.7 * loss + 0.3 * functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    print(f"student {parts.measure_accuracy(student, validation):.3f}")
    record.print_summary()


KINDS = {
    "dcgan": dcgan,
    "wasserstein": wasserstein,
    "variational": variational,
    "diffusion": diffusion,
    "normalising-flow": normalising_flow,
    "vector-quantised": vector_quantised,
    "simclr": simclr,
    "byol": byol,
    "distillation": distillation,
}

if __name__ == "__main__":
    parts.run_kind(KINDS)
