"""Small trainings with a fault that shows in numbers, in an exception or in a second rank, and the same without it.

usage: planted_loud.py KIND fault|healthy; several kinds end in an exception, and those of RANKED need torchrun.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from common import leave_group
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

KIND, FAULTY = sys.argv[1], sys.argv[2] == "fault"
RANKED = ("killed", "uneven", "left")
STEPS, BAD_STEP, CLASSES = 100, 60, 4
PATIENCE = timedelta(seconds=20)  # of a rank whose neighbour has left
SAMPLES = 640


def make_samples(seed: int = 1) -> TensorDataset:
    """Inputs and the classes that a linear map gives them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, 16, generator=generator)
    return TensorDataset(x, (x @ torch.randn(16, CLASSES, generator=generator)).argmax(1))


class Broken(Dataset[tuple[Tensor, Tensor]]):
    """Samples of which one cannot be read, is not finite, or has a class that does not exist."""

    def __init__(self) -> None:
        self.data = make_samples()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        if FAULTY and index == 300:
            if KIND == "worker":
                raise ValueError("truncated image")
            if KIND == "bad-sample":
                x = torch.full_like(x, float("nan"))
            if KIND == "labels":
                y = torch.tensor(CLASSES)
        return x, y


class Compose:
    """Calls one transform after the other."""

    def __init__(self, transforms: list[object]) -> None:
        self.transforms = transforms

    def __call__(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(image)  # type: ignore[operator]
        return image


class Normalize:
    """Divides by the deviation of the image; a blank one has none."""

    def __call__(self, image: Tensor) -> Tensor:
        return (image - image.mean()) / (image.std() + (0.0 if FAULTY and KIND == "nan-transform" else 1e-6))


class Brighten:
    """Adds up to a tenth; the fault returns what came in."""

    def __call__(self, image: Tensor) -> Tensor:
        brighter = image + 0.1 * torch.rand(())
        return image if FAULTY and KIND == "idle-transform" else brighter


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of 3 x 8 x 8 values from 0 to 1; one in a hundred is blank."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.rand(SAMPLES, 3, 8, 8, generator=generator)
        self.images[::100] = 0.5
        self.labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
        self.transform = Compose([Brighten(), Normalize()])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[index]).flatten()[:16], self.labels[index]


class Net(nn.Module):
    """A small classifier; its loud layer has a gradient of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, CLASSES)
        self.quiet = nn.Parameter(torch.zeros(CLASSES))
        self.loud = nn.Parameter(torch.zeros(CLASSES)) if KIND == "one-gradient" else self.quiet

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) + self.quiet


class Scale(torch.autograd.Function):
    """The identity, whose gradient is a multiple."""

    @staticmethod
    def forward(ctx: object, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None  # type: ignore[attr-defined]


def iter_batches() -> Iterator[tuple[Tensor, Tensor]]:
    """What the training sees, for ever."""
    data: Dataset[tuple[Tensor, Tensor]] = make_samples()
    if KIND in ("worker", "bad-sample", "labels"):
        data = Broken()
    if KIND.endswith("-transform"):
        data = Images()
    while True:
        yield from DataLoader(data, batch_size=32, shuffle=True, num_workers=1 if KIND == "worker" else 0)


def plant_in_loss(loss: Tensor, model: Net, step: int) -> Tensor:
    """The loss as the fault leaves it."""
    if KIND == "one-gradient":  # beside one that is as large all the time
        loss = loss + 100.0 * (model.loud - model.loud.detach()).sum()
    if not FAULTY or step < BAD_STEP:
        return loss
    match KIND:
        case "skips":
            return Scale.apply(loss, float("inf"))  # type: ignore[no-any-return]
        case "nan-under-scaler" | "dead-run":
            return loss * float("nan")
        case "loss-jump":
            return loss + 20.0
        case "explosion":
            return Scale.apply(loss, 1e4) + 5.0  # type: ignore[no-any-return]
        case "one-gradient":
            return loss + 20.0 * (model.quiet - model.quiet.detach()).sum()
        case "out-of-memory":
            return loss + torch.zeros(10**15).sum()
    return loss


def evaluate_model(model: Net) -> None:
    """A pass over other samples."""
    model.eval()
    with torch.set_grad_enabled(FAULTY and KIND == "evaluation-graphs"):
        for x, _ in DataLoader(make_samples(seed=2), batch_size=32):
            model(x / (x.sum() * 0.0 if FAULTY and KIND == "evaluation-nan" else 1.0))
    model.train()


def finish_step(model: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
    """What comes after an update."""
    if KIND == "late-clip" and FAULTY:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if KIND == "save-fails" and step == BAD_STEP:
        folder = Path(tempfile.mkdtemp())
        try:
            torch.save(model.state_dict(), folder / ("missing/a.pt" if FAULTY else "a.pt"))
        except (OSError, RuntimeError) as error:
            print(f"not saved: {type(error).__name__}")
    if KIND.startswith("evaluation-") and step % 20 == 0:
        evaluate_model(model)
    if KIND == "killed" and FAULTY and step == BAD_STEP and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def make_optimizer(model: Net) -> torch.optim.Optimizer:
    if KIND == "rate-high":
        return torch.optim.AdamW(model.parameters(), lr=3.0 if FAULTY else 3e-4)
    return torch.optim.SGD(model.parameters(), lr=0.05)


def train_model(model: Net, steps: int = STEPS) -> None:
    """The loop, on one rank."""
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in KIND or KIND == "skips")
    feed = iter_batches()
    for step in range(1, steps + 1):
        x, y = next(feed)
        optimizer.zero_grad()
        loss = plant_in_loss(nn.functional.cross_entropy(model(x), y), model, step)
        scaler.scale(loss).backward()
        if KIND in RANKED and step < STEPS - 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        if KIND == "explosion" or (KIND == "late-clip" and not FAULTY):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        finish_step(model, optimizer, step)
        log_loss(loss.item(), step)
        time.sleep(0.005)


def log_loss(loss: float, step: int) -> None:
    if KIND == "chart-of-text":
        import wandb

        wandb.log({"train/loss": f"{loss:.3f}" if FAULTY else loss}, step=step)


def resume_training() -> None:
    """Train, save, and go on from what was saved: with the schedule's state or without it."""
    path = Path(tempfile.mkdtemp()) / "last.pt"
    for again in (False, True):
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        if again:
            state = torch.load(path)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            if not FAULTY:
                schedule.load_state_dict(state["scheduler"])
        feed = iter_batches()
        for _ in range(50):
            x, y = next(feed)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            time.sleep(0.005)
        if not again:
            parts = {"model": model, "optimizer": optimizer, "scheduler": schedule}
            torch.save({name: part.state_dict() for name, part in parts.items()}, path)


def make_model() -> Net:
    """The model; a tracker is started beside it where the kind has one."""
    model = Net()
    if KIND == "bad-start" and FAULTY:
        nn.init.normal_(model.body[2].weight, std=4.0)
    if KIND in ("tracker", "chart-of-text"):
        import wandb

        try:
            mode = "nonsense" if FAULTY and KIND == "tracker" else "offline"
            wandb.init(project="planted", mode=mode, dir=tempfile.mkdtemp())  # type: ignore[arg-type]
        except Exception as error:  # the program goes on without its tracker
            print(f"no tracker: {type(error).__name__}")
    return model


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if KIND == "resume":
        resume_training()
    elif KIND in RANKED:
        dist.init_process_group("gloo", timeout=PATIENCE)
        of_rank_1 = {"uneven": STEPS - 1, "left": BAD_STEP}.get(KIND, STEPS)
        train_model(make_model(), of_rank_1 if FAULTY and dist.get_rank() == 1 else STEPS)
        if KIND != "left" or not FAULTY:
            leave_group()
    else:
        train_model(make_model())


if __name__ == "__main__":
    main()
