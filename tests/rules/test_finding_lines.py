"""Stories: a cause, and indented below it what followed."""

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from streams import Stream, make_nonfinite

from tdbg.core.events import Event, Finding, Step
from tdbg.core.rule_base import Link
from tdbg.core.rundir import ProcessDir
from tdbg.rules import RULES, Rule
from tdbg.rules._order import meets_condition, order_findings
from tdbg.rules.finding_lines import Story, group_stories, list_stories
from tdbg.rules.rule_engine import judge_run


def make_finding(code: str, severity: str = "warning", step: int | None = None, **more: object) -> Finding:
    return Finding(code=code, severity=severity, title=f"{code} at step {step}", first_step=step, **more)  # type: ignore[arg-type]


def group_codes(*findings: Finding) -> list[tuple[str, list[str]]]:
    """The stories of findings by their codes."""
    stories = group_stories(*order_findings(findings))
    assert sum(1 + len(story.followers) for story in stories) == len(findings)
    return [(story.first.code, [finding.code for finding in story.followers]) for story in stories]


def test_symptoms_of_one_cause_are_one_story_the_earliest_first() -> None:
    spike = make_finding("TD-S001", "error", 61)
    dead, first, jump = (
        make_finding("TD-N002", "critical", 66),
        make_finding("TD-N001", "critical", 65),
        make_finding("TD-N004", step=62),
    )
    assert group_codes(dead, jump, first, spike) == [("TD-S001", ["TD-N004", "TD-N001", "TD-N002"])]


def test_what_is_independent_stands_alone() -> None:
    early, first, data = (
        make_finding("TD-N003", "error", 2),
        make_finding("TD-N001", "critical", 65),
        make_finding("TD-P002", step=70),
    )
    assert group_codes(data, early, first) == [("TD-N001", []), ("TD-N003", []), ("TD-P002", [])]
    assert group_codes(make_finding("TD-N001", "critical", 65), make_finding("TD-N003", "error", 65)) == [
        ("TD-N001", ["TD-N003"])
    ]


def test_a_spike_of_long_ago_is_no_cause() -> None:
    assert group_codes(make_finding("TD-S001", "error", 61), make_finding("TD-N001", "critical", 500)) == [
        ("TD-N001", []),
        ("TD-S001", []),
    ]


def test_an_exception_that_the_step_raised_follows_from_its_nan() -> None:
    """The exception carries the last step done."""
    first = make_finding("TD-N001", "critical", 40)
    assert group_codes(first, make_finding("TD-R003", "error", 39)) == [("TD-N001", ["TD-R003"])]
    assert group_codes(first, make_finding("TD-R003", "error", 90)) == [("TD-N001", []), ("TD-R003", [])]


def test_nothing_follows_through_a_finding_that_is_not_there() -> None:
    """A NaN can end in an exception, and that in uneven ranks: without the exception these have nothing in common."""
    first, uneven = make_finding("TD-N001", "critical", 3), make_finding("TD-R001", "error", 59)
    assert group_codes(first, uneven) == [("TD-N001", []), ("TD-R001", [])]
    raised = make_finding("TD-R003", "error", 3)
    assert group_codes(first, uneven, raised) == [("TD-N001", ["TD-R003", "TD-R001"])]


@pytest.mark.parametrize(
    ("link", "cause", "finding", "follows"),
    [
        (Link("B"), {"first_step": 9}, {"first_step": 2}, True),
        (Link("B", least=0), {"first_step": 9}, {"first_step": 8}, False),
        (Link("B", least=-1, most=1), {"first_step": 9}, {"first_step": 8}, True),
        (Link("B", most=1), {"first_step": 9}, {"first_step": 11}, False),
        (Link("B", least=0), {}, {"first_step": 8}, True),
        (Link("B", same=("rank",)), {"rank": 0}, {"rank": 1}, False),
        (Link("B", same=("rank",)), {"rank": 0}, {}, True),
        (Link("B", same=("module",)), {"module": "a.b"}, {"module": "a.b.c"}, True),
        (Link("B", same=("module",)), {"module": "a.b.c"}, {"module": "a.b"}, True),
        (Link("B", same=("module",)), {"module": "a.b"}, {"module": "a.bc"}, False),
        (Link("B", other=("rank",)), {"rank": 0}, {"rank": 1}, True),
        (Link("B", other=("rank",)), {"rank": 1}, {"rank": 1}, False),
        (Link("B", other=("rank",)), {"rank": 0}, {}, False),
        (Link("B", other=("rank",)), {}, {"rank": 0}, False),
    ],
)
def test_the_condition_of_a_link(
    link: Link, cause: dict[str, object], finding: dict[str, object], follows: bool
) -> None:
    parts = {"severity": "error", "title": ""}
    one, other = Finding(code="A", **parts, **cause), Finding(code="B", **parts, **finding)  # type: ignore[arg-type]
    assert meets_condition(link, one, other) is follows


@pytest.fixture
def other_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two rules of another package, which name tdbg's own and each other."""

    class Ripple(Rule):
        """It follows from a NaN, says the rule itself."""

        code = "MY-002"
        causes = (Link("TD-N001", least=0),)
        listens = (Step,)

        def feed(self, process: ProcessDir, event: Event) -> list[Finding]:
            return [self.make_finding("a ripple", first_step=4)] if isinstance(event, Step) and event.step == 4 else []

    class Drop(Rule):
        """It causes a NaN."""

        code = "MY-001"
        leads_to = (Link("TD-N001", least=0, most=1),)
        listens = (Step,)

        def feed(self, process: ProcessDir, event: Event) -> list[Finding]:
            return [self.make_finding("a drop", first_step=2)] if isinstance(event, Step) and event.step == 2 else []

    RULES.load()
    for rule in (Ripple, Drop):
        monkeypatch.setitem(RULES._items, rule.code, rule)
    yield


def test_rules_of_another_package_take_part(make_stream: Callable[[], Stream], other_rules: None) -> None:
    run = make_stream()
    rank = run.begin_rank()
    run.emit_steps(rank, [2.0, 2.0])
    run.emit_events(rank, make_nonfinite())
    run.emit_steps(rank, [2.0, 2.0], first=4)
    verdict = judge_run(run.run, 0)
    (story,) = verdict.get_stories()
    assert [finding.code for finding in verdict.findings] == ["TD-N001", "MY-001", "MY-002"], "critical is listed first"
    assert [story.first.code, *(finding.code for finding in story.followers)] == ["MY-001", "TD-N001", "MY-002"]
    rows = verdict.as_dict()["findings"]
    assert isinstance(rows, list)
    assert [(row["code"], row["follows_from"]) for row in rows] == [
        ("TD-N001", {"finding": 1, "code": "MY-001"}),
        ("MY-001", None),
        ("MY-002", {"finding": 0, "code": "TD-N001"}),
    ]
    assert verdict.format_summary()[1:4] == [
        "  MY-001 warning: a drop",
        f"    followed by: TD-N001 critical: {rows[0]['title']}",
        "    followed by: MY-002 warning: a ripple",
    ]
    assert "  follows from: MY-001 warning: a drop" in verdict.format_page()


def test_causes_are_listed_before_consequences_where_there_is_little_room() -> None:
    stories = [
        Story(make_finding("A"), [make_finding("B"), make_finding("C")]),
        Story(make_finding("D"), []),
        Story(make_finding("E"), [make_finding("F")]),
    ]
    assert [line.split()[-4:][0] for line in list_stories(stories, 6)] == ["A", "B", "C", "D", "E", "F"]
    for room in range(1, 7):
        lines = list_stories(stories, room)
        assert len(lines) <= room
        shown = len([line for line in lines if "more finding" not in line])
        assert shown == 6 or lines[-1] == f"  ... and {6 - shown} more finding{'s' if shown < 5 else ''}"
    assert list_stories(stories, 4) == [
        "  A warning: A at step None",
        "  D warning: D at step None",
        "  E warning: E at step None",
        "  ... and 3 more findings",
    ]


def test_findings_that_could_follow_from_each_other_follow_from_the_earlier() -> None:
    jump, norm = make_finding("TD-N004", step=30), make_finding("TD-G001", step=31)
    assert group_codes(norm, jump) == [("TD-N004", ["TD-G001"])]
    norm.first_step = 30
    (story,) = group_codes(norm, jump)
    assert {story[0], *story[1]} == {"TD-N004", "TD-G001"}
    norm.first_step = 29
    assert group_codes(jump, norm) == [("TD-G001", ["TD-N004"])]


def test_findings_of_which_no_cause_is_known_stand_alone() -> None:
    findings = [make_finding("A"), make_finding("B"), make_finding("C")]
    assert [story.first.code for story in group_stories(findings, [])] == ["A", "B", "C"]


@pytest.mark.parametrize("step", [10, 11, 12, 13, None])
def test_a_part_that_fails_when_another_rank_ends_comes_after_the_exit(step: int | None) -> None:
    """A collective of tdbg's own fails on the ranks that are left: the last record of theirs may be of a step before."""
    quiet = make_finding("TD-R006", "error", 9, rank=0)
    killed, off = make_finding("TD-R002", "error", 12, rank=1), make_finding("TD-C005", "warning", step, rank=0)
    follows = step != 10
    for order in itertools.permutations([off, killed]):
        assert group_codes(*order) == ([("TD-R002", ["TD-C005"])] if follows else [("TD-R002", []), ("TD-C005", [])])
    for order in itertools.permutations([off, quiet, killed]):
        (cause, followers), *rest = group_codes(*order)
        assert (cause, followers) == ("TD-R006", ["TD-R002", "TD-C005"] if follows else ["TD-R002"])
        assert rest == ([] if follows else [("TD-C005", [])])


@pytest.mark.parametrize("more", [{"rank": 1, "step": 12}, {"rank": None, "step": None}])
def test_a_part_that_failed_on_the_rank_itself_or_at_the_start_does_not_follow_from_its_exit(
    more: dict[str, int],
) -> None:
    killed, off = make_finding("TD-R002", "error", 12, rank=1), make_finding("TD-C005", "warning", **more)
    assert group_codes(off, killed) == [("TD-R002", []), ("TD-C005", [])]


def test_each_finding_of_a_story_stands_after_its_cause() -> None:
    """Generated: chains of causes whose steps fall, stay and rise, some of them unknown."""
    chance = random.Random(7)
    for _ in range(300):
        count = chance.randint(2, 7)
        findings = [make_finding(f"F{at}", step=chance.choice([None, 0, 3, 5, 9])) for at in range(count)]
        causes = [None, *(chance.choice([None, *range(at)]) for at in range(1, count))]
        places = list(range(count))
        chance.shuffle(places)
        shuffled = [findings[at] for at in places]
        moved = [None if causes[at] is None else places.index(causes[at]) for at in places]
        for story in group_stories(shuffled, moved):
            order = [story.first, *story.followers]
            for finding in story.followers:
                cause = causes[findings.index(finding)]
                assert cause is not None and order.index(findings[cause]) < order.index(finding)
