"""What the tracker says of real predictions equals torchmetrics and scikit-learn, with 1 and 2 ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, top_k_accuracy_score
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from tdbg.metrics.ranks import merge_states
from tests.e2e.conftest import warm_command

from .answering import CLASSES, NULL, feed_tracker, make_batches, make_tracker

RANK = """
import json, os, sys
import torch.distributed as dist
from metrics.answering import feed_tracker, make_batches, make_tracker
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
reduce, idle = "reduce" in sys.argv, "idle" in sys.argv
tracker = make_tracker()
mine = make_batches()[rank::world] if rank or not idle else []
feed_tracker(tracker, mine)
values = tracker.finalize_val_phase("val", 3, 77, reduce=reduce, duration_sec=2.0 + rank)
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    json.dump({"values": {str(key): value for key, value in values.items()}, "state": tracker.state_dict()}, file)
dist.barrier()  # a rank that leaves first takes the other's connection along
dist.destroy_process_group()
os._exit(0)  # gloo's threads abort a process now and then that shuts Python down: see leave_group of e2e/programs/common.py
"""


@pytest.fixture(scope="module")
def answer_batches():
    return make_batches()


@pytest.fixture(scope="module")
def tracked_values(answer_batches):
    tracker = make_tracker()
    feed_tracker(tracker, answer_batches)
    return {str(key): value for key, value in tracker.finalize_val_phase("val", 3, 77).items()}


@pytest.fixture(scope="module")
def all_samples(answer_batches):
    """All samples at once, as the references take them."""
    scores = {task: torch.cat([one.scores[task] for one in answer_batches]) for task in CLASSES}
    targets = {task: torch.cat([one.targets[task] for one in answer_batches]) for task in CLASSES}
    return scores, targets


def test_the_data_is_worth_it(answer_batches, tracked_values):
    assert len(answer_batches[-1].losses) not in (0, len(answer_batches[0].losses))
    assert 0.2 < tracked_values["val/acc1_species"] < 0.99
    assert any((batch.targets["species"] == NULL).any() for batch in answer_batches)


@pytest.mark.parametrize(("task", "k"), [(task, k) for task in CLASSES for k in (1, 3) if k < CLASSES[task]])
def test_accuracies_are_those_of_torchmetrics(tracked_values, answer_batches, task, k):
    metric = MulticlassAccuracy(CLASSES[task], top_k=k, average="micro", ignore_index=NULL)
    for batch in answer_batches:
        metric.update(batch.scores[task], batch.targets[task])
    assert tracked_values[f"val/acc{k}_{task}"] == pytest.approx(metric.compute().item(), abs=1e-7)


@pytest.mark.parametrize("task", CLASSES)
def test_accuracies_are_those_of_scikit_learn(tracked_values, all_samples, task):
    scores, targets = all_samples
    known = targets[task] != NULL
    true, said = targets[task][known].numpy(), scores[task][known]
    assert tracked_values[f"val/acc1_{task}"] == accuracy_score(true, said.argmax(1).numpy())
    if CLASSES[task] > 3:
        top = top_k_accuracy_score(true, said.numpy(), k=3, labels=np.arange(CLASSES[task]))
        assert tracked_values[f"val/acc3_{task}"] == pytest.approx(top, abs=1e-15)


def test_the_loss_is_the_weighted_mean_of_torchmetrics(tracked_values, answer_batches):
    metric = MeanMetric().set_dtype(torch.float64)
    for batch in answer_batches:
        metric.update(batch.losses.mean(dtype=torch.float64), weight=len(batch.losses))
    assert tracked_values["val/loss"] == pytest.approx(metric.compute().item(), rel=1e-12)
    naive = float(torch.stack([batch.losses.mean() for batch in answer_batches]).mean())
    assert tracked_values["val/loss"] != pytest.approx(naive, rel=1e-6)


def test_chains_are_those_of_scikit_learn_on_the_samples_they_count(tracked_values, all_samples):
    """Subset accuracy of a multilabel problem is the chain; null ranks are answered right on purpose for the partial."""
    scores, targets = all_samples
    true = np.stack([targets[task].numpy() for task in CLASSES], 1)
    said = np.stack([scores[task].argmax(1).numpy() for task in CLASSES], 1)
    null = true == NULL
    assert tracked_values["val/chain_accuracy"] == (true == said).all(1).mean()
    ones = np.ones_like(true)
    wrong = ((true != said) & ~null).astype(int)
    some = ~null.all(1)
    assert 0 < some.sum() < len(some)
    assert tracked_values["val/partial_chain_accuracy"] == accuracy_score(ones[some], ones[some] - wrong[some])


def test_subsets_are_those_of_scikit_learn(tracked_values, all_samples, answer_batches):
    scores, targets = all_samples
    regions = np.array([region for batch in answer_batches for region in batch.regions])
    said = scores["family"].argmax(1).numpy()
    for region in ("europe", "asia", "africa"):
        own = regions == region
        assert tracked_values[f"val/{region}/accuracy"] == accuracy_score(targets["family"].numpy()[own], said[own])
    assert set(answer_batches[-1].regions) == {"europe"}, "the others keep what earlier batches said"


def run_ranks(folder: Path, ranks: int, *how: str) -> list[dict]:
    script = folder / "rank.py"
    script.write_text(RANK)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    line = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script), str(folder), *how]
    done = subprocess.run(warm_command([sys.executable, *line]), env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def drop_times(values):
    return {key: value for key, value in values.items() if "_sec" not in key}


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_reduce_hold_the_same_as_one_process(tmp_path, tracked_values, ranks):
    found = run_ranks(tmp_path, ranks, "reduce")
    for rank in found:
        assert drop_times(rank["values"]) == tracked_values
        assert rank["values"] == found[0]["values"], "every rank holds the reduced value"
    assert found[0]["values"]["val/epoch_duration_sec"] == (2.0 if ranks == 1 else 2.5)
    assert found[0]["values"]["val/avg_samples_per_sec"] == 203 / (2.0 if ranks == 1 else 2.5)


def test_ranks_that_do_not_reduce_are_merged_offline(tmp_path, tracked_values):
    found = run_ranks(tmp_path, 2, "alone")
    assert drop_times(found[0]["values"]) != tracked_values, "each has its own half"
    merged = make_tracker()
    merged.load_state_dict(merge_states([rank["state"] for rank in found]))
    assert {key: merged.metric(key).value for key in tracked_values} == tracked_values
    assert all(merged.metric(key).best == tracked_values[key] for key in ("val/loss", "val/chain_accuracy"))


def test_a_rank_without_a_batch_holds_the_same_too(tmp_path, answer_batches):
    first, second = run_ranks(tmp_path, 2, "reduce", "idle")
    assert first["values"] == second["values"]
    tracker = make_tracker()
    feed_tracker(tracker, answer_batches[1::2])
    alone = {str(key): value for key, value in tracker.finalize_val_phase("val").items()}
    assert drop_times(first["values"]) == alone
