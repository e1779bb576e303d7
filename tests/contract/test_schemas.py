"""The published JSON Schemas fit what ``--json`` prints, of recorded runs and of new ones."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tdbg.cli import build_root_group, pages
from tests.contract import schemas
from tests.e2e.conftest import warm_command

ROOT = Path(__file__).parents[2]
TRAINING = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean() * (float("nan") if step == 12 else 1.0)
    loss.backward()
    optimizer.step()
"""
EVALUATION = """
import torch
model = torch.nn.Linear(4, 2)
with torch.no_grad():
    for _ in range(20):
        model(torch.randn(8, 4))
"""
PROGRAMS = {
    "evaluates": ("-c", EVALUATION),
    "none": ("-c", "pass"),
    "imports": ("-c", "import torch; raise SystemExit(3)"),
    "trains": ("-c", TRAINING),
}


@pytest.fixture(scope="module")
def validators() -> dict[str, Draft202012Validator]:
    found = schemas.load_published()
    for schema in found.values():
        Draft202012Validator.check_schema(schema)
    return {name: Draft202012Validator(schema) for name, schema in found.items()}


def test_what_is_published_is_what_the_recordings_say() -> None:
    published = {path.name: path.read_text(encoding="utf-8") for path in schemas.FOLDER.iterdir()}
    assert published == schemas.build_files(), "python -m tests.contract.schemas writes them"


def test_every_document_has_a_schema() -> None:
    commands = pages.walk_pages(build_root_group(), ("tdbg",))
    wanted = {" ".join(page.words[1:]) for page in commands if any("--json" in one.names for one in page.options)}
    assert len(wanted) > 25 and wanted | {"explain CODE"} == set(schemas.load_published())


@pytest.fixture(scope="module", params=PROGRAMS)
def printed_documents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    run = tmp_path_factory.mktemp(request.param) / "run"
    start = ["-m", "tdbg", "run", "--quiet", "-f", "MEMORY", "--run-dir"]
    words = [sys.executable, *start, str(run), "--", sys.executable, *PROGRAMS[request.param]]
    words = warm_command(words) if "torch" in words[-1] else words
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(words, env=env, check=False, capture_output=True, timeout=120)
    yield list(schemas.iter_documents([run]))


def test_documents_of_a_new_run_fit(printed_documents: list[Any], validators: dict[str, Draft202012Validator]) -> None:
    checked = 0
    for question, document in printed_documents:
        validator = validators.get(schemas.name_document(question))
        if validator is not None:
            wrong = [(question, error.json_path, error.message) for error in validator.iter_errors(document)]
            assert not wrong
            checked += 1
    assert checked >= 3  # report, status and flags doctor at least


DOCUMENTS = ("doctor", "explain", "explain TD-D003", "flags list", "flags show DATALOADER", "trust --list")


@pytest.mark.parametrize("words", DOCUMENTS)
def test_documents_of_the_program_fit(
    words: str, validators: dict[str, Draft202012Validator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TDBG_FLAGS", "LOSS")
    folder = tmp_path / "project"
    folder.mkdir()
    assert schemas.questions.ask_question(f"trust {folder}")["exit"] == 0
    question = f"{words} --json"
    document = schemas.questions.ask_question(question)["answer"]
    assert document["data"]
    assert [error.message for error in validators[schemas.name_document(question)].iter_errors(document)] == []


def test_a_document_without_a_field_or_with_another_type_does_not_fit(
    printed_documents: list[Any], validators: dict[str, Draft202012Validator]
) -> None:
    report = dict(printed_documents)[
        next(question for question, _ in printed_documents if question.startswith("report"))
    ]
    validator = validators["report"]
    less = {**report["data"]}
    del less["findings"]
    other = {**report["data"], "headline": 3}
    for data in (less, other):
        assert not validator.is_valid({**report, "data": data})
    assert not validator.is_valid({**report, "version": report["version"] + 1})
    assert validator.is_valid({**report, "data": {**report["data"], "more": 1}})
