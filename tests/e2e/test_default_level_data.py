"""Silent bugs in data and ranks, each planted in a small training: the default level names them, and no healthy twin."""

import pytest

from tests.chance import pick_share
from tests.e2e.conftest import (
    Runner,
    assert_named_first,
    assert_notes_alone,
    build_program_command,
    build_torchrun_command,
)

TWINS = 3  # every third: `python -m tests.e2e.levels` plays them all
NAMED = {  # kind -> code, and a part of the first line
    "scaled": ("TD-D010", "input 0 is scaled differently in evaluation"),
    "scaled-early": ("TD-D010", "input 0 is scaled differently in evaluation"),
    "scaled-short": ("TD-D010", "input 0 is scaled differently in evaluation"),
    "bytes": ("TD-D014", "input 0 is not scaled: values from 0"),
    "training-data": ("TD-D011", "indices of Subset of TensorDataset (80) looked at are also in the training data"),
    "training-file": ("TD-D011", "samples of TensorDataset looked at are also in the training data"),
    "resumed": ("TD-C028", "without the optimizer: AdamW begins without its state (the next save says epoch 8)"),
    "same-noise": ("TD-D012", "workers 0, 1 of Noisy draw the same random numbers from dataset.rng"),
    "same-seed": ("TD-D012", "workers 0, 1 of Noisy draw the same random numbers from numpy.random"),
    "sorted": ("TD-D013", "in the order of their labels"),
    "grouped": ("TD-D013", "2 classes, one class in each batch"),
    "dropped": ("TD-D015", "batches have fewer rows than samples fetched"),
    "folded": ("TD-D015", "batches have fewer rows than samples fetched: 32 for 128 in 4 of 4 batches"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_the_default_level_names_what_is_wrong(watched_runner: Runner, kind: str) -> None:
    assert_named_first(watched_runner(build_program_command("planted_data", kind, "fault")), *NAMED[kind])


@pytest.mark.parametrize("kind", pick_share(NAMED, TWINS))
def test_the_default_level_is_silent_about_the_healthy_twin(watched_runner: Runner, kind: str) -> None:
    assert_notes_alone(watched_runner(build_program_command("planted_data", kind, "healthy")))


def test_spawned_workers_that_draw_the_same_are_named_too(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("planted_data", "same-noise-spawned", "fault"))
    assert_named_first(result, "TD-D012", "workers 0, 1 of Noisy draw the same random numbers from dataset.rng")


def test_spawned_workers_that_draw_apart_are_no_finding(watched_runner: Runner) -> None:
    assert_notes_alone(watched_runner(build_program_command("planted_data", "same-noise-spawned", "healthy")))


RANKS = {  # kind -> code, and a part of the first line
    "clip": ("TD-R008", "differ between rank 0 and rank 1 since step 12, equal until step 8"),
    "past-wrapper": ("TD-R008", "differ between rank 0 and rank 1 since step 12, equal until step 8"),
    "replaced": ("TD-R008", "3.weight, 3.bias differ between rank 0 and rank 1 from the first look on"),
    "late-init": ("TD-R008", "3.weight differs between rank 0 and rank 1 from the first look on"),
    "by-hand": ("TD-R008", "differ between rank 0 and rank 1 since step 16, equal until step 12"),
    "other-seed": ("TD-R008", "differ between rank 0 and rank 1 from the first look on, after step 1"),
    "hybrid-init": ("TD-R008", "differ between rank 0 and rank 1 from the first look on"),
    "hybrid-clip": ("TD-R008", "differ between rank 0 and rank 1 since step 12, equal until step 8"),
    "split-norms": ("TD-R008", "norm.bias differs between rank 0 and rank 1 since step 2, equal until step 1"),
    "same-data": ("TD-R009", "ranks 0-1 train on the same data: 3 of 3 batches"),
    "sharded-data": ("TD-R009", "ranks 0-1 train on the same data: 3 of 3 batches"),
    "flat-data": ("TD-R009", "ranks 0-1 train on the same data: 3 of 3 batches"),
    "same-draws": ("TD-R011", "ranks 0-1 draw the same random numbers from torch for their samples of NoisySamples"),
}
MAY_DIFFER = ("ignored", "local-sgd", "zero", "actors", "two-models", "one-batch", "split-model")


@pytest.mark.parametrize("kind", RANKS)
def test_the_default_level_names_ranks_that_differ_or_do_the_same(watched_runner: Runner, kind: str) -> None:
    assert_named_first(watched_runner(build_torchrun_command("planted_ranks", kind, "fault")), *RANKS[kind])


@pytest.mark.parametrize("kind", [*pick_share(RANKS, TWINS), *MAY_DIFFER])
def test_ranks_that_agree_or_may_differ_are_no_finding(watched_runner: Runner, kind: str) -> None:
    result = watched_runner(build_torchrun_command("planted_ranks", kind, "healthy"))
    assert result.code == 0, result.stderr
    assert result.verdict["findings"] == [], result.stderr


def build_hybrid_command(kind: str, how: str) -> list[str]:
    """Four ranks: two replicas of two shards."""
    return build_torchrun_command("planted_ranks", kind, how, options=("--standalone", "--nproc-per-node=4"))


def test_replicas_of_shards_are_compared_in_the_groups_of_their_mesh(watched_runner: Runner) -> None:
    result = watched_runner(build_hybrid_command("hybrid-init", "fault"))
    assert_named_first(result, "TD-R008", "differ between rank 0 and rank 2 from the first look on")
    assert [one["code"] for one in result.verdict["findings"]] == ["TD-R008"], "once for both groups"


def test_shards_that_differ_on_purpose_are_no_finding(watched_runner: Runner) -> None:
    result = watched_runner(build_hybrid_command("hybrid-init", "healthy"))
    assert result.code == 0 and result.verdict["findings"] == [], result.stderr
