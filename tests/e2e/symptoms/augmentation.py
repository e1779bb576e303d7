"""Images are normalised twice, in a hand-written Compose that runs in a worker; --healthy once."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FLAG = "AUGMENTATION"
CODE = "TD-D008"
SAYS = "already normalised"
OPTIONS = ()
RANKS = 1

CLASSES = 4


class Compose:
    """Calls one transform after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class Flip:
    """Mirrors every other image."""

    def __call__(self, image: Tensor) -> Tensor:
        return image.flip(-1) if torch.rand(()) < 0.5 else image


class Normalize:
    """Mean 0 and deviation 1, for images of 0 to 1."""

    def __init__(self, mean: float, std: float) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


def to_float(image: Tensor) -> Tensor:
    return image.float() / 255


class Stripes(Dataset):
    """Images whose stripes are as wide as their label says."""

    def __init__(self, transform: Compose, samples: int = 96) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (samples,), generator=generator)
        self.noise = torch.randint(0, 60, (samples, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = int(self.labels[index])
        stripes = (torch.arange(32) // (label + 1) % 2 * 180).to(torch.uint8)
        return self.transform(self.noise[index] + stripes), label


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    normalize = Normalize(0.45, 0.25)
    steps = [Flip(), to_float, normalize]
    if "--healthy" not in sys.argv:
        steps.append(normalize)  # the backbone's own preprocessing does it once more
    loader = DataLoader(Stripes(Compose(steps)), batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
