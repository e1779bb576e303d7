"""Events with their own bytes beside them."""

import json

import pytest
from traces.material import LAYOUTS, make_op, write_trace

from tdbg.traces.analyze.summary_builder import summarize_trace
from tdbg.traces.parse.raw_events import RawEventTrace
from tdbg.traces.parse.trace_files import TraceFile
from tdbg.traces.render.slice_file import write_slice
from tdbg.traces.render.step_slice import StepSlice

EVENTS = [
    make_op("aten::mm", 1.25, 10, deep={"list": [1, {"x": None}], "text": 'a "quoted" \\ one'}),
    {"ph": "s", "id": {"local": "0x1"}, "pid": 1, "tid": 1, "ts": 3, "cat": "odd", "name": "odd"},
    {"ph": "f", "id": {"local": "0x1"}, "pid": 1, "tid": 1, "ts": 4, "cat": "odd", "name": "odd"},
    {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "ü\u2028}, {"}, " ": "taken"},
]


def load_texts(path, size=1 << 20):
    return [json.loads(bytes(event.text)) for batch in RawEventTrace(path, size) for event in batch]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_are_the_event(tmp_path, layout):
    assert load_texts(write_trace(tmp_path / "t.json", EVENTS * 50, layout), 1 << 10) == EVENTS * 50


def test_where_ijson_reads_they_are_written_anew(tmp_path):
    events = [make_op("x" * 5000, 1, 1), *EVENTS]
    assert load_texts(write_trace(tmp_path / "t.json", events), 1 << 10) == events


def test_a_mended_event_is_json_in_the_slice(tmp_path):
    path = write_trace(tmp_path / "t.json", EVENTS)
    path.write_text(path.read_text().replace('"ts": 1.25', '"z": NaN, "ts": 1.25').replace("aten::mm", "aten::\x01mm"))
    write_slice([(TraceFile(path, None), StepSlice(summarize_trace(path), ()))], tmp_path / "s.json")
    found = json.loads((tmp_path / "s.json").read_text())["traceEvents"]
    assert [event["name"] for event in found] == ["aten:: mm", "odd", "odd", "process_name"]
    assert found[0]["z"] is None and found[1:] == EVENTS[1:]
