"""Two workers that take longer for a batch than the training does; --healthy they are quick."""

import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CODE = "TD-P101"
SAYS = "waiting for input"
OPTIONS = ()
RANKS = 1

SAMPLES, BATCH = 96, 8


class Slides(Dataset):
    """Images that come from somewhere far away."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.delay_s)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 32, 32, generator=generator), index % 4


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Slides(0.0 if "--healthy" in sys.argv else 0.02)
    loader = DataLoader(data, batch_size=BATCH, num_workers=2)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    print("done")


if __name__ == "__main__":
    main()
