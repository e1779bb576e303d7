"""Two workers that take longer for a batch than the training does; --healthy they are quick."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CODE = "TD-P101"
SAYS = "waiting for input"
OPTIONS = ("--skip-first", "5", "--active", "8")
RANKS = 1

SAMPLES, BATCH, LENGTH = 136, 8, 64


class Words(Dataset):
    """Sentences that come from somewhere far away."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> list[int]:
        time.sleep(self.delay_s)
        return [index] * LENGTH


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Words(0.0 if "--healthy" in sys.argv else 0.05)
    loader = DataLoader(data, batch_size=BATCH, num_workers=2, collate_fn=list)
    model = nn.Sequential(
        *(nn.Embedding(SAMPLES, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * LENGTH, 4)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        words = torch.tensor(batch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), words[:, 0] % 4).backward()
        optimizer.step()
        time.sleep(0.1)  # a step is so long that handing a batch over is next to nothing of it, on a busy machine too
    print("done")


if __name__ == "__main__":
    main()
