"""What runs of an older version say is said by this one, word for word where a program reads it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import questions


@pytest.fixture(scope="module")
def recordings_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("recordings"), Path.cwd()
    questions.unpack_recordings(folder)
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.parametrize("question", questions.QUESTIONS)
def test_the_answer_is_what_it_was(recordings_folder: Path, question: str) -> None:
    then = questions.load_frozen_answers()[question]
    assert questions.list_differences(question, then, questions.ask_question(question)) == []


def test_what_differs_is_told_unless_it_is_a_listed_addition(monkeypatch, tmp_path) -> None:
    listed = tmp_path / "additions.txt"
    listed.write_text("report answer.data.ranks[].more  # for a test\n")
    monkeypatch.setattr(questions, "ADDITIONS", listed)
    then = {"exit": 0, "answer": {"title": "one", "data": {"ranks": [{"rank": 0, "step": 1}]}}}
    told = {
        "report a": {"exit": 0, "answer": {"title": "other", "data": {"ranks": [{"rank": 0, "step": 1, "more": 2}]}}},
        "status a": {"exit": 0, "answer": {"title": "other", "data": {"ranks": [{"rank": 0, "step": 1, "more": 2}]}}},
        "report b": {"exit": 0, "answer": {"title": "one", "data": {"ranks": [{"rank": 0}]}}},
        "report c": {"exit": 1, "answer": {"title": "one", "data": {"ranks": [{"rank": 0, "step": 1}]}}},
        "report d": {"exit": 0, "answer": {"title": 1, "data": {"ranks": []}}},
    }
    assert [questions.list_differences(question, then, now) for question, now in told.items()] == [
        [],
        ["+ answer.data.ranks[].more: 2"],
        ["- answer.data.ranks[].step: 1"],
        ["! exit: 0 became 1"],
        ['! answer.title: "one" became 1', '! answer.data.ranks: [{"rank": 0, "step": 1}] became []'],
    ]
