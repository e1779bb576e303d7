"""TD-C010..16, TD-P003, TD-S009: what the observations of checkpoints, evaluation, stoppers and loops mean."""

from typing import Any

import pytest

from tdbg.core.events import Observation


def make_observation(probe: str, part: str, step: int = 20, **values: Any) -> Observation:
    return Observation(probe=probe, part=part, step=step, text="as seen", values=values)


def make_fault(kind: str, **values: Any) -> Observation:
    return make_observation("training-loop", "FAULT", kind=kind, streak=3, since=2, optimizer="SGD", **values)


def make_evaluation(faults: list[str], **values: Any) -> Observation:
    found = {"number": 1, "calls": 40, "seen": 12, "root": "Net", "mode": "train", "gradients": "off"}
    found |= {"graphs": 12, "dropouts": 2, "norms": 1, "faults": faults}
    return make_observation("validation", "PASS", **{**found, **values})


def make_load(**values: Any) -> Observation:
    keys = {"keys": 120, "given": 120, "placed": 0, "missing": ["a.w"], "missing_count": 120}
    keys |= {"unexpected": ["module.a.w"], "unexpected_count": 120, "prefix": "module.", "lacks": "", "prefixed": 120}
    return make_observation("checkpoint", "PARTIAL", **{"module": "Net", **keys, **values})


def make_check(kind: str, **values: Any) -> Observation:
    found = {"stopper": "EarlyStopping", "metric": "val_loss", "first": 0.9, "value": 0.4, "better": "min"}
    return make_observation("early-stopping", "CHECK", **{**found, "stop": True, "since": 15, "fault": kind, **values})


FAULTS: dict[str, tuple[Observation, str, str, str]] = {
    "nothing loaded": (make_load(), "TD-C010", "error", "Net: 0 of 120 keys loaded"),
    "partly loaded": (make_load(placed=60, prefixed=60), "TD-C010", "warning", "60 of 120 given keys carry the prefix"),
    "other optimizer": (
        make_observation("checkpoint", "RESUME", fault="optimizer", path="a.pt"),
        "TD-C011",
        "warning",
        "resumed from a.pt, but another optimizer makes the updates",
    ),
    "no scheduler": (
        make_observation("checkpoint", "RESUME", fault="scheduler", path=""),
        "TD-C011",
        "warning",
        "resumed from memory without its scheduler",
    ),
    "counter": (
        make_observation("checkpoint", "COUNTER", fault="counter", name="epoch", recorded=9, saved=1, path="b.pt"),
        "TD-C011",
        "warning",
        "resumed at epoch 9, and the next save says 1",
    ),
    "train mode": (
        make_evaluation(["train_mode"]),
        "TD-C012",
        "error",
        "2 dropout layers and 1 batch norm layer active",
    ),
    "dropout alone": (make_evaluation(["train_mode"], norms=0), "TD-C012", "warning", "Net, 2 dropout layers active"),
    "graphs": (make_evaluation(["graphs"], host_grown_mb=30.0), "TD-P003", "warning", "pass 1 after step 20, 40 calls"),
    "unreset": (make_fault("unreset"), "TD-C013", "error", "SGD never resets its gradients"),
    "emptied": (make_fault("emptied"), "TD-C014", "error", "gradients are cleared before SGD can use them"),
    "thrown": (make_fault("thrown", thrown=3, window=4), "TD-C014", "warning", "3 of 4 backward calls of each update"),
    "tail": (
        make_fault("tail", dropped=2, backwards=10),
        "TD-C014",
        "info",
        "the last 2 backward calls of 10 in an epoch",
    ),
    "late clip": (make_fault("late_clip"), "TD-C015", "warning", "gradients are clipped after SGD has used them"),
    "twice": (make_fault("twice"), "TD-C015", "warning", "the same loss goes backward twice for each update of SGD"),
    "not saved": (
        make_observation(
            "checkpoint", "FAILED", path="a.pt", error="OSError: full", call="torch.save", took_s=0.1, size_mb=3.0
        ),
        "TD-C016",
        "error",
        "saving a.pt failed at step 20: OSError: full",
    ),
    "ignores": (make_check("ignores"), "TD-S009", "warning", "counts an improving val_loss as no improvement"),
    "follows": (make_check("follows", value=1.4), "TD-S009", "warning", "takes a worse val_loss for a better one"),
    "nan": (
        make_check("nan", metric="", better=""),
        "TD-S009",
        "warning",
        "does not count its metric = NaN and goes on",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_told_once_with_its_step_and_rank(one_rank: Any, name: str) -> None:
    event, code, severity, words = FAULTS[name]
    run, rank = one_rank
    run.emit_events(rank, event, event)
    (finding,) = run.judge_stream().findings
    assert (finding.code, finding.severity) == (code, severity)
    assert words in finding.title and finding.title.endswith(", rank 0")
    assert finding.first_step == event.values.get("since", 20)
    assert finding.evidence and finding.cause and finding.try_next


@pytest.mark.parametrize("name", FAULTS)
def test_a_second_rank_is_added_to_the_evidence_in_any_order(make_stream: Any, name: str) -> None:
    event, code, _, _ = FAULTS[name]
    run = make_stream()
    ranks = [run.begin_rank(rank, world=2) for rank in (0, 1)]
    for rank in reversed(ranks):
        run.emit_events(rank, event)
    (finding,) = [finding for finding in run.judge_stream().findings if finding.code == code]
    assert finding.rank == 0
    assert any(line.startswith("also on rank 1 at step") for line in finding.evidence)


def test_kinds_of_one_code_are_told_apart(one_rank: Any) -> None:
    run, rank = one_rank
    run.emit_events(rank, make_fault("emptied"), make_fault("thrown", thrown=1, window=2), make_fault("twice"))
    assert sorted(run.judge_codes()) == ["TD-C014", "TD-C014", "TD-C015"]


HEALTHY = {
    "a pass": make_evaluation([]),
    "a state that fitted": make_observation("checkpoint", "STATE", module="Net", missing_count=2, prefixed=4),
    "a run that goes on": make_observation("checkpoint", "RESUME", fault="", path="a.pt"),
    "a save into memory": make_observation("checkpoint", "FAILED", path="", error="x", call="torch.save", took_s=0.1),
    "a load that failed": make_observation(
        "checkpoint", "LOAD_FAILED", path="a.pt", error="x", call="torch.load", took_s=0.1
    ),
    "saves that stopped": make_observation("checkpoint", "MISSED", every_steps=3, last_step=9),
    "a check": make_observation("early-stopping", "CHECK", stop=True, metric="loss", better="min"),
    "a step": make_observation("training-loop", "STEP", order="zero_grad, forward, backward, step"),
    "an epoch": make_observation("training-loop", "EPOCH", dropped=2, carried=0, updates=10),
    "a kind of the future": make_fault("another"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_no_fault(one_rank: Any, name: str) -> None:
    run, rank = one_rank
    run.emit_events(rank, HEALTHY[name])
    assert run.judge_codes() == []
