"""Diagnostics of losses in a real program of two ranks: whole records under their tags, findings with step and rank."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdbg.core.events import Injection, Observation
from tests.e2e.conftest import (
    Result,
    Runner,
    assert_no_finding,
    assert_same_output,
    build_program_command,
    build_torchrun_command,
)
from tests.e2e.levels import OF_LOSSES

FLAG = ("--flag", "LOSS.NULL_MASKING")
TAGS = [f"[DEBUG_NULL_MASKING_{part}]" for part in ("INPUT", "INTERNAL", "SUMMARY")]
STEPS = 24


def filter_records(folder: Path, *more: str) -> list[dict[str, object]]:
    """What `tdbg filter-logs` finds of the flag."""
    command = [sys.executable, "-m", "tdbg", "filter-logs", str(folder), *FLAG, "--format", "jsonl", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_three_whole_records_a_step_and_rank(watched_runner: Runner, bare_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("losses"), FLAG)
    assert_same_output(result, bare_runner(build_torchrun_command("losses")))
    assert_no_finding(result)
    for rank in (0, 1):
        lines = filter_records(result.folder, "--ranks", str(rank))
        assert [line["tag"] for line in lines] == TAGS * STEPS and {line["rank"] for line in lines} == {rank}
        for printed in result.list_printed("step", rank):
            records = lines[3 * (printed["step"] - 1) :][:3]
            assert {line["step"] for line in records} == {printed["step"]}, "also between the steps that are looked at"
            _compare_counts([str(line["text"]) for line in records], printed)
    taken = [event for event in result.list_events(Injection) if event.flag == FLAG[1]]
    assert not taken or taken[0].where == "tdbg.probes.loss"


def _compare_counts(records: list[str], printed: dict[str, dict[str, int]]) -> None:
    """The counts are those that the program itself printed, and no line of a record is lost."""
    given, inside, summary = records
    assert given.count("\n") == inside.count("\n") == 2
    for task in ("family", "species"):
        assert f"{task}: {printed['nulls'][task]} of 32 null (class == 0)" in inside
        assert f"masked {printed['masked'][task]}, of the nulls {printed['masked'][task]}" in inside
        assert f"{task}: indices 32 int64 on cpu" in given
    total = sum(printed["masked"].values())
    assert f"64 targets in 2 tasks, {sum(printed['nulls'].values())} null, {total} masked" in summary


def test_a_fault_of_one_rank_is_found_there(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("losses", "--fault", "one-hot"), FLAG)
    found = result.find_finding("TD-L003")
    assert result.code == 0 and result.codes == ["TD-L003"]
    assert (found["rank"], found["first_step"]) == (1, 1) and "in task species" in found["title"]
    assert "TD-L003" in "\n".join(str(line["text"]) for line in filter_records(result.folder, "--ranks", "1"))
    assert "TD-L003" not in "\n".join(str(line["text"]) for line in filter_records(result.folder, "--ranks", "0"))


def test_without_the_flag_nothing_is_written(watched_runner: Runner) -> None:
    result = watched_runner(build_torchrun_command("losses", "--fault", "one-hot"))
    assert_no_finding(result)
    assert not [event for event in result.list_events(Observation) if event.probe == "loss"]
    assert "NULL_MASKING" not in "".join(path.read_text() for path in result.folder.rglob("debug_log_rank*.txt"))


@pytest.mark.parametrize("level", ["off", "advanced"])
def test_at_other_levels(watched_runner: Runner, level: str) -> None:
    """At level off there is no watch: the records are the program's own, of the logger tdbg."""
    result = watched_runner(build_torchrun_command("losses"), (*FLAG, "--level", level))
    assert result.code == 0, result.stderr
    said = "".join(path.read_text() for path in result.folder.rglob("debug_log_rank0.txt"))
    assert said.count(TAGS[2]) == (STEPS if level == "advanced" else 0)


def test_calls_outside_of_training_are_kept(watched_runner: Runner) -> None:
    """A program that makes no step: its records are there, and a call that failed is told in the verdict."""
    result = watched_runner(build_program_command("loss_calls"), FLAG)
    on = "True\nFalse\n"
    assert (result.code, result.stdout, result.codes) == (0, on, []), result.stderr
    lines = filter_records(result.folder)
    assert [line["tag"] for line in lines] == [*TAGS, "[DEBUG_NULL_MASKING]"]
    said = "masked has no task 'genus'; it has family"
    assert said in str(lines[-1]["text"])
    assert result.verdict["notes"] == [f"a call of LOSS.NULL_MASKING gave no report: {said} (rank 0)"]


def test_a_program_that_never_calls_them_is_told_so(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("losses_of_torch", "--fault", "compiled"), FLAG)
    found = result.find_finding("TD-C002")
    assert result.codes == ["TD-C002"] and "tdbg.probes.loss" in found["try_next"]
    assert "torch.compile" in found["cause"]


# programs without a line of tdbg


BAD_STEP = 23
NULLS = ("--threshold", "LOSS.NULL_MASKING.null_index=0")


def find_first_named(result: Result) -> dict[str, Any]:
    """The finding that the verdict prints first, the cause of those that follow from it."""
    line = next(line for line in result.tdbg_lines if line.startswith("tdbg:   TD-"))
    return result.find_finding(line.split()[1])


@pytest.mark.parametrize(
    ("fault", "more", "code", "step", "words"),
    [
        ("ignored", (), "TD-L004", BAD_STEP, "every target of the batch is ignored by cross_entropy"),
        ("weights", (), "TD-L020", BAD_STEP, "the class weights of the batch sum to 0 in cross_entropy"),
        ("empty", (), "TD-L004", BAD_STEP, "cross_entropy was given a batch without a target"),
        ("inverted", (), "TD-L012", None, "rare classes weigh least (weight of cross_entropy)"),
        ("rows", (), "TD-L007", 1, "64 of 64 rows of the targets of cross_entropy do not sum to 1"),
        ("null", NULLS, "TD-L021", 1, "targets of the null class 0 count in cross_entropy"),
    ],
)
def test_a_mistake_in_a_plain_program_is_named_first(
    watched_runner: Runner, fault: str, more: tuple[str, ...], code: str, step: int | None, words: str
) -> None:
    result = watched_runner(build_program_command("losses_of_torch", "--fault", fault), ("--flag", "LOSS", *more))
    finding = find_first_named(result)
    assert result.code == 0 and finding["code"] == code, result.stderr
    assert words in finding["title"] and finding["first_step"] == (step or finding["first_step"])
    others = {"TD-N001", "TD-N002"} if step == BAD_STEP else set()
    assert set(result.codes) - {code} <= others


@pytest.mark.parametrize("level", ["basic", "advanced"])
def test_a_plain_program_without_a_mistake(watched_runner: Runner, bare_runner: Runner, level: str) -> None:
    command = build_program_command("losses_of_torch")
    result = watched_runner(command, ("--flag", "LOSS", "--level", level))
    assert_same_output(result, bare_runner(command))
    assert_no_finding(result)
    lines = filter_records(result.folder)
    assert {line["tag"] for line in lines} == {"[DEBUG_NULL_MASKING_TARGETS]"} and len(lines) >= 8
    ignored = {printed["step"]: printed["ignored"] for printed in result.list_printed("step")}
    for line in lines:
        assert f"64 targets, {ignored[line['step']]} ignored (ignore_index -100" in str(line["text"])


def test_without_a_flag_plain_losses_are_left_alone(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("losses_of_torch", "--fault", "inverted"))
    assert_no_finding(result)
    assert not [event for event in result.list_events(Observation) if event.probe == "loss-calls"]


def test_each_rank_counts_its_own_targets(watched_runner: Runner) -> None:
    result = watched_runner(
        build_torchrun_command("losses_of_torch", "--fault", "ignored"), ("--flag", "LOSS.NULL_MASKING")
    )
    first = find_first_named(result)
    assert (first["code"], first["rank"], first["first_step"]) == ("TD-L004", 1, BAD_STEP), result.stderr
    assert {finding["rank"] for finding in result.verdict["findings"]} == {1}
    for rank in (0, 1):
        ignored = {printed["step"]: printed["ignored"] for printed in result.list_printed("step", rank)}
        lines = filter_records(result.folder, "--ranks", str(rank))
        assert len(lines) >= 8
        for line in lines:
            assert f"64 targets, {ignored[line['step']]} ignored" in str(line["text"])


def test_a_flag_that_torch_does_not_serve_is_still_told(watched_runner: Runner) -> None:
    result = watched_runner(build_program_command("losses_of_torch"), (*FLAG, "--flag", "LOSS.GRADNORM_METRICS"))
    title = result.find_finding("TD-C002")["title"]
    assert result.codes == ["TD-C002"] and "LOSS.GRADNORM_METRICS" in title and "NULL_MASKING" not in title


# programs that tell tdbg of their losses, with one mistake in what they tell


@pytest.mark.parametrize("kind", OF_LOSSES)
def test_a_mistake_in_what_is_told_is_named_at_the_default_level(watched_runner: Runner, kind: str) -> None:
    code, flag = OF_LOSSES[kind]
    result = watched_runner(build_program_command("planted_losses", kind, "fault"), ("--flag", f"LOSS.{flag}"))
    found = result.find_finding(code)
    assert (result.code, result.codes, found["first_step"], found["grade"]) == (0, [code], 1, "local"), result.stderr


@pytest.mark.parametrize("kind", OF_LOSSES)
def test_without_the_mistake_nothing_is_said_of_what_is_told(watched_runner: Runner, kind: str) -> None:
    options = ("--flag", f"LOSS.{OF_LOSSES[kind][1]}")
    assert_no_finding(watched_runner(build_program_command("planted_losses", kind, "healthy"), options))
