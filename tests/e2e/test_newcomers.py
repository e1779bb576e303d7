"""Mistakes of somebody's first training at the default level: the code, the step and the first line of the verdict."""

import json
import re
from typing import Any

import pytest

from tests.e2e.conftest import Result, Runner, assert_notes_alone, build_program_command

LOSS = ("--flag", "LOSS")
ZERO_RATE = r"group 1 of AdamW has had a learning rate of 0 since step 1: head\.weight, head\.bias"
# kind -> code, severity, the steps that it may be named for, what the first line says, options
NAMED: dict[str, tuple[str, str, range, str, tuple[str, ...]]] = {
    "zero-head": ("TD-S010", "warning", range(1, 2), ZERO_RATE, ()),
    "head-rate": ("TD-S010", "warning", range(1, 2), ZERO_RATE, ()),
    "slow-reader": ("TD-P002", "warning", range(1, 80), r"waiting for batches of Archive \(training\) takes \d+%", ()),
    "kept-losses": ("TD-M001", "warning", range(1, 200), r"host memory grew \d+ MB in", ()),
    "label-order": ("TD-K012", "info", range(0), r"val_acc stays between 0\.0\d+ and 0\.\d+ in 8 evaluations", ()),
    "unscaled-validation": ("TD-D010", "warning", range(41, 46), r"input 0 is scaled differently in evaluation", ()),
    "masked-batch": ("TD-L004", "error", range(31, 32), r"every target of the batch is ignored by cross_entropy", LOSS),
}


def read_findings(result: Result) -> list[dict[str, Any]]:
    """Those of the report, in which what the metrics say stands too."""
    found: list[dict[str, Any]] = json.loads((result.folder / "report.json").read_text(encoding="utf-8"))["findings"]
    return found


@pytest.mark.parametrize("kind", NAMED)
def test_the_first_line_names_the_mistake(watched_runner: Runner, kind: str) -> None:
    code, severity, steps, words, options = NAMED[kind]
    result = watched_runner(build_program_command("newcomers", kind, "fault"), options)
    assert result.code == 0, result.stderr
    first = next(line for line in result.tdbg_lines if line.startswith("tdbg:   TD-"))
    assert re.match(f"tdbg:   {code} {severity}: {words}", first), result.stderr
    (finding,) = [one for one in read_findings(result) if one["code"] == code]
    assert finding["first_step"] in steps if steps else finding["first_step"] is None, finding
    assert finding["grade"], "how sure it is"


@pytest.mark.parametrize("kind", NAMED)
def test_without_the_mistake_nothing_is_found(watched_runner: Runner, kind: str) -> None:
    result = watched_runner(build_program_command("newcomers", kind, "healthy"), NAMED[kind][4])
    assert_notes_alone(result)
    assert [one["code"] for one in read_findings(result) if one["severity"] != "info"] == []
    assert "TD-K012" not in [one["code"] for one in read_findings(result)]
