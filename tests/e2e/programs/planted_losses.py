"""Small trainings that tell tdbg of their losses, with one mistake in what they tell, and the same without it.

usage: planted_losses.py KIND fault|healthy. Shapes: B batch, F features, C classes.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from tdbg.probes import loss

KIND, FAULTY = sys.argv[1], sys.argv[2] == "fault"
STEPS, BATCH, FEATURES, CLASSES = 40, 64, 8, 5
SHARES_C = torch.tensor([0.25, 0.4, 0.2, 0.1, 0.05])  # class 0 stands for no label
COUNTS_C = 4000 * SHARES_C
TREE = {"cats": None, "dogs": None, "lion": "cats", "tiger": "cats", "wolf": "dogs", "fox": "dogs"}
HEIGHTS_CC = torch.tensor([[0, 1, 2, 2], [1, 0, 2, 2], [2, 2, 0, 1], [2, 2, 1, 0]], dtype=torch.float32)


class Net(nn.Module):
    """Two heads on one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(FEATURES, 16)
        self.coarse, self.fine = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, x_BF: Tensor) -> tuple[Tensor, Tensor]:
        hidden_BH = torch.relu(self.shared(x_BF))
        return self.coarse(hidden_BH), self.fine(
            hidden_BH.detach() if KIND == "head-detached" and FAULTY else hidden_BH
        )


def report_nulls_unseen(labels_B: Tensor) -> None:
    """The loader may have made the nulls a class like others."""
    seen_B = labels_B.clamp(min=1) if FAULTY else labels_B
    loss.null_masking(seen_B, seen_B == 0, probability=1.0, expected_share=0.25)


def report_rows_compared(labels_B: Tensor) -> None:
    """One-hot rows may be compared with the null index as though they were indices."""
    hot_BC = one_hot(labels_B, CLASSES)
    nulls_B = (hot_BC == 0).any(1) if FAULTY else labels_B == 0
    loss.null_masking(hot_BC, nulls_B, nulls=nulls_B, probability=1.0)


def report_validation_masks(labels_B: Tensor) -> None:
    """Validation masks all nulls, or some of them by chance."""
    nulls_B = labels_B == 0
    drawn_B = nulls_B & (torch.rand(BATCH) < 0.5) if FAULTY else nulls_B
    loss.null_masking(labels_B, drawn_B, training=False)


def report_distances(labels_B: Tensor) -> None:
    """One distance may be another in the other direction."""
    distances_CC = HEIGHTS_CC.clone()
    distances_CC[0, 3] = 1.0 if FAULTY else 2.0
    loss.taxonomy_distances(distances_CC)


def report_hierarchy(labels_B: Tensor) -> None:
    """A species may name a parent that does not exist."""
    loss.taxonomy_hierarchy(TREE | ({"lynx": "felines"} if FAULTY else {"lynx": "cats"}))


def report_extreme_weights(labels_B: Tensor) -> None:
    """The inverse of the counts may be squared."""
    loss.class_weighting((COUNTS_C.mean() / COUNTS_C) ** (3 if FAULTY else 1), COUNTS_C)


def report_double_weights(labels_B: Tensor) -> None:
    """A sampler that already balances the classes may come on top of the weights."""
    loss.class_weighting(1 / COUNTS_C, COUNTS_C, sampling=1 / COUNTS_C if FAULTY else None)


def report_gradnorm(losses: dict[str, Tensor], model: Net) -> None:
    """An update of GradNorm; its weights may have another sum, a sign, or a task may not reach the shared layer."""
    weights = {"coarse": 1.2, "fine": 0.8}
    if KIND == "weights-sum" and FAULTY:
        weights = {"coarse": 0.9, "fine": 0.5}
    if KIND == "weight-negative" and FAULTY:
        weights = {"coarse": 2.1, "fine": -0.1}
    grads = {
        task: torch.autograd.grad(each, model.shared.weight, retain_graph=True, allow_unused=True)[0]
        for task, each in losses.items()
    }
    norms = {task: 0.0 if grad is None else abs(weights[task]) * grad.norm() for task, grad in grads.items()}
    values = {task: each.detach() for task, each in losses.items()}
    loss.gradnorm_metrics(values, dict.fromkeys(losses, 1.6), norms, weights, shared=grads)


REPORTS: dict[str, Callable[[Tensor], None]] = {
    "nulls-unseen": report_nulls_unseen,
    "rows-compared": report_rows_compared,
    "validation-masks": report_validation_masks,
    "distances": report_distances,
    "hierarchy": report_hierarchy,
    "weights-extreme": report_extreme_weights,
    "weights-twice": report_double_weights,
}
GRADNORM = ("weights-sum", "weight-negative", "head-detached")


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    true_FC = torch.randn(FEATURES, CLASSES)
    for _ in range(STEPS):
        x_BF, labels_B = torch.randn(BATCH, FEATURES), torch.multinomial(SHARES_C, BATCH, replacement=True)
        coarse_BC, fine_BC = model(x_BF)
        target_B = (x_BF @ true_FC).argmax(1)
        losses = {"coarse": cross_entropy(coarse_BC, target_B), "fine": cross_entropy(fine_BC, target_B)}
        if KIND in GRADNORM:
            report_gradnorm(losses, model)
        else:
            REPORTS[KIND](labels_B)
        total = losses["coarse"] + losses["fine"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        time.sleep(0.005)
    print(f"loss {total.item():.3f}")


if __name__ == "__main__":
    main()
