"""What training and evaluation data hold side by side: real loaders, real models, and what the rules make of it."""

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.probes.judging import findings, seen

FEATURES = 16
WATCHED = ("TD-D010",)
Call = Callable[[nn.Module, Any], Tensor]


def normal(count: int = 96, *shape: int, scale: float = 1.0, shift: float = 0.0, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *(shape or (FEATURES,)), generator=generator) * scale + shift


def labelled(*inputs: Tensor) -> TensorDataset:
    return TensorDataset(*inputs, torch.arange(len(inputs[0])) % 4)


def first_input(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0])


class Flat(nn.Module):
    """Takes inputs of any shape."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(4)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.head(x.flatten(1).float()[:, :FEATURES]) + sum(other.float().mean() for other in others)


def run(
    watch: Any,
    train: Dataset[Any] | DataLoader[Any],
    check: Dataset[Any] | DataLoader[Any],
    *,
    call: Call = first_input,
    check_call: Call | None = None,
    steps: int = 6,
    allowance_s: float = 1.0,
) -> Any:
    """Trains some steps in the opening inspection, evaluates, and trains on."""
    watched = watch(max_overhead=None)
    watched.monitor.inspection.begin(allowance_s)
    torch.manual_seed(0)
    model = Flat()
    model(torch.zeros(1, FEATURES))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loaders = [one if isinstance(one, DataLoader) else DataLoader(one, batch_size=16) for one in (train, check)]
    for _ in range(2):
        for _, batch in zip(range(steps), loaders[0], strict=False):
            optimizer.zero_grad()
            nn.functional.cross_entropy(call(model, batch), batch[-1].long().flatten()[: len(batch[0])] % 4).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in loaders[1]:
                (check_call or call)(model, batch)
        model.train()
    watched.monitor.finish()
    return watched


def told(watched: Any, folder: Path) -> list[str]:
    """The codes of this probe's rules."""
    return [finding.code for finding in findings(watched, folder) if finding.code in WATCHED]


SCALES = {"wider": (100.0, 0.0), "narrower": (0.01, 0.0), "255": (255.0, 0.0), "apart": (1.0, 100.0)}


@pytest.mark.parametrize("how", SCALES)
def test_inputs_of_another_scale_in_evaluation_are_named(watch: Any, tmp_path: Path, how: str) -> None:
    scale, shift = SCALES[how]
    watched = run(watch, labelled(normal()), labelled(normal(48, scale=scale, shift=shift, seed=2)))
    (finding,) = [one for one in findings(watched, tmp_path) if one.code == "TD-D010"]
    assert finding.severity == "warning" and finding.title.startswith("input 0 is scaled otherwise in evaluation")
    assert finding.grade == "local"


def test_a_single_batch_of_evaluation_is_enough(watch: Any, tmp_path: Path) -> None:
    check = DataLoader(labelled(normal(16, scale=50.0, seed=2)), batch_size=16)
    assert told(run(watch, labelled(normal()), check), tmp_path) == ["TD-D010"]


def test_both_uses_are_on_record_as_numbers(watch: Any) -> None:
    watched = run(watch, labelled(normal()), labelled(normal(48, scale=3.0, seed=2)))
    rows = [event.values for event in seen(watched, "data-splits", "RANGES")]
    assert {row["use"] for row in rows} == {"training", "evaluation"}
    last = next(row for row in reversed(rows) if row["use"] == "evaluation")
    assert last["loaded"][0]["most_std"] == pytest.approx(3.0, rel=0.2) and last["given"] == last["loaded"]


def noisy(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0] + 2 * torch.randn_like(batch[0]) if model.training else batch[0])


def scaled_on_the_way(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0] if model.training else batch[0] / 100)


def both(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch[:-1])


def sampled_noise(model: nn.Module, batch: Any) -> Tensor:
    return model(80 * torch.randn_like(batch[0]))


class Augmented(Dataset[tuple[Tensor, int]]):
    """Samples with jitter, flips and erased halves."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = normal(1, seed=index)[0] * (0.5 + (index % 8) / 4)
        x[: FEATURES // 2] *= index % 2
        return x.flip(0), index % 4


ONES, MASK = torch.ones(96, FEATURES), (normal(96, seed=3) > 0).float()
HEALTHY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "augmentation": (Augmented(), labelled(normal(48, seed=2)), {}),
    "noise in training only": (labelled(normal()), labelled(normal(48, seed=2)), {"call": noisy}),
    "noise in training's data": (labelled(normal(scale=5.0)), labelled(normal(48, seed=2)), {}),
    "another resolution": (labelled(normal(96, 3, 8, 8)), labelled(normal(48, 3, 12, 12, seed=2)), {}),
    "another batch size": (labelled(normal()), DataLoader(labelled(normal(48, seed=2)), batch_size=3), {}),
    "another sequence length": (
        labelled(torch.cat([normal(96, 8, 4), torch.zeros(96, 24, 4)], 1)),
        labelled(normal(48, 8, 4, seed=2)),
        {},
    ),
    "a mask": (labelled(normal(), MASK), labelled(normal(48, seed=2), 100 * MASK[:48]), {"call": both}),
    "a constant flag": (labelled(normal(), ONES), labelled(normal(48, seed=2), 0 * ONES[:48]), {"call": both}),
    "one class": (labelled(normal(scale=2.0)), labelled(normal(48, scale=0.5, shift=1.0, seed=2)), {}),
    "a scale given on the way": (
        labelled(normal()),
        labelled(normal(48, scale=100.0, seed=2)),
        {"call": scaled_on_the_way},
    ),
    "samples made from noise": (
        labelled(normal()),
        labelled(normal(48, seed=2)),
        {"call": first_input, "check_call": sampled_noise},
    ),
    "token ids": (
        labelled(torch.arange(96 * FEATURES).view(96, FEATURES) % 7),
        labelled(torch.arange(48 * FEATURES).view(48, FEATURES)),
        {},
    ),
    "the training data itself": (DATA := labelled(normal()), DATA, {}),
    "heavy tails": (labelled(normal() ** 5), labelled(normal(48, seed=2) ** 5), {}),
    "a few empty images": (
        labelled(normal() * (torch.arange(96) % 3 > 0)[:, None]),
        labelled(normal(48, seed=2) * (torch.arange(48) % 16 > 13)[:, None]),
        {},
    ),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_variants_are_no_finding(watch: Any, tmp_path: Path, kind: str) -> None:
    train, check, options = HEALTHY[kind]
    watched = run(watch, train, check, **options)
    assert told(watched, tmp_path) == []
    assert not watched.failures


def test_neither_numbers_nor_random_states_of_the_program_change(watch: Any) -> None:
    states = []
    for allowance_s in (0.0, 1.0):
        random.seed(0)
        numpy.random.seed(0)
        run(watch, DataLoader(labelled(normal()), shuffle=True), labelled(normal(48)), allowance_s=allowance_s)
        states.append((torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()))  # type: ignore[index, union-attr]
    assert states[0] == states[1]


def test_no_tensor_of_the_program_is_kept(watch: Any) -> None:
    data = normal()
    watched = run(watch, labelled(data), labelled(normal(48, seed=2)))
    probe = watched.monitor.probe("data-splits")
    assert probe is not None
    held = [found for found in gc.get_referents(*vars(probe).values()) if isinstance(found, Tensor)]
    assert held == []
