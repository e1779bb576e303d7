"""What training and evaluation data hold side by side: real loaders, real models, and what the rules make of it."""

import gc
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from tdbg.runtime import tensors
from tests.probes.judging import findings, seen

FEATURES = 16
WATCHED = ("TD-D010", "TD-D011", "TD-D013")
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
    *more: DataLoader[Any],
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
            for batch in itertools.chain(loaders[1], *more):
                (check_call or call)(model, batch)
        model.train()
    watched.monitor.finish()
    return watched


def told(watched: Any, folder: Path) -> list[str]:
    """The codes of this probe's rules, without notes."""
    found = [one for one in findings(watched, folder) if one.severity != "info"]
    return [finding.code for finding in found if finding.code in WATCHED]


SCALES = {"wider": (100.0, 0.0), "narrower": (0.01, 0.0), "255": (255.0, 0.0), "apart": (1.0, 100.0)}


@pytest.mark.parametrize("how", SCALES)
def test_inputs_of_another_scale_in_evaluation_are_named(watch: Any, tmp_path: Path, how: str) -> None:
    scale, shift = SCALES[how]
    watched = run(watch, labelled(normal()), labelled(normal(48, scale=scale, shift=shift, seed=2)))
    (finding,) = [one for one in findings(watched, tmp_path) if one.code == "TD-D010"]
    assert finding.severity == "warning" and finding.title.startswith("input 0 is scaled differently in evaluation")
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


WHOLE = labelled(normal(192))


def halves(seed: int) -> list[Subset[Any]]:
    return random_split(WHOLE, [160, 32], torch.Generator().manual_seed(seed))


def loader(data: Any, indices: Any = None) -> DataLoader[Any]:
    return DataLoader(data, batch_size=16, sampler=None if indices is None else SubsetRandomSampler(indices))


LEAKS: dict[str, tuple[Any, Any]] = {
    "the same file read twice": (labelled(normal()), labelled(normal(48))),
    "most of the file read twice": (labelled(normal()), labelled(torch.cat([normal(40), normal(16, seed=2)]))),
    "two splits drawn apart": (halves(1)[0], halves(2)[1]),
    "a subset of a subset": (Subset(WHOLE, range(150)), Subset(Subset(WHOLE, range(100)), range(60, 100))),
    "token ids": (labelled(normal(scale=50).long()), labelled(normal(48, scale=50).long())),
    "training in part": (loader(labelled(normal(400))), labelled(normal(400))),
}


@pytest.mark.parametrize("how", LEAKS)
def test_evaluation_on_training_data_is_named(watch: Any, tmp_path: Path, how: str) -> None:
    watched = run(watch, *LEAKS[how])
    (finding,) = [one for one in findings(watched, tmp_path) if one.code == "TD-D011"]
    is_whole = how in ("the same file read twice", "token ids", "training in part")  # nothing was split off
    assert finding.severity == ("info" if is_whole else "warning")
    assert "are also in the training data" in finding.title
    assert finding.grade == ("located" if "indices" in finding.title else "statistical")


def test_the_training_set_evaluated_on_purpose_is_a_note(watch: Any, tmp_path: Path) -> None:
    data = labelled(normal())
    (finding,) = findings(run(watch, data, DataLoader(data, batch_size=32)), tmp_path)
    assert (finding.code, finding.severity) == ("TD-D011", "info")


def test_training_data_beside_clean_evaluation_data_is_a_note(watch: Any, tmp_path: Path) -> None:
    data, again, clean = labelled(normal()), loader(labelled(normal())), loader(labelled(normal(48, seed=2)))
    for number, checks in enumerate(((again, clean), (clean, again))):
        (finding,) = findings(run(watch, data, *checks), tmp_path / str(number))
        assert (finding.code, finding.severity) == ("TD-D011", "info")


class Stream(IterableDataset[Any]):
    """Sorted samples that come in a stream."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(x, index // 24) for index, x in enumerate(normal())])


BITS = torch.randint(0, 2, (192, FEATURES), generator=torch.Generator().manual_seed(0)).float()
BITS[:, 6:] = 0.5
SORTED = torch.arange(96) // 24
CLEAN: dict[str, tuple[Any, ...]] = {
    "other data": (labelled(normal()), labelled(normal(48, seed=2))),
    "one split": (halves(1)[0], halves(1)[1]),
    "samplers over one dataset": (loader(WHOLE, range(150)), loader(WHOLE, range(150, 192))),
    "the training loader itself": (SAME := loader(labelled(normal())), SAME),
    "augmented training data": (Augmented(), labelled(torch.cat([normal(1, seed=one) for one in range(96)]))),
    "inputs of a few bits": (labelled(BITS[:96]), labelled(BITS[96:])),
    "a few shared samples": (labelled(normal()), labelled(torch.cat([normal()[:12], normal(48, seed=2)]))),
    "empty images": (labelled(normal() * 0), labelled(normal(48) * 0)),
    "shuffled labels": (DataLoader(TensorDataset(normal(), SORTED), 16, shuffle=True), labelled(normal(48, seed=2))),
    "a stream": (Stream(), labelled(normal(48, seed=2))),
    "evaluation data in order": (labelled(normal()), TensorDataset(normal(96, seed=2), SORTED)),
    "labels that never repeat": (TensorDataset(normal(), torch.arange(96)), labelled(normal(48, seed=2))),
    "one class": (TensorDataset(normal(), 0 * SORTED), labelled(normal(48, seed=2))),
    "batches of one": (DataLoader(labelled(normal()), batch_size=1), labelled(normal(48, seed=2))),
    "labels for each token": (TensorDataset(normal(), SORTED[:, None].repeat(1, 4)), labelled(normal(48, seed=2))),
}


@pytest.mark.parametrize("kind", CLEAN)
def test_clean_splits_and_mixed_labels_are_no_finding(watch: Any, tmp_path: Path, kind: str) -> None:
    assert told(run(watch, *CLEAN[kind]), tmp_path) == []


@pytest.mark.parametrize(
    "labels", [SORTED, SORTED.flip(0), SORTED // 2, torch.tensor([2, 0, 3, 0, 1, 2]).repeat_interleave(16)]
)
def test_training_in_the_order_of_labels_is_named(watch: Any, tmp_path: Path, labels: Tensor) -> None:
    watched = run(watch, TensorDataset(normal(), labels), labelled(normal(48, seed=2)))
    (finding,) = findings(watched, tmp_path)
    assert finding.code == "TD-D013" and finding.severity == "warning"
    assert finding.title.startswith("training takes the samples in the order of their labels")


def on_the_device(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0].double())


def test_inputs_on_an_accelerator_are_read_late(watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is float64 counts as if it were on an accelerator."""
    monkeypatch.setattr(tensors, "on_host", lambda tensor: tensor.dtype != torch.float64)
    check = labelled(normal(48, scale=50.0, seed=2))
    watched = run(watch, labelled(normal()), check, call=on_the_device)
    assert told(watched, tmp_path) == ["TD-D010"]
    uses = [event.values["use"] for event in seen(watched, "data-splits", "RANGES")]
    assert uses.count("evaluation") <= 3, "one line a pass, however many batches"


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
