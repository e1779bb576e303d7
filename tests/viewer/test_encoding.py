"""Answers that hold what no JSON encoder takes as it is: halves of surrogate pairs, huge integers, numbers that are not finite."""

import json
import math
from pathlib import Path

import pytest

from tdbg.viewer.encoding import encode_json

from .conftest import Client, unpack_recording

LINE = {
    "t": "2026-11-20T03:06:40.000299",
    "level": "INFO",
    "logger": "train",
    "text": "cut \ud83d here",
    "size": 10**30,
}


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"a": [1, "x"], "b": None}, {"a": [1, "x"], "b": None}),
        ({"a\ud800": "x\udfff", "b": math.inf}, {"a\ufffd": "x\ufffd", "b": None}),
        ([10**30, math.nan, "\U0001f600"], [10**30, None, "\U0001f600"]),
        (math.nan, None),
    ],
    ids=["plain", "halves", "huge", "not finite"],
)
def test_what_is_encoded_can_be_read(value: object, read: object) -> None:
    assert json.loads(encode_json(value)) == read


@pytest.mark.parametrize("text", ["", "cut", "(cut|never)+ "], ids=["all", "plain", "in a process of its own"])
def test_a_record_that_utf8_cannot_hold_is_found(tmp_path: Path, text: str) -> None:
    run = unpack_recording("single", tmp_path)
    with open(run / "rank0000" / "records.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(LINE) + "\n")
    found = Client(tmp_path).ask("/runs/single/logs", kind="both", text=text, limit=1000)["records"]
    texts = [record.get("text", "") for record in found]
    assert [text for text in texts if text.startswith("cut ")] == ["cut \ufffd here"]
