"""Steps far below a millisecond: no probe of loaders or memory stays in the loop. `fast_loop.py KIND fault|healthy`."""

import itertools
import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

KIND, IS_FAULTY = sys.argv[1], sys.argv[2] == "fault"
BATCH, WAIT_S, KEPT_PER_S = 8, 0.007, 15e6  # numbers: 60 MB a second, however fast the machine
LONG_S = 28.0  # a leak is told after ten records, 2 s apart, however fast the machine
PASSES, STEPS = (1, 3500) if KIND == "starved" else (4, 4000)
SLOW_FROM = 300 if KIND == "starved" and IS_FAULTY else STEPS


class Rows(Dataset[Tensor]):
    """Rows that are there at once; of the starved run all but the first batches come from a slow disk."""

    def __init__(self) -> None:
        self.rows = torch.randn(STEPS * BATCH, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        if indices[0] == 0:
            time.sleep(0.2)  # each pass opens a file, in the healthy run as well
        elif indices[0] >= SLOW_FROM * BATCH:
            time.sleep(WAIT_S)
        return [self.rows[index] for index in indices]


def main() -> None:
    """Train; the leak keeps something of each step, its healthy twin fills a buffer in the first pass and then stops."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept: list[Tensor] = []
    count = 0
    loader = DataLoader(Rows(), batch_size=BATCH)
    begun = time.monotonic()
    for number in itertools.count():
        if number >= PASSES and (KIND != "leak" or time.monotonic() - begun > LONG_S):
            break
        for rows in loader:
            loss = (model(rows) - rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if KIND == "leak" and (IS_FAULTY or number == 0):
                due = int(KEPT_PER_S * (time.monotonic() - begun)) - count
                kept.append(torch.full((due,), loss.item()))
                count += due
    print(f"done, {count} kept", flush=True)


main()
