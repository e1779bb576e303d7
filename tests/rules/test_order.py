"""The order of a verdict: a cause comes before what follows from it."""

import itertools
from collections.abc import Callable

import pytest
from streams import Stream

from tdbg.core.events import Event, Finding, Step
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, Rule
from tdbg.rules.rule_engine import RuleEngine

CAUSES = ("TD-S006", "TD-C008", "TD-S005", "TD-D002")
CONSEQUENCES = ("TD-G003", "TD-G005", "TD-S007")


def judge_planted(run: Stream, planted: list[Finding], patch: pytest.MonkeyPatch) -> list[str]:
    """The codes of a verdict in which exactly these were found, in its order."""

    class Planted(Rule):
        code = "TD-T000"
        listens = (Step,)

        def feed(self, process: ProcessDir, event: Event) -> list[Finding]:
            return planted if isinstance(event, Step) and event.step == 1 else []

    RULES.load()
    patch.setitem(RULES._items, Planted.code, Planted)
    judge = RuleEngine(run.run)
    for folder, event in run.log:
        judge.feed(ProcessDir(run.run, run.run.path / folder), event)
    return [finding.code for finding in judge.finish().findings]


PAIRS = [*itertools.product(CAUSES, CONSEQUENCES), ("TD-S008", "TD-N004"), ("TD-G003", "TD-G005")]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_cause_stands_before_its_consequence(
    one_rank: tuple[Stream, str], pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it was found later, and its consequence is worse."""
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    cause = Finding(code=pair[0], severity="warning", title="the cause", first_step=40, rank=0)
    follows = Finding(code=pair[1], severity="error", title="follows", first_step=10, rank=0)
    other = Finding(code="TD-P002", severity="error", title="of its own", first_step=20, rank=0)
    assert judge_planted(run, [follows, other, cause], monkeypatch) == [pair[0], pair[1], "TD-P002"]


@pytest.mark.parametrize(
    ("severity", "order"), [("error", ["TD-R003", "TD-R001"]), ("warning", ["TD-R001", "TD-R003"])]
)
def test_an_exception_that_ended_a_rank_is_a_cause_and_one_it_lived_on_with_is_none(
    one_rank: tuple[Stream, str], severity: str, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    exception = Finding(code="TD-R003", severity=severity, title="an exception", first_step=0, rank=1)
    uneven = Finding(code="TD-R001", severity="error", title="rank 1 never took a step", first_step=0, rank=1)
    assert judge_planted(run, [uneven, exception], monkeypatch) == order


@pytest.mark.parametrize(
    ("hung_rank", "lost_step", "order"),
    [
        pytest.param(0, 19, ["TD-R006", "TD-R003"], id="the hung rank is ended, and the rank that waited loses it"),
        pytest.param(1, 19, ["TD-R003", "TD-R006"], id="the others wait for the rank that has lost its connection"),
        pytest.param(0, 17, ["TD-R003", "TD-R006"], id="lost long before the hang"),
    ],
)
def test_a_hang_and_a_lost_connection_stand_in_the_order_in_which_they_follow(
    one_rank: tuple[Stream, str], hung_rank: int, lost_step: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either can cause the other. A rank that waits has recorded the step before the one in which the others hang."""
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    hang = Finding(code="TD-R006", severity="error", title="a rank does not come", first_step=20, rank=hung_rank)
    lost = Finding(code="TD-R003", severity="error", title="rank 1: connection closed", first_step=lost_step, rank=1)
    assert judge_planted(run, [lost, hang], monkeypatch) == order


def test_of_findings_of_one_severity_and_step_the_surer_comes_first(
    make_stream: Callable[[], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = [
        Finding(code="TD-D001", severity="error", title="a", first_step=3, grade="statistical"),
        Finding(code="TD-D004", severity="error", title="b", first_step=3, grade="located"),
        Finding(code="TD-D005", severity="error", title="c", first_step=2, grade="statistical"),
    ]
    run = make_stream()
    run.emit_steps(run.begin_rank(), [1.0])
    assert judge_planted(run, planted, monkeypatch) == ["TD-D005", "TD-D004", "TD-D001"]
