"""Healthy trainings on images.

usage: vision.py KIND
"""

import copy

import parts
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Flipped(Dataset[tuple[Tensor, Tensor]]):
    """Training images with random flips and shifts, as torchvision's transforms make them."""

    def __init__(self, count: int, *, seed: int) -> None:
        self.data = parts.draw_images(count, seed=seed)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        if torch.rand(()) < 0.5:
            x = x + 0.05 * torch.randn_like(x)
        return x.roll(int(torch.randint(-1, 2, ())), dims=2), y


def make_convolutions(*, outputs: int = parts.CLASSES) -> nn.Sequential:
    """Two blocks with batch norm and a head."""

    def block(inputs: int, channels: int) -> list[nn.Module]:
        layers = [
            nn.Conv2d(inputs, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
        return [*layers, nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 8), *block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, outputs))


class Residual(nn.Module):
    """A block with group norm whose last norm begins at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, channels)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.first(x)))
        return functional.relu(x + self.norm2(self.second(hidden)))


def conv_batchnorm() -> None:
    """SGD with momentum, a cosine over the epochs, workers, and the best checkpoint."""
    train, validation = parts.load_split(Flipped, num_workers=2)
    model, record, best, folder = make_convolutions(), parts.Record(), 0.0, parts.make_folder()
    epochs = 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        schedule.step()
        accuracy = parts.measure_accuracy(model, validation)
        print(f"epoch {epoch} val_acc {accuracy:.3f} lr {schedule.get_last_lr()[0]:.4f}")
        if accuracy > best:
            best = accuracy
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, folder / "best.pt"
            )
    record.print_summary()


def residual_mixup() -> None:
    """Mixed pairs of images with soft targets, one cycle of the rate."""
    train, validation = parts.load_split(parts.draw_images)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), Residual(16), nn.MaxPool2d(2), Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, parts.CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = OneCycleLR(optimizer, max_lr=5e-3, total_steps=320)
    record, beta = parts.Record(), torch.distributions.Beta(0.2, 0.2)
    for step, (x, y) in parts.repeat_batches(train, 320):
        share, order = float(beta.sample()), torch.randperm(len(x))
        target = functional.one_hot(y, parts.CLASSES).float()
        target = share * target + (1 - share) * target[order]
        loss = functional.cross_entropy(model(share * x + (1 - share) * x[order]), target, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        record.add_loss(loss)
        if step % 80 == 0:
            print(f"val_acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


class UNet(nn.Module):
    """One level down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.head = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.down(x)
        return self.head(torch.cat([skipped, self.up(self.middle(skipped))], 1))


def draw_masks(count: int, *, seed: int) -> TensorDataset:
    """Images of two kinds of rectangles, with a border that has no label (255)."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 * torch.randn(count, 3, 16, 16, generator=generator)
    y = torch.zeros(count, 16, 16, dtype=torch.long)
    for at in range(count):
        for label in (1, 2):
            top, left = (int(value) for value in torch.randint(1, 10, (2,), generator=generator))
            x[at, label, top : top + 5, left : left + 5] += 1.5
            y[at, top : top + 5, left : left + 5] = label
    y[:, 0], y[:, -1], y[:, :, 0], y[:, :, -1] = 255, 255, 255, 255
    return TensorDataset(x, y)


def segmentation() -> None:
    """Cross-entropy that ignores unlabelled pixels plus a Dice loss; the rate falls on a plateau."""
    train, validation = parts.load_split(draw_masks, train=480, validation=64, batch=12)
    model, record = UNet(), parts.Record()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = ReduceLROnPlateau(optimizer, patience=2)
    for epoch in range(8):
        model.train()
        for x, y in train:
            scores = model(x)
            valid = y != 255
            wanted = functional.one_hot(y.where(valid, 0), 3).movedim(-1, 1) * valid[:, None]
            share = scores.softmax(1) * valid[:, None]
            dice = 1 - (2 * (share * wanted).sum((0, 2, 3)) + 1) / ((share + wanted).sum((0, 2, 3)) + 1)
            loss = functional.cross_entropy(scores, y, ignore_index=255) + dice.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        model.eval()
        with torch.inference_mode():
            losses = [functional.cross_entropy(model(x), y, ignore_index=255).item() for x, y in validation]
        schedule.step(sum(losses) / len(losses))
        print(f"epoch={epoch} val_loss={sum(losses) / len(losses):.4f}")
    record.print_summary()


class Detector(nn.Module):
    """A head for classes and one for boxes on a grid of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU())
        self.score, self.box = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 4, 1)
        nn.init.constant_(self.score.bias, -3.0)  # rare positives, as in RetinaNet

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.score(hidden)[:, 0], self.box(hidden)


def detection() -> None:
    """A focal loss over all cells; boxes count only where an object is, in some batches nowhere."""
    model, record = Detector(), parts.Record()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    warm, rest = LinearLR(optimizer, 0.01, total_iters=50), StepLR(optimizer, 150, 0.1)
    schedule = SequentialLR(optimizer, [warm, rest], [50])
    generator = torch.Generator().manual_seed(1)
    model.train()
    for _ in range(320):
        x = 0.5 * torch.randn(8, 3, 16, 16, generator=generator)
        wanted, boxes = torch.zeros(8, 4, 4), torch.zeros(8, 4, 4, 4)
        for at in range(8):
            if torch.rand((), generator=generator) < 0.6:
                row, column = (int(value) for value in torch.randint(4, (2,), generator=generator))
                x[at, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 2.0
                wanted[at, row, column] = 1.0
                boxes[at, :, row, column] = torch.tensor([row, column, 1.0, 1.0]) / 4
        scores, found = model(x)
        raw = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
        chance = scores.sigmoid()
        right = chance * wanted + (1 - chance) * (1 - wanted)
        positives = wanted.sum().clamp(min=1.0)
        weight = wanted[:, None].expand_as(found)
        loss = ((1 - right) ** 2 * raw).sum() / positives
        loss = loss + (functional.smooth_l1_loss(found, boxes, reduction="none") * weight).sum() / positives
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        record.add_loss(loss)
    record.print_summary()


def super_resolution() -> None:
    """Images from their small versions, with a sub-pixel layer and an absolute error."""

    def pairs(count: int, *, seed: int) -> TensorDataset:
        large = functional.interpolate(
            parts.draw_images(count, seed=seed, noise=0.05).tensors[0], size=16, mode="bilinear"
        )
        return TensorDataset(functional.avg_pool2d(large, 2), large)

    train, validation = parts.load_split(pairs, train=640, validation=64, batch=16)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
    )
    optimizer, record = torch.optim.Adam(model.parameters(), lr=1e-3), parts.Record()
    schedule = StepLR(optimizer, step_size=3, gamma=0.5)
    for epoch in range(8):
        for small, large in train:
            optimizer.zero_grad()
            loss = functional.l1_loss(model(small), large)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        schedule.step()
        with torch.no_grad():
            errors = [functional.mse_loss(model(small), large) for small, large in validation]
            print(f"epoch {epoch}: psnr {-10 * torch.stack(errors).mean().log10():.2f}")
    record.print_summary()


def siamese() -> None:
    """Triplets of an anchor, an image of its class and one of another."""
    x, y = parts.draw_images(960, seed=1).tensors
    places = [(y == label).nonzero()[:, 0] for label in range(parts.CLASSES)]
    model, record = make_convolutions(outputs=8), parts.Record()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(320):
        anchor = torch.randint(len(x), (24,))
        same = torch.stack([places[y[at]][torch.randint(len(places[y[at]]), ())] for at in anchor])
        others = [places[(int(y[at]) + 1 + int(torch.randint(3, ()))) % 4] for at in anchor]
        other = torch.stack([place[torch.randint(len(place), ())] for place in others])
        first, second, third = model(torch.cat([x[anchor], x[same], x[other]])).chunk(3)
        loss = functional.triplet_margin_loss(first, second, third, margin=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.add_loss(loss)
    record.print_summary()


class FakeQuantised(nn.Module):
    """A layer whose weight and input are rounded to 8 bits; gradients pass straight through."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("largest", torch.tensor(1.0))

    @staticmethod
    def quantise_tensor(x: Tensor, scale: Tensor) -> Tensor:
        return x + ((x / scale).round().clamp(-128, 127) * scale - x).detach()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.largest.lerp_(x.detach().abs().amax(), 0.05)
        x = self.quantise_tensor(x, self.largest / 127)
        weight = self.quantise_tensor(self.layer.weight, self.layer.weight.detach().abs().amax() / 127)
        return torch.func.functional_call(self.layer, {"weight": weight}, (x,))


def quantisation_aware() -> None:
    """A trained model goes on with rounded weights at a lower rate."""
    train, validation = parts.load_split(parts.draw_images)
    model, record = make_convolutions(), parts.Record()
    for rate, steps in ((2e-3, 200), (2e-4, 160)):
        if rate < 1e-3:
            for at in (0, 4, 10):
                model[at] = FakeQuantised(model[at])
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        model.train()
        for _, (x, y) in parts.repeat_batches(train, steps):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        print(f"val_acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


def frozen_then_thawed() -> None:
    """Transfer: only the head learns at first, then the body too, in a group with a lower rate."""
    train, validation = parts.load_split(parts.draw_images)
    model, record = make_convolutions(), parts.Record()
    body = nn.Sequential(*model[:-1])
    body.requires_grad_(False)
    optimizer = torch.optim.AdamW(model[-1].parameters(), lr=3e-3)
    for epoch in range(9):
        model.train()
        if epoch < 3:
            body.eval()  # keeps the statistics of the pretrained body
        if epoch == 3:
            body.requires_grad_(True)
            optimizer.add_param_group({"params": list(body.parameters()), "lr": 1e-3})
        for x, y in train:
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.add_loss(loss)
        print(f"epoch {epoch} val_acc {parts.measure_accuracy(model, validation):.3f}")
    record.print_summary()


class Patches(nn.Module):
    """A small vision transformer with a class token and stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 24, 4, 4)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, 24)), nn.Parameter(0.02 * torch.randn(1, 10, 24))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 2, 48, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, parts.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        for at, block in enumerate(self.blocks):
            if self.training and torch.rand(()) < 0.1 * at:
                continue
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def vision_transformer() -> None:
    """Warm-up and cosine per step, decay for matrices alone, and an average of the weights that is evaluated."""
    train, validation = parts.load_split(parts.draw_images, batch=16)
    model, record, steps = Patches(), parts.Record(), 400
    average = copy.deepcopy(model).eval().requires_grad_(False)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))
    schedule = LambdaLR(
        optimizer, lambda step: min((step + 1) / 40, 0.5 + 0.5 * torch.tensor(torch.pi * step / steps).cos().item())
    )
    for step, (x, y) in parts.repeat_batches(train, steps):
        model.train()
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.02)
        record.add_loss(loss)
        if step % 100 == 0:
            print(f"val_acc {parts.measure_accuracy(average, validation):.3f}")
    record.print_summary()


def evaluation_alone() -> None:
    """Evaluation of a checkpoint, without training."""
    model, folder = make_convolutions(), parts.make_folder()
    torch.save(model.state_dict(), folder / "model.pt")
    model = make_convolutions()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    model.eval()
    for seed in range(4):
        data = DataLoader(parts.draw_images(640, seed=seed), batch_size=8)
        print(f"split {seed}: {parts.measure_accuracy(model, data):.3f}")


KINDS = {
    "conv-batchnorm": conv_batchnorm,
    "residual-mixup": residual_mixup,
    "segmentation": segmentation,
    "detection": detection,
    "super-resolution": super_resolution,
    "siamese": siamese,
    "quantisation-aware": quantisation_aware,
    "frozen-then-thawed": frozen_then_thawed,
    "vision-transformer": vision_transformer,
    "evaluation-alone": evaluation_alone,
}

if __name__ == "__main__":
    parts.run_kind(KINDS)
