"""Planted faults, at the default level and with no option: the verdict names step, rank, module, phase, kind."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tdbg.core.events import NonFinite
from tests.e2e.conftest import Result, Runner, nothing_found, program, same_output, torchrun

MODELS = ("gpt", "conv", "rnn")
PRINTED_LINES = 20


class Truth(NamedTuple):
    """What a right answer says."""

    phase: str
    kind: str
    place: dict[str, str]  # per model: the module, or for a gradient the parameter


TRUTHS = {
    "forward-inf": Truth("forward", "inf", {"gpt": "blocks.3.fc", "conv": "stages.1.conv", "rnn": "mix"}),
    "backward-nan": Truth("backward", "nan", {"gpt": "blocks.2.act", "conv": "stages.2.act", "rnn": "squash"}),
    "inf-grad": Truth(
        "gradient",
        "inf",
        {"gpt": "blocks.4.proj.weight", "conv": "stages.0.norm.weight", "rnn": "gru.weight_hh_l0"},
    ),
}


def first_bad(result: Result, step: int = 3, rank: int = 0) -> tuple[dict[str, Any], NonFinite]:
    """The finding and the event behind it; both name step and rank, and it is told in few lines."""
    finding = result.finding("TD-N001")
    assert (finding["first_step"], finding["rank"]) == (step, rank), finding
    assert f"step {step}" in finding["title"] and f"rank {rank}" in finding["title"]
    assert len(result.said) <= PRINTED_LINES, result.stderr
    assert sum("TD-N001" in line and f"step {step}" in line for line in result.said) >= 1, "it is told as it happens"
    events: list[NonFinite] = [event for event in result.events(NonFinite, rank) if event.step == step]
    return finding, events[0]


def assert_truth(result: Result, fault: str, model: str, *, step: int = 3, rank: int = 0) -> NonFinite:
    truth = TRUTHS[fault]
    finding, event = first_bad(result, step, rank)
    place = truth.place[model]
    named = event.parameter if truth.phase == "gradient" else event.module
    assert (finding["phase"], named, event.kind) == (truth.phase, place, truth.kind), (finding, event)
    assert place in finding["title"]
    assert truth.kind in finding["title"].lower()
    assert event.weights == "intact"
    if truth.phase != "gradient":
        assert "faults.py:" in event.line and event.code and event.operation, event
        assert f"made by {event.operation} at {event.line}" in " ".join(finding["evidence"])
    return event


def saved_batch(result: Result, event: NonFinite) -> dict[str, Any]:
    """The tensors of the batch that was kept."""
    from safetensors.torch import load_file

    path = next(result.folder.glob(f"**/{Path(event.batch).name}"))
    assert json.loads(path.with_suffix(".json").read_text()), "its description lies beside it"
    return load_file(path)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", TRUTHS)
def test_one_process(watched: Runner, bare: Runner, fault: str, model: str) -> None:
    words = program("faults", model, fault)
    result = watched(words)
    same_output(result, bare(words))
    event = assert_truth(result, fault, model)
    assert event.last_good["step"] == 2
    assert saved_batch(result, event)


@pytest.mark.parametrize("model", MODELS)
def test_a_nan_in_the_batch_is_the_inputs_fault(watched: Runner, bare: Runner, model: str) -> None:
    words = program("faults", model, "bad-batch")
    result = watched(words)
    same_output(result, bare(words))
    finding, event = first_bad(result)
    assert finding["phase"] == "input"
    assert event.kind == "nan" and event.count == 1
    batch = saved_batch(result, event)
    assert sum(int(tensor.isnan().sum()) for tensor in batch.values() if tensor.is_floating_point()) >= 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", TRUTHS)
def test_late_in_a_run_when_the_budget_rules(watched: Runner, fault: str, model: str) -> None:
    """Step 60: long after the first steps, at which everything is looked at whatever it costs."""
    result = watched(program("faults", model, fault, "--at", "60"))
    event = assert_truth(result, fault, model, step=60)
    assert saved_batch(result, event)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["none", "harmless"])
def test_no_alarm(watched: Runner, bare: Runner, fault: str, model: str) -> None:
    words = program("faults", model, fault)
    result = watched(words)
    same_output(result, bare(words))
    nothing_found(result)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["forward-inf", "backward-nan", "inf-grad"])
def test_the_program_goes_on_as_if_nobody_had_looked(watched: Runner, bare: Runner, fault: str, model: str) -> None:
    """The program skips the bad update; what follows shows that batch, RNG, buffers and gradients were put back."""
    words = program("faults", model, fault, "--guard")
    result = watched(words)
    expected = bare(words)
    same_output(result, expected)
    assert expected.printed("step")[-1]["loss"] > 0, "the program recovered"
    assert result.finding("TD-N001")["first_step"] == 3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["forward-inf", "backward-nan"])
def test_two_ranks_and_only_rank_1_is_ill(watched: Runner, bare: Runner, fault: str, model: str) -> None:
    words = torchrun("faults", model, fault, "--rank", "1")
    result = watched(words)
    same_output(result, bare(words))
    assert_truth(result, fault, model, rank=1)


def test_two_ranks_and_a_bad_batch_on_rank_1(watched: Runner) -> None:
    result = watched(torchrun("faults", "conv", "bad-batch", "--rank", "1"))
    finding, _ = first_bad(result, rank=1)
    assert finding["phase"] == "input"


def test_no_alarm_on_two_ranks(watched: Runner) -> None:
    nothing_found(watched(torchrun("faults", "gpt", "harmless", "--rank", "1")))


@pytest.mark.parametrize("fault", ["forward-inf", "inf-grad"])
def test_stop_on_ends_a_run_that_would_go_on(watched: Runner, fault: str) -> None:
    result = watched(program("faults", "gpt", fault, "--guard"), ["--fail-on", "critical"])
    assert result.code == 1
    assert result.printed("done"), "--fail-on changes the exit code alone"


def test_no_batch_is_kept_where_none_was_at_hand(watched: Runner, tmp_path: Path) -> None:
    """A loss of parameters alone: no module was called, and no loader gave a batch."""
    lines = (
        "import torch",
        "weight = torch.nn.Parameter(torch.ones(4))",
        "optimizer = torch.optim.SGD([weight], lr=0.1)",
        "for step in range(1, 9):",
        "    optimizer.zero_grad()",
        "    (weight * (float('nan') if step == 3 else 1.0)).sum().backward()",
        "    optimizer.step()",
    )
    script = tmp_path / "no_module.py"
    script.write_text("\n".join(lines))
    result = watched([sys.executable, str(script)])
    finding, event = first_bad(result)
    assert not event.batch and not list(result.folder.glob("rank0000/batch_*"))
    assert "batch" not in finding["try_next"] and "batch kept" not in " ".join(finding["evidence"])
