"""Events of a trace: in any layout, from any block size; torn and hostile files give what they hold."""

import json
import time
import tracemalloc

import pytest
from traces.material import (
    LAYOUTS,
    bare,
    dense,
    find_real_trace,
    kineto,
    load_trace,
    make_op,
    make_span,
    make_step,
    python,
    write_trace,
)

from tdbg.core.errors import TdbgError
from tdbg.traces.parse import event_stream
from tdbg.traces.parse.event_names import normalize_category
from tdbg.traces.parse.event_stream import Event, Trace

EVENTS = [
    make_step(3, 1000.125, 900.5),
    make_op("aten::mm", 1001, 10.25, **{"Input Dims": [[2, 3], [3, 4]], "External id": 5}),
    make_op('a "quoted" }, { name\n  },\n  {', 1020, 1),
    {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "python"}},
    {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 5.5, "s": "g"},
    make_span("nested", 1030, 2, deep={"a": [{"b": 1}, {"c": [{}, {}]}]}),
] * 40


def read_events(path, size=1 << 20):
    trace = Trace(path, size)
    return [event for batch in trace for event in batch], trace


def list_keys(events):
    """What an event is known by, of ours and of a plain one."""
    names = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
    if events and isinstance(events[0], Event):
        return [tuple(getattr(event, name) for name in names) for event in events]
    default = Event(ph="")
    return [tuple(event.get(name, getattr(default, name)) for name in names) for event in events]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("size", [1 << 10, 1 << 12, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_any_layout_from_any_block_size(tmp_path, layout, size, name):
    path = write_trace(
        tmp_path / name, EVENTS, layout, {"with_stack": 1}, {"traceName": "x", "more": [{"a": 1}, {"b": 2}]}
    )
    found, trace = read_events(path, size)
    assert list_keys(found) == list_keys(EVENTS)
    assert (trace.problems, trace.damaged, trace.events) == ([], 0, len(EVENTS))
    if layout.__name__ != "bare":
        assert trace.head["with_stack"] == 1
        assert trace.head["traceName"] == "x"


def test_args_are_those_that_somebody_asks_for(tmp_path):
    found, _ = read_events(write_trace(tmp_path / "t.json", EVENTS))
    assert json.loads(bytes(found[1].args.dims)) == [[2, 3], [3, 4]]
    assert bytes(found[0].args.dims) == b""
    assert (found[0].ts, found[0].dur) == (1000.125, 900.5)


@pytest.mark.parametrize("name", ["control.json.gz", "sampled_rank-0.json.gz"])
def test_a_real_trace_reads_as_json_does(name):
    path = find_real_trace(name)
    found, trace = read_events(path)
    plain = [{**event, "cat": normalize_category(event.get("cat", ""))} for event in load_trace(path)["traceEvents"]]
    differing = [pair for pair in zip(list_keys(found), list_keys(plain), strict=True) if pair[0] != pair[1]]
    assert not differing[:3]  # pytest takes minutes to explain two long lists
    assert trace.head == {key: value for key, value in load_trace(path).items() if key != "traceEvents"}
    assert not trace.problems


@pytest.mark.parametrize("size", [1 << 9, 1 << 20])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_file_cut_anywhere_gives_the_events_before_the_cut(tmp_path, layout, size):
    text = layout(EVENTS[:12]).encode()
    path = tmp_path / "t.json"
    begin = text.find(b"[") + (2 if layout is not bare else 400)  # a list without an event may be a list of anything
    for end in range(begin, len(text) - 8, 13):
        path.write_bytes(text[:end])
        found, trace = read_events(path, size)
        assert list_keys(found) == list_keys(EVENTS[: len(found)])
        ends = [text.find(json.dumps(one["name"]).encode()) for one in EVENTS[:6]]  # where each of the first begins
        assert len(found) >= sum(at < end for at in ends) - 1
        assert trace.problems == ["the file is truncated: the last events are missing"], end


def test_a_packed_file_cut_short_says_so(tmp_path):
    path = write_trace(tmp_path / "t.json.gz", [make_op(f"aten::{number}", number * 7, 5) for number in range(9000)])
    path.write_bytes(path.read_bytes()[:-9000])
    found, trace = read_events(path)
    assert 1000 < len(found) < 9000
    assert trace.problems == ["the compressed data is truncated: everything after that point is missing"]


def test_a_packed_name_of_other_data_is_told(tmp_path):
    (tmp_path / "t.json.gz").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(TdbgError, match=r"t\.json\.gz is not a trace: it is not gzip data"):
        read_events(tmp_path / "t.json.gz")


def test_no_separator_in_the_first_block_is_ijsons(tmp_path):
    events = [make_op("x" * 5000, 1, 1), *EVENTS]
    found, trace = read_events(write_trace(tmp_path / "t.json", events), 1 << 10)
    assert list_keys(found) == list_keys(events) and not trace.problems
    assert json.loads(bytes(found[2].args.dims)) == [[2, 3], [3, 4]]
    whole = kineto(events).encode()
    (tmp_path / "t.json").write_bytes(whole[: len(whole) // 2])
    found, trace = read_events(tmp_path / "t.json", 1 << 10)
    assert list_keys(found) == list_keys(events[: len(found)]) and len(found) > 50
    assert trace.problems == ["the file is truncated: the last events are missing"]


def test_one_event_that_is_endless_is_not_held_whatever_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(event_stream, "HELD", 1 << 20)
    endless = {**make_op("x", 1, 1), "args": {"list": [7] * 500_000}}
    for events, size in (
        ([*EVENTS, endless, make_op("y", 2, 1)], 1 << 16),
        ([make_op("x" * 5000, 1, 1), endless], 1 << 10),
    ):
        found, trace = read_events(write_trace(tmp_path / "t.json", events), size)  # the second is ijson's
        assert list_keys(found) == list_keys(events[: events.index(endless)])
        assert trace.problems == ["an event is larger than 1 MB: the rest was not read"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("good", [1, 50])
def test_what_is_no_event_costs_no_other(tmp_path, layout, good):
    events = [make_op(f"aten::{number}", number, 1) for number in range(good)]
    found, trace = read_events(
        write_trace(tmp_path / "t.json", [*events, 7, None, "s", [1], make_op("last", 99, 1)], layout)
    )
    assert list_keys(found) == list_keys([*events, make_op("last", 99, 1)])
    assert trace.problems == ["4 events are damaged and were left out"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("last", ['"\\ud800x"', '"a", "deep": ' + "[" * 3000 + "]" * 3000, '"a", "z": ]]'])
def test_a_last_event_that_is_damaged_is_not_the_end_of_a_torn_file(tmp_path, layout, last):
    path = write_trace(
        tmp_path / "t.json", [make_op("aten::mm", 1, 1), make_op("aten::add", 2, 1), make_op("LAST", 3, 1)], layout
    )
    text = path.read_text().replace('"LAST"', last)
    path.write_text(text)
    found, trace = read_events(path)
    assert list_keys(found) == list_keys([make_op("aten::mm", 1, 1), make_op("aten::add", 2, 1)])
    if "z" not in last:
        assert trace.problems == ["1 event is damaged and was left out"] and not trace.is_torn
    path.write_text(text[: text.rindex("}", 0, text.rindex("args"))] if layout is bare else text[: text.rindex("args")])
    found, trace = read_events(path)
    assert trace.problems[0] == "the file is truncated: the last events are missing" and trace.is_torn


DAMAGE = {
    "nan": ('"ts": 1', '"z": NaN, "y": -Infinity, "ts": 1', 0),
    "control": ('"name": "aten::mm"', '"name": "aten::m\x01m"', 0),
    "backslash": ('"name": "aten::mm"', '"name": "C:\\dir\\model"', 0),
    "number": ('"dur": 10.25', '"dur": 1e999', 40),
    "words": ('"dur": 10.25', '"dur": "long"', 40),
    "half": ('"dur": 10.25', '"dur": ', 40),
    "deep": ('"dur": 10.25', f'"dur": 10.25, "deep": {"[" * 3000}{"]" * 3000}', 40),
    "utf8": ('"name": "aten::mm"', '"name": "\udcff"', 40),
}


@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
@pytest.mark.parametrize("layout", [kineto, python, dense], ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_events_are_mended_or_left_out_and_counted(tmp_path, kind, layout, size):
    before, after, lost = DAMAGE[kind]
    if layout is dense:
        before, after = before.replace(": ", ":"), after.replace(": ", ":")
    events = [event for event in EVENTS if "}, {" not in event["name"] and event["name"] != "nested"]
    text = layout(events)
    assert before in text
    path = tmp_path / "t.json"
    path.write_bytes(text.replace(before, after).encode("utf-8", "surrogateescape"))
    found, trace = read_events(path, size)
    assert len(found) == len(events) - lost
    assert trace.damaged == lost
    assert trace.problems == ([f"{lost:,} events are damaged and were left out"] if lost else [])


def test_one_damaged_event_is_told_as_one(tmp_path):
    _, trace = read_events(
        write_trace(tmp_path / "t.json", [*EVENTS[:2], {**make_op("x", 1, 1), "dur": "long"}, *EVENTS[:2]])
    )
    assert trace.problems == ["1 event is damaged and was left out"]


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "{}", '{"traceEvents": 3}', "hello", '"traceEvents": [', "\x00\x01", '{"a": ' + "[" * 100_000, "7"],
)
def test_what_is_no_trace_is_told(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TdbgError, match=r"is empty|is not a trace"):
        read_events(path)


def test_a_trace_without_events(tmp_path):
    for layout in LAYOUTS:
        assert read_events(write_trace(tmp_path / "t.json", [], layout))[0] == []


def test_a_hostile_file_is_read_in_time(tmp_path):
    path = tmp_path / "t.json"
    for text in ("]" * 2_000_000, '{"a":"},{' * 200_000, "},{" * 500_000, "[" * 2_000_000):
        path.write_text('{"traceEvents":[' + text)
        begun = time.monotonic()
        read_events(path)
        assert time.monotonic() - begun < 20


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(count):
        path = write_trace(tmp_path / "t.json", EVENTS * count)
        tracemalloc.start()
        for _ in Trace(path, 1 << 16):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small = peak(5)
    assert peak(50) < 1.3 * small
