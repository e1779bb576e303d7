"""Diagnostics of losses as a program meets them: off, compiled, failing, outside of a run, and under a watch."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from probes.judging import judge_codes as judged
from probes.judging import judge_watch
from torch import nn

import tdbg
from tdbg.api import flag_values as api_flags
from tdbg.core.errors import TdbgError
from tdbg.core.events import Observation
from tdbg.probes import loss
from tdbg.probes.loss.loss_report import STATES
from tdbg.rules import RULES
from tdbg.runtime import run_context


class Untouchable:
    """Whatever is done with it is a failure of the test."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"it was asked for {name}")

    __len__ = __iter__ = __bool__ = __eq__ = __float__ = None  # type: ignore[assignment]


X: Any = Untouchable()
CALLS: dict[str, Callable[[], Any]] = {
    "taxonomy_hierarchy": lambda: loss.taxonomy_hierarchy(X, names=X),
    "taxonomy_distances": lambda: loss.taxonomy_distances(X, names=X),
    "taxonomy_matrix": lambda: loss.taxonomy_matrix(X, distances=X),
    "taxonomy_forward": lambda: loss.taxonomy_forward(X, X, X),
    "null_masking": lambda: loss.null_masking(X, X, nulls=X),
    "class_weighting": lambda: loss.class_weighting(X, X, sampling=X),
    "class_losses": lambda: loss.class_losses(X, X, weights=X),
    "gradnorm_metrics": lambda: loss.gradnorm_metrics(X, X, X, X, shared=X),
    "gradnorm_values": lambda: loss.gradnorm_values(X),
}
NULLS = "LOSS.NULL_MASKING"
PARTS = ("INPUT", "INTERNAL", "SUMMARY")


def measure_memory() -> Any:
    with loss.gradnorm_memory() as memory:
        memory.mark("part", {"x": X})
    return memory.report


@pytest.fixture
def logged_messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, logger="tdbg")
    return lambda: [f"{record.levelname} {record.getMessage()}" for record in caplog.records if record.name == "tdbg"]


def check_one_batch(masked: bool = False) -> Any:
    targets_B = torch.tensor([0, 1, 2, 3])
    return loss.null_masking(targets_B, targets_B == (3 if masked else 0))


def check_faulty_batch() -> Any:
    hot_BC = torch.eye(4, dtype=torch.int64)
    return loss.null_masking({"genus": hot_BC}, {"genus": (hot_BC == 0).any(1)})


@pytest.mark.parametrize("name", [*CALLS, "gradnorm_memory"])
def test_off_means_nothing(loss_flags: dict[str, Any], logged_messages: Callable[[], list[str]], name: str) -> None:
    """Neither a tensor is read, nor a word written, nor anything kept; also with all other flags on."""
    for flags in ({}, {"MEMORY": True, "LR": True, NULLS: False}):
        loss_flags.clear()
        loss_flags.update(flags)
        assert (CALLS.get(name) or measure_memory)() is None
    assert logged_messages() == [] and not STATES


def test_every_public_name_is_described() -> None:
    assert set(CALLS) | {"gradnorm_memory", "forget", "is_on"} == {name for name in loss.__all__ if name.islower()}
    for name in CALLS:
        function = getattr(loss, name)
        assert f"| `{name}` |" in (loss.__doc__ or "")
        for word in ("Cost:", "Source:"):
            assert word in (function.__doc__ or ""), (name, word)


def test_a_program_can_ask_first(loss_flags: dict[str, Any]) -> None:
    """In any spelling; a flag that does not exist is never a silent False."""
    spelled = (NULLS, "null_masking", "DEBUG.LOSS.NULL_MASKING", "LOSS")
    assert not any(map(loss.is_on, spelled))
    loss_flags["MEMORY"] = True
    assert not any(map(loss.is_on, spelled))
    loss_flags[NULLS] = True
    assert all(map(loss.is_on, spelled)) and not loss.is_on("LOSS.CLASS_WEIGHTING")
    assert not torch.compile(lambda: loss.is_on(NULLS), backend="eager", fullgraph=True)()
    with pytest.raises(TdbgError, match=r"no flag is named 'LOSS\.NULL_MASK'") as error:
        loss.is_on("LOSS.NULL_MASK")
    assert error.value.hint == "did you mean LOSS.NULL_MASKING?"


def test_every_code_has_its_page() -> None:
    of_preflight = "TD-L022"
    codes = [code for code in RULES.names() if code.startswith("TD-L") and code != of_preflight]
    assert codes == [f"TD-L{number:03d}" for number in range(1, 22)]
    folder = Path(loss.__file__).parent
    source = "".join(path.read_text() for path in (*folder.glob("*.py"), *folder.with_name("loss_calls").glob("*.py")))
    for code in codes:
        assert f'"{code}"' in source, f"nobody says {code}"


def test_compiled_code_holds_nothing_of_it(
    loss_flags: dict[str, Any], logged_messages: Callable[[], list[str]]
) -> None:
    loss_flags.update({NULLS: True, "LOSS.GRADNORM_MEMORY": True})
    counters = torch._dynamo.utils.counters
    counters.clear()

    @torch.compile(fullgraph=True, backend="eager")
    def step(x_B: torch.Tensor) -> torch.Tensor:
        loss.null_masking(x_B.long(), x_B > 0)
        loss.gradnorm_metrics(x_B, x_B, x_B, x_B)
        with loss.gradnorm_memory() as memory:
            memory.mark("part", {"x": x_B})
        return x_B * 2

    assert step(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert logged_messages() == []


# outside of a run


def test_records_go_to_the_logger(loss_flags: dict[str, Any], logged_messages: Callable[[], list[str]]) -> None:
    loss_flags[NULLS] = True
    assert check_one_batch().tasks[0].nulls == 1
    assert [line.partition(" ")[2].partition("]")[0] for line in logged_messages()] == [
        "[DEBUG_NULL_MASKING_INPUT",
        "[DEBUG_NULL_MASKING_INTERNAL",
        "[DEBUG_NULL_MASKING_SUMMARY",
    ]
    assert all(line.startswith("DEBUG ") for line in logged_messages())
    check_faulty_batch()
    assert (
        logged_messages()[-1].startswith("WARNING [DEBUG_NULL_MASKING_SUMMARY]")
        and "TD-L003 error: " in logged_messages()[-1]
    )


def test_the_variable_switches_them_on() -> None:
    program = (
        "import logging, torch; logging.basicConfig(level=10, format='%(message)s'); from tdbg.probes import loss\n"
        "t = torch.tensor([0, 1]); print(loss.null_masking(t, t == 0) is None)\n"
        "import tdbg; tdbg.disable_debugging('LOSS.NULL_MASKING'); print(loss.null_masking(t, t == 0) is None)"
    )
    for variable, printed in (("", ["True", "True"]), ("LOSS.NULL_MASKING", ["False", "True"])):
        done = subprocess.run(
            [sys.executable, "-c", program], env={"TDBG_FLAGS": variable}, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == printed and ("NULL_MASKING_SUMMARY" in done.stderr) == bool(variable)


def test_arguments_that_do_not_fit_end_nothing(
    loss_flags: dict[str, Any], logged_messages: Callable[[], list[str]]
) -> None:
    loss_flags[NULLS] = True
    for _ in range(3):
        assert loss.null_masking(torch.zeros(4), torch.zeros(3)) is None
        assert loss.null_masking(object(), object()) is None  # type: ignore[arg-type]
    lines = logged_messages()
    assert len(lines) == 2 and all(line.startswith("WARNING [DEBUG_NULL_MASKING] (no report: ") for line in lines)
    assert "masked has shape [3], the targets have [4]; give one value per sample)" in lines[0]


def test_nothing_of_the_program_is_changed(loss_flags: dict[str, Any]) -> None:
    """Random numbers, gradients and graphs are as without the calls."""
    loss_flags.update({f"LOSS.{leaf}": True for leaf in ("NULL_MASKING", "TAXONOMY_SMOOTHING", "GRADNORM_MEMORY")})
    state = torch.get_rng_state()
    logits_BC = torch.ones(4, 3, requires_grad=True)
    each_B = nn.functional.cross_entropy(logits_BC * 2, torch.tensor([0, 1, 2, 0]), reduction="none")
    with loss.gradnorm_memory() as memory:
        memory.mark("part", {"each": each_B})
        loss.taxonomy_forward(logits_BC * 2, torch.tensor([0, 1, 2, 0]), torch.eye(3)[[0, 1, 2, 0]])
        assert torch.is_grad_enabled()
    check_one_batch()
    each_B.sum().backward()
    assert logits_BC.grad is not None and torch.equal(torch.get_rng_state(), state)


# under a watch


@pytest.fixture
def start_watched(start_watch: Any, loss_flags: dict[str, Any]) -> Any:
    def start_with_flag(**settings: Any) -> Any:
        started = start_watch(flags={NULLS: True}, **settings)
        taken: list[str] = []
        flags = started.monitor.settings.flags
        run_context.install_context(
            run_context.RunContext(flags, lambda: started.monitor, lambda flag, value: taken.append(flag))
        )
        started.taken = taken
        return started

    return start_with_flag


def train_model(steps: int, call: Callable[[], Any]) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.ones(1, 2))
        call()
        out.sum().backward()
        optimizer.step()


def list_observations(started: Any) -> list[Observation]:
    return [event for event in started.events if isinstance(event, Observation) and event.probe == "loss"]


def test_events_carry_the_step_and_the_verdict_the_finding(start_watched: Any, tmp_path: Path) -> None:
    started = start_watched()
    train_model(2, check_one_batch)
    train_model(3, check_faulty_batch)
    events = list_observations(started)
    assert [event.step for event in events] == [1, 2, 3, 4, 5] and started.taken == [NULLS]
    assert {event.part for event in events} == {"SUMMARY"} and {event.flag for event in events} == {NULLS}
    assert [len(event.values.get("faults", ())) for event in events] == [0, 0, 1, 0, 0], "a fault is handed on once"
    assert "TD-L003" in events[4].text, "and stands in each record that shows it"
    (found,) = judge_watch(started, tmp_path)
    assert (found.code, found.severity, found.first_step, found.rank) == ("TD-L003", "error", 3, 0)
    assert found.title == "one-hot targets are taken for class indices in task genus, step 3, rank 0"
    assert found.cause and found.try_next and "(targets == 0).any(1)" in found.evidence[0]


def test_a_clean_run_has_no_finding(start_watched: Any, tmp_path: Path) -> None:
    started = start_watched()
    train_model(5, check_one_batch)
    assert judged(started, tmp_path) == []


def test_selected_steps(start_watched: Any) -> None:
    started = start_watched(steps="2:3")
    train_model(5, check_one_batch)
    assert [event.step for event in list_observations(started)] == [2, 3]


def test_the_beginning_is_told_whatever_steps_are_selected(start_watched: Any) -> None:
    started = start_watched(steps="2:3")
    started.monitor.settings.flags["LOSS.CLASS_WEIGHTING"] = True
    loss.class_weighting([1.0, 2.0], [4.0, 2.0])
    train_model(1, lambda: None)
    assert [event.part for event in list_observations(started)] == ["WEIGHTS"]


def test_other_ranks_are_left_out(start_watched: Any) -> None:
    started = start_watched(ranks="1-3")
    train_model(2, check_one_batch)
    assert list_observations(started) == []


def test_a_flag_that_is_switched_off_in_the_run(start_watched: Any) -> None:
    started = start_watched()
    train_model(1, check_one_batch)
    started.monitor.level_overrides.change_now("", {NULLS: False}, why="api")
    train_model(1, check_one_batch)
    assert len(list_observations(started)) == 1


def test_its_time_is_told_apart(start_watched: Any) -> None:
    started = start_watched()
    train_model(3, check_one_batch)
    cost = started.monitor.build_cost()
    assert cost.diagnostics_ms > 0 and "loss" not in cost.by_part


def test_the_python_api_switches_them(logged_messages: Callable[[], list[str]]) -> None:
    before = run_context.current
    loss.forget()
    try:
        tdbg.enable_debugging(NULLS)
        assert check_one_batch() is not None
        assert [line.split()[1] for line in logged_messages()] == [f"[DEBUG_NULL_MASKING_{part}]" for part in PARTS]
        assert check_one_batch(masked=True) is not None
        tdbg.disable_debugging(NULLS)
        assert check_one_batch() is None
    finally:
        api_flags.get_live_flags().clear()
        run_context.install_context(before)
        loss.forget()
