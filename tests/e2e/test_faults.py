"""Planted faults, at the default level and with no option: the verdict names step, rank, module, phase, kind."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tdbg.core.events import NonFinite
from tests.e2e.conftest import (
    Result,
    Runner,
    assert_no_finding,
    assert_same_output,
    build_program_command,
    build_torchrun_command,
)

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


def find_first_bad(result: Result, step: int = 3, rank: int = 0) -> tuple[dict[str, Any], NonFinite]:
    """The finding and the event behind it; both name step and rank, and it is told in few lines."""
    finding = result.find_finding("TD-N001")
    assert (finding["first_step"], finding["rank"]) == (step, rank), finding
    assert f"step {step}" in finding["title"] and f"rank {rank}" in finding["title"]
    assert len(result.tdbg_lines) <= PRINTED_LINES, result.stderr
    assert sum("TD-N001" in line and f"step {step}" in line for line in result.tdbg_lines) >= 1, (
        "it is told as it happens"
    )
    events: list[NonFinite] = [event for event in result.list_events(NonFinite, rank) if event.step == step]
    return finding, events[0]


def assert_truth(result: Result, fault: str, model: str, *, step: int = 3, rank: int = 0) -> NonFinite:
    truth = TRUTHS[fault]
    finding, event = find_first_bad(result, step, rank)
    place = truth.place[model]
    named = event.parameter if truth.phase == "gradient" else event.module
    assert (finding["phase"], named, event.kind) == (truth.phase, place, truth.kind), f"{finding}\n{event}"
    assert place in finding["title"]
    assert truth.kind in finding["title"].lower()
    assert event.weights == "intact"
    if truth.phase != "gradient":
        assert "faults.py:" in event.line and event.code and event.operation, event
        assert f"made by {event.operation} at {event.line}" in " ".join(finding["evidence"])
    return event


def load_saved_batch(result: Result, event: NonFinite) -> dict[str, Any]:
    """The tensors of the batch that was kept."""
    from safetensors.torch import load_file

    path = next(result.folder.glob(f"**/{Path(event.batch).name}"))
    assert json.loads(path.with_suffix(".json").read_text()), "its description lies beside it"
    return load_file(path)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", TRUTHS)
def test_one_process(watched_runner: Runner, bare_runner: Runner, fault: str, model: str) -> None:
    words = build_program_command("faults", model, fault)
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    event = assert_truth(result, fault, model)
    assert event.last_good["step"] == 2
    assert load_saved_batch(result, event)


@pytest.mark.parametrize("model", MODELS)
def test_a_nan_in_the_batch_is_the_inputs_fault(watched_runner: Runner, bare_runner: Runner, model: str) -> None:
    words = build_program_command("faults", model, "bad-batch")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    finding, event = find_first_bad(result)
    assert finding["phase"] == "input"
    assert event.kind == "nan" and event.count == 1
    batch = load_saved_batch(result, event)
    assert sum(int(tensor.isnan().sum()) for tensor in batch.values() if tensor.is_floating_point()) >= 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", TRUTHS)
def test_late_in_a_run_when_the_budget_rules(watched_runner: Runner, fault: str, model: str) -> None:
    """Step 60: long after the first steps, at which everything is looked at whatever it costs."""
    result = watched_runner(build_program_command("faults", model, fault, "--at", "60"))
    event = assert_truth(result, fault, model, step=60)
    assert load_saved_batch(result, event)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["none", "harmless"])
def test_no_alarm(watched_runner: Runner, bare_runner: Runner, fault: str, model: str) -> None:
    words = build_program_command("faults", model, fault)
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    assert_no_finding(result)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["forward-inf", "backward-nan", "inf-grad"])
def test_the_program_goes_on_as_if_nobody_had_looked(
    watched_runner: Runner, bare_runner: Runner, fault: str, model: str
) -> None:
    """The program skips the bad update; what follows shows that batch, RNG, buffers and gradients were put back."""
    words = build_program_command("faults", model, fault, "--guard")
    result = watched_runner(words)
    expected = bare_runner(words)
    assert_same_output(result, expected)
    assert expected.list_printed("step")[-1]["loss"] > 0, "the program recovered"
    assert result.find_finding("TD-N001")["first_step"] == 3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", ["forward-inf", "backward-nan"])
def test_two_ranks_and_only_rank_1_is_ill(watched_runner: Runner, bare_runner: Runner, fault: str, model: str) -> None:
    words = build_torchrun_command("faults", model, fault, "--rank", "1")
    result = watched_runner(words)
    assert_same_output(result, bare_runner(words))
    assert_truth(result, fault, model, rank=1)


def test_two_ranks_and_a_bad_batch_on_rank_1(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("faults", "conv", "bad-batch", "--rank", "1"))
    finding, _ = find_first_bad(result, rank=1)
    assert finding["phase"] == "input"


def test_no_alarm_on_two_ranks(watched_runner: Runner) -> None:
    assert_no_finding(watched_runner(build_torchrun_command("faults", "gpt", "harmless", "--rank", "1")))


@pytest.mark.parametrize("fault", ["forward-inf", "inf-grad"])
def test_stop_on_ends_a_run_that_would_go_on(watched_runner: Runner, fault: str) -> None:
    result = watched_runner(build_program_command("faults", "gpt", fault, "--guard"), ["--fail-on", "critical"])
    assert result.code == 1
    assert result.list_printed("done"), "--fail-on changes the exit code alone"


def test_no_batch_is_kept_where_none_was_at_hand(watched_runner: Runner, tmp_path: Path) -> None:
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
    result = watched_runner([sys.executable, str(script)])
    finding, event = find_first_bad(result)
    assert not event.batch and not list(result.folder.glob("rank0000/batch_*"))
    assert "batch" not in finding["try_next"] and "batch kept" not in " ".join(finding["evidence"])
