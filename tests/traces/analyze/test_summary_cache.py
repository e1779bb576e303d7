"""The summary kept beside a trace."""

import os

import pytest
from traces.material import make_gpu_span, make_launch, make_memory_event, make_op, make_step, write_trace

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze import summary_cache
from tdbg.traces.analyze.summary_builder import summarize_trace


def make_events(count=8000):
    found = [make_step(1, 0, 1e6), make_memory_event(5, 10, 10), make_launch(1, 1, 1), make_gpu_span("k", 4, 9, 1)]
    return [*found, *(make_op(f"aten::{number % 7}", number * 10, 5, filler="x" * 40) for number in range(count))]


@pytest.fixture
def large_trace(tmp_path):
    path = write_trace(tmp_path / "a.json", make_events())
    assert path.stat().st_size > summary_cache.SMALL
    return path


def fail_if_read(path, trees):
    raise AssertionError("the trace was read again")


def test_the_second_look_reads_the_index_alone(large_trace):
    first = summary_cache.load_summary(large_trace)
    assert first == summarize_trace(large_trace, trees=False)
    assert summary_cache.load_summary(large_trace, build=fail_if_read) == first


def test_a_tree_of_calls_is_made_where_it_is_asked_for_and_then_kept(large_trace):
    assert not summary_cache.load_summary(large_trace).nested
    first = summary_cache.load_summary(large_trace, trees=True)
    assert first.nested and first == summarize_trace(large_trace)
    assert (
        summary_cache.load_summary(large_trace, trees=True, build=fail_if_read)
        == summary_cache.load_summary(large_trace, build=fail_if_read)
        == first
    )


def test_another_file_of_the_name_is_read_anew(large_trace):
    summary_cache.load_summary(large_trace)
    write_trace(large_trace, make_events(9000))
    assert summary_cache.load_summary(large_trace).events == 9004
    os.utime(large_trace, ns=(1, 1))
    with pytest.raises(AssertionError):
        summary_cache.load_summary(large_trace, build=fail_if_read)


@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", b"\xff" * 99, b"{}", b"\x91" * 100_000])
def test_an_index_that_is_none_is_made_anew(large_trace, data):
    summary_cache.load_summary(large_trace)
    summary_cache.get_index_path(large_trace).write_bytes(data)
    assert summary_cache.load_summary(large_trace) == summarize_trace(large_trace, trees=False)
    assert summary_cache.load_summary(large_trace, build=fail_if_read).events == 8004


def test_an_index_of_another_version_is_made_anew(large_trace, monkeypatch):
    summary_cache.load_summary(large_trace)
    monkeypatch.setattr(summary_cache, "VERSION", summary_cache.VERSION + 1)
    with pytest.raises(AssertionError):
        summary_cache.load_summary(large_trace, build=fail_if_read)


def test_a_small_trace_leaves_no_file(tmp_path):
    path = write_trace(tmp_path / "a.json", make_events(10))
    summary_cache.load_summary(path)
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_cannot_be_written_is_no_error(large_trace, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(summary_cache.run_files, "write_atomically", refuse)
    assert summary_cache.load_summary(large_trace).events == 8004
    assert os.listdir(large_trace.parent) == ["a.json"]


def test_what_no_index_can_hold_is_no_error(tmp_path):
    path = write_trace(tmp_path / os.fsdecode(b"name in no encoding \xff.json"), make_events())
    assert summary_cache.load_summary(path).events == 8004
    copies = [make_gpu_span("Memcpy HtoD", at, 1, cat="gpu_memcpy", bytes=1 << 61) for at in range(9)]
    assert (
        summary_cache.load_summary(write_trace(tmp_path / "a.json", [*make_events(), *copies])).copies[0].nbytes
        == 9 << 61
    )


def test_no_file_is_told(tmp_path):
    with pytest.raises(TdbgError, match="No such file"):
        summary_cache.load_summary(tmp_path / "none.json")
