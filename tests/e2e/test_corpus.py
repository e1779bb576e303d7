"""The corpus of healthy programs: a few of them at the default level; `python -m tests.e2e.corpus` runs them all."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Runner, assert_notes_alone, build_program_command
from tests.e2e.corpus.generator import CHOICES, draw_recipes, list_conflicts, write_programs
from tests.e2e.corpus.runs import LEAST_STEPS, PROGRAMS, RANKED, Program, list_hand_programs, name_program, run_program

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
