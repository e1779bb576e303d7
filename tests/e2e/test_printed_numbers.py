"""Results that a program tells as text: rows of its metrics, and a note where they do not fit its loss."""

import json

import pytest

from tests.e2e.conftest import Result, Runner, build_program_command

KEYS = {
    "print": ("val_acc", {"train_loss", "val_acc"}),
    "logging": ("val_acc", {"loss", "val_acc"}),
    "bar": ("val_accuracy", {"val_accuracy"}),
    "fraction": ("test/Accuracy", {"test/Average_loss", "test/Accuracy"}),
}


def list_text_rows(result: Result) -> list[dict[str, object]]:
    lines = (result.folder / "rank0000" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.get("source") == "text"]


def read_findings(result: Result) -> list[dict[str, str]]:
    findings: list[dict[str, str]] = json.loads((result.folder / "report.json").read_text())["findings"]
    return findings


@pytest.mark.parametrize("style", KEYS)
def test_printed_results_are_rows_of_the_run(watched_runner: Runner, style: str) -> None:
    result = watched_runner(build_program_command("prints", style))
    assert result.code == 0, result.stderr
    rows = list_text_rows(result)
    score, keys = KEYS[style]
    assert {key for row in rows for key in row["values"]} == keys  # type: ignore[attr-defined]
    values = {row["step"]: row["values"][score] for row in rows if score in row["values"]}  # type: ignore[index, operator]
    assert list(values) == [16, 32, 48, 64, 80, 96], "the step at which each was printed"
    assert read_findings(result) == [], result.stderr


@pytest.mark.parametrize("style", KEYS)
def test_accuracy_that_does_not_follow_the_loss_is_a_note(watched_runner: Runner, style: str) -> None:
    result = watched_runner(build_program_command("prints", style, "--mislabelled"))
    assert result.code == 0, result.stderr
    (finding,) = read_findings(result)
    assert (finding["code"], finding["severity"]) == ("TD-K012", "info")
    assert finding["title"].startswith(KEYS[style][0]), finding


def test_hostile_text_reaches_the_terminal_unchanged_and_costs_nothing_else(
    watched_runner: Runner, bare_runner: Runner
) -> None:
    command = build_program_command("prints_odd")
    result, bare = watched_runner(command), bare_runner(command)
    assert (result.code, result.stdout) == (bare.code, bare.stdout) == (0, bare.stdout), result.stderr
    assert result.verdict["trouble"] == [] and result.verdict["cost"].get("errors", 0) == 0, result.stderr
    assert result.codes == [], "rules on such numbers never go above a note, and these are none"
    rows = list_text_rows(result)
    names = {name for row in rows for name in row["values"]}  # type: ignore[attr-defined]
    assert rows and all(name.isprintable() and len(name) < 200 for name in names), names


def test_without_records_nothing_is_read(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("prints", "print"), env={"TDBG_RECORDS": "false"})
    assert result.code == 0 and list_text_rows(result) == []
