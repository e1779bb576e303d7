"""One screen: 24 rows of 80 columns, whatever there is to say."""

import random
from collections.abc import Callable

import pytest
from streams import Stream, make_nonfinite

from tdbg.core.escapes import escape_controls
from tdbg.core.events import Cost, Finding, Step, Trigger
from tdbg.core.rundir import ProcessDir
from tdbg.core.terminal import format_lines
from tdbg.rules import RULES, Rule
from tdbg.rules.finding_lines import Story
from tdbg.rules.rule_engine import judge_run
from tdbg.rules.screen_rows import COLUMNS, ROWS, count_rows, fit_stories
from tdbg.rules.verdict import PREFIX_COLUMNS, Verdict

WORDS = (
    "a",
    "rank",
    "blocks.2.act",
    "x" * 90,
    "gradient",
    "日本語",
    "\x1b]0;title\x07",
    "/a/very/long/path/of/a/checkpoint.safetensors",
    "-",
)


@pytest.mark.parametrize("columns", [40, 74, 80])
def test_rows_are_counted_as_the_terminal_wraps_them(columns: int) -> None:
    drawn = random.Random(0)
    for _ in range(300):
        words = " ".join(drawn.choices(WORDS, k=drawn.randrange(1, 30)))
        line = " " * drawn.choice([0, 2, 4]) + words
        shown = format_lines([escape_controls(line)], columns, color=False)
        assert count_rows([line], columns) >= shown.count("\n")
        if "x" * 90 not in words and "日" not in words:
            assert count_rows([line], columns) == shown.count("\n"), line


def judge_planted(run: Stream, findings: list[Finding], patch: pytest.MonkeyPatch) -> Verdict:
    """The verdict of a run in which these are found too."""

    class Planted(Rule):
        code = "TD-T000"
        listens = (Step,)

        def feed(self, process: ProcessDir, event: Step) -> list[Finding]:  # type: ignore[override]
            return findings if event.step == 1 else []

    RULES.load()
    patch.setitem(RULES._items, Planted.code, Planted)
    return judge_run(run.run, 1)


def make_finding(number: int, words: int) -> Finding:
    return Finding(
        code=f"TD-T{number:03d}",
        severity="error",
        title="word " * words + str(number) + "\x1b" * (words // 4),
        first_step=number,
        evidence=["evidence " * words] * 12,
        cause="because " * words,
        try_next="try " * words,
    )


@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("words", [2, 12, 40])
def test_the_verdict_fits_on_one_screen_and_counts_the_rest(
    make_stream: Callable[..., Stream], count: int, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_stream()
    for rank in range(4):
        folder = run.begin_rank(rank, world=4)
        run.emit_steps(folder, [2.0] * (3 + rank))
        run.emit_events(folder, Cost(step=3, own_ms=4.0, wall_ms=1000.0, budget_pct=1.0, startup_ms=80.0))
        run.emit_events(folder, Trigger(step=2, condition="loss > 1", action="dump"))
    verdict = judge_planted(run, [make_finding(number, words) for number in range(count)], monkeypatch)
    verdict.trouble = ["it is " * words] * 3
    verdict.capture_line = verdict.profile_line = "made " * words
    notes = ["2026-11-24 10:00 " + "a note " * 40] * 5
    printed = [*verdict.format_summary(), f"trouble: {verdict.trouble[0]}"]  # as the supervisor does
    for lines, columns in ((verdict.format_screen(notes), COLUMNS), (printed, COLUMNS - PREFIX_COLUMNS)):
        assert format_lines(map(escape_controls, lines), columns, color=False).count("\n") <= ROWS
    shown = verdict.format_screen(notes)
    assert shown[0] == verdict.format_headline()
    if not count:
        assert verdict.format_summary()[2].endswith(f"; more: `tdbg report {verdict.run} --all`")
        return
    assert verdict.format_summary()[-1].startswith("more: `tdbg report ")
    assert shown[1].startswith("TD-T000 error: word")
    assert shown[-1].split(" ", 3)[1:3] == ["more", "lines:"] and "--all`" in shown[-1]
    hidden = len(verdict.findings) - sum(line.startswith("TD-") or "followed by" in line for line in shown)
    assert any(line.startswith(f"... and {hidden} more finding") for line in shown) == (hidden > 0)


def test_details_of_the_first_come_before_those_of_others() -> None:
    stories = [Story(make_finding(number, 3), []) for number in range(3)]
    lines = fit_stories(stories, 12)
    assert [line[:7] for line in lines].count("  evide") == 7 and lines[-2:] == [
        "TD-T001 error: word word word 1",
        "TD-T002 error: word word word 2",
    ]
    assert fit_stories(stories, 2) == ["TD-T000 error: word word word 0", "... and 2 more findings"]
    assert fit_stories(stories, 0)[0] == "TD-T000 error: word word word 0"


def test_a_traceback_is_left_out_where_it_does_not_fit() -> None:
    finding = make_finding(0, 1)
    finding.evidence = ["File a.py", "traceback:", *["frame"] * 30]
    shown = fit_stories([Story(finding, [])], 10)
    assert "  File a.py" in shown and "  traceback:" not in shown and "  frame" not in shown
    assert "  frame" in fit_stories([Story(finding, [])], 40)


def test_a_run_with_a_bad_number_says_what_comes_first_and_what_followed(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(rank, make_nonfinite())
    run.emit_steps(rank, ["nan"] * 30, first=3)
    verdict = run.judge_stream(1)
    shown = verdict.format_screen()
    assert shown[1].startswith("TD-N001 critical: first NaN at step 3")
    followed = [line for line in shown if line.startswith("  followed by: TD-N002 critical: ")]
    assert len(followed) == 1 and sum("TD-N002" in line for line in shown) == 1
    assert any(line.startswith("watched (--level basic): ") for line in shown)


def test_evidence_comes_before_what_was_watched(one_rank: tuple[Stream, str], monkeypatch: pytest.MonkeyPatch) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.5, 2.4, 2.3])
    worst = make_finding(1, 2)
    worst.evidence = [f"{'where ' * 28}it was", f"made by SqrtBackward0 at train.py:33: {'x' * 40}", "last good " * 11]
    worst.cause, worst.try_next = "because " * 14, "try " * 20
    shown = judge_planted(
        run, [worst, *(make_finding(number, 20) for number in (2, 3, 4))], monkeypatch
    ).format_screen()
    assert any(line.startswith("  made by SqrtBackward0 at train.py:33") for line in shown)
    assert count_rows(shown) <= ROWS
