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


def unwatched(verdict: Verdict) -> dict[str, str]:
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


def test_a_default_run_names_what_a_flag_or_a_level_would_arm(stream: Stream) -> None:
    run = stream()
    run.train(run.rank(), [2.0] * 3)
    found = unwatched(run.judge())
    assert found["TD-D001"] == "needs --flag DATALOADER or --level advanced"
    assert found["TD-L002"] == "needs --flag LOSS" and found["TD-R005"] == "needs 2 ranks"
    assert not {"TD-N001", "TD-G001", "TD-S001", "TD-R003"} & found.keys()
    page = run.judge().page()
    rows = page[page.index("not watched:") + 1 :]
    assert "  TD-A002, TD-A003: needs --flag AMP or --level advanced" in rows


def test_a_run_with_findings_says_in_the_long_form_alone_what_was_not_watched(stream: Stream) -> None:
    run = stream()
    rank = run.rank()
    run.train(rank, [2.0] * 40 + [50.0] * 20)
    verdict = run.judge()
    assert [(one.code, one.grade) for one in verdict.findings] == [("TD-N004", "statistical")]
    assert not any(line.startswith("not watched") for line in verdict.lines())
    assert {"not watched:", "  evidence is statistical: judged from a sample or a trend"} <= set(verdict.page())


def test_a_flag_a_level_or_an_observation_arms(stream: Stream) -> None:
    run = stream(flags={"LR": True})
    rank = run.rank()
    run.train(rank, [2.0] * 3)
    run.emit(rank, Observation(probe="amp", part="STATE"))
    assert not {"TD-S004", "TD-A002"} & unwatched(run.judge()).keys()
    run.emit(rank, Switch(level="advanced", flags={"OPTIMIZER": True}))
    assert not {"TD-D001", "TD-S006"} & unwatched(run.judge()).keys()


def test_a_probe_that_cannot_see_says_why_itself(stream: Stream) -> None:
    run = stream(level="extreme")
    rank = run.rank()
    run.train(rank, [2.0] * 3)
    run.emit(
        rank, Note(code="abstains-wandb-metrics", text="WANDB_METRICS: wandb is disabled"), ProbeOff(probe="memory")
    )
    found = unwatched(run.judge())
    assert found["TD-C017"] == "WANDB_METRICS: wandb is disabled"
    assert found["TD-M001"] == "tdbg's memory switched itself off"


def test_a_run_without_a_training_step_says_so(stream: Stream) -> None:
    assert unwatched(stream().judge())["TD-G001"] == "no training step was recorded"


def test_a_rule_of_another_package_with_old_names_works_on(stream: Stream) -> None:
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
        run = stream()
        run.train(run.rank(), [2.0, 4.0, 5.0])
        with pytest.warns(DeprecationWarning, match=r"Old\.found is now Old\.make_finding"):
            assert [finding.title for finding in run.judge().findings] == ["loss 4.0"]
    finally:
        del RULES._items[Old.code]


def test_a_rule_is_fed_the_observations_that_it_names_or_all(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
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
    run = stream()
    rank = run.rank()
    run.emit(rank, *(Observation(probe=probe, part="X") for probe in ("memory", "amp", "foreign")))
    judge_run(run.run)
    assert fed == {"MY-001": ["memory"], "MY-002": ["memory", "amp", "foreign"]}
