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
from tests.probes.judging import judge_watch, list_observations

FEATURES = 16
WATCHED = ("TD-D010", "TD-D011", "TD-D013")
Call = Callable[[nn.Module, Any], Tensor]


def draw_normal(count: int = 96, *shape: int, scale: float = 1.0, shift: float = 0.0, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *(shape or (FEATURES,)), generator=generator) * scale + shift


def label_inputs(*inputs: Tensor) -> TensorDataset:
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


def run_training(
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
    watched.monitor.inspection.begin_inspection(allowance_s)
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
    watched.monitor.finish_run()
    return watched


def judge_codes(watched: Any, folder: Path) -> list[str]:
    """The codes of this probe's rules, without notes."""
    found = [one for one in judge_watch(watched, folder) if one.severity != "info"]
    return [finding.code for finding in found if finding.code in WATCHED]


SCALES = {"wider": (100.0, 0.0), "narrower": (0.01, 0.0), "255": (255.0, 0.0), "apart": (1.0, 100.0)}


@pytest.mark.parametrize("how", SCALES)
def test_inputs_of_another_scale_in_evaluation_are_named(start_watch: Any, tmp_path: Path, how: str) -> None:
    scale, shift = SCALES[how]
    watched = run_training(
        start_watch, label_inputs(draw_normal()), label_inputs(draw_normal(48, scale=scale, shift=shift, seed=2))
    )
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-D010"]
    assert finding.severity == "warning" and finding.title.startswith("input 0 is scaled differently in evaluation")
    assert finding.grade == "local"


def test_a_single_batch_of_evaluation_is_enough(start_watch: Any, tmp_path: Path) -> None:
    check = DataLoader(label_inputs(draw_normal(16, scale=50.0, seed=2)), batch_size=16)
    assert judge_codes(run_training(start_watch, label_inputs(draw_normal()), check), tmp_path) == ["TD-D010"]


def test_both_uses_are_on_record_as_numbers(start_watch: Any) -> None:
    watched = run_training(start_watch, label_inputs(draw_normal()), label_inputs(draw_normal(48, scale=3.0, seed=2)))
    rows = [event.values for event in list_observations(watched, "data-splits", "RANGES")]
    assert {row["use"] for row in rows} == {"training", "evaluation"}
    last = next(row for row in reversed(rows) if row["use"] == "evaluation")
    assert last["loaded"][0]["most_std"] == pytest.approx(3.0, rel=0.2) and last["given"] == last["loaded"]


def call_with_noise(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0] + 2 * torch.randn_like(batch[0]) if model.training else batch[0])


def scaled_on_the_way(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0] if model.training else batch[0] / 100)


def call_with_all(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch[:-1])


def sampled_noise(model: nn.Module, batch: Any) -> Tensor:
    return model(80 * torch.randn_like(batch[0]))


class Augmented(Dataset[tuple[Tensor, int]]):
    """Samples with jitter, flips and erased halves."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = draw_normal(1, seed=index)[0] * (0.5 + (index % 8) / 4)
        x[: FEATURES // 2] *= index % 2
        return x.flip(0), index % 4


ONES, MASK = torch.ones(96, FEATURES), (draw_normal(96, seed=3) > 0).float()
HEALTHY: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "augmentation": (Augmented(), label_inputs(draw_normal(48, seed=2)), {}),
    "noise in training only": (
        label_inputs(draw_normal()),
        label_inputs(draw_normal(48, seed=2)),
        {"call": call_with_noise},
    ),
    "noise in training's data": (label_inputs(draw_normal(scale=5.0)), label_inputs(draw_normal(48, seed=2)), {}),
    "another resolution": (
        label_inputs(draw_normal(96, 3, 8, 8)),
        label_inputs(draw_normal(48, 3, 12, 12, seed=2)),
        {},
    ),
    "another batch size": (
        label_inputs(draw_normal()),
        DataLoader(label_inputs(draw_normal(48, seed=2)), batch_size=3),
        {},
    ),
    "another sequence length": (
        label_inputs(torch.cat([draw_normal(96, 8, 4), torch.zeros(96, 24, 4)], 1)),
        label_inputs(draw_normal(48, 8, 4, seed=2)),
        {},
    ),
    "a mask": (
        label_inputs(draw_normal(), MASK),
        label_inputs(draw_normal(48, seed=2), 100 * MASK[:48]),
        {"call": call_with_all},
    ),
    "a constant flag": (
        label_inputs(draw_normal(), ONES),
        label_inputs(draw_normal(48, seed=2), 0 * ONES[:48]),
        {"call": call_with_all},
    ),
    "one class": (
        label_inputs(draw_normal(scale=2.0)),
        label_inputs(draw_normal(48, scale=0.5, shift=1.0, seed=2)),
        {},
    ),
    "a scale given on the way": (
        label_inputs(draw_normal()),
        label_inputs(draw_normal(48, scale=100.0, seed=2)),
        {"call": scaled_on_the_way},
    ),
    "samples made from noise": (
        label_inputs(draw_normal()),
        label_inputs(draw_normal(48, seed=2)),
        {"call": first_input, "check_call": sampled_noise},
    ),
    "token ids": (
        label_inputs(torch.arange(96 * FEATURES).view(96, FEATURES) % 7),
        label_inputs(torch.arange(48 * FEATURES).view(48, FEATURES)),
        {},
    ),
    "the training data itself": (DATA := label_inputs(draw_normal()), DATA, {}),
    "heavy tails": (label_inputs(draw_normal() ** 5), label_inputs(draw_normal(48, seed=2) ** 5), {}),
    "a few empty images": (
        label_inputs(draw_normal() * (torch.arange(96) % 3 > 0)[:, None]),
        label_inputs(draw_normal(48, seed=2) * (torch.arange(48) % 16 > 13)[:, None]),
        {},
    ),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_variants_are_no_finding(start_watch: Any, tmp_path: Path, kind: str) -> None:
    train, check, options = HEALTHY[kind]
    watched = run_training(start_watch, train, check, **options)
    assert judge_codes(watched, tmp_path) == []
    assert not watched.failures


WHOLE = label_inputs(draw_normal(192))


def split_data(seed: int) -> list[Subset[Any]]:
    return random_split(WHOLE, [160, 32], torch.Generator().manual_seed(seed))


def make_loader(data: Any, indices: Any = None) -> DataLoader[Any]:
    return DataLoader(data, batch_size=16, sampler=None if indices is None else SubsetRandomSampler(indices))


LEAKS: dict[str, tuple[Any, Any]] = {
    "the same file read twice": (label_inputs(draw_normal()), label_inputs(draw_normal(48))),
    "most of the file read twice": (
        label_inputs(draw_normal()),
        label_inputs(torch.cat([draw_normal(40), draw_normal(16, seed=2)])),
    ),
    "two splits drawn apart": (split_data(1)[0], split_data(2)[1]),
    "a subset of a subset": (Subset(WHOLE, range(150)), Subset(Subset(WHOLE, range(100)), range(60, 100))),
    "token ids": (label_inputs(draw_normal(scale=50).long()), label_inputs(draw_normal(48, scale=50).long())),
    "training in part": (make_loader(label_inputs(draw_normal(400))), label_inputs(draw_normal(400))),
}


@pytest.mark.parametrize("how", LEAKS)
def test_evaluation_on_training_data_is_named(start_watch: Any, tmp_path: Path, how: str) -> None:
    watched = run_training(start_watch, *LEAKS[how])
    (finding,) = [one for one in judge_watch(watched, tmp_path) if one.code == "TD-D011"]
    is_whole = how in ("the same file read twice", "token ids", "training in part")  # nothing was split off
    assert finding.severity == ("info" if is_whole else "warning")
    assert "are also in the training data" in finding.title
    assert finding.grade == ("located" if "indices" in finding.title else "statistical")


def test_the_training_set_evaluated_on_purpose_is_a_note(start_watch: Any, tmp_path: Path) -> None:
    data = label_inputs(draw_normal())
    (finding,) = judge_watch(run_training(start_watch, data, DataLoader(data, batch_size=32)), tmp_path)
    assert (finding.code, finding.severity) == ("TD-D011", "info")


def test_training_data_beside_clean_evaluation_data_is_a_note(start_watch: Any, tmp_path: Path) -> None:
    data, again, clean = (
        label_inputs(draw_normal()),
        make_loader(label_inputs(draw_normal())),
        make_loader(label_inputs(draw_normal(48, seed=2))),
    )
    for number, checks in enumerate(((again, clean), (clean, again))):
        (finding,) = judge_watch(run_training(start_watch, data, *checks), tmp_path / str(number))
        assert (finding.code, finding.severity) == ("TD-D011", "info")


class Stream(IterableDataset[Any]):
    """Sorted samples that come in a stream."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(x, index // 24) for index, x in enumerate(draw_normal())])


BITS = torch.randint(0, 2, (192, FEATURES), generator=torch.Generator().manual_seed(0)).float()
BITS[:, 6:] = 0.5
SORTED = torch.arange(96) // 24
CLEAN: dict[str, tuple[Any, ...]] = {
    "other data": (label_inputs(draw_normal()), label_inputs(draw_normal(48, seed=2))),
    "one split": (split_data(1)[0], split_data(1)[1]),
    "samplers over one dataset": (make_loader(WHOLE, range(150)), make_loader(WHOLE, range(150, 192))),
    "the training loader itself": (SAME := make_loader(label_inputs(draw_normal())), SAME),
    "augmented training data": (Augmented(), label_inputs(torch.cat([draw_normal(1, seed=one) for one in range(96)]))),
    "inputs of a few bits": (label_inputs(BITS[:96]), label_inputs(BITS[96:])),
    "a few shared samples": (
        label_inputs(draw_normal()),
        label_inputs(torch.cat([draw_normal()[:12], draw_normal(48, seed=2)])),
    ),
    "empty images": (label_inputs(draw_normal() * 0), label_inputs(draw_normal(48) * 0)),
    "shuffled labels": (
        DataLoader(TensorDataset(draw_normal(), SORTED), 16, shuffle=True),
        label_inputs(draw_normal(48, seed=2)),
    ),
    "a stream": (Stream(), label_inputs(draw_normal(48, seed=2))),
    "evaluation data in order": (label_inputs(draw_normal()), TensorDataset(draw_normal(96, seed=2), SORTED)),
    "labels that never repeat": (TensorDataset(draw_normal(), torch.arange(96)), label_inputs(draw_normal(48, seed=2))),
    "one class": (TensorDataset(draw_normal(), 0 * SORTED), label_inputs(draw_normal(48, seed=2))),
    "batches of one": (DataLoader(label_inputs(draw_normal()), batch_size=1), label_inputs(draw_normal(48, seed=2))),
    "labels for each token": (
        TensorDataset(draw_normal(), SORTED[:, None].repeat(1, 4)),
        label_inputs(draw_normal(48, seed=2)),
    ),
}


@pytest.mark.parametrize("kind", CLEAN)
def test_clean_splits_and_mixed_labels_are_no_finding(start_watch: Any, tmp_path: Path, kind: str) -> None:
    assert judge_codes(run_training(start_watch, *CLEAN[kind]), tmp_path) == []


@pytest.mark.parametrize(
    "labels", [SORTED, SORTED.flip(0), SORTED // 2, torch.tensor([2, 0, 3, 0, 1, 2]).repeat_interleave(16)]
)
def test_training_in_the_order_of_labels_is_named(start_watch: Any, tmp_path: Path, labels: Tensor) -> None:
    watched = run_training(start_watch, TensorDataset(draw_normal(), labels), label_inputs(draw_normal(48, seed=2)))
    (finding,) = judge_watch(watched, tmp_path)
    assert finding.code == "TD-D013" and finding.severity == "warning"
    assert finding.title.startswith("training takes the samples in the order of their labels")


def on_the_device(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0].double())


def test_inputs_on_an_accelerator_are_read_late(
    start_watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is float64 counts as if it were on an accelerator."""
    monkeypatch.setattr(tensors, "on_host", lambda tensor: tensor.dtype != torch.float64)
    check = label_inputs(draw_normal(48, scale=50.0, seed=2))
    watched = run_training(start_watch, label_inputs(draw_normal()), check, call=on_the_device)
    assert judge_codes(watched, tmp_path) == ["TD-D010"]
    uses = [event.values["use"] for event in list_observations(watched, "data-splits", "RANGES")]
    assert uses.count("evaluation") <= 3, "one line a pass, however many batches"


def test_neither_numbers_nor_random_states_of_the_program_change(start_watch: Any) -> None:
    states = []
    for allowance_s in (0.0, 1.0):
        random.seed(0)
        numpy.random.seed(0)
        run_training(
            start_watch,
            DataLoader(label_inputs(draw_normal()), shuffle=True),
            label_inputs(draw_normal(48)),
            allowance_s=allowance_s,
        )
        states.append((torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()))  # type: ignore[index, union-attr]
    assert states[0] == states[1]


def test_no_tensor_of_the_program_is_kept(start_watch: Any) -> None:
    data = draw_normal()
    watched = run_training(start_watch, label_inputs(data), label_inputs(draw_normal(48, seed=2)))
    probe = watched.monitor.find_probe("data-splits")
    assert probe is not None
    held = [found for found in gc.get_referents(*vars(probe).values()) if isinstance(found, Tensor)]
    assert held == []


@pytest.mark.parametrize("rebuilds", [True, False])
def test_folds_of_a_cross_validation_are_told_apart_by_the_model(
    start_watch: Any, tmp_path: Path, rebuilds: bool
) -> None:
    """What one fold trains on another evaluates: that is no leak unless the model goes from fold to fold."""
    watched = start_watch(max_overhead=None)
    watched.monitor.inspection.begin_inspection(5.0)
    torch.manual_seed(0)
    data, folds = label_inputs(draw_normal(96)), torch.randperm(96).chunk(3)
    model = optimizer = None
    for fold in range(3):
        if rebuilds or model is None:
            model = nn.Linear(FEATURES, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        train = torch.cat([part for number, part in enumerate(folds) if number != fold])
        for batch in DataLoader(Subset(data, train.tolist()), batch_size=16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for batch in DataLoader(Subset(data, folds[fold].tolist()), batch_size=16):
                model(batch[0])
        model.train()
    watched.monitor.finish_run()
    codes = [one.code for one in judge_watch(watched, tmp_path)]
    assert ("TD-D011" in codes) == (not rebuilds), codes
