"""States of several ranks as one. Real ranks are in test_known_answers; here the rules, and what goes wrong."""

import os
import subprocess
import sys

import pytest

from tdbg.core.errors import TdbgError
from tdbg.metrics.ranks import find_differing, merge_states
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
from tdbg.metrics.tracker.state_fields import StateError
from tests.e2e.conftest import warm_command


def make_rank_state(*values, phase="val", **settings):
    tracker = MetricsTracker(**settings)
    for epoch, (value, count) in enumerate(values):
        tracker.update_val_metrics({"loss": value}, count, phase=phase)
        tracker.finalize_val_phase(phase, epoch, 10 * epoch)
    return tracker.state_dict()


def merge_trackers(*states):
    tracker = MetricsTracker()
    tracker.load_state_dict(merge_states(states))
    return tracker


def test_sums_are_added_before_they_are_divided():
    found = merge_trackers(make_rank_state((1.0, 3), (4.0, 1)), make_rank_state((5.0, 1), (2.0, 3)))
    metric = found.metric("val/loss")
    assert [point.value for point in metric.history] == [2.0, 2.5]
    assert (metric.value, metric.count, metric.best, metric.best_epoch) == (2.5, 4, 2.0, 0)
    assert [one.epoch for one in found.best_epochs.epochs] == [0, 1]


def test_one_state_merged_is_itself_and_merging_goes_on():
    states = [make_rank_state((float(at), at + 1)) for at in range(3)]
    together = merge_states(states)
    pairwise = merge_states([merge_states(states[:2]), states[2]])
    assert together["phases"] == pairwise["phases"]
    assert merge_trackers(states[1]).metric("val/loss").value == 1.0


def test_ranks_that_did_not_get_there_count_as_far_as_they_came():
    found = merge_trackers(
        make_rank_state((1.0, 1), (3.0, 1)), make_rank_state((3.0, 1)), MetricsTracker().state_dict()
    )
    assert [point.value for point in found.metric("val/loss").history] == [2.0, 3.0]
    assert found.phase("val").finished == 2


def test_phases_that_only_some_ranks_have():
    found = merge_trackers(make_rank_state((1.0, 1)), make_rank_state((2.0, 1), phase="val_mask_meta"))
    assert found.metric("val/loss").value == 1.0 and found.metric("val_mask_meta/loss").value == 2.0


def test_values_and_direction_said_by_the_program_are_kept():
    states = [
        make_rank_state((value, 1), (value - 1, 1), directions={"loss": True}, best="val/loss") for value in (1.0, 3.0)
    ]
    metric = merge_trackers(*states).metric("val/loss")
    assert metric.higher_is_better is True and (metric.best, metric.best_epoch) == (2.0, 0)


def test_ranks_that_differ_are_named():
    """Seen: metrics updated on rank 0 only, so that the others held initial values."""
    states = {0: make_rank_state((1.0, 1)), 1: make_rank_state((1.0, 1)), 2: MetricsTracker().state_dict()}
    assert find_differing(states) == [{"key": "val/loss", "values": {0: 1.0, 1: 1.0, 2: None}}]
    assert find_differing({0: states[0], 1: states[1]}) == []


def test_unsound_states_and_none_at_all():
    with pytest.raises(TdbgError, match="no state"):
        merge_states([])
    for wrong in ({}, None, {**make_rank_state((1.0, 1)), "best_epochs": {"criterion": "a b"}}):
        with pytest.raises(StateError):
            merge_states([make_rank_state((1.0, 1)), wrong])


def test_a_pass_is_reduced_once_and_takes_no_more():
    """Without a process group the sums of all ranks are one's own."""
    tracker = MetricsTracker()
    tracker.update_val_metrics({"loss": 1.0}, 2)
    tracker.reduce_phase("val")
    for again in (lambda: tracker.reduce_phase("val"), lambda: tracker.update_val_metrics({"loss": 1.0}, 1)):
        with pytest.raises(TdbgError, match="already reduced over all ranks"):
            again()
    assert {str(key): value for key, value in tracker.finalize_val_phase(reduce=True).items()} == {"val/loss": 1.0}
    assert tracker.phase("val").of_all_ranks
    tracker.update_val_metrics({"loss": 3.0}, 1)
    tracker.finalize_val_phase()
    assert not tracker.phase("val").of_all_ranks


def test_what_is_not_finite_is_counted_once_by_a_reduction():
    tracker = MetricsTracker()
    tracker.update_val_metrics({"loss": float("nan")}, 2)
    tracker.update_val_metrics({"loss": 1.0}, 1)
    tracker.finalize_val_phase("val", 0, 1, reduce=True)
    assert tracker.metric("val/loss").nan == 2
    again = merge_trackers(tracker.state_dict(), tracker.state_dict()).metric("val/loss")
    assert (again.nan, again.count) == (2, 1)


def test_a_reduced_phase_is_taken_once_offline():
    def reduced():
        tracker = MetricsTracker()
        tracker.update_val_metrics({"loss": 1.0}, 2)
        tracker.finalize_val_phase("val", 0, 1, reduce=True)
        return tracker.state_dict()

    assert merge_trackers(reduced(), reduced()).metric("val/loss").count == 2


def test_sums_in_two_units_are_never_added():
    with pytest.raises(TdbgError, match="frac and pct"):
        merge_states([make_rank_state((1.0, 1), units={"loss": unit}) for unit in ("pct", "frac")])
    assert (
        merge_trackers(make_rank_state((1.0, 1), units={"loss": "pct"}), make_rank_state((1.0, 1)))
        .metric("val/loss")
        .unit
        == "pct"
    )


RANKS = """
import os
import torch.distributed as dist
from tdbg.core.errors import TdbgError
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
dist.init_process_group("gloo")
rank = dist.get_rank()
tracker = MetricsTracker()
halves = [dist.new_group([0, 1]), dist.new_group([2])]
group = halves[rank // 2]
name = "val" if rank != 1 else "val_mask_meta"
tracker.update_val_metrics({"loss": float(rank)}, rank + 1, phase=name)
try:
    tracker.reduce_phase(name, group)
    said = "reduced"
except TdbgError as error:
    said = str(error)
partial = tracker.phase(name).get_or_create_metric("loss").partial
os.write(1, f"{rank}: {said}, {partial.compute_mean()} of {partial.count}\\n".encode())
tracker.start_val_phase("val")
tracker.update_val_metrics({"loss": 0.1 * rank} if rank else {"psnr": 1.0}, 1)
values = tracker.finalize_val_phase("val", reduce=True)
shown = " ".join(f"{key}={value!r}" for key, value in sorted(values.items()))
os.write(1, f"{rank}: {shown}\\n".encode())
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo's threads abort a process now and then that shuts Python down: see leave_group of e2e/programs/common.py
"""


def test_real_ranks_in_groups_with_different_metrics_and_by_mistake_different_phases(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    line = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", str(tmp_path / "ranks.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(warm_command([sys.executable, *line]), env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = sorted(done.stdout.splitlines())
    mistake = "ranks reduce different phases: val, val_mask_meta"
    mean = float((0.1 + 0.2) / 2)
    values = f"val/loss={mean!r} val/psnr=1.0"
    assert lines == sorted(
        [f"0: {mistake}, 0.0 of 1", f"1: {mistake}, 1.0 of 2", "2: reduced, 2.0 of 3"]
        + [f"{at}: {values}" for at in range(3)]
    )


MANY = """
import math, os, random, sys
import torch.distributed as dist
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for seed in range(60):
    dice = random.Random(seed)
    mine, whole = MetricsTracker(), MetricsTracker()
    for epoch in range(2):
        for _ in range(dice.randrange(8)):
            value = dice.choice([dice.gauss(0, 1), dice.gauss(0, 1e12), 1e-300, math.nan, math.inf, dice.random()])
            batch = {"values": {"loss": value}, "samples": dice.randrange(40), "epoch": epoch}
            if dice.random() < 0.5:
                batch |= {"subsets": {"eu": {"acc1": dice.random()}}, "subset_samples": {"eu": dice.randint(0, batch["samples"])}}
            owner = dice.randrange(world)
            whole.update_val_metrics(**batch)
            if rank == owner:
                mine.update_val_metrics(**batch)
        found = [one.finalize_val_phase("val", epoch, seed, reduce=one is mine) for one in (mine, whole)]
        assert found[0] == found[1], (seed, found)
    for key, metric in whole.phase("val") if whole.phases["val"].metrics else ():
        own = mine.metric(key)
        for name in ("value", "best", "best_epoch", "count", "nan", "inf", "finished"):
            assert getattr(own, name) == getattr(metric, name), (seed, key, name)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # as above
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_split_over_real_ranks_gives_the_same_values_as_one(tmp_path, ranks):
    (tmp_path / "many.py").write_text(MANY)
    line = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(tmp_path / "many.py")]
    done = subprocess.run(
        warm_command([sys.executable, *line]),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
