"""Files side by side: the same bytes however they are read, and a clear word where they cannot be."""

import gzip
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from logs.test_filter import make_records

from tdbg.core.errors import TdbgError
from tdbg.logs import engine, parallel
from tdbg.logs.log_files import Source, find_sources
from tdbg.logs.query import Query, resolve_tag_family

HEADERS = (
    b"2026-11-21T03:06:40.000299 D r0003 s00000012 [DEBUG_LR] ",
    b"2026-11-21T03:06:40.000299 W r0003 s00000013 [DEBUG_FORWARD_X] ",
    b"2026-11-21 03:06:40,123 - root - ERROR - [DEBUG_LR_STEP] ",
    b"[rank3]: INFO:root:",
)
LINES = st.one_of(
    st.builds(lambda head, rest: head + rest.replace(b"\n", b" "), st.sampled_from(HEADERS), st.binary(max_size=40)),
    st.sampled_from([b"    [DEBUG_LR] indented", b"Traceback (most recent call last):", b"", b"\r", b"stray", b"\0\0"]),
)
LOGS = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(LINES, max_size=60), st.sampled_from([b"\n", b"", b"\r\n"])
)
QUERIES = st.sampled_from(
    [
        Query(),
        Query(families=(resolve_tag_family("LR"),)),
        Query(families=(resolve_tag_family("LR"), resolve_tag_family("FORWARD"))),
        Query(excluded=(resolve_tag_family("LR"),)),
        Query(level=30),
        Query(steps=((13, 20),)),
        Query(ranks=((3, 3),)),
        Query(prefixes=(b"[DEBUG_F",)),
        Query(pattern=re.compile(rb"[a-f]{2}")),
    ]
)


@pytest.fixture(autouse=True)
def restored_sizes() -> Iterator[None]:
    """Sizes that a test changes."""
    before = engine.BLOCK_BYTES, parallel.UNIT_BYTES, parallel.SMALL_BYTES
    yield
    engine.BLOCK_BYTES, parallel.UNIT_BYTES, parallel.SMALL_BYTES = before


def filter_sources(sources: list[Source], query: Query, jobs: int = 1) -> bytes:
    """What `run` writes."""
    with tempfile.TemporaryFile() as out:
        parallel.filter_files(sources, query, out.fileno(), jobs)
        out.seek(0)
        return out.read()


TWO_ALIKE = (b"2026-11-21T03:06:40.000299 D r0003 s00000012 [DEBUG_LR] \n" * 2).join(
    [
        b"    [DEBUG_LR] indented\n2026-11-21T03:06:40.000299 W r0003 s00000013 [DEBUG_FORWARD_X] \n",
        b"[rank3]: INFO:root:\n",
    ]
)


@settings(max_examples=60, deadline=None)
@example(TWO_ALIKE, Query(), 70, 40, 2)  # the end of a block cuts the first header of a unit
@example(TWO_ALIKE, Query(), 64, 50, 3)
@given(LOGS, QUERIES, st.integers(70, 900), st.integers(40, 3000), st.integers(2, 4))
def test_workers_blocks_units_and_packing_change_no_byte(
    data: bytes, query: Query, block: int, unit: int, jobs: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain, gz, zst = (Path(folder, f"x.log{end}") for end in ("", ".gz", ".zst"))
        plain.write_bytes(data)
        gz.write_bytes(gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]))
        zst.write_bytes(zstandard.compress(data[: len(data) // 2]) + zstandard.compress(data[len(data) // 2 :]))
        engine.BLOCK_BYTES, parallel.UNIT_BYTES, parallel.SMALL_BYTES = 1 << 20, 8 << 20, 64 << 20
        expected = filter_sources(find_sources([str(plain)]), query)
        rest = filter_sources(find_sources([str(plain)]), query._replace(invert=True))
        assert len(expected) + len(rest) == len(data)
        assert query != Query() or expected == data
        engine.BLOCK_BYTES, parallel.UNIT_BYTES, parallel.SMALL_BYTES = block, unit, 0
        for path in (plain, gz, zst):
            assert filter_sources(find_sources([str(path)]), query, jobs) == expected
        between = b"\n" if expected and not expected.endswith(b"\n") else b""  # a line of the next file is its own
        assert filter_sources(find_sources([str(gz), str(plain)]), query, jobs) == expected + between + expected
        assert filter_sources(find_sources([str(plain), str(gz)]), query, jobs) == expected + between + expected


@settings(max_examples=40, deadline=None)
@given(st.lists(LINES, max_size=40), QUERIES)
def test_a_query_and_its_opposite_share_the_records(lines: list[bytes], query: Query) -> None:
    marked = b"".join(b"%s #%d\n" % (line, number) for number, line in enumerate(lines))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.log")
        path.write_bytes(marked)
        both = [
            filter_sources(find_sources([str(path)]), asked).splitlines()
            for asked in (query, query._replace(invert=True))
        ]
    assert sorted(both[0] + both[1]) == sorted(marked.splitlines())
    for part in both:  # each in the order of the log
        numbers = [int(line.rpartition(b"#")[2]) for line in part if b"#" in line]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_line_ends_and_nul_bytes_stay(tmp_path: Path, end: bytes) -> None:
    lines = [record.rstrip(b"\n") + b"\0" for record in make_records(3)]
    data = (end or b"\n").join(lines) + end
    (tmp_path / "x.log").write_bytes(data)
    assert filter_sources(find_sources([str(tmp_path)]), Query()) == data
    assert filter_sources(find_sources([str(tmp_path)]), Query(steps=((2, 2),))) == lines[2] + end


@pytest.mark.parametrize("name", ["empty.log", "empty.log.gz", "empty.log.zst"])
def test_an_empty_file_holds_no_record(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert filter_sources(find_sources([str(tmp_path / name)]), Query()) == b""


def test_a_binary_file_passes_as_it_is(tmp_path: Path) -> None:
    data = Path(sys.executable).resolve().read_bytes()[:3_000_000]
    (tmp_path / "x.bin").write_bytes(data)
    assert filter_sources(find_sources([str(tmp_path / "x.bin")]), Query()) == data
    assert filter_sources(find_sources([str(tmp_path / "x.bin")]), Query(families=(resolve_tag_family("LR"),))) == b""


@pytest.mark.parametrize("packed", ["gz", "zst"])
def test_a_cut_archive_gives_what_it_holds_and_is_told_and_the_other_files_are_read(
    tmp_path: Path, packed: str
) -> None:
    data = b"".join(make_records(3000))
    whole = gzip.compress(data) if packed == "gz" else zstandard.compress(data)
    (tmp_path / f"rank0.log.{packed}").write_bytes(whole[: len(whole) * 4 // 5])
    (tmp_path / "rank1.log").write_bytes(data)
    with tempfile.TemporaryFile() as out:
        with pytest.raises(TdbgError, match=rf"rank0.log.{packed} is damaged: it is truncated"):
            parallel.filter_files(find_sources([str(tmp_path)]), Query(), out.fileno(), 1)
        out.seek(0)
        got = out.read()
    assert got.endswith(data) and len(got) > len(data) and data.startswith(got[: -len(data)].removesuffix(b"\n"))


@pytest.mark.parametrize("end", [b"", b"\0" * 512])
def test_padding_behind_gzip_members_is_no_damage(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(b"a\n") + gzip.compress(b"") + gzip.compress(b"b\n") + end)
    assert filter_sources(find_sources([str(tmp_path)]), Query()) == b"a\nb\n"


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_file_cut_short_while_read_is_told(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(make_records(400))
    path = tmp_path / "x.log"
    path.write_bytes(data)
    monkeypatch.setattr(parallel, "UNIT_BYTES", 3000)
    monkeypatch.setattr(parallel, "SMALL_BYTES", 0)
    sources = find_sources([str(path)])
    left = b"".join(make_records(400)[:100])
    os.truncate(path, len(left))
    with tempfile.TemporaryFile() as out:
        with pytest.raises(TdbgError, match="became shorter" if jobs == 1 else "not all logs could be read"):
            parallel.filter_files(sources, Query(), out.fileno(), jobs)
        out.seek(0)
        assert out.read() == left


def test_a_file_rotated_between_listing_and_reading_is_read_under_its_new_name(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"old\n")
    sources = find_sources([str(path)])
    path.rename(tmp_path / "x.log.1")
    path.write_bytes(b"new\n")
    assert filter_sources(sources, Query()) == b"old\n"
    (tmp_path / "x.log.1").unlink()
    with pytest.raises(TdbgError, match="it was replaced by another file"):
        filter_sources(sources, Query())
    path.unlink()
    with pytest.raises(TdbgError, match="No such file"):
        filter_sources(sources, Query())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"x\n")
    (tmp_path / "x.log").chmod(0)
    with pytest.raises(TdbgError, match="Permission denied"):
        filter_sources(find_sources([str(tmp_path)]), Query())


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here that opens and cannot be read")
def test_a_file_that_fails_while_it_is_read_is_told() -> None:
    with pytest.raises(TdbgError, match="/proc/self/mem cannot be read"):
        filter_sources([Source("/proc/self/mem")], Query())


SLOW = """
import os, signal, sys, time
from tdbg.logs import log_files, parallel
from tdbg.logs.query import Query
parallel.UNIT_BYTES, parallel.SMALL_BYTES = 3000, 0
def unit(*args, run=parallel.run_unit, **more):
    if os.getpid() != parent and b"rank1" in args[0].source.path.encode():
        os.kill(os.getpid(), signal.SIGKILL)
    return run(*args, **more)
parent, parallel.run_unit = os.getpid(), unit
parallel.filter_files(log_files.find_sources([sys.argv[1]]), Query(), 1, 2)
"""


def test_a_killed_worker_fails_the_whole(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.log").write_bytes(b"".join(make_records(100, rank)))
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(tmp_path)],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode != 0 and b"was killed by signal 9" in done.stderr
    assert b"".join(make_records(100, 0)).startswith(done.stdout)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_line_of_a_gigabyte_stays_within_memory(tmp_path: Path, jobs: str) -> None:
    path = tmp_path / "debug_log_rank0.txt"
    head, tail = make_records(1)[0].splitlines()[0], b"\n" + make_records(3)[2]
    with path.open("wb") as file:
        file.write(head)
        file.seek(1 << 30)
        file.write(tail)
    line = f"{sys.executable} -m tdbg filter-logs {path} --steps 0 --jobs {jobs} | wc -c"
    counted = subprocess.run(
        ["bash", "-c", f"ulimit -v 262144; {line}"],
        capture_output=True,
        timeout=120,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert (int(counted.stdout), counted.stderr) == ((1 << 30) + 1, b"")
    rest = subprocess.run(
        [sys.executable, "-m", "tdbg", "filter-logs", str(path), "--steps", "2"],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert rest.stdout == make_records(3)[2]


def test_a_closed_pipe_stops_the_workers_quietly(tmp_path: Path) -> None:
    data = b"".join(make_records(5000)) * 90
    for rank in (0, 1):
        (tmp_path / f"debug_log_rank{rank}.txt").write_bytes(data)
    assert 2 * len(data) > parallel.SMALL_BYTES
    line = f"{sys.executable} -m tdbg filter-logs {tmp_path} --jobs 2 | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).parents[2]
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_worker_that_is_killed_by_hand_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "debug_log_rank0.txt").write_bytes(b"".join(make_records(5000)) * 180)
    command = [sys.executable, "-m", "tdbg", "filter-logs", str(tmp_path), "--jobs", "2"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert child.stdout is not None and child.stderr is not None
    child.stdout.read(100)  # the first worker is writing, and waits for us
    workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    child.stdout.read()
    said = child.stderr.read()
    assert child.wait(60) == 2 and b"killed by signal 9" in said
    child.stdout.close()
    child.stderr.close()


@pytest.mark.parametrize("packed", ["gz", "zst"])
@pytest.mark.parametrize("isal", [True, False])
def test_flipped_bits_in_an_archive_are_told(
    tmp_path: Path, packed: str, isal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isal:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    data = b"".join(make_records(9000))
    whole = bytearray(
        gzip.compress(data) if packed == "gz" else zstandard.ZstdCompressor(write_checksum=True).compress(data)
    )
    path = tmp_path / f"rank0.log.{packed}"
    path.write_bytes(whole)
    assert filter_sources(find_sources([str(path)]), Query()) == data
    for at in range(len(whole) - 400, len(whole) - 300):
        whole[at] ^= 0xFF
    path.write_bytes(whole)
    with tempfile.TemporaryFile() as out:
        with pytest.raises(TdbgError, match="is damaged"):
            parallel.filter_files(find_sources([str(path)]), Query(), out.fileno(), 1)
        out.seek(0)
        assert data.startswith(out.read()[:100_000])


@pytest.mark.parametrize("isal", [True, False])
@pytest.mark.parametrize("data", [b"plain text\n" * 9, b"x", bytes(range(256)) * 20])
def test_not_an_archive_at_all_is_told(
    tmp_path: Path, data: bytes, isal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: one of a few bytes "ends in the middle", a longer one was "damaged: Error -4"."""
    if not isal:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    for packed, kind in (("gz", "gzip"), ("zst", "zstd")):
        (tmp_path / f"x.log.{packed}").write_bytes(data)
        with pytest.raises(TdbgError, match=rf"x\.log\.{packed} is not {kind} data"):
            filter_sources(find_sources([str(tmp_path / f"x.log.{packed}")]), Query())


def test_what_follows_an_archive_is_told_after_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(b"a\n") + b"text")
    with pytest.raises(TdbgError, match=r"x\.log\.gz is damaged: what follows is not gzip data"):
        filter_sources(find_sources([str(tmp_path / "x.log.gz")]), Query())


@pytest.mark.parametrize(("packed", "start"), [("gz", b"\x1f"), ("zst", b"\x28\xb5")])
def test_an_archive_of_few_bytes_ends_in_the_middle(tmp_path: Path, packed: str, start: bytes) -> None:
    (tmp_path / f"x.log.{packed}").write_bytes(start)
    with pytest.raises(TdbgError, match="is damaged: it is truncated"):
        filter_sources(find_sources([str(tmp_path / f"x.log.{packed}")]), Query())
