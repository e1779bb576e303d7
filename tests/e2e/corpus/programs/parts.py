"""What the programs share: small synthetic data that can be learnt, and the report of a training."""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

CLASSES = 4
FEATURES = 16
VOCABULARY = 32


def draw_images(count: int, *, seed: int, size: int = 12, noise: float = 0.6) -> TensorDataset:
    """Images with a pattern of their class, in the range of bytes divided by 255 and then normalised."""
    patterns = torch.rand(CLASSES, 3, size, size, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=generator)
    x = patterns[y] + noise * torch.randn(count, 3, size, size, generator=generator)
    return TensorDataset((x.clamp(0.0, 1.0) - 0.5) / 0.25, y)


def draw_table(count: int, *, seed: int, features: int = FEATURES) -> tuple[Tensor, Tensor]:
    """Features, and what a fixed smooth function makes of them with some noise."""
    fixed = torch.Generator().manual_seed(98)
    first, second = torch.randn(features, 8, generator=fixed), torch.randn(8, CLASSES, generator=fixed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    scores = torch.tanh(x @ first / math.sqrt(features)) @ second
    return x, scores + 0.3 * torch.randn(count, CLASSES, generator=generator)


def draw_classes(count: int, *, seed: int) -> TensorDataset:
    """Features and one of several classes."""
    x, scores = draw_table(count, seed=seed)
    return TensorDataset(x, scores.argmax(1))


def draw_text(count: int, length: int, *, seed: int) -> Tensor:
    """Sequences of a fixed chain: each token has three likely successors."""
    fixed = torch.Generator().manual_seed(97)
    successors = torch.randint(2, VOCABULARY, (VOCABULARY, 3), generator=fixed)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, VOCABULARY, (count, 1), generator=generator)
    columns = [tokens[:, 0]]
    for _ in range(length - 1):
        choice = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), count, replacement=True, generator=generator)
        columns.append(successors[columns[-1], choice])
    return torch.stack(columns, 1)


def repeat_batches(loader: DataLoader, steps: int) -> Iterator[tuple[int, list[Tensor]]]:
    """Steps from 1 on with a batch each, epoch after epoch."""
    step = 0
    while True:
        for batch in loader:
            step += 1
            yield step, batch
            if step == steps:
                return


def load_split(
    dataset: Callable[..., Dataset], *, train: int = 1280, validation: int = 256, batch: int = 32, **options
):
    """A shuffled loader for training and an ordered one of other samples for validation."""
    first = DataLoader(dataset(train, seed=1), batch_size=batch, shuffle=True, drop_last=True, **options)
    return first, DataLoader(dataset(validation, seed=2), batch_size=batch)


@torch.no_grad()
def measure_accuracy(model: nn.Module, loader: DataLoader) -> float:
    """The share of hits; the model is in eval mode within, and in its former mode afterwards."""
    was_training = model.training
    model.eval()
    hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    model.train(was_training)
    return hits / len(loader.dataset)


class Record:
    """The losses of a run; says at the end whether they fell."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def add_loss(self, loss: Tensor | float) -> None:
        """One step's loss."""
        self.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))

    def print_summary(self) -> None:
        """Print the mean of the first and of the last tenth."""
        share = max(len(self.losses) // 10, 1)
        first, last = (sum(part) / share for part in (self.losses[:share], self.losses[-share:]))
        print(f"{len(self.losses)} losses: {first:.4g} at first, {last:.4g} at last")


def make_folder() -> Path:
    """A folder for checkpoints."""
    return Path(tempfile.mkdtemp(prefix="corpus"))


def run_kind(kinds: Mapping[str, Callable[[], None]]) -> None:
    """Run the kind that the command line names."""
    torch.manual_seed(0)
    kinds[sys.argv[1]]()
