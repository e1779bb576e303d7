"""Two workers each read the whole of a stream, so every batch comes twice; --healthy each reads its part."""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

FLAG = "DATALOADER"
CODE = "TD-D003"
SAYS = "are repeats in one pass"
OPTIONS = ()
RANKS = 1

FEATURES = 64
CLASSES = 5


class Stream(IterableDataset):
    """Noise around a centre of each class, as if read line by line from a file."""

    def __init__(self, samples: int, *, shared: bool) -> None:
        self.samples = samples
        self.shared = shared  # each worker reads a part of its own

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if self.shared and worker else (0, 1)
        for index in range(first, self.samples, every):
            generator = torch.Generator().manual_seed(index)
            label = index % CLASSES
            yield torch.randn(FEATURES, generator=generator) + label, label


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    stream = Stream(160, shared="--healthy" in sys.argv)
    loader = DataLoader(stream, batch_size=16, num_workers=2)
    model = nn.Sequential(nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        seen += len(labels)
    print(f"{seen} samples, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
