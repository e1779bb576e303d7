"""Which rules could see what they are there for, and what would arm the others."""

from collections.abc import Callable
from typing import Any

import pytest

from tdbg.core.events import Note, Observation, ProbeOff, Switch
from tdbg.core.flags import FLAGS, LEVELS
from tdbg.core.observations.memory import MemoryGrowth
from tdbg.probes import PROBES
from tdbg.rules import RULES, PerProcessRule, Rule
from tdbg.rules._signals import Signals
from tdbg.rules.rule_engine import judge_run
from tdbg.rules.verdict import Verdict

Stream = Callable[..., Any]


def index_unwatched(verdict: Verdict) -> dict[str, str]:
    """Code -> why its rule was not armed."""
    return {code: row["reason"] for row in verdict.not_watched for code in row["codes"]}


def test_the_table_of_flags_and_the_probes_agree_on_levels() -> None:
    levels = {probe.name: probe.levels for probe in PROBES}
    for flag in FLAGS:
        at = levels.get(flag.probe, ())
        assert flag.level == (min(at, key=LEVELS.index) if at else ""), flag.name


@pytest.mark.parametrize("rule", list(RULES), ids=lambda rule: rule.code)
def test_at_the_highest_level_with_all_flags_every_rule_is_armed(rule: type[Rule]) -> None:
    every = Signals(level="extreme", flags=frozenset(flag.name for flag in FLAGS), ranks=2)
    assert rule().is_armed(every)
    assert rule().unarmed_reason(Signals(level="off")) == "level off"


def test_a_default_run_names_what_a_flag_or_a_level_would_arm(make_stream: Stream) -> None:
    run = make_stream()
    run.emit_steps(run.begin_rank(), [2.0] * 3, epoch=0, batch=1)
    found = index_unwatched(run.judge_stream())
    assert found["TD-D001"] == "needs --flag DATALOADER or --level advanced"
    assert found["TD-L002"] == "needs --flag LOSS" and found["TD-R005"] == "needs 2 ranks"
    assert not {"TD-N001", "TD-G001", "TD-S001", "TD-R003"} & found.keys()
    page = run.judge_stream().format_page()
    rows = page[page.index("not watched:") + 1 :]
    assert "  TD-A002, TD-A003: needs --flag AMP or --level advanced" in rows


def test_a_run_with_findings_says_in_the_long_form_alone_what_was_not_watched(make_stream: Stream) -> None:
    run = make_stream()
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0] * 40 + [50.0] * 20)
    verdict = run.judge_stream()
    assert [(one.code, one.grade) for one in verdict.findings] == [("TD-N004", "statistical")]
    assert not any(line.startswith("not watched") for line in verdict.format_summary())
    assert {"not watched:", "  evidence is statistical: judged from a sample or a trend"} <= set(verdict.format_page())


def test_a_flag_a_level_or_an_observation_arms(make_stream: Stream) -> None:
    run = make_stream(flags={"LR": True})
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0] * 3, epoch=0, batch=1)
    run.emit_events(rank, Observation(probe="amp", part="STATE"))
    assert not {"TD-S004", "TD-A002"} & index_unwatched(run.judge_stream()).keys()
    run.emit_events(rank, Switch(level="advanced", flags={"OPTIMIZER": True}))
    assert not {"TD-D001", "TD-S006"} & index_unwatched(run.judge_stream()).keys()


def test_a_probe_that_cannot_see_says_why_itself(make_stream: Stream) -> None:
    run = make_stream(level="extreme")
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0] * 3)
    run.emit_events(
        rank, Note(code="abstains-wandb-metrics", text="WANDB_METRICS: wandb is disabled"), ProbeOff(probe="memory")
    )
    found = index_unwatched(run.judge_stream())
    assert found["TD-C017"] == "WANDB_METRICS: wandb is disabled"
    assert found["TD-M001"] == "tdbg's memory switched itself off"


def test_a_run_without_a_training_step_says_so(make_stream: Stream) -> None:
    assert index_unwatched(make_stream().judge_stream())["TD-G001"] == "no training step was recorded"


def test_a_rule_of_another_package_with_old_names_works_on(make_stream: Stream) -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.see is now Old\.evaluate"):

        class Old(PerProcessRule[list[int]]):
            """It overrides and calls what it knew."""

            code = "MY-001"
            kept = list

            def see(self, process, state, event):
                return self.found(f"loss {event.loss}") if event.loss > 3 else None

    RULES.load()
    RULES._items[Old.code] = Old
    try:
        run = make_stream()
        run.emit_steps(run.begin_rank(), [2.0, 4.0, 5.0])
        with pytest.warns(DeprecationWarning, match=r"Old\.found is now Old\.make_finding"):
            assert [finding.title for finding in run.judge_stream().findings] == ["loss 4.0"]
    finally:
        del RULES._items[Old.code]


def test_a_rule_is_fed_the_observations_that_it_names_or_all(
    make_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: dict[str, list[str]] = {"MY-001": [], "MY-002": []}

    class Named(Rule):
        """It names one."""

        code = "MY-001"
        listens = (Observation,)
        observes = (MemoryGrowth,)

        def feed(self, process, event):
            fed[self.code].append(event.probe)
            return ()

    class Every(Named):
        """It names none."""

        code = "MY-002"
        observes = ()

    for rule in (Named, Every):
        RULES.load()
        monkeypatch.setitem(RULES._items, rule.code, rule)
    run = make_stream()
    rank = run.begin_rank()
    run.emit_events(rank, *(Observation(probe=probe, part="X") for probe in ("memory", "amp", "foreign")))
    judge_run(run.run)
    assert fed == {"MY-001": ["memory"], "MY-002": ["memory", "amp", "foreign"]}
