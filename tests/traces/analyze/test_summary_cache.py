"""The summary kept beside a trace."""

import os

import pytest
from traces.material import gpu, launch, memory, op, step, write

from tdbg.core.errors import TdbgError
from tdbg.traces.analyze import summary_cache
from tdbg.traces.analyze.summary_builder import summarize


def events(count=8000):
    found = [step(1, 0, 1e6), memory(5, 10, 10), launch(1, 1, 1), gpu("k", 4, 9, 1)]
    return [*found, *(op(f"aten::{number % 7}", number * 10, 5, filler="x" * 40) for number in range(count))]


@pytest.fixture
def trace(tmp_path):
    path = write(tmp_path / "a.json", events())
    assert path.stat().st_size > summary_cache.SMALL
    return path


def never(path, trees):
    raise AssertionError("the trace was read again")


def test_the_second_look_reads_the_index_alone(trace):
    first = summary_cache.summary(trace)
    assert first == summarize(trace, trees=False)
    assert summary_cache.summary(trace, build=never) == first


def test_a_tree_of_calls_is_made_where_it_is_asked_for_and_then_kept(trace):
    assert not summary_cache.summary(trace).nested
    first = summary_cache.summary(trace, trees=True)
    assert first.nested and first == summarize(trace)
    assert summary_cache.summary(trace, trees=True, build=never) == summary_cache.summary(trace, build=never) == first


def test_another_file_of_the_name_is_read_anew(trace):
    summary_cache.summary(trace)
    write(trace, events(9000))
    assert summary_cache.summary(trace).events == 9004
    os.utime(trace, ns=(1, 1))
    with pytest.raises(AssertionError):
        summary_cache.summary(trace, build=never)


@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", b"\xff" * 99, b"{}", b"\x91" * 100_000])
def test_an_index_that_is_none_is_made_anew(trace, data):
    summary_cache.summary(trace)
    summary_cache.beside(trace).write_bytes(data)
    assert summary_cache.summary(trace) == summarize(trace, trees=False)
    assert summary_cache.summary(trace, build=never).events == 8004


def test_an_index_of_another_version_is_made_anew(trace, monkeypatch):
    summary_cache.summary(trace)
    monkeypatch.setattr(summary_cache, "VERSION", summary_cache.VERSION + 1)
    with pytest.raises(AssertionError):
        summary_cache.summary(trace, build=never)


def test_a_small_trace_leaves_no_file(tmp_path):
    path = write(tmp_path / "a.json", events(10))
    summary_cache.summary(path)
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_cannot_be_written_is_no_error(trace, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(summary_cache.run_files, "write_whole", refuse)
    assert summary_cache.summary(trace).events == 8004
    assert os.listdir(trace.parent) == ["a.json"]


def test_what_no_index_can_hold_is_no_error(tmp_path):
    path = write(tmp_path / os.fsdecode(b"name in no encoding \xff.json"), events())
    assert summary_cache.summary(path).events == 8004
    copies = [gpu("Memcpy HtoD", at, 1, cat="gpu_memcpy", bytes=1 << 61) for at in range(9)]
    assert summary_cache.summary(write(tmp_path / "a.json", [*events(), *copies])).copies[0].nbytes == 9 << 61


def test_no_file_is_told(tmp_path):
    with pytest.raises(TdbgError, match="No such file"):
        summary_cache.summary(tmp_path / "none.json")
