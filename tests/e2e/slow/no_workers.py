"""Much work on every sample, and no worker to do it beside the training; --healthy it was done once, before."""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CODE = "TD-P102"
SAYS = "a DataLoader with num_workers=0"
OPTIONS = ()
RANKS = 1

SAMPLES, BATCH = 64, 8


class Sounds(Dataset):
    """Waves whose spectrum is worked out anew each time."""

    def __init__(self, *, ahead: bool) -> None:
        self.done: dict[int, Tensor] = {}
        if ahead:
            self.done = {index: self.compute_spectrum(index) for index in range(SAMPLES)}

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.done[index] if index in self.done else self.compute_spectrum(index), index % 4

    def compute_spectrum(self, index: int) -> Tensor:
        """32 by 32 of what is in the wave."""
        generator = torch.Generator().manual_seed(index)
        wave = torch.randn(240_000, generator=generator)
        spectrum = torch.stft(wave, 512, 128, window=torch.hann_window(512), return_complex=True).abs()
        return nn.functional.interpolate(spectrum[None, None], size=(32, 32), mode="bilinear")[0]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Sounds(ahead="--healthy" in sys.argv), batch_size=BATCH)
    model = nn.Sequential(
        *(nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    print("done")


if __name__ == "__main__":
    main()
