"""The corpus of healthy programs: a few of them at the default level; `python -m tests.e2e.corpus` runs them all."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Runner, assert_notes_alone, build_program_command
from tests.e2e.corpus.generator import CHOICES, draw_recipes, list_conflicts, write_programs
from tests.e2e.corpus.runs import (
    LEAST_STEPS,
    PROGRAMS,
    RANKED,
    Outcome,
    Program,
    list_hand_programs,
    name_program,
    run_program,
)
from tests.e2e.corpus.silence_page import (
    GENERATED,
    LEVELS,
    NOT_RUN,
    PAGE,
    SILENT,
    build_page,
    describe_outcome,
    read_rows,
    summarize_generated,
)

HERE = (  # what no other test runs at the default level
    *("language/translation", "language/mixture-of-experts", "generative/wasserstein", "decisions/soft-actor-critic"),
    *("loops/weight-averaging", "loops/fused-into-backward", "tabular/ensemble", "vision/segmentation"),
)


@pytest.mark.parametrize("name", HERE)
def test_the_default_level_is_silent_about_a_healthy_program(watched_runner: Runner, name: str) -> None:
    result = watched_runner(name_program(*name.split("/")).words)
    assert_notes_alone(result)
    assert result.verdict["watched"]["steps"] >= LEAST_STEPS, "so that it is one"


def test_forty_programs_and_more_are_written_by_hand() -> None:
    names = [one.name for one in list_hand_programs()]
    assert len(names) == len(set(names)) >= 40
    assert {f"ranks/{kind}" for kind in RANKED} < set(names)
    assert {name.partition("/")[0] for name in names} == {path.stem for path in PROGRAMS.glob("*.py")} - {"parts"}


def test_the_generator_draws_every_choice_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    recipes = draw_recipes(300, 1)
    for name, values in CHOICES.items():
        assert {getattr(recipe, name) for recipe in recipes} == set(values), name
    assert recipes == draw_recipes(300, 1)
    assert draw_recipes(30, 1) != draw_recipes(30, 2)


def test_what_does_not_go_together_is_named() -> None:
    recipe = next(one for one in draw_recipes(300, 1) if one.model == "lstm")
    assert not list(list_conflicts(recipe))
    assert "recurrent layers" in next(list_conflicts(replace(recipe, precision="float16-scaler")))


def test_each_generated_program_is_a_whole_file(tmp_path: Path) -> None:
    for one in write_programs(100, 1, tmp_path):
        ast.parse(Path(one.words[-1]).read_text(encoding="utf-8"))


def test_a_bug_is_counted_as_a_finding_above_a_note(tmp_path: Path) -> None:
    bug = Program("zero-rate", (*build_program_command("planted", "zero-rate"), "fault"))
    outcome = run_program(bug, "basic", tmp_path / "run")
    assert [line.split()[0] for line in outcome.above] == ["TD-S002"]
    assert outcome.steps and outcome.armed and outcome.looks and not outcome.is_sound


def test_the_page_lists_exactly_the_programs_and_nothing_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == build_page(page), "write it: python -m tests.e2e.corpus NAME --page"
    rows = read_rows(page)
    assert list(rows) == [one.name for one in list_hand_programs()]
    assert any(words in page.partition(GENERATED)[2] for words in ("above a note: nothing", NOT_RUN))
    for name, cells in rows.items():
        assert set(cells[-len(LEVELS) :]) <= {SILENT, NOT_RUN}, name


def make_outcome(**more: object) -> Outcome:
    figures = {"steps": 1200, "rules": 100, "armed": 70, "looks": 345}
    return Outcome("vision/siamese", **{"level": "basic", **figures, **more})  # type: ignore[arg-type]


def test_a_run_replaces_its_own_cells_alone() -> None:
    first = build_page("", [make_outcome(notes=["TD-P006", "TD-P006"]), make_outcome(level="extreme", looks=9)])
    assert read_rows(first)["vision/siamese"] == ["1,200", "70 of 100", "345", "TD-P006", SILENT, NOT_RUN, SILENT]
    again = build_page(first, [make_outcome(level="extreme", above=["TD-G001 warning: x"])])
    assert read_rows(again)["vision/siamese"][-3:] == [SILENT, NOT_RUN, "TD-G001"]
    assert set(read_rows(again)["vision/detection"]) == {NOT_RUN}
    line = summarize_generated([make_outcome(), make_outcome(above=["TD-G001 warning: x"])], 1)
    assert "2 programs" in line and "above a note: vision/siamese: TD-G001." in line
    assert build_page(build_page(again, generated=line)).endswith(f"{line}\n")


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ({}, SILENT),
        ({"code": 1}, "exit code 1"),
        ({"steps": 12}, "12 steps"),
        ({"trouble": ["a|b"]}, "a/b"),
        ({"above": ["TD-S002 error: y"], "code": 3}, "TD-S002, exit code 3"),
    ],
)
def test_a_run_that_counts_for_nothing_is_not_called_silent(more: dict[str, object], cell: str) -> None:
    assert describe_outcome(make_outcome(**more)) == cell
