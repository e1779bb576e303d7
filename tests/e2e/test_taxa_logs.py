"""What `tdbg filter-logs` shows of LOSS.NULL_MASKING in a real run of examples/taxa on two ranks."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Result, run_command
from tests.e2e.test_taxa import build_train_command, judge_result, run_watched

FLAG = "LOSS.NULL_MASKING"
TAGS = [f"[DEBUG_NULL_MASKING_{part}]" for part in ("INPUT", "INTERNAL", "SUMMARY")]
RANKS = ("language", "branch", "family")
STEPS = 20  # two epochs of 640 words, in batches of 32 on each of two ranks
HEADER = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+ [DSIWEC] r\d{4} s\d{8} ")


@pytest.fixture(scope="module")
def masked_run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run: `tdbg run --flag LOSS.NULL_MASKING -- torchrun --nproc-per-node=2 examples/taxa/train.py ...`."""
    place = tmp_path_factory.mktemp("logs")
    found = run_watched(place, [FLAG], (), build_train_command("LOSS.NULL_MASKING.ENABLED", True, ranks=2))
    codes, _ = judge_result(found)
    assert found.code == 0 and codes == [], found.stderr
    return found


def filter_logs(result: Result, *more: str) -> str:
    """What `tdbg filter-logs` prints of the flag."""
    command = [sys.executable, "-m", "tdbg", "filter-logs", str(result.folder), "--flag", FLAG, *more]
    done = run_command(command, result.folder.parent)
    assert done.code == 0, done.stderr
    return done.stdout


def read_records(result: Result, rank: int) -> list[str]:
    """The records of the flag in the log of a rank, as they stand there, read without tdbg."""
    records: list[str] = []
    for log in result.folder.glob(f"rank{rank:04d}/debug_log_rank{rank}.txt"):
        for line in log.read_text(encoding="utf-8").splitlines():
            if HEADER.match(line):
                records.append(line)
            else:
                records[-1] += f"\n{line}"
    return [record for record in records if "[DEBUG_NULL_MASKING" in record]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_three_tags_of_each_step_whole(masked_run: Result, rank: int) -> None:
    lines = [
        json.loads(line) for line in filter_logs(masked_run, "--ranks", str(rank), "--format", "jsonl").splitlines()
    ]
    assert [line["tag"] for line in lines] == TAGS * STEPS and {line["rank"] for line in lines} == {rank}
    assert [line["step"] for line in lines] == [step for step in range(1, STEPS + 1) for _ in TAGS]
    for given, inside, summary in zip(*(iter(str(line["text"]) for line in lines),) * 3, strict=True):
        for task, line in zip(RANKS, given.splitlines()[1:], strict=True):
            assert f"{task}: indices 32 int64 on cpu; " in line
        counts = [re.findall(r"(\w+): (\d+) of 32 null \(class == 0\), the program found (\d+); masked (\d+)", line)
                  for line in inside.splitlines()[1:]]  # fmt: skip
        assert [found[0][0] for found in counts] == list(RANKS), inside
        nulls, own, masked = (sum(int(found[0][at]) for found in counts) for at in (1, 2, 3))
        assert nulls == own >= masked
        assert f"96 targets in 3 tasks, {nulls} null, {masked} masked, schedule at " in summary


@pytest.mark.parametrize("rank", [0, 1])
def test_a_record_of_several_lines_is_printed_as_it_was_written(masked_run: Result, rank: int) -> None:
    records = read_records(masked_run, rank)
    assert len(records) == 3 * STEPS and sum(record.count("\n") for record in records) == 2 * len(RANKS) * STEPS
    assert filter_logs(masked_run, "--ranks", str(rank)) == "".join(f"{record}\n" for record in records)


def test_rank_by_rank(masked_run: Result) -> None:
    """All ranks are those of both, one after the other; they saw different words."""
    one, two = (filter_logs(masked_run, "--ranks", str(rank)) for rank in (0, 1))
    both = filter_logs(masked_run)
    assert sorted(both.splitlines()) == sorted((one + two).splitlines())
    assert re.sub(r"(?m)^\S+ . r\d+ ", "", one) != re.sub(r"(?m)^\S+ . r\d+ ", "", two)


def test_a_tag_and_a_step_alone(masked_run: Result) -> None:
    words = ["--prefix", TAGS[1], "--steps", "3", "--ranks", "1"]
    text = run_command(
        [sys.executable, "-m", "tdbg", "filter-logs", str(masked_run.folder), *words], masked_run.folder
    ).stdout
    assert len(text.splitlines()) == 1 + len(RANKS) and " r0001 s00000003 [DEBUG_NULL_MASKING_INTERNAL]" in text
    assert all(re.search(rf"^ +{task}: \d+ of 32 null", text, re.M) for task in RANKS)


def test_another_flag_has_no_record(masked_run: Result) -> None:
    command = [sys.executable, "-m", "tdbg", "filter-logs", str(masked_run.folder), "--flag", "LOSS.CLASS_WEIGHTING"]
    assert run_command(command, Path(masked_run.folder).parent).code == 1
